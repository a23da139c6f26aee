// Some of another source's images.
#pragma once

#include <memory>
#include <vector>

#include "tessera/data/image_source.h"

namespace tessera {

class Subset : public ImageSource {
 public:
  /// `indices`: which, in their new order.
  Subset(std::shared_ptr<const ImageSource> source, std::vector<std::int64_t> indices);

  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  int classes() const override { return source_->classes(); }
  std::array<std::int64_t, 3> image_shape() const override { return source_->image_shape(); }
  std::int64_t label(std::int64_t index) const override { return source_->label(at(index)); }
  std::optional<std::vector<std::int64_t>> label_set(std::int64_t index) const override {
    return source_->label_set(at(index));
  }
  std::string name(std::int64_t index) const override { return source_->name(at(index)); }
  const std::vector<std::string>& class_names() const override { return source_->class_names(); }
  int repeats(std::int64_t index) const override { return source_->repeats(at(index)); }
  int mask_classes() const override { return source_->mask_classes(); }
  Normalisation normalisation() const override { return source_->normalisation(); }
  void read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override {
    source_->read(inner(key), rows, columns, out);
  }
  void read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override {
    source_->read_mask(inner(key), rows, columns, out);
  }
  void read_window(ReadKey key, const ImageWindow& window, Interval rows, Interval columns,
                   const at::Tensor& out) const override {
    source_->read_window(inner(key), window, rows, columns, out);
  }
  void read_mask_window(ReadKey key, const ImageWindow& window, Interval rows, Interval columns,
                        const at::Tensor& out) const override {
    source_->read_mask_window(inner(key), window, rows, columns, out);
  }
  std::optional<RawImage> raw(ReadKey key, Interval rows, Interval columns) const override {
    return source_->raw(inner(key), rows, columns);
  }
  void read_bytes(std::int64_t index, Interval rows, Interval columns, std::uint8_t* to) const override {
    source_->read_bytes(at(index), rows, columns, to);
  }
  std::int64_t band_rows(ReadKey key) const override { return source_->band_rows(inner(key)); }
  at::Tensor thumbnail(std::int64_t index, ImageSize size) const override;
  ImageSize own_size(std::int64_t index) const override { return source_->own_size(at(index)); }
  std::string describe() const override;

 private:
  std::int64_t at(std::int64_t index) const;
  ReadKey inner(ReadKey key) const { return {at(key.index), key.epoch}; }

  const std::shared_ptr<const ImageSource> source_;
  const std::vector<std::int64_t> indices_;
};

/// As an epoch of training goes through a set: each image as often as it repeats. The set itself where that is once.
std::shared_ptr<const ImageSource> repeated(const std::shared_ptr<const ImageSource>& images);

/// A set divided by chance, as the seed has it: `share` of it (at least one image) is held out to judge by, the rest is
/// trained on. Both keep the order of the set. The same for every rank and every run of that seed.
struct HeldOut {
  std::vector<std::int64_t> training, held_out;
};
HeldOut held_out(std::int64_t images, double share, std::uint64_t seed);

}  // namespace tessera
