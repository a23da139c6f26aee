#include "tessera/trials/link_trials.h"

#include <ATen/ops/full.h>

#include <algorithm>

#include "tessera/base/meter.h"

namespace tessera {
namespace {

// Seconds of one round, the best of several batches of them: what else goes on only makes it longer.
template <class Round>
double seconds_of(Communicator& group, int rounds, const Round& round) {
  constexpr int batches = 3;
  double best = 1e9;
  for (int b = 0; b < batches; ++b) {
    group.barrier();
    const double begin = now_seconds();
    for (int i = 0; i < rounds; ++i) round();
    best = std::min(best, (now_seconds() - begin) / rounds);
  }
  const at::Tensor slowest = at::full({1}, best, at::kDouble);
  group.all_reduce(slowest, Reduce::max).wait();
  return slowest.item<double>();
}

}  // namespace

Links try_links(Communicator& group, const at::TensorOptions& where) {
  Links links;
  if (group.size() == 1) return {.message_bytes = 1e12, .sum_bytes = 1e12};
  // Each to its neighbour, all at once, as margins go.
  const int n = group.size(), me = group.rank().value;
  const Rank next{(me + 1) % n}, before{(me + n - 1) % n};
  const auto exchange = [&](std::int64_t elements) {
    const at::Tensor out = at::full({elements}, 0.5, where), in = at::full({elements}, 0.5, where);
    return [&group, out, in, next, before] {
      Pending received = group.receive(in, before, Tag{1});
      Pending sent = group.send(out, next, Tag{1});
      received.wait();
      sent.wait();
    };
  };
  const auto sum = [&](std::int64_t elements) {
    const at::Tensor data = at::full({elements}, 1e-30, where.dtype(at::kFloat));
    return [&group, data] { group.all_reduce(data).wait(); };
  };
  constexpr std::int64_t few = 256, many = 1 << 20;
  const auto bytes = static_cast<double>(many) * static_cast<double>(where.dtype().itemsize());
  links.message = seconds_of(group, 50, exchange(few));
  links.message_bytes = bytes / std::max(1e-9, seconds_of(group, 5, exchange(many)) - links.message);
  links.agreement = seconds_of(group, 50, sum(few));
  links.sum_bytes = 4.0 * static_cast<double>(many) / std::max(1e-9, seconds_of(group, 5, sum(many)) - links.agreement);
  return links;
}

}  // namespace tessera
