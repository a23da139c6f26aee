#include "tessera/data/vips_images.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/files.h"
#include "tessera/data/resample.h"

namespace tessera {
namespace {

constexpr int mask_value_limit = 65536;

ImageList checked_list(const VipsOptions& o) {
  Problems problems;
  problems.check(o.height >= 1 && o.width >= 1, "images cannot be stretched to ", o.height, "x", o.width,
                 "; see --image-size");
  problems.check(o.channels >= 1, "images cannot have ", o.channels, " channels; see --channels");
  for (const double m : o.mean) problems.check(std::isfinite(m), "--mean ", m, " must be a number");
  for (const double d : o.deviation)
    problems.check(d > 0 && std::isfinite(d), "--std ", d, " must be a number above 0");
  for (const auto& [flag, numbers] : {std::pair{"--mean", &o.mean}, {"--std", &o.deviation}})
    problems.check(numbers->size() <= 1 || std::ssize(*numbers) == o.channels, flag, " has ", numbers->size(),
                   " numbers, and the images have ", counted(o.channels, "channel"),
                   "; give one for all channels, or one for each");
  problems.check(0 <= o.mask_classes && o.mask_classes <= ignored_label, "masks of ", o.mask_classes,
                 " classes cannot be read; there can be ", ignored_label);
  problems.check(o.mask_values.empty() || std::ssize(o.mask_values) == o.mask_classes, "--mask-values has ",
                 counted(std::ssize(o.mask_values), "value"), " for ", counted(o.mask_classes, "class"));
  for (const int value : o.mask_values)
    problems.check(0 <= value && value < mask_value_limit, "--mask-values ", value, " must be from 0 to ",
                   mask_value_limit - 1);
  problems.check(!o.mask_ignore || (0 <= *o.mask_ignore && *o.mask_ignore < mask_value_limit), "--mask-ignore ",
                 o.mask_ignore.value_or(0), " must be from 0 to ", mask_value_limit - 1);
  problems.throw_if_any();
  ImageList list = list_images({.path = o.path,
                                .flag = o.path_flag,
                                .split = o.split,
                                .masks = o.mask_classes > 0,
                                .several = o.several,
                                .classes = o.classes,
                                .class_names = o.class_names,
                                .labels_optional = o.labels_optional});
  if (!has_vips())
    for (const ImageFile& file : list.files)
      for (const std::string& path : {file.path, file.mask})
        if (!path.empty() && files::ending_of(path) != "npy") read_header(path);  // says so
  return list;
}

/// What becomes `size` pixels, in pixels of a level of `level_size` that stand for `shrink` of the image's each.
Stretch stretch_of(double begin, double share, std::int64_t image_size, double shrink, std::int64_t level_size,
                   std::int64_t size) {
  const auto pixels = static_cast<double>(image_size);
  return {begin * pixels / shrink, (begin + share) * pixels / shrink, level_size, size};
}

/// Runs a read; a file that cannot be read ends the run, and the message says what else can be done.
template <class Read>
void reading(const Read& read) {
  try {
    read();
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    throw Error(concat(error.what(), " (--on-bad-image skip leaves such images out)"));
  }
}

}  // namespace

const ImageLevel& level_for(const ImageHeader& header, double rows, double columns) {
  const ImageLevel* best = &header.levels.front();
  for (const ImageLevel& level : header.levels)
    if (level.row_shrink <= rows && level.column_shrink <= columns) best = &level;
  return *best;
}

VipsImages::VipsImages(const VipsOptions& options) : options_(options), list_(checked_list(options)) {
  const Normalisation usual = default_normalisation(options.channels, /*floats=*/false);
  const auto settle = [&](std::vector<double>& numbers, const std::vector<double>& otherwise) {
    if (numbers.empty()) numbers = otherwise;
    if (numbers.size() == 1) numbers.resize(static_cast<std::size_t>(options.channels), numbers.front());
  };
  settle(options_.mean, usual.mean);
  settle(options_.deviation, usual.deviation);
  headers_.resize(list_.files.size());
  if (options.mask_classes == 0) return;
  class_of_value_.assign(mask_value_limit, -1);
  for (int k = 0; k < options.mask_classes; ++k)
    class_of_value_[static_cast<std::size_t>(
        options.mask_values.empty() ? k : options.mask_values[static_cast<std::size_t>(k)])] = k;
  if (options.mask_ignore) class_of_value_[static_cast<std::size_t>(*options.mask_ignore)] = ignored_label;
}

VipsImages::~VipsImages() = default;

const ImageFile& VipsImages::file(std::int64_t index) const {
  ensure(0 <= index && index < size(), "image ", index, " of a source of ", size(), " images");
  return list_.files[static_cast<std::size_t>(index)];
}

const ImageHeader& VipsImages::header(std::int64_t index) const {
  const ImageFile& names = file(index);
  const auto i = static_cast<std::size_t>(index);
  {
    const std::lock_guard lock(mutex_);
    if (headers_[i]) return *headers_[i];
  }
  // Without the lock: a slide takes a while, and two threads that read one header read the same.
  auto fresh = std::make_unique<const ImageHeader>(read_header(names.path, names.item.value_or(0)));
  const std::lock_guard lock(mutex_);
  if (!headers_[i]) headers_[i] = std::move(fresh);
  return *headers_[i];
}

std::unique_ptr<ImageDecoder> VipsImages::open(std::int64_t index, const ImageLevel& level) const {
  return open_image(file(index).path, header(index), level, {.channels = options_.channels});
}

const ImageLevel& VipsImages::level_of(const ImageHeader& image, double height_share, double width_share) const {
  return level_for(image, height_share * static_cast<double>(image.height) / static_cast<double>(options_.height),
                   width_share * static_cast<double>(image.width) / static_cast<double>(options_.width));
}

std::string VipsImages::fault_of(std::int64_t index, double smallest_window) const {
  try {
    const ImageHeader& image = header(index);
    const ImageLevel &finest = level_of(image, smallest_window, smallest_window), &coarsest = level_of(image, 1, 1);
    for (const ImageLevel& level : image.levels) {
      if (level.row_shrink < finest.row_shrink || level.row_shrink > coarsest.row_shrink) continue;
      const auto decoder = open(index, level);
      decoder->for_each_row({0, decoder->height()}, {0, decoder->width()}, [](const void*) {});
    }
    if (mask_classes() > 0)
      read_mask_as<std::uint8_t>(index, {}, {0, options_.height}, {0, options_.width},
                                 at::empty({options_.height, options_.width}, at::TensorOptions().dtype(at::kByte)));
  } catch (const UsageError&) {
    throw;  // not the file's fault
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void VipsImages::leave_out(const std::vector<std::int64_t>& indices) {
  std::vector<ImageFile> kept;
  for (std::int64_t i = 0; i < size(); ++i)
    if (!std::binary_search(indices.begin(), indices.end(), i)) kept.push_back(file(i));
  list_.files = std::move(kept);
  headers_.clear();
  headers_.resize(list_.files.size());
}

void VipsImages::read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const {
  read_window(key, ImageWindow{}, rows, columns, out);
}

void VipsImages::read_window(ReadKey key, const ImageWindow& window, Interval rows, Interval columns,
                             const at::Tensor& out) const {
  check_read(key, rows, columns, out);
  if (rows.empty() || columns.empty()) return;
  reading([&] {
    if (out.scalar_type() == at::kFloat)
      read_as<float>(key.index, window, rows, columns, out);
    else
      read_as<double>(key.index, window, rows, columns, out);
  });
}

template <class Write>
void VipsImages::read_rows(std::int64_t index, const ImageWindow& window, ImageSize size, Interval rows,
                           Interval columns, const Write& write) const {
  const ImageHeader& image = header(index);
  const ImageLevel& level =
      level_for(image, window.height * static_cast<double>(image.height) / static_cast<double>(size.height),
                window.width * static_cast<double>(image.width) / static_cast<double>(size.width));
  const auto decoder = open(index, level);
  const Taps down(stretch_of(window.top, window.height, image.height, level.row_shrink, decoder->height(), size.height),
                  rows);
  const Taps across(
      stretch_of(window.left, window.width, image.width, level.column_shrink, decoder->width(), size.width), columns);
  with_numbers(image.format.type, [&]<class Number>() {
    Resampler<Number> resampler(down, across, options_.channels);
    decoder->for_each_row(down.all(), across.all(),
                          [&](const void* row) { resampler.feed(static_cast<const Number*>(row), write); });
  });
}

template <class Real>
void VipsImages::read_as(std::int64_t index, const ImageWindow& window, Interval rows, Interval columns,
                         const at::Tensor& out) const {
  const PixelType type = header(index).format.type;
  const auto channels = static_cast<std::size_t>(options_.channels);
  Real* pixels = out.data_ptr<Real>();
  const std::int64_t c_stride = out.stride(0), y_stride = out.stride(1), x_stride = out.stride(2);
  const std::int64_t width = columns.size();
  if (as_in_file(header(index), window)) {
    with_numbers(type, [&]<class Number>() {
      const ValuesOf<Number, Real> value_of(normalisation(), type);
      Real* target = pixels;
      open(index, header(index).levels.front())->for_each_row(rows, columns, [&](const void* row) {
        const auto* numbers = static_cast<const Number*>(row);
        for (std::int64_t x = 0; x < width; ++x)
          for (std::size_t c = 0; c < channels; ++c)
            target[x * x_stride + static_cast<std::int64_t>(c) * c_stride] = value_of(c, *numbers++);
        target += y_stride;
      });
    });
    return;
  }
  const ValuesOf<double, Real> value_of(normalisation(), type);
  read_rows(index, window, size_of_result(), rows, columns, [&](std::int64_t y, const double* values) {
    Real* target = pixels + y * y_stride;
    for (std::int64_t x = 0; x < width; ++x)
      for (std::size_t c = 0; c < channels; ++c)
        target[x * x_stride + static_cast<std::int64_t>(c) * c_stride] = value_of(c, *values++);
  });
}

std::optional<RawImage> VipsImages::raw(ReadKey key, Interval rows, Interval columns) const {
  std::optional<RawImage> out;
  reading([&] {
    const ImageHeader& image = header(key.index);
    if (as_in_file(image, ImageWindow{}))
      out = {.rows = rows,
             .columns = columns,
             .normalisation = normalisation(),
             .band_rows = image.band_rows,
             .type = image.format.type};
  });
  return out;
}

void VipsImages::read_bytes(std::int64_t index, Interval rows, Interval columns, std::uint8_t* to) const {
  reading([&] {
    const PixelFormat format{options_.channels, header(index).format.type};
    const auto row_bytes = static_cast<std::size_t>(format.bytes() * columns.size());
    open(index, header(index).levels.front())->for_each_row(rows, columns, [&](const void* row) {
      std::memcpy(to, row, row_bytes);
      to += row_bytes;
    });
  });
}

std::int64_t VipsImages::band_rows(ReadKey key) const {
  std::int64_t rows = 0;
  reading([&] {
    const ImageHeader& image = header(key.index);
    if (image.band_rows > 0) rows = std::max<std::int64_t>(1, image.band_rows * options_.height / image.height);
  });
  return rows;
}

ImageSize VipsImages::own_size(std::int64_t index) const {
  ImageSize size;
  reading([&] { size = {header(index).height, header(index).width}; });
  return size;
}

at::Tensor VipsImages::thumbnail(std::int64_t index, ImageSize size) const {
  at::Tensor out = at::empty({size.height, size.width, 3}, at::TensorOptions().dtype(at::kByte));
  reading([&] {
    const std::int64_t channels = options_.channels, pixels = size.height * size.width;
    // Grey is shown as grey; of more than three channels the first three.
    std::vector<double> shown;
    read_rows(index, {}, size, {0, size.height}, {0, size.width}, [&](std::int64_t, const double* values) {
      for (std::int64_t x = 0; x < size.width; ++x)
        for (std::int64_t c = 0; c < 3; ++c) shown.push_back(values[x * channels + std::min(c, channels - 1)]);
    });
    // What measured numbers mean is not known, so the smallest is shown black and the largest white.
    const bool bytes = header(index).format.type == PixelType::uint8;
    const auto [least, most] = std::ranges::minmax(shown);
    const double black = bytes ? 0 : least, per_shade = bytes || most == least ? 1 : 255 / (most - least);
    for (std::int64_t i = 0; i < 3 * pixels; ++i)
      out.data_ptr<std::uint8_t>()[i] = static_cast<std::uint8_t>(
          std::clamp((shown[static_cast<std::size_t>(i)] - black) * per_shade + 0.5, 0.0, 255.0));
  });
  return out;
}

void VipsImages::read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const {
  read_mask_window(key, ImageWindow{}, rows, columns, out);
}

void VipsImages::read_mask_window(ReadKey key, const ImageWindow& window, Interval rows, Interval columns,
                                  const at::Tensor& out) const {
  check_read_mask(key, rows, columns, out);
  if (rows.empty() || columns.empty()) return;
  reading([&] {
    if (out.scalar_type() == at::kLong)
      read_mask_as<std::int64_t>(key.index, window, rows, columns, out);
    else
      read_mask_as<std::uint8_t>(key.index, window, rows, columns, out);
  });
}

template <class Label>
void VipsImages::read_mask_as(std::int64_t index, const ImageWindow& window, Interval rows, Interval columns,
                              const at::Tensor& out) const {
  const ImageFile& names = file(index);
  const ImageHeader& image = header(index);
  const ImageHeader mask = read_header(names.mask, names.mask_item.value_or(0), /*mask=*/true);
  if (mask.height != image.height || mask.width != image.width)
    throw Error(concat("mask '", names.mask, "' has ", mask.height, "x", mask.width, " pixels, but its image '",
                       names.path, "' has ", image.height, "x", image.width));
  // The mask itself, never a level: those may be averages, and no label is the mean of two others.
  const auto decoder = open_image(names.mask, mask, mask.levels.front(), PixelKind::labels());
  const Stretch down = stretch_of(window.top, window.height, mask.height, 1, mask.height, options_.height);
  const Stretch across = stretch_of(window.left, window.width, mask.width, 1, mask.width, options_.width);
  const Interval source_rows{nearest(down, rows.begin), nearest(down, rows.end - 1) + 1};
  const Interval source_columns{nearest(across, columns.begin), nearest(across, columns.end - 1) + 1};
  std::vector<std::int64_t> picked(static_cast<std::size_t>(columns.size()));  // from a source row
  for (std::int64_t x = 0; x < columns.size(); ++x)
    picked[static_cast<std::size_t>(x)] = nearest(across, columns.begin + x) - source_columns.begin;

  Label* target = out.data_ptr<Label>();
  const auto write = [&](std::int64_t row, const std::uint16_t* values) {
    for (std::size_t x = 0; x < picked.size(); ++x) {
      const int k = class_of_value_[values[picked[x]]];
      if (k < 0)
        throw Error(concat("mask '", names.mask, "' has the value ", values[picked[x]], " in row ",
                           nearest(down, rows.begin + row), ", column ", source_columns.begin + picked[x],
                           ", which is none of its ", options_.mask_classes,
                           " classes; --mask-values says which values stand for classes 0, 1, ... (0,255 in a mask of "
                           "black and white), --mask-ignore which one stands for none"));
      target[row * out.stride(0) + static_cast<std::int64_t>(x) * out.stride(1)] = static_cast<Label>(k);
    }
  };
  std::int64_t source_row = source_rows.begin, row = 0;
  decoder->for_each_row(source_rows, source_columns, [&](const void* values) {
    for (; row < rows.size() && nearest(down, rows.begin + row) == source_row; ++row)
      write(row, static_cast<const std::uint16_t*>(values));
    ++source_row;
  });
}

std::string VipsImages::describe() const {
  // Images without labels, and those whose pixels are labelled, are all of one class: that says nothing.
  return concat(list_.source, ": ", counted(size(), "image"), " as ", options_.channels, "x", options_.height, "x",
                options_.width,
                options_.mask_classes > 0 ? concat(", masks of ", counted(options_.mask_classes, "class"))
                : classes() > 1           ? concat(", ", counted(classes(), "class"))
                                          : std::string(),
                has_vips() ? concat(", by libvips ", vips_version()) : "");
}

}  // namespace tessera
