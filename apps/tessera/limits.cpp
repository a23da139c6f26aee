#include "limits.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {
namespace {

template <class Number>
void check_range(Problems& problems, const char* flag, const std::optional<Number>& value, Number most) {
  if (value) problems.check(*value <= most, flag, " ", *value, " is more than the ", most, " that are possible");
}

}  // namespace

void check_limits(const Options& o, int cores) {
  Problems problems;
  const int most_threads = std::max(16, 4 * cores);
  if (o.threads)
    problems.check(*o.threads <= most_threads, "--threads ", *o.threads, " is more than ", most_threads,
                   ", and this machine has ", cores, cores == 1 ? " core" : " cores",
                   "; without --threads the ranks share them out");
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
