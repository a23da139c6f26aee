// A data set whose size is a multiple of the batch's.
#pragma once

#include <memory>

#include "tessera/data/image_source.h"

namespace tessera {

/// Another source's images, and blank ones behind them up to the next multiple of `multiple`. Where every image must be
/// looked at once, a loader drops none of a padded source; who uses it leaves the blanks out.
class Padded : public ImageSource {
 public:
  Padded(std::shared_ptr<const ImageSource> source, std::int64_t multiple);

  std::int64_t size() const override { return size_; }
  int classes() const override { return source_->classes(); }
  std::array<std::int64_t, 3> image_shape() const override { return source_->image_shape(); }
  /// 0 for a blank.
  std::int64_t label(std::int64_t index) const override;
  std::optional<std::vector<std::int64_t>> label_set(std::int64_t index) const override {
    return index < source_->size() ? source_->label_set(index) : std::nullopt;
  }
  const std::vector<std::string>& class_names() const override { return source_->class_names(); }
  int mask_classes() const override { return source_->mask_classes(); }
  Normalisation normalisation() const override { return source_->normalisation(); }
  void read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override;
  /// Blanks are not made of bytes.
  std::optional<RawImage> raw(ReadKey key, Interval rows, Interval columns) const override {
    return key.index < source_->size() ? source_->raw(key, rows, columns) : std::nullopt;
  }
  void read_bytes(std::int64_t index, Interval rows, Interval columns, std::uint8_t* to) const override {
    source_->read_bytes(index, rows, columns, to);
  }
  std::int64_t band_rows(ReadKey key) const override {
    return key.index < source_->size() ? source_->band_rows(key) : 1;
  }
  /// A blank counts nowhere.
  void read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override;
  std::string describe() const override { return source_->describe(); }

 private:
  std::shared_ptr<const ImageSource> source_;
  std::int64_t size_;
};

}  // namespace tessera
