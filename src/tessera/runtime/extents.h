// Bookkeeping of used and free pieces of large slabs of memory; it holds no memory itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace tessera {

/// A piece of a slab.
struct Extent {
  std::size_t slab = 0, at = 0, bytes = 0;
  std::uint64_t used = 0;  ///< the last use of any part of it, as give_back() was told
  bool operator==(const Extent&) const = default;
};

/// What is asked for may be put together from several pieces. So whatever is free can be used for any length, and slabs
/// need be no larger than what was taken at once.
class Extents {
 public:
  /// Pieces are whole units.
  explicit Extents(std::size_t unit) : unit_(unit) {}

  /// One more slab, all of it free. Slabs count from 0; `bytes` are whole units.
  void add(std::size_t bytes);
  /// How much larger the slabs have to be for this; 0: they are large enough.
  std::size_t missing(std::size_t bytes) const;
  /// As few pieces as it takes, at least `bytes` in all. Nothing may be missing.
  std::vector<Extent> take(std::size_t bytes);
  /// `use` counts up from one use to the next; 0: there was none.
  void give_back(const std::vector<Extent>& pieces, std::uint64_t use);

  std::size_t free_bytes() const { return free_bytes_; }

 private:
  using Place = std::pair<std::size_t, std::size_t>;  // slab, and where in it
  std::size_t in_units(std::size_t bytes) const { return (bytes + unit_ - 1) / unit_ * unit_; }
  void put(const Extent& piece);
  Extent remove(Place place);

  const std::size_t unit_;
  std::size_t slabs_ = 0, free_bytes_ = 0;
  std::map<Place, Extent> free_;                            // neighbours are one piece
  std::set<std::pair<std::size_t, Place>> free_by_length_;  // the same
};

}  // namespace tessera
