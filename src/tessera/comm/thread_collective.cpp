#include "tessera/comm/thread_collective.h"

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <type_traits>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::int64_t elements_per_item = 1 << 15;

/// Combines elements [begin, end) of all ranks in the order of the ranks, block by block, so that the running sums stay
/// in the first-level cache, and gives the result to every rank.
template <class T>
void reduce_slice(const std::vector<Collective::Post>& posts, Reduce op, std::int64_t begin, std::int64_t end) {
  using Sum = std::conditional_t<std::is_same_v<T, c10::BFloat16>, float, T>;
  constexpr std::int64_t block = 1024;
  Sum sums[block];
  for (std::int64_t at = begin; at < end; at += block) {
    const std::int64_t count = std::min(block, end - at);
    const auto elements_of = [&](std::size_t rank) { return reinterpret_cast<T*>(posts[rank].in.data) + at; };
    std::copy_n(elements_of(0), count, sums);
    for (std::size_t rank = 1; rank < posts.size(); ++rank) {
      const T* terms = elements_of(rank);
      if (op == Reduce::sum)
        for (std::int64_t i = 0; i < count; ++i) sums[i] = static_cast<Sum>(sums[i] + static_cast<Sum>(terms[i]));
      else
        for (std::int64_t i = 0; i < count; ++i) sums[i] = std::max(sums[i], static_cast<Sum>(terms[i]));
    }
    for (std::size_t rank = 0; rank < posts.size(); ++rank)
      std::transform(sums, sums + count, elements_of(rank), [](Sum sum) { return static_cast<T>(sum); });
  }
}

}  // namespace

const char* CollectiveCall::name() const {
  switch (kind) {
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::broadcast:
      return "broadcast";
    case Kind::all_gather:
      return "all_gather";
    case Kind::barrier:
      return "barrier";
  }
  return "collective";
}

std::int64_t Collective::count_items() const {
  switch (call.kind) {
    case CollectiveCall::Kind::all_reduce:
      return (posts.front().in.count() + elements_per_item - 1) / elements_per_item;
    case CollectiveCall::Kind::broadcast:
    case CollectiveCall::Kind::all_gather:
      return static_cast<std::int64_t>(posts.size());
    case CollectiveCall::Kind::barrier:
      return 0;
  }
  return 0;
}

void Collective::arrive(Rank rank, Region in, Region out) {
  posts[static_cast<std::size_t>(rank.value)] = {true, std::move(in), std::move(out)};
  ++arrived;
  if (all_here()) items = count_items();
}

std::int64_t Collective::help() {
  std::int64_t did = 0;
  for (std::int64_t item = next_item++; item < items; item = next_item++, ++did) do_item(item);
  return did;
}

void Collective::do_item(std::int64_t item) const {
  const auto at = [&](std::int64_t rank) -> const Post& { return posts[static_cast<std::size_t>(rank)]; };
  switch (call.kind) {
    case CollectiveCall::Kind::all_reduce: {
      const Region& first = posts.front().in;
      const std::int64_t begin = item * elements_per_item, end = std::min(begin + elements_per_item, first.count());
      switch (first.dtype) {
        case at::kFloat:
          return reduce_slice<float>(posts, call.op, begin, end);
        case at::kDouble:
          return reduce_slice<double>(posts, call.op, begin, end);
        case at::kBFloat16:
          return reduce_slice<c10::BFloat16>(posts, call.op, begin, end);
        case at::kLong:
          return reduce_slice<std::int64_t>(posts, call.op, begin, end);
        case at::kByte:
          return reduce_slice<std::uint8_t>(posts, call.op, begin, end);
        default:
          throw Error(concat("all_reduce cannot combine elements of dtype ", first.dtype));
      }
    }
    case CollectiveCall::Kind::broadcast: {
      if (item == call.root.value) return;
      return copy_region(at(item).out, at(call.root.value).in);
    }
    case CollectiveCall::Kind::all_gather: {
      for (std::int64_t rank = 0; rank < static_cast<std::int64_t>(posts.size()); ++rank)
        copy_region(at(item).out.slice(rank * at(rank).in.count(), at(rank).in.count()), at(rank).in);
      return;
    }
    case CollectiveCall::Kind::barrier:
      return;
  }
}

}  // namespace tessera
