// Small typed numbers, so that ranks and tags cannot be swapped.
#pragma once

#include <compare>
#include <ostream>

#include "tessera/base/error.h"

namespace tessera {

/// The number of a rank within one communicator.
struct Rank {
  int value = 0;
  friend auto operator<=>(const Rank&, const Rank&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Rank& r) { return out << "rank " << r.value; }
};

/// What a message is about. A receive takes the oldest message of the same sender, communicator and tag, so a tag need
/// only tell apart messages that the two ends may post in different orders.
///
///     bit  27         26         25 .. 14     13 .. 0
///          backward   upward     micro        movement
///
/// 28 bits, because that is what every MPI library in use offers (the standard promises 15 only; mpi_world() checks).
struct Tag {
  static constexpr int limit = 1 << 28;
  int value = 0;
  friend auto operator<=>(const Tag&, const Tag&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Tag& t) { return out << "tag " << t.value; }
};

/// The fields of a tag: which movement of the plan, for which micro, in which direction and pass.
struct TagFields {
  int movement = 0;
  int micro = 0;
  bool upward = false;
  bool backward = false;
};

inline Tag make_tag(const TagFields& f) {
  require(0 <= f.movement && f.movement < 1 << 14, "movement ", f.movement, " does not fit in a tag: at most ", 1 << 14,
          " exchanges in one plan");
  require(0 <= f.micro && f.micro < 1 << 12, "micro ", f.micro, " does not fit in a tag: use at most ", 1 << 12,
          " --parts");
  return Tag{(f.backward ? 1 << 27 : 0) | (f.upward ? 1 << 26 : 0) | f.micro << 14 | f.movement};
}

/// The fields of a tag, for messages to people: "movement 7 of micro 0, forward".
inline std::string words_of(Tag t) {
  return concat("movement ", t.value & ((1 << 14) - 1), " of micro ", t.value >> 14 & ((1 << 12) - 1),
                (t.value & 1 << 27) != 0 ? ", backward" : ", forward", (t.value & 1 << 26) != 0 ? " and upward" : "");
}

/// How all_reduce combines the ranks' elements.
enum class Reduce { sum, max };

}  // namespace tessera
