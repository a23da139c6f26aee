// Random choices that depend on a seed and on nothing else: the same on every machine.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "tessera/base/random.h"

namespace tessera::plans {

class Dice {
 public:
  Dice(std::uint64_t seed, std::string_view name) : stream_(seed, name) {}

  /// One of least, least + 1, ..., most.
  std::int64_t number(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(stream_.below(next_++, static_cast<std::uint64_t>(most - least + 1)));
  }
  bool chance(double probability) { return stream_.uniform(next_++) < probability; }
  /// One of the list; what is to come more often stands there more often.
  template <class T>
  T one_of(const std::vector<T>& list) {
    return list[static_cast<std::size_t>(number(0, static_cast<std::int64_t>(list.size()) - 1))];
  }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return one_of(std::vector<T>(list));
  }

 private:
  RandomStream stream_;
  std::uint64_t next_ = 0;
};

}  // namespace tessera::plans
