// Files of named tensors in the safetensors format, which Python reads and writes, too:
//
// safetensors_header.h has the format. A file is never loaded as a whole: the header is read and checked at opening,
// and single tensors when asked for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/io/file.h"
#include "tessera/io/safetensors_header.h"

namespace tessera {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// What a tensor is, without its numbers.
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kFloat;
};

/// Reads. Of one thread, though several may call read() at once on different tensors.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::string path);

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorEntry>& tensors() const { return header_.tensors; }
  const Metadata& metadata() const { return header_.metadata; }
  /// Null if it is not in the file.
  const TensorEntry* find(const std::string& name) const;
  /// Throws Error if it is not there, or of a data type that cannot be read.
  TensorSpec spec(const std::string& name) const;

  /// In the file's data type.
  at::Tensor read(const std::string& name) const;
  /// Into a tensor of the same shape, of any strides and device. One kind of floating point becomes another, one kind
  /// of integer another; nothing else is converted.
  void read(const std::string& name, const at::Tensor& into) const;

 private:
  const TensorEntry& entry(const std::string& name) const;

  InputFile file_;
  SafetensorsHeader header_;
  std::int64_t data_begin_ = 0;
  std::unordered_map<std::string, std::size_t> index_;
};

/// Writes, one tensor after the other, so that they need not be in memory together.
class SafetensorsWriter {
 public:
  /// Throws if a name comes twice or a data type has no name in the format.
  SafetensorsWriter(std::string path, std::vector<TensorSpec> tensors, const Metadata& metadata = {});

  /// The order in which they must be added: wide data types first, so that every tensor is aligned.
  const std::vector<TensorSpec>& order() const { return order_; }
  /// The next one. Any strides and device: it is written in torch's logical order.
  void add(const at::Tensor& tensor);
  /// After the last one. The bytes are then on the disk; until then, a destructor removes the file.
  FileSum close();

 private:
  std::vector<TensorSpec> order_;
  std::size_t added_ = 0;
  OutputFile file_;
};

/// All at once, to a file that is half there while it is written.
FileSum write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                          const Metadata& metadata = {});
/// By way of `path`.part and a rename: whole or not there.
void write_safetensors_file(const std::string& path, const std::vector<NamedTensor>& tensors,
                            const Metadata& metadata = {});

}  // namespace tessera
