// Image files of any format and size, by libvips: JPEG, PNG, TIFF, JPEG 2000 and, by OpenSlide, whole slides.
//
// A read decodes the box that it needs, at the level of the file's pyramid that fits, and no more:
//
//   file ── level ──> rows of numbers ── triangle filter ──> height × width ── (raw − mean) / deviation ──> tensor
//
// The level follows from the sizes of the image and of the result, never from the box, and the filter's sums are exact
// (resample.h): a box has the bits of the same box of the whole image.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/image_decoder.h"
#include "tessera/data/image_list.h"
#include "tessera/data/image_source.h"

namespace tessera {

/// Whether this build can read image files at all.
bool has_vips();
/// "8.14.1"; empty without libvips.
std::string vips_version();

struct VipsOptions {
  /// A CSV file or a folder; docs/files.md shows the layouts.
  std::string path;
  /// What messages call it.
  std::string path_flag = "--datapath";
  Split split = Split::train;
  /// What every image is stretched to, whatever its own shape.
  std::int64_t height = 224, width = 224;
  /// Of every image; PixelKind says what can be made of files that have others.
  std::int64_t channels = 3;
  /// One for all channels, or one for each; empty: default_normalisation() of integers.
  std::vector<double> mean = {}, deviation = {};
  /// Labels must be less than this; 0 takes as many classes as there are.
  int classes = 0;
  /// What labels 0, 1, ... are called; empty: the names of the training set, sorted. Two CSV files of one data set need
  /// one list: give the second class_names() of the first.
  std::vector<std::string> class_names = {};
  /// As ImageListOptions::several.
  bool several = false;
  /// Images without a label are taken, too: theirs is -1.
  bool labels_optional = false;

  // Masks: a label for each pixel.

  /// 0: no masks. At most 255.
  int mask_classes = 0;
  /// The value in the files that stands for class 0, 1, ...; empty: the class itself. Black and white: {0, 255}.
  std::vector<int> mask_values = {};
  /// The value in the files of pixels that count nowhere (read as `ignored_label`).
  std::optional<int> mask_ignore = std::nullopt;
};

/// Opening it looks that all files are there and labelled; an image's header is read when its first pixels are.
/// Files must not change while it lives.
class VipsImages : public ImageSource {
 public:
  /// Throws UsageError: the first ten of all problems.
  explicit VipsImages(const VipsOptions& options);
  ~VipsImages() override;

  std::int64_t size() const override { return static_cast<std::int64_t>(list_.files.size()); }
  int classes() const override { return list_.classes; }
  std::array<std::int64_t, 3> image_shape() const override {
    return {options_.channels, options_.height, options_.width};
  }
  std::int64_t label(std::int64_t index) const override { return file(index).label; }
  std::optional<std::vector<std::int64_t>> label_set(std::int64_t index) const override {
    return options_.several ? file(index).labels : ImageSource::label_set(index);
  }
  int repeats(std::int64_t index) const override { return file(index).repeat; }
  int mask_classes() const override { return options_.mask_classes; }
  Normalisation normalisation() const override { return {options_.mean, options_.deviation}; }
  /// Reading throws Error that names the file when it is not an image, is damaged or cut short, when a mask has
  /// another size than its image, or a value that is no class.
  void read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override;
  void read_window(ReadKey key, const ImageWindow& window, Interval rows, Interval columns,
                   const at::Tensor& out) const override;
  void read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override;
  void read_mask_window(ReadKey key, const ImageWindow& window, Interval rows, Interval columns,
                        const at::Tensor& out) const override;
  std::optional<RawImage> raw(ReadKey key, Interval rows, Interval columns) const override;
  void read_bytes(std::int64_t index, Interval rows, Interval columns, std::uint8_t* to) const override;
  std::int64_t band_rows(ReadKey key) const override;
  at::Tensor thumbnail(std::int64_t index, ImageSize size) const override;
  ImageSize own_size(std::int64_t index) const override;
  std::string describe() const override;

  const std::vector<std::string>& class_names() const override { return list_.class_names; }
  /// The image's file, and which one of it where it has several: "a.npy[3]".
  std::string name(std::int64_t index) const override { return file(index).name(); }

  /// What reading an image, or its mask, would throw; empty: nothing. It decodes all of the file at every level that a
  /// read may take, because damage may lie in a part that one rank reads and another does not. smallest_window: the
  /// least height or width, as a share of the image's, of the windows that will be read.
  std::string fault_of(std::int64_t index, double smallest_window = 1) const;
  /// Takes images out of the set, by their sorted numbers; those behind move up. Before anything else looks at it.
  void leave_out(const std::vector<std::int64_t>& indices);

 private:
  const ImageFile& file(std::int64_t index) const;
  /// Its pixels are those of its file, one by one.
  bool as_in_file(const ImageHeader& image, const ImageWindow& window) const {
    return window.whole() && image.height == options_.height && image.width == options_.width;
  }
  ImageSize size_of_result() const { return {options_.height, options_.width}; }
  /// The level that a window of this share of the image's height and width is read from.
  const ImageLevel& level_of(const ImageHeader& image, double height_share, double width_share) const;
  const ImageHeader& header(std::int64_t index) const;
  /// Of the window stretched to `size`, these rows and columns: calls write(row, values) for each, from top to bottom;
  /// values are the file's numbers as doubles, the channels innermost.
  template <class Write>
  void read_rows(std::int64_t index, const ImageWindow& window, ImageSize size, Interval rows, Interval columns,
                 const Write& write) const;
  std::unique_ptr<ImageDecoder> open(std::int64_t index, const ImageLevel& level) const;
  template <class Real>
  void read_as(std::int64_t index, const ImageWindow& window, Interval rows, Interval columns,
               const at::Tensor& out) const;
  template <class Label>
  void read_mask_as(std::int64_t index, const ImageWindow& window, Interval rows, Interval columns,
                    const at::Tensor& out) const;

  VipsOptions options_;
  ImageList list_;
  std::vector<int> class_of_value_;  // of a mask's pixel; -1: no class

  mutable std::mutex mutex_;  // guards what follows
  mutable std::vector<std::unique_ptr<const ImageHeader>> headers_;
};

}  // namespace tessera
