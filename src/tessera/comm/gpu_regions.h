// Regions on a GPU and the streams that use them: what every way of sending from one has in common.
#pragma once

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/comm/region.h"

namespace tessera {

/// The caller's stream.
inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// One of a few streams beside the default one, of high priority.
inline c10::Stream another_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, true);
}

/// Comes when the stream has done what it holds now.
inline c10::Event event_on(const c10::Stream& stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

/// Memory on the region's GPU for as much, in the order of the caller's stream.
inline Region dense_like(const Region& like) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(like.owner.device());
  return dense_region(at::empty({like.bytes()}, options), like.dtype, like.sizes);
}

/// The same in the order of `stream`: nothing that the caller's stream holds still uses it.
inline Region dense_like(const Region& like, const c10::Stream& stream) {
  const c10::StreamGuard guard(stream);
  return dense_like(like);
}

/// In one piece, as it is when the caller's stream gets here.
inline Region packed_copy(const Region& region) {
  const Region dense = dense_like(region);
  copy_region(dense, region);
  return dense;
}

/// Puts in its place, in the order of the caller's stream, what has come to memory of another stream.
inline void deliver(const Region& to, const Region& come) {
  copy_region(to, come);
  come.owner.record_stream(current_stream(to.owner.device()));
}

}  // namespace tessera
