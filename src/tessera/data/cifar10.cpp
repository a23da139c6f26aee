#include "tessera/data/cifar10.h"

#include <fstream>

#include <ATen/core/Tensor.h>

#include "tessera/base/error.h"
#include "tessera/data/cifar10_format.h"
#include "tessera/data/files.h"

namespace tessera {
namespace {

using cifar10::plane_bytes;
using cifar10::record_bytes;
using cifar10::side;
using cifar10::way_out;

constexpr std::array<double, 3> mean{0.4914, 0.4822, 0.4465}, deviation{0.2470, 0.2435, 0.2616};

std::string batches_folder(const std::string& folder) {
  require(files::is_folder(folder), "CIFAR-10 folder '", folder, "' does not exist", way_out);
  const std::string inner = files::path_in(folder, "cifar-10-batches-bin");
  return files::is_folder(inner) ? inner : folder;
}

std::vector<std::string> file_names(Split split) {
  if (split == Split::test) return {"test_batch.bin"};
  std::vector<std::string> names;
  for (int i = 1; i <= 5; ++i) names.push_back(concat("data_batch_", i, ".bin"));
  return names;
}

}  // namespace

Cifar10::Cifar10(const Cifar10Options& options) : options_(options) {
  const std::string folder = batches_folder(options.folder);
  for (const auto& name : file_names(options.split)) append(files::path_in(folder, name));
  for (std::size_t c = 0; c < 3; ++c)
    for (std::size_t byte = 0; byte < 256; ++byte)
      pixel_values_[c][byte] = (static_cast<double>(byte) / 255 - mean[c]) / deviation[c];
}

void Cifar10::append(const std::string& file) {
  require(files::is_file(file), "CIFAR-10 file '", file, "' is missing", way_out);
  const std::int64_t bytes = files::file_bytes(file);
  cifar10::check_size(bytes, file);
  const std::size_t begin = records_.size();
  records_.resize(begin + static_cast<std::size_t>(bytes));
  std::ifstream in(file, std::ios::binary);
  in.read(reinterpret_cast<char*>(records_.data() + begin), bytes);
  require(in.good(), "CIFAR-10 file '", file, "' could not be read: got ", in.gcount(), " of ", bytes, " bytes",
          way_out);
  cifar10::check_labels(std::span(records_).subspan(begin), file);
}

std::int64_t Cifar10::size() const { return static_cast<std::int64_t>(records_.size()) / record_bytes; }

std::int64_t Cifar10::label(std::int64_t index) const {
  ensure(0 <= index && index < size(), "image ", index, " of a source of ", size(), " images");
  return records_[static_cast<std::size_t>(index * record_bytes)];
}

Normalisation Cifar10::normalisation() const {
  return {{mean.begin(), mean.end()}, {deviation.begin(), deviation.end()}};
}

void Cifar10::read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const {
  check_read(key, rows, columns, out);
  if (out.scalar_type() == at::kFloat)
    read_as<float>(key.index, rows, columns, out);
  else
    read_as<double>(key.index, rows, columns, out);
}

template <class Real>
void Cifar10::read_as(std::int64_t index, Interval rows, Interval columns, const at::Tensor& out) const {
  Real* pixels = out.data_ptr<Real>();
  const std::uint8_t* planes = records_.data() + index * record_bytes + 1;
  for (std::int64_t c = 0; c < 3; ++c) {
    const auto& values = pixel_values_[static_cast<std::size_t>(c)];
    for (std::int64_t y = 0; y < rows.size(); ++y) {
      const std::uint8_t* row = planes + c * plane_bytes + (rows.begin + y) * side + columns.begin;
      Real* target = pixels + c * out.stride(0) + y * out.stride(1);
      const std::int64_t x_stride = out.stride(2);
      for (std::int64_t x = 0; x < columns.size(); ++x) target[x * x_stride] = static_cast<Real>(values[row[x]]);
    }
  }
}

std::string Cifar10::describe() const {
  return concat("CIFAR-10, ", options_.split == Split::train ? "train" : "test", ": ", size(),
                " images of 3x32x32, 10 classes, from ", options_.folder);
}

}  // namespace tessera
