#include "limits.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/runtime/threads.h"

namespace tessera {
namespace {

template <class Number>
void check_range(Problems& problems, const char* flag, const std::optional<Number>& value, Number most) {
  if (value) problems.check(*value <= most, flag, " ", *value, " is more than the ", most, " that are possible");
}

}  // namespace

int threads_of_rank(const Options& o, int cores, std::int64_t ranks) {
  return o.threads.value_or(std::clamp(static_cast<int>(cores / ranks), 1, most_threads()));
}

void check_limits(const Options& o, int cores) {
  Problems problems;
  const int sensible = std::max(16, 4 * cores);
  if (o.threads) {
    problems.check(*o.threads <= most_threads(), "--threads ", *o.threads, " is more than OMP_THREAD_LIMIT allows (",
                   most_threads(), "); change one of them");
    problems.check(*o.threads <= sensible, "--threads ", *o.threads, " is more than ", sensible,
                   ", and this machine has ", cores, cores == 1 ? " core" : " cores",
                   "; without --threads the ranks share them out");
  }
  problems.check(o.workers.value_or(1) <= 256, "--num-workers ", o.workers.value_or(1),
                 " is more than the 256 that are possible; a few per rank are enough");
  check_range<std::int64_t>(problems, "--num-classes", o.model.classes, 1'000'000);
  check_range<std::int64_t>(problems, "--depth", o.model.depth, 10'000);
  check_range<std::int64_t>(problems, "--num-layers", o.model.num_layers, 10'000);
  check_range<std::int64_t>(problems, "--num-filters", o.model.num_filters, 100'000);
  check_range<std::int64_t>(problems, "--batch-size", o.plan.batch_size, 100'000'000);
  check_range<std::int64_t>(problems, "--batch-at-most", o.batch_at_most, 100'000'000);
  check_range<std::int64_t>(problems, "--steps", o.steps, 1'000'000'000);
  check_range<std::int64_t>(problems, "--num-epochs", o.num_epochs, 1'000'000);
  check_range<std::int64_t>(problems, "--channels", o.channels, most_channels);
  check_range<std::int64_t>(problems, "--synthetic-images", o.synthetic_images, 1'000'000'000'000);
  problems.throw_if_any();
}

void check_thread_ranks(int ranks) {
  constexpr int most = 1024;
  require(ranks <= most, "this plan needs ", ranks, " ranks, and at most ", most,
          " can be threads of one process; start them with mpirun -np ", ranks, ", or use fewer tiles, stages or ",
          "--replicas");
}

}  // namespace tessera
