// CRC-32C (Castagnoli): the checksum of checkpoints and of TensorBoard's records. It finds every flipped bit and every
// burst of up to 32 bits, and processors compute it faster than disks read. No guard against forgery.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

/// Of `bytes` more bytes after those whose checksum is `before`; 0 at the start.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before = 0);

/// The same without the processor's own instruction, for machines that have none.
std::uint32_t crc32c_portable(const void* data, std::size_t bytes, std::uint32_t before = 0);

}  // namespace tessera
