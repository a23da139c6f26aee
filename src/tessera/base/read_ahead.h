// How much is read before it is wanted.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera {

/// Batches (or pieces of them) that are under way or ready while one is trained on.
struct ReadAhead {
  int batches = 2;         ///< or pieces, at least
  std::int64_t bytes = 0;  ///< and more of them, as long as their images take no more than this
  static constexpr std::int64_t most_batches = 8;

  std::int64_t pieces(std::int64_t piece_bytes, std::int64_t pieces_of_a_batch) const {
    return std::max<std::int64_t>(
        batches, std::min(most_batches * pieces_of_a_batch, bytes / std::max<std::int64_t>(1, piece_bytes)));
  }
};

}  // namespace tessera
