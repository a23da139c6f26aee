// Tensors on a GPU for ranks that talk through the host.
#pragma once

#include <memory>

#include "tessera/comm/communicator.h"

namespace tessera {

/// What a message to another rank is sent from, and received into.
enum class MessageMemory {
  pinned,  ///< host memory that the GPU copies from and to
  gpu,     ///< the GPU's own, where the library below can read it
};

/// The same ranks, for tensors anywhere. Those in host memory are passed on to `host` as they are. Those on a GPU are
/// packed there and copied to pinned memory and back on a stream of their own; events order that stream and the
/// caller's. Nobody waits for the GPU when an operation starts: it is queued, and handed to `host` as soon as its
/// copy is there, when this rank tests or waits for whichever operation. Collectives go through the host in any case.
///
/// An operation is done when the caller's stream, not the host, may go on with its tensor. To be used with one GPU.
std::unique_ptr<Communicator> staged(std::unique_ptr<Communicator> host, MessageMemory messages);

}  // namespace tessera
