#include "tessera/comm/region.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>

#include "tessera/base/error.h"

namespace tessera {
namespace {

/// Two regions walked together: the fewest nested loops that visit their elements in order. Strides are in bytes.
struct Walk {
  struct Loop {
    std::int64_t size = 1, to = 0, from = 0;
  };
  std::int64_t run = 1;         ///< elements that are adjacent on both sides
  std::array<Loop, 4> loops{};  ///< around the runs, innermost first
};

Walk walk_of(const Region& to, const Region& from) {
  const std::int64_t unit = to.element_bytes();
  Walk walk;
  std::size_t depth = 0;
  for (std::size_t axis = 4; axis-- > 0;) {
    if (to.sizes[axis] == 1) continue;
    const Walk::Loop loop{to.sizes[axis], to.strides[axis] * unit, from.strides[axis] * unit};
    const auto continues = [&](std::int64_t size, std::int64_t to_step, std::int64_t from_step) {
      return loop.to == size * to_step && loop.from == size * from_step;
    };
    if (depth == 0 && continues(walk.run, unit, unit)) {
      walk.run *= loop.size;
    } else if (depth > 0 &&
               continues(walk.loops[depth - 1].size, walk.loops[depth - 1].to, walk.loops[depth - 1].from)) {
      walk.loops[depth - 1].size *= loop.size;
    } else {
      walk.loops[depth++] = loop;
    }
  }
  return walk;
}

/// Runs that lie far apart, as the rows of a column strip do, defy the hardware's prefetcher: each would wait for
/// memory. So they are asked for a few rows ahead.
constexpr std::int64_t rows_ahead = 12;
inline void ask_for(std::byte* to, const std::byte* from, const Walk::Loop& row, std::size_t bytes) {
  constexpr std::size_t line = 64;
  for (std::size_t at = 0; at < bytes; at += line) {
    __builtin_prefetch(from + rows_ahead * row.from + at, 0);
    __builtin_prefetch(to + rows_ahead * row.to + at, 1);
  }
}

/// Calls visit(to, from) at the start of each run, which is `bytes` long.
template <class Visit>
inline void for_each_run(const Walk& walk, std::byte* to, const std::byte* from, std::size_t bytes,
                         const Visit& visit) {
  const auto [row, a, b, c] = walk.loops;
  const std::size_t asked = std::min<std::size_t>(bytes, 1024);  // from there on the hardware has noticed
  for (std::int64_t i = 0; i < c.size; ++i)
    for (std::int64_t j = 0; j < b.size; ++j)
      for (std::int64_t k = 0; k < a.size; ++k) {
        std::byte* t = to + i * c.to + j * b.to + k * a.to;
        const std::byte* f = from + i * c.from + j * b.from + k * a.from;
        for (std::int64_t l = 0; l < row.size; ++l, t += row.to, f += row.from) {
          ask_for(t, f, row, asked);
          visit(t, f);
        }
      }
}

/// A run length that the compiler knows turns memcpy into a move or two: a column of one-channel pixels is 4-byte runs.
template <std::size_t bytes>
void copy_short_runs(const Walk& walk, std::byte* to, const std::byte* from) {
  for_each_run(walk, to, from, bytes, [](std::byte* t, const std::byte* f) { std::memcpy(t, f, bytes); });
}

void copy_on_host(const Walk& walk, std::byte* to, const std::byte* from, std::int64_t element_bytes) {
  const auto bytes = static_cast<std::size_t>(walk.run * element_bytes);
  switch (bytes) {
    case 1:
      return copy_short_runs<1>(walk, to, from);
    case 2:
      return copy_short_runs<2>(walk, to, from);
    case 4:
      return copy_short_runs<4>(walk, to, from);
    case 8:
      return copy_short_runs<8>(walk, to, from);
    case 12:
      return copy_short_runs<12>(walk, to, from);
    case 16:
      return copy_short_runs<16>(walk, to, from);
    case 24:
      return copy_short_runs<24>(walk, to, from);
    default:
      for_each_run(walk, to, from, bytes, [&](std::byte* t, const std::byte* f) { std::memcpy(t, f, bytes); });
  }
}

template <class T>
void add_on_host(const Walk& walk, std::byte* to, const std::byte* from) {
  const auto bytes = static_cast<std::size_t>(walk.run) * sizeof(T);
  for_each_run(walk, to, from, bytes, [&](std::byte* t, const std::byte* f) {
    auto* sum = reinterpret_cast<T*>(t);
    const auto* term = reinterpret_cast<const T*>(f);
    for (std::int64_t k = 0; k < walk.run; ++k) sum[k] = sum[k] + term[k];
  });
}

std::array<std::int64_t, 4> dense_strides(const std::array<std::int64_t, 4>& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
}

/// `region` with the sizes of `like`.
Region shaped_like(Region region, const Region& like) {
  if (region.sizes == like.sizes) return region;
  ensure(region.dense() && region.count() == like.count(),
         "regions of different shapes: ", at::IntArrayRef(region.sizes), " and ", at::IntArrayRef(like.sizes));
  region.sizes = like.sizes;
  region.strides = dense_strides(like.sizes);
  return region;
}

}  // namespace

at::Tensor tensor_of(const Region& region) {
  return at::from_blob(
      region.data, region.sizes, region.strides,
      at::TensorOptions().dtype(region.dtype).device(region.on_host() ? at::Device(at::kCPU) : region.owner.device()));
}

bool Region::dense() const {
  std::int64_t expected = 1;
  for (std::size_t axis = 4; axis-- > 0;) {
    if (sizes[axis] != 1 && strides[axis] != expected) return count() == 0;
    expected *= sizes[axis];
  }
  return true;
}

Region Region::slice(std::int64_t begin, std::int64_t slice_count) const {
  Region part = *this;
  part.data += begin * element_bytes();
  part.sizes = {1, 1, 1, slice_count};
  part.strides = dense_strides(part.sizes);
  return part;
}

Region region_of(const at::Tensor& tensor) {
  Region region;
  if (!tensor.defined()) return region;
  region.owner = tensor;
  region.data = static_cast<std::byte*>(tensor.data_ptr());
  region.dtype = tensor.scalar_type();
  if (tensor.dim() == 4) {
    constexpr std::array<std::int64_t, 4> travelling_order{0, 2, 3, 1};
    for (std::size_t i = 0; i < 4; ++i) {
      region.sizes[i] = tensor.size(travelling_order[i]);
      region.strides[i] = tensor.stride(travelling_order[i]);
    }
    return region;
  }
  if (tensor.dim() > 4) {
    ensure(tensor.is_contiguous(), "a tensor of ", tensor.dim(), " axes must be contiguous to travel");
    region.sizes = {1, 1, 1, tensor.numel()};
    region.strides = dense_strides(region.sizes);
    return region;
  }
  region.sizes = {1, 1, 1, 1};
  for (std::int64_t axis = 0; axis < tensor.dim(); ++axis) {
    const auto at = static_cast<std::size_t>(4 - tensor.dim() + axis);
    region.sizes[at] = tensor.size(axis);
    region.strides[at] = tensor.stride(axis);
  }
  return region;
}

Region dense_region(const at::Tensor& buffer, at::ScalarType dtype, const std::array<std::int64_t, 4>& sizes) {
  return {buffer, static_cast<std::byte*>(buffer.data_ptr()), dtype, sizes, dense_strides(sizes)};
}

Region dense_region(std::byte* data, at::ScalarType dtype, const std::array<std::int64_t, 4>& sizes) {
  return {at::Tensor(), data, dtype, sizes, dense_strides(sizes)};
}

void copy_region(const Region& to, const Region& from) {
  if (to.sizes != from.sizes) {
    if (from.dense()) return copy_region(to, shaped_like(from, to));
    return copy_region(shaped_like(to, from), from);
  }
  if (to.count() == 0) return;
  if (!to.on_host() || !from.on_host() || to.dtype != from.dtype) {
    tensor_of(to).copy_(tensor_of(from));
    return;
  }
  copy_on_host(walk_of(to, from), to.data, from.data, to.element_bytes());
}

void add_region(const Region& to, const Region& from) {
  ensure(to.sizes == from.sizes && to.dtype == from.dtype, "regions to add differ: ", at::IntArrayRef(to.sizes), ' ',
         to.dtype, " and ", at::IntArrayRef(from.sizes), ' ', from.dtype);
  if (to.count() == 0) return;
  if (!to.on_host() || !from.on_host()) {
    tensor_of(to).add_(tensor_of(from).to(to.owner.device()));
    return;
  }
  const Walk walk = walk_of(to, from);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, to.dtype, "add_region",
                                  [&] { add_on_host<scalar_t>(walk, to.data, from.data); });
}

void zero_region(const Region& region) {
  if (region.count() == 0) return;
  if (!region.on_host()) {
    tensor_of(region).zero_();
    return;
  }
  const Walk walk = walk_of(region, region);
  const auto bytes = static_cast<std::size_t>(walk.run * region.element_bytes());
  for_each_run(walk, region.data, region.data, bytes,
               [&](std::byte* t, const std::byte*) { std::memset(t, 0, bytes); });
}

at::Tensor BufferPool::take_beside(const Region& region) {
  if (region.on_host()) return take(region.bytes());
  // Torch's allocator for GPUs is such a pool itself.
  return at::empty({region.bytes()}, region.owner.options().dtype(at::kByte));
}

at::Tensor BufferPool::take(std::int64_t bytes, bool pinned) {
  std::vector<at::Tensor>& buffers = pinned ? pinned_ : buffers_;
  constexpr std::int64_t page = 4096;
  at::Tensor* best = nullptr;
  for (at::Tensor& buffer : buffers) {
    const std::int64_t size = buffer.numel();
    // A buffer of twice the size is left for the messages that need it.
    if (buffer.use_count() == 1 && bytes <= size && size <= std::max(page, 2 * bytes) &&
        (best == nullptr || size < best->numel()))
      best = &buffer;
  }
  if (best != nullptr) return *best;
  return buffers.emplace_back(
      at::empty({(bytes + page - 1) / page * page}, at::TensorOptions().dtype(at::kByte).pinned_memory(pinned)));
}

Wire::Wire(BufferPool& pool, Region user, at::ScalarType travelling_dtype) : wire_(std::move(user)) {
  if (wire_.dense() && wire_.dtype == travelling_dtype) return;
  user_ = std::move(wire_);
  const auto bytes = user_.count() * static_cast<std::int64_t>(c10::elementSize(travelling_dtype));
  wire_ = dense_region(pool.take(bytes), travelling_dtype, user_.sizes);
}

void Wire::pack() const {
  if (user_.count() > 0) copy_region(wire_, user_);
}

void Wire::unpack() const {
  if (user_.count() > 0) copy_region(user_, wire_);
}

}  // namespace tessera
