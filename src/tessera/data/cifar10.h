// CIFAR-10 in its binary form: files of records, each one byte of label and 3 × 32 × 32 bytes of pixels, plane by
// plane.
#pragma once

#include <string>
#include <vector>

#include "tessera/data/image_source.h"

namespace tessera {

struct Cifar10Options {
  /// The folder with the .bin files, or the one above it that holds cifar-10-batches-bin.
  std::string folder;
  Split split = Split::train;
};

/// Keeps the files' bytes in memory (154 MB for the training set) and converts on read, normalised per channel with the
/// mean and deviation of the training set.
class Cifar10 : public ImageSource {
 public:
  /// Throws UsageError that names the file when the folder or a file is missing or a file is not what it should be.
  explicit Cifar10(const Cifar10Options& options);

  std::int64_t size() const override;
  int classes() const override { return 10; }
  std::array<std::int64_t, 3> image_shape() const override { return {3, 32, 32}; }
  std::int64_t label(std::int64_t index) const override;
  Normalisation normalisation() const override;
  void read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override;
  std::string describe() const override;

 private:
  void append(const std::string& file);
  template <class Real>
  void read_as(std::int64_t index, Interval rows, Interval columns, const at::Tensor& out) const;

  Cifar10Options options_;
  std::vector<std::uint8_t> records_;
  std::array<std::array<double, 256>, 3> pixel_values_;  // [channel][byte]
};

}  // namespace tessera
