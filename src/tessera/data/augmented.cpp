#include "tessera/data/augmented.h"

#include <cmath>
#include <utility>

#include <ATen/core/Tensor.h>

#include "tessera/base/error.h"
#include "tessera/base/random.h"

namespace tessera {
namespace {

/// What is drawn for an image, each from a number of its own.
enum class Draw { flip_rows, flip_columns, turns, crop_area, crop_top, crop_left, brightness, contrast, saturation };

/// Rec. 601.
constexpr std::array<double, 3> grey_weights{0.299, 0.587, 0.114};

/// Swaps a tensor's entries along a dimension, end for end, in place.
template <class Entry>
void mirror_as(const at::Tensor& tensor, int dimension) {
  const std::int64_t length = tensor.size(dimension), step = tensor.stride(dimension);
  // The others: at most two, the one with the smaller stride inside.
  std::array<std::pair<std::int64_t, std::int64_t>, 2> others{{{1, 0}, {1, 0}}};
  for (std::int64_t d = 0, at = 0; d < tensor.dim(); ++d)
    if (d != dimension) others[static_cast<std::size_t>(at++)] = {tensor.size(d), tensor.stride(d)};
  if (others[0].second < others[1].second) std::swap(others[0], others[1]);
  Entry* entries = tensor.data_ptr<Entry>();
  const auto [outer_count, outer_step] = others[0];
  const auto [inner_count, inner_step] = others[1];
  for (std::int64_t i = 0; i < length / 2; ++i)
    for (std::int64_t outer = 0; outer < outer_count; ++outer) {
      Entry* near = entries + i * step + outer * outer_step;
      Entry* far = near + (length - 1 - 2 * i) * step;
      for (std::int64_t inner = 0; inner < inner_count; ++inner)
        std::swap(near[inner * inner_step], far[inner * inner_step]);
    }
}

void mirror(const at::Tensor& tensor, int dimension) {
  if (tensor.scalar_type() == at::kFloat)
    mirror_as<float>(tensor, dimension);
  else if (tensor.scalar_type() == at::kDouble)
    mirror_as<double>(tensor, dimension);
  else if (tensor.scalar_type() == at::kLong)
    mirror_as<std::int64_t>(tensor, dimension);
  else
    mirror_as<std::uint8_t>(tensor, dimension);
}

template <class Real>
void map_colours_as(const ColourMap& map, const at::Tensor& out) {
  const auto channels = static_cast<std::size_t>(out.size(0));
  Real* pixels = out.data_ptr<Real>();
  std::vector<double> before(channels);
  for (std::int64_t y = 0; y < out.size(1); ++y)
    for (std::int64_t x = 0; x < out.size(2); ++x) {
      Real* pixel = pixels + y * out.stride(1) + x * out.stride(2);
      for (std::size_t c = 0; c < channels; ++c) before[c] = pixel[static_cast<std::int64_t>(c) * out.stride(0)];
      for (std::size_t c = 0; c < channels; ++c) {
        double sum = map.offset[c];
        for (std::size_t k = 0; k < channels; ++k) sum += map.matrix[c][k] * before[k];
        pixel[static_cast<std::int64_t>(c) * out.stride(0)] = static_cast<Real>(sum);
      }
    }
}

void map_colours(const ColourMap& map, const at::Tensor& out) {
  if (out.scalar_type() == at::kFloat)
    map_colours_as<float>(map, out);
  else
    map_colours_as<double>(map, out);
}

Interval mirrored(Interval part, std::int64_t size) { return {size - part.end, size - part.begin}; }

}  // namespace

Augmented::Augmented(std::shared_ptr<const ImageSource> source, const AugmentOptions& options)
    : source_(std::move(source)), options_(options), normalisation_(source_->normalisation()) {
  Problems problems;
  problems.check(0 < options.crop_min && options.crop_min <= options.crop_max && options.crop_max <= 1, "--crop-min ",
                 options.crop_min, " and --crop-max ", options.crop_max,
                 ": a crop's share of the area lies above 0 and goes up to 1, the smaller first");
  for (const auto& [flag, value] : {std::pair{"--brightness", options.brightness},
                                    {"--contrast", options.contrast},
                                    {"--saturation", options.saturation}})
    problems.check(0 <= value && value <= 1, flag, " ", value, " must be from 0 to 1");
  problems.check(options.saturation == 0 || image_shape()[0] == 3, "images of ", image_shape()[0],
                 " channels have no saturation to change; leave out --saturation");
  problems.throw_if_any();
}

Augmented::Change Augmented::change_of(ReadKey key) const {
  const RandomStream stream(options_.seed, "augment");
  // 2^40 images, 2^20 epochs, 16 draws.
  const std::uint64_t image = (static_cast<std::uint64_t>(key.epoch) << 40) | static_cast<std::uint64_t>(key.index);
  const auto uniform = [&](Draw draw) { return stream.uniform(image * 16 + static_cast<std::uint64_t>(draw)); };
  const auto factor = [&](Draw draw, double range) { return 1 + range * (2 * uniform(draw) - 1); };
  const auto [channels, height, width] = image_shape();

  Change change;
  if (options_.rotate) {
    const int quarter = height == width ? 1 : 2;
    const int turns = static_cast<int>(uniform(Draw::turns) * (4 / quarter)) * quarter;
    change.transpose = turns % 2 == 1;
    change.flip_rows = turns == 1 || turns == 2;
    change.flip_columns = turns == 2 || turns == 3;
  }
  if (options_.flip_vertical && uniform(Draw::flip_rows) < 0.5) change.flip_rows = !change.flip_rows;
  if (options_.flip_horizontal && uniform(Draw::flip_columns) < 0.5) change.flip_columns = !change.flip_columns;
  if (options_.crop_min < 1) {
    const double area = options_.crop_min + (options_.crop_max - options_.crop_min) * uniform(Draw::crop_area);
    const double side = std::sqrt(area);
    change.window = {(1 - side) * uniform(Draw::crop_top), (1 - side) * uniform(Draw::crop_left), side, side};
  }
  change.brightness = factor(Draw::brightness, options_.brightness);
  change.contrast = factor(Draw::contrast, options_.contrast);
  change.saturation = factor(Draw::saturation, options_.saturation);
  change.colours = options_.brightness > 0 || options_.contrast > 0 || options_.saturation > 0;
  return change;
}

Augmented::SourceBox Augmented::source_box(const Change& change, Interval rows, Interval columns) const {
  const auto [channels, height, width] = image_shape();
  if (change.flip_rows) rows = mirrored(rows, height);
  if (change.flip_columns) columns = mirrored(columns, width);
  if (change.transpose) std::swap(rows, columns);
  return {rows, columns};
}

void Augmented::read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const {
  check_read(key, rows, columns, out);
  const Change change = change_of(key);
  const SourceBox box = source_box(change, rows, columns);
  source_->read_window(key, change.window, box.rows, box.columns, change.transpose ? out.transpose(1, 2) : out);
  if (change.flip_rows) mirror(out, 1);
  if (change.flip_columns) mirror(out, 2);
  if (change.colours) map_colours(colour_map(change), out);
}

std::optional<RawImage> Augmented::raw(ReadKey key, Interval rows, Interval columns) const {
  const Change change = change_of(key);
  if (!change.window.whole()) return std::nullopt;
  const SourceBox box = source_box(change, rows, columns);
  std::optional<RawImage> raw = source_->raw(key, box.rows, box.columns);
  if (!raw) return raw;
  ensure(!raw->transpose && !raw->flip_rows && !raw->flip_columns && !raw->colours, "images are augmented twice");
  raw->transpose = change.transpose;
  raw->flip_rows = change.flip_rows;
  raw->flip_columns = change.flip_columns;
  if (change.colours) raw->colours = colour_map(change);
  return raw;
}

void Augmented::read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const {
  check_read_mask(key, rows, columns, out);
  const Change change = change_of(key);
  const SourceBox box = source_box(change, rows, columns);
  source_->read_mask_window(key, change.window, box.rows, box.columns, change.transpose ? out.transpose(0, 1) : out);
  if (change.flip_rows) mirror(out, 0);
  if (change.flip_columns) mirror(out, 1);
}

ColourMap Augmented::colour_map(const Change& change) const {
  // In raw colours: saturate(mean + (raw · brightness − mean) · contrast), which is affine; saturate() is a matrix.
  const auto channels = static_cast<std::size_t>(image_shape()[0]);
  const std::vector<double>&mean = normalisation_.mean, &deviation = normalisation_.deviation;
  ColourMap map{std::vector(channels, std::vector<double>(channels)), std::vector<double>(channels)};
  for (std::size_t i = 0; i < channels; ++i) {
    double offset = -mean[i];
    for (std::size_t k = 0; k < channels; ++k) {
      const double grey = channels == 3 ? (1 - change.saturation) * grey_weights[k] : 0;
      const double saturate = grey + (i == k ? change.saturation : 0);
      const double slope = saturate * change.contrast * change.brightness;
      map.matrix[i][k] = slope * deviation[k] / deviation[i];
      offset += slope * mean[k] + saturate * (1 - change.contrast) * mean[k];
    }
    map.offset[i] = offset / deviation[i];
  }
  return map;
}

std::string Augmented::describe() const { return concat(source_->describe(), ", augmented"); }

}  // namespace tessera
