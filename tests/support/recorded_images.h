// Another source's images, and what was asked of them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/image_source.h"

namespace tessera::test {

class RecordedImages : public ImageSource {
 public:
  /// One read of values.
  struct Read {
    std::int64_t image = 0, epoch = 0;
    Interval rows, columns;
    friend bool operator==(const Read&, const Read&) = default;
    friend std::ostream& operator<<(std::ostream& out, const Read& r) {
      return out << "image " << r.image << " of epoch " << r.epoch << ", rows " << r.rows << ", columns " << r.columns;
    }
  };

  explicit RecordedImages(std::shared_ptr<const ImageSource> source) : source_(std::move(source)) {}
  std::int64_t size() const override { return source_->size(); }
  int classes() const override { return source_->classes(); }
  int mask_classes() const override { return source_->mask_classes(); }
  std::array<std::int64_t, 3> image_shape() const override { return source_->image_shape(); }
  std::int64_t label(std::int64_t index) const override { return source_->label(index); }
  void read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override {
    {
      const std::lock_guard lock(mutex_);
      reads_.push_back({key.index, key.epoch, rows, columns});
    }
    const auto& [image, row, column] = broken_pixel;
    if (key.index == image && rows.contains(row) && columns.contains(column)) throw UsageError("this pixel is broken");
    source_->read(key, rows, columns, out);
  }
  void read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override {
    source_->read_mask(key, rows, columns, out);
  }
  std::string describe() const override { return source_->describe(); }

  /// Since the last call, in their order.
  std::vector<Read> take_reads() const {
    const std::lock_guard lock(mutex_);
    return std::exchange(reads_, {});
  }
  /// Image, row and column: a read of it fails.
  std::array<std::int64_t, 3> broken_pixel{-1, -1, -1};

 private:
  const std::shared_ptr<const ImageSource> source_;
  mutable std::mutex mutex_;
  mutable std::vector<Read> reads_;
};

}  // namespace tessera::test
