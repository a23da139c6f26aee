// Counter-based random numbers: a value is a function of (seed, stream, index) and of nothing else, so that every rank
// can make any part of any random field without the others.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tessera {

/// Philox4x32-10 (Salmon et al., 2011): 128 random bits for a 64-bit key and a 128-bit counter.
inline std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  std::array<std::uint32_t, 4> c{static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
                                 static_cast<std::uint32_t>(counter_high),
                                 static_cast<std::uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0], p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

/// FNV-1a, to turn a name into a stream number.
constexpr std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (char ch : name) hash = (hash ^ static_cast<unsigned char>(ch)) * 0x100000001b3ull;
  return hash;
}

/// One stream of random numbers, addressed by index. Stateless: safe to share between threads.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}
  RandomStream(std::uint64_t seed, std::string_view name) : RandomStream(seed, stream_of(name)) {}

  std::uint64_t bits(std::uint64_t index) const {
    const auto r = philox(seed_, index, stream_);
    return (std::uint64_t{r[0]} << 32) | r[1];
  }
  /// Uniform in [0, 1).
  double uniform(std::uint64_t index) const { return static_cast<double>(bits(index) >> 11) * 0x1.0p-53; }
  /// Standard normal (Box-Muller on the two halves of one draw).
  double normal(std::uint64_t index) const;
  /// Uniform in [0, count).
  std::uint64_t below(std::uint64_t index, std::uint64_t count) const {
    return static_cast<std::uint64_t>(uniform(index) * static_cast<double>(count));
  }

 private:
  std::uint64_t seed_, stream_;
};

}  // namespace tessera
