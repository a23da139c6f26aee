#include "tessera/comm/threads/thread_collective.h"

#include <ATen/ops/maximum.h>

#include <algorithm>

#include "tessera/comm/reduce.h"

namespace tessera {
namespace {

constexpr std::int64_t elements_per_item = 1 << 15;

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
      // What lies on GPUs is queued there by one of the ranks.
      if (!posts.front().in.on_host()) return 1;
      return (posts.front().in.count() + elements_per_item - 1) / elements_per_item;
    case CollectiveCall::Kind::broadcast:
    case CollectiveCall::Kind::all_gather:
      return static_cast<std::int64_t>(posts.size());
    case CollectiveCall::Kind::barrier:
      return 0;
  }
  return 0;
}

bool Collective::arrive(Rank rank, Region in, Region out) {
  posts[static_cast<std::size_t>(rank.value)] = {true, std::move(in), std::move(out)};
  if (++arrived < static_cast<int>(posts.size())) return false;
  items_ = count_items();
  all_here_.store(true);
  return true;
}

bool Collective::little_work() const {
  const auto ranks = static_cast<std::int64_t>(posts.size());
  const std::int64_t copies = call.kind == CollectiveCall::Kind::all_gather ? ranks * ranks : ranks;
  return items_ <= 1 || call.bytes * copies <= 1 << 16;
}

bool Collective::help() {
  std::int64_t did = 0;
  for (std::int64_t item = next_item_++; item < items_; item = next_item_++, ++did) do_item(item);
  return did > 0 && items_done_.fetch_add(did) + did == items_;
}

void Collective::do_item(std::int64_t item) const {
  const auto at = [&](std::int64_t rank) -> const Post& { return posts[static_cast<std::size_t>(rank)]; };
  switch (call.kind) {
    case CollectiveCall::Kind::all_reduce: {
      const Region& first = posts.front().in;
      if (!first.on_host()) return reduce_on_gpus();
      const std::int64_t begin = item * elements_per_item, end = std::min(begin + elements_per_item, first.count());
      std::vector<const std::byte*> terms;
      std::vector<std::byte*> results;
      for (const Post& post : posts) {
        terms.push_back(post.in.data);
        results.push_back(post.in.data);
      }
      return reduce_elements(first.dtype, call.op, terms, results, begin, end);
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

void Collective::reduce_on_gpus() const {
  at::Tensor result;
  for (const Post& post : posts) {
    const at::Tensor term = tensor_of(post.in);
    if (!result.defined())
      result = term.to(term.scalar_type() == at::kBFloat16 ? at::kFloat : term.scalar_type(), false, /*copy=*/true);
    else if (call.op == Reduce::sum)
      result.add_(term.to(result.device()));
    else
      result = at::maximum(result, term.to(result.options()));
  }
  for (const Post& post : posts) tensor_of(post.in).copy_(result);
}

}  // namespace tessera
