#include "sample_images.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
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
  return shrunk_to({height, width}, most_side);
}

std::string picture_of(std::int64_t image) { return fmt::format("samples/{}.jpg", image); }
std::string mask_of(std::int64_t image) { return fmt::format("samples/{}_predicted.png", image); }
std::string truth_of(std::int64_t image) { return fmt::format("samples/{}_truth.png", image); }

// As many rows and columns of it, evenly.
at::Tensor sampled(const at::Tensor& mask, ImageSize size) {
  const auto picks = [](std::int64_t of, std::int64_t count) {
    at::Tensor out = at::empty({count}, at::kLong);
    for (std::int64_t i = 0; i < count; ++i) out.data_ptr<std::int64_t>()[i] = (2 * i + 1) * of / (2 * count);
    return out;
  };
  return mask.index_select(0, picks(mask.size(0), size.height)).index_select(1, picks(mask.size(1), size.width));
}

// Each class in a colour of its own, as far as there are such; what has no label, or is of class 0, in black.
at::Tensor in_colours(const at::Tensor& mask) {
  constexpr std::array<std::array<std::uint8_t, 3>, 8> colours{{{230, 159, 0},
                                                                {86, 180, 233},
                                                                {0, 158, 115},
                                                                {240, 228, 66},
                                                                {0, 114, 178},
                                                                {213, 94, 0},
                                                                {204, 121, 167},
                                                                {255, 255, 255}}};
  const at::Tensor classes = mask.contiguous();
  at::Tensor out = at::zeros({classes.size(0), classes.size(1), 3}, at::kByte);
  std::uint8_t* pixel = out.data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < classes.numel(); ++i, pixel += 3) {
    const std::uint8_t k = classes.data_ptr<std::uint8_t>()[i];
    if (k != 0 && k != ignored_label) std::ranges::copy(colours[(k - 1U) % colours.size()], pixel);
  }
  return out;
}

}  // namespace

bool SampleImages::can_show(const Graph& graph) {
  constexpr std::int64_t most_pixels = std::int64_t{1} << 26;
  return has_vips() &&
         (graph.label_kind() != LabelKind::pixel || graph.nodes().front().shape.positions() <= most_pixels);
}

SampleImages::SampleImages(std::shared_ptr<const ImageSource> images, std::vector<std::string> class_names)
    : images_(std::move(images)), class_names_(std::move(class_names)) {
  const std::int64_t all = images_->size(), count = std::min(most_samples, all);
  for (std::int64_t i = 0; i < count; ++i) samples_[i * all / count] = {};
}

template <class Holds>
std::string SampleImages::names_of(std::int64_t classes, const Holds& holds) const {
  std::string names;
  for (std::int64_t k = 0; k < classes; ++k)
    if (holds(k)) names += (names.empty() ? "" : ", ") + name_of(k);
  return names.empty() ? "none" : names;
}

void SampleImages::take(const Predictions& p) {
  const std::int64_t classes = p.logits.size(1), last = p.first + p.labels.size(0);
  for (auto found = samples_.lower_bound(p.first); found != samples_.end() && found->first < last; ++found) {
    const std::int64_t row = found->first - p.first;
    const double* logits = p.logits.data_ptr<double>() + row * classes;
    if (p.several()) {
      const std::int64_t* labels = p.labels.data_ptr<std::int64_t>() + row * classes;
      found->second = {p.known(row) ? names_of(classes, [&](std::int64_t k) { return labels[k] == 1; }) : "",
                       names_of(classes, [&](std::int64_t k) { return logits[k] > 0; }), std::nullopt};
      continue;
    }
    const double* largest = std::max_element(logits, logits + classes);
    double sum = 0;
    for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(logits[k] - *largest);
    found->second = {name_of(p.labels.data_ptr<std::int64_t>()[row]), name_of(largest - logits), 1 / sum};
  }
}

void SampleImages::take(const PredictedMask& mask) {
  samples_.at(mask.image).mask = sampled(mask.classes, size_of(*images_));
}

void SampleImages::write_masks(const std::string& folder, std::int64_t image, const Sample& sample) const {
  write_picture(join_path(folder, mask_of(image)), in_colours(sample.mask));
  if (pictures_written_ || images_->mask_classes() == 0) return;
  const auto [channels, height, width] = images_->image_shape();
  const at::Tensor truth = at::empty({height, width}, at::kByte);
  images_->read_mask(image, {0, height}, {0, width}, truth);
  write_picture(join_path(folder, truth_of(image)), in_colours(sampled(truth, size_of(*images_))));
}

void SampleImages::write(const std::string& folder) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  make_folders(join_path(folder, "samples"));
  for (const auto& [image, sample] : samples_) {
    if (!pictures_written_)
      write_picture(join_path(folder, picture_of(image)), images_->thumbnail(image, size_of(*images_)));
    list.push_back({{"name", images_->name(image)},
                    {"picture", picture_of(image)},
                    {"label", sample.label},
                    {"predicted", sample.predicted}});
    if (sample.mask.defined()) {
      write_masks(folder, image, sample);
      list.back()["mask"] = mask_of(image);
      if (images_->mask_classes() > 0) list.back()["truth"] = truth_of(image);
    }
    if (sample.probability) list.back()["probability"] = *sample.probability;
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
