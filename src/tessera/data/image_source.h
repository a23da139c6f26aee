// Where images come from. A source can make any height × width part of any image, so that a rank reads only its tile.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ATen_fwd.h>

#include "tessera/data/raw_image.h"
#include "tessera/geometry/box.h"

namespace tessera {

/// Which part of a data set: what is trained on, or what the training is judged by.
enum class Split { train, test };

/// Which image, and in which epoch it is asked for: an augmented image is another one in every epoch.
struct ReadKey {
  ReadKey(std::int64_t image_index, std::int64_t image_epoch = 0) : index(image_index), epoch(image_epoch) {}
  std::int64_t index;
  std::int64_t epoch;
};

/// A rectangle inside an image, in fractions of its height and width. The default is all of it.
struct ImageWindow {
  double top = 0, left = 0, height = 1, width = 1;
  bool whole() const { return *this == ImageWindow{}; }
  friend bool operator==(const ImageWindow&, const ImageWindow&) = default;
};

struct ImageSize {
  std::int64_t height = 0, width = 0;
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};
/// As large as it can be with no side above `most`, in its own shape; itself if it is no larger.
ImageSize shrunk_to(ImageSize size, std::int64_t most);

/// The value of a mask's pixel that belongs to no class and counts nowhere.
inline constexpr std::int64_t ignored_label = 255;

/// A numbered set of labelled images of one shape, and perhaps of masks: a label for each pixel.
///
/// Reads of two boxes agree, bit by bit, where the boxes meet: a tile is the crop of the whole image.
/// Thread safety: every function is const and may be called from several threads at once.
class ImageSource {
 public:
  virtual ~ImageSource() = default;

  /// How many images there are.
  virtual std::int64_t size() const = 0;
  /// Labels are in [0, classes).
  virtual int classes() const = 0;
  /// Channels, height, width.
  virtual std::array<std::int64_t, 3> image_shape() const = 0;
  /// -1 where it is not known: only sources that were asked to allow that have such images.
  virtual std::int64_t label(std::int64_t index) const = 0;
  /// All labels of an image, where it may have several or none; not set where they are not known.
  virtual std::optional<std::vector<std::int64_t>> label_set(std::int64_t index) const {
    return label(index) < 0 ? std::nullopt : std::optional(std::vector{label(index)});
  }
  /// What the user knows an image by: its file, or its number.
  virtual std::string name(std::int64_t index) const { return std::to_string(index); }
  /// What labels 0, 1, ... are called; empty when they are numbers.
  virtual const std::vector<std::string>& class_names() const;
  /// Values of masks are in [0, mask_classes) or `ignored_label`. 0: the source has no masks.
  virtual int mask_classes() const { return 0; }
  /// The default, 0.5 and 0.25, is for sources whose pixels never were bytes.
  virtual Normalisation normalisation() const;

  /// Writes rows × columns of an image into `out`, a CPU tensor that is logically [channels, rows, columns], of
  /// float32 or float64 and of any strides; channels-last memory is the fast path. The part must lie inside the image
  /// and may be empty. The float32 value of a pixel is its float64 value, rounded.
  virtual void read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const = 0;
  /// The same of the mask, into [rows, columns] of int64 or uint8. Throws Error when the source has no masks.
  virtual void read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const;

  /// read() of the image that a window becomes when it is stretched to the whole image's height and width. By default
  /// the pixels of read() are interpolated; a source that has more pixels than that does better.
  virtual void read_window(ReadKey key, const ImageWindow& window, Interval rows, Interval columns,
                           const at::Tensor& out) const;
  /// read_mask() of such an image: each pixel has the label of the nearest one.
  virtual void read_mask_window(ReadKey key, const ImageWindow& window, Interval rows, Interval columns,
                                const at::Tensor& out) const;

  /// How the part of an image that read() gives is made of bytes, where it is: read_bytes() and finish() then give the
  /// same bits as read(), and the second of them can be done elsewhere. Not where pixels are interpolated.
  virtual std::optional<RawImage> raw(ReadKey, Interval, Interval) const { return std::nullopt; }
  /// The bytes of a box of an image that raw() speaks of, [rows, columns, channels] without gaps.
  virtual void read_bytes(std::int64_t index, Interval rows, Interval columns, std::uint8_t* to) const;
  /// read() can be asked for an image in bands of this many rows, by several threads, at little extra cost; 0: it
  /// should not, because its file must be decoded from the top, or because rows of the image are not rows of the file.
  virtual std::int64_t band_rows(ReadKey) const { return 1; }

  /// A small picture for people, [height, width, 3] of uint8. By default the pixels of read() are averaged, a few rows
  /// at a time; a source that has smaller versions of its images takes these.
  virtual at::Tensor thumbnail(std::int64_t index, ImageSize size) const;

  /// How often an epoch of training has it.
  virtual int repeats(std::int64_t) const { return 1; }

  /// Before it was stretched to image_shape().
  virtual ImageSize own_size(std::int64_t) const { return {image_shape()[1], image_shape()[2]}; }

  /// One line for the user: what the images are and how many.
  virtual std::string describe() const = 0;

 protected:
  /// Throw Error when the arguments of a read break its contract.
  void check_read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const;
  void check_read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const;

 protected:
  /// Rows of values in read()'s normalisation, [columns × channels], become rows of bytes.
  void write_bytes(const double* values, std::int64_t columns, std::uint8_t* to) const;

 private:
  void check_box(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const;
};

}  // namespace tessera
