// Where the elements of a tensor, or of a box of it, lie in memory, and how they are copied and added.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

/// Elements in the order in which they travel: slowest axis first. Tensors of four axes (NCHW) travel as batch, height,
/// width, channels, whatever their strides are: that is how Tessera's tensors lie, so most boxes are long runs. Tensors
/// of fewer axes travel row by row; those of more must be contiguous. A value that shares ownership of the memory.
struct Region {
  at::Tensor owner;
  std::byte* data = nullptr;
  at::ScalarType dtype = at::kFloat;
  std::array<std::int64_t, 4> sizes{0, 0, 0, 0};
  std::array<std::int64_t, 4> strides{0, 0, 0, 0};  ///< in elements

  std::int64_t count() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
  std::int64_t element_bytes() const { return static_cast<std::int64_t>(c10::elementSize(dtype)); }
  std::int64_t bytes() const { return count() * element_bytes(); }
  /// One run without holes, in travelling order.
  bool dense() const;
  bool on_host() const { return !owner.defined() || owner.is_cpu(); }
  /// Elements [begin, begin + count) of a dense region.
  Region slice(std::int64_t begin, std::int64_t slice_count) const;
};

/// All of a tensor. An undefined tensor gives an empty region.
Region region_of(const at::Tensor& tensor);
/// The tensor that a region shows; shares the memory, but does not own it.
at::Tensor tensor_of(const Region& region);
/// A dense region of the given sizes on memory that `buffer` owns (see BufferPool).
Region dense_region(const at::Tensor& buffer, at::ScalarType dtype, const std::array<std::int64_t, 4>& sizes);
/// The same on host memory that no tensor owns.
Region dense_region(std::byte* data, at::ScalarType dtype, const std::array<std::int64_t, 4>& sizes);

/// to = from, converting the dtype where it differs. The sizes must agree, or one of the two must be dense and as long.
/// Other than in host memory the copy is queued on the calling thread's current stream.
void copy_region(const Region& to, const Region& from);
/// to += from, same sizes and dtype, floating point only.
void add_region(const Region& to, const Region& from);
void zero_region(const Region& region);

/// Buffers that are used again and again: fresh pages cost more than the copy into them. A buffer is free when nobody
/// but the pool holds it. Not thread-safe.
class BufferPool {
 public:
  /// At least `bytes` of host memory; pinned where it is to meet a GPU's.
  at::Tensor take(std::int64_t bytes, bool pinned = false);
  /// At least as many bytes as the region has, in memory of the same kind.
  at::Tensor take_beside(const Region& region);

 private:
  std::vector<at::Tensor> buffers_, pinned_;
};

/// The dense stand-in under which a region travels where memory must be in one piece, for tensors in host memory. It is
/// the region itself when that is already so.
class Wire {
 public:
  Wire() = default;
  /// `travelling_dtype` differs from the region's where the transport cannot do arithmetic in that.
  Wire(BufferPool& pool, Region user, at::ScalarType travelling_dtype);
  Wire(BufferPool& pool, Region user) : Wire(pool, user, user.dtype) {}

  const Region& region() const { return wire_; }
  void pack() const;
  void unpack() const;

 private:
  Region user_;  ///< empty where nothing stands in for it
  Region wire_;
};

}  // namespace tessera
