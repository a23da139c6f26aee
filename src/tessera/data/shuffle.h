// A random order that needs no memory: position -> image number, by arithmetic.
#pragma once

#include <cstdint>

#include "tessera/base/random.h"

namespace tessera {

/// A permutation of [0, size) that is a function of (seed, epoch): every rank and every worker has the same one without
/// speaking, and any step can be entered without walking there. A Feistel network of six rounds over the next even
/// power of two, applied again until it lands below `size` (at most four times on average).
/// Thread safety: immutable.
class Shuffle {
 public:
  Shuffle(std::int64_t size, std::uint64_t seed, std::int64_t epoch)
      : size_(static_cast<std::uint64_t>(size)), epoch_(static_cast<std::uint64_t>(epoch)), stream_(seed, "shuffle") {
    while ((std::uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
  }

  /// Precondition: 0 <= position < size.
  std::int64_t operator()(std::int64_t position) const {
    auto at = static_cast<std::uint64_t>(position);
    do at = permuted(at);
    while (at >= size_);
    return static_cast<std::int64_t>(at);
  }

 private:
  std::uint64_t permuted(std::uint64_t value) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = value >> half_bits_, right = value & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      // Halves have at most 24 bits (2^48 images), so epoch, round and half share one counter.
      const std::uint64_t next = left ^ (stream_.bits((epoch_ << 27) | (round << 24) | right) & mask);
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

  std::uint64_t size_, epoch_;
  int half_bits_ = 1;
  RandomStream stream_;
};

}  // namespace tessera
