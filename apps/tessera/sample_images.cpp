#include "sample_images.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/data/label_image.h"
#include "tessera/data/vips_images.h"
#include "tessera/io/file.h"
#include "tessera/io/json_file.h"

namespace tessera {
namespace {

constexpr std::int64_t most_samples = 18, most_side = 144;

ImageSize size_of(const ImageSource& images) {
  const auto [channels, height, width] = images.image_shape();
  const double shrink = std::max(1.0, static_cast<double>(std::max(height, width)) / most_side);
  const auto side = [&](std::int64_t pixels) {
    return std::max<std::int64_t>(1, std::lround(static_cast<double>(pixels) / shrink));
  };
  return {side(height), side(width)};
}

std::string picture_of(std::int64_t image) { return fmt::format("samples/{}.jpg", image); }

}  // namespace

SampleImages::SampleImages(std::shared_ptr<const ImageSource> images, std::vector<std::string> class_names)
    : images_(std::move(images)), class_names_(std::move(class_names)) {
  const std::int64_t all = images_->size(), count = std::min(most_samples, all);
  for (std::int64_t i = 0; i < count; ++i) samples_[i * all / count] = {};
}

void SampleImages::take(const Predictions& p) {
  const std::int64_t classes = p.logits.size(1), last = p.first + p.labels.size(0);
  for (auto found = samples_.lower_bound(p.first); found != samples_.end() && found->first < last; ++found) {
    const std::int64_t row = found->first - p.first;
    const double* logits = p.logits.data_ptr<double>() + row * classes;
    const double* largest = std::max_element(logits, logits + classes);
    double sum = 0;
    for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(logits[k] - *largest);
    found->second = {p.labels.data_ptr<std::int64_t>()[row], largest - logits, 1 / sum};
  }
}

void SampleImages::write(const std::string& folder) {
  if (!has_vips()) return;  // nothing to write pictures with
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  make_folders(join_path(folder, "samples"));
  for (const auto& [image, sample] : samples_) {
    if (!pictures_written_)
      write_picture(join_path(folder, picture_of(image)), images_->thumbnail(image, size_of(*images_)));
    list.push_back({{"name", images_->name(image)},
                    {"picture", picture_of(image)},
                    {"label", name_of(sample.label)},
                    {"predicted", name_of(sample.predicted)}});
    if (sample.predicted >= 0) list.back()["probability"] = sample.probability;
  }
  pictures_written_ = true;
  write_json(join_path(folder, "samples.json"), {{"samples", list}});
}

std::string SampleImages::name_of(std::int64_t label) const {
  if (label < 0) return "";
  return static_cast<std::size_t>(label) < class_names_.size() ? class_names_[static_cast<std::size_t>(label)]
                                                               : std::to_string(label);
}

}  // namespace tessera
