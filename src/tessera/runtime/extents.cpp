#include "tessera/runtime/extents.h"

#include <algorithm>
#include <iterator>

#include "tessera/base/error.h"

namespace tessera {

void Extents::put(const Extent& piece) {
  const Place place{piece.slab, piece.at};
  free_.emplace(place, piece);
  free_by_length_.emplace(piece.bytes, place);
  free_bytes_ += piece.bytes;
}

Extent Extents::remove(Place place) {
  const auto found = free_.find(place);
  const Extent piece = found->second;
  free_.erase(found);
  free_by_length_.erase({piece.bytes, place});
  free_bytes_ -= piece.bytes;
  return piece;
}

void Extents::add(std::size_t bytes) {
  require(bytes > 0 && bytes % unit_ == 0, "a slab of ", bytes, " bytes in units of ", unit_);
  put({.slab = slabs_++, .bytes = bytes});
}

std::size_t Extents::missing(std::size_t bytes) const {
  const std::size_t wanted = in_units(bytes);
  return wanted > free_bytes_ ? wanted - free_bytes_ : 0;
}

std::vector<Extent> Extents::take(std::size_t bytes) {
  require(missing(bytes) == 0, missing(bytes), " bytes are missing of ", bytes);
  std::vector<Extent> pieces;
  for (std::size_t wanted = in_units(bytes); wanted > 0;) {
    // The shortest that is long enough; where none is, the longest.
    auto best = free_by_length_.lower_bound({wanted, Place{}});
    if (best == free_by_length_.end()) best = std::prev(best);
    Extent piece = remove(best->second);
    if (piece.bytes > wanted) {
      Extent rest = piece;
      rest.at += wanted;
      rest.bytes -= wanted;
      put(rest);
      piece.bytes = wanted;
    }
    wanted -= piece.bytes;
    pieces.push_back(piece);
  }
  return pieces;
}

void Extents::give_back(const std::vector<Extent>& pieces, std::uint64_t use) {
  for (Extent piece : pieces) {
    piece.used = std::max(piece.used, use);
    const auto join = [&](const Extent& neighbour) {
      piece.at = std::min(piece.at, neighbour.at);
      piece.bytes += neighbour.bytes;
      piece.used = std::max(piece.used, neighbour.used);
    };
    const auto next = free_.find({piece.slab, piece.at + piece.bytes});
    if (next != free_.end()) join(remove(next->first));
    const auto after = free_.lower_bound({piece.slab, piece.at});
    if (after != free_.begin()) {
      const Extent& before = std::prev(after)->second;
      if (before.slab == piece.slab && before.at + before.bytes == piece.at) join(remove({before.slab, before.at}));
    }
    put(piece);
  }
}

}  // namespace tessera
