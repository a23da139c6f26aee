#include "bad_images.h"

#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::size_t most_shown = 10;

// By image; empty where nothing is wrong, or another process looks at it.
std::vector<std::string> faults_found_here(const VipsImages& images, double smallest_window, const Launch& launch) {
  std::vector<std::string> faults(static_cast<std::size_t>(images.size()));
  const std::int64_t step = launch.world() ? launch.world()->size() : 1;
  std::atomic<std::int64_t> next = launch.world() ? launch.world()->rank().value : 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto look = [&] {
    try {
      for (std::int64_t i = next.fetch_add(step); i < images.size(); i = next.fetch_add(step))
        faults[static_cast<std::size_t>(i)] = images.fault_of(i, smallest_window);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  const int cores = std::max(1, launch.cores() / launch.ranks_on_node());
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < cores; ++t) threads.emplace_back(look);
  }
  if (failure) std::rethrow_exception(failure);
  return faults;
}

}  // namespace

void leave_out_bad_images(VipsImages& images, double smallest_window, const Launch& launch) {
  const auto faults = faults_found_here(images, smallest_window, launch);
  at::Tensor bad = at::zeros({images.size()}, at::kByte);
  std::size_t shown = 0;
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (faults[i].empty()) continue;
    bad.data_ptr<std::uint8_t>()[i] = 1;
    if (++shown <= most_shown) fmt::print(stderr, "tessera: left out: {}\n", faults[i]);
  }
  if (launch.world()) launch.world()->all_reduce(bad, Reduce::max).wait();
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < images.size(); ++i)
    if (bad.data_ptr<std::uint8_t>()[i]) indices.push_back(i);
  if (indices.empty()) return;
  const std::int64_t before = images.size();
  images.leave_out(indices);
  if (launch.speaks())
    fmt::print(stderr, "tessera: left out {} of {} images that cannot be read (--on-bad-image skip)\n", indices.size(),
               before);
  require(images.size() > 0, "no image is left; look at the files of --datapath");
}

}  // namespace tessera
