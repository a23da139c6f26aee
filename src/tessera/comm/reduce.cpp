#include "tessera/comm/reduce.h"

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <type_traits>

#include "tessera/base/error.h"

namespace tessera {
namespace {

/// Block by block, so that the running sums stay in the first-level cache.
template <class T>
void reduce_as(Reduce op, const std::vector<const std::byte*>& terms, const std::vector<std::byte*>& results,
               std::int64_t begin, std::int64_t end) {
  using Sum = std::conditional_t<std::is_same_v<T, c10::BFloat16>, float, T>;
  constexpr std::int64_t block = 1024;
  Sum sums[block];
  for (std::int64_t at = begin; at < end; at += block) {
    const std::int64_t count = std::min(block, end - at);
    const auto elements_of = [&](std::size_t rank) { return reinterpret_cast<const T*>(terms[rank]) + at; };
    std::copy_n(elements_of(0), count, sums);
    for (std::size_t rank = 1; rank < terms.size(); ++rank) {
      const T* term = elements_of(rank);
      if (op == Reduce::sum)
        for (std::int64_t i = 0; i < count; ++i) sums[i] = static_cast<Sum>(sums[i] + static_cast<Sum>(term[i]));
      else
        for (std::int64_t i = 0; i < count; ++i) sums[i] = std::max(sums[i], static_cast<Sum>(term[i]));
    }
    for (std::byte* result : results)
      std::transform(sums, sums + count, reinterpret_cast<T*>(result) + at,
                     [](Sum sum) { return static_cast<T>(sum); });
  }
}

}  // namespace

void reduce_elements(at::ScalarType dtype, Reduce op, const std::vector<const std::byte*>& terms,
                     const std::vector<std::byte*>& results, std::int64_t begin, std::int64_t end) {
  switch (dtype) {
    case at::kFloat:
      return reduce_as<float>(op, terms, results, begin, end);
    case at::kDouble:
      return reduce_as<double>(op, terms, results, begin, end);
    case at::kBFloat16:
      return reduce_as<c10::BFloat16>(op, terms, results, begin, end);
    case at::kLong:
      return reduce_as<std::int64_t>(op, terms, results, begin, end);
    case at::kByte:
      return reduce_as<std::uint8_t>(op, terms, results, begin, end);
    default:
      throw Error(concat("all_reduce cannot combine elements of dtype ", dtype));
  }
}

}  // namespace tessera
