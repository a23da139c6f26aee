// `tessera bench halo`: the exchange of margins alone, and under a convolution, on the tiles of one value.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "limits.h"
#include "tessera/base/error.h"
#include "tessera/base/meter.h"
#include "tessera/base/text.h"
#include "tessera/comm/exchange.h"
#include "tessera/comm/mpi/bare_mpi.h"
#include "tessera/io/json_file.h"
#include "tessera/io/report.h"
#include "tessera/runtime/memory.h"

namespace tessera {
namespace {

// The tiles of a value, and what each rank needs of it.
struct Tiles {
  Box whole;
  Partition have;
  std::vector<Box> need;
};

Tiles tiles_of(const HaloOptions& o, const Shape& image, const Grid& grid) {
  Tiles tiles{image.box({0, o.batch_size}), {}, {}};
  tiles.have = grid_partition(tiles.whole, grid);
  for (Box box : tiles.have.boxes) {
    for (const Axis axis : {Axis::height, Axis::width})
      box[axis] = intersect({box[axis].begin - o.halo_len, box[axis].end + o.halo_len}, tiles.whole[axis]);
    tiles.need.push_back(box);
  }
  return tiles;
}

at::Tensor view(const at::Tensor& buffer, const Box& whole, const Box& box) {
  return buffer.narrow(2, box.height().begin - whole.height().begin, box.height().size())
      .narrow(3, box.width().begin - whole.width().begin, box.width().size());
}

// Each pixel knows where it is, so a strip in the wrong place shows.
at::Tensor expected(const Box& box, std::int64_t channels, std::int64_t width) {
  const auto rows = at::arange(box.height().begin, box.height().end, at::kFloat).view({1, 1, -1, 1});
  const auto columns = at::arange(box.width().begin, box.width().end, at::kFloat).view({1, 1, 1, -1});
  const auto c = at::arange(channels, at::kFloat).view({1, -1, 1, 1});
  return at::remainder(rows * static_cast<double>(width) + columns + c * 7, 8191)
      .expand({box.batch().size(), -1, -1, -1});
}

struct Timing {
  std::vector<double> exchange, both, compute, bare;  // seconds, one an iteration
  std::int64_t bytes = 0, messages = 0;
};

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

Timing measure(const HaloOptions& o, const Tiles& tiles, std::int64_t width, Communicator& world, bool mpi) {
  const auto me = static_cast<std::size_t>(world.rank().value);
  const Box have = tiles.have.boxes[me], need = tiles.need[me];
  const Exchange exchange(tiles.have, tiles.need, world.rank());
  at::Tensor buffer = at::full({o.batch_size, o.in_channels, need.height().size(), need.width().size()}, -1.0,
                               at::TensorOptions().dtype(at::kFloat).memory_format(at::MemoryFormat::ChannelsLast));
  const at::Tensor inside = view(buffer, need, have);
  inside.copy_(expected(have, o.in_channels, width));
  const auto run = [&] { exchange.start(world, inside, buffer, Tag{0}).finish(); };
  run();
  require(at::equal(buffer, expected(need, o.in_channels, width)), "the exchange put a wrong margin on rank ", me);

  const std::int64_t window = o.with_compute ? 2 * o.halo_len + 1 : 1;
  const at::Tensor weights =
      at::randn({o.in_channels, o.in_channels, window, window}).contiguous(at::MemoryFormat::ChannelsLast);
  at::Tensor out;
  const auto compute = [&] { out = at::conv2d(buffer, weights); };
  std::vector<BareMessage> bare;
  for (int peer = 0; peer < world.size(); ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    const auto bytes = [&](const Box& box) { return static_cast<std::size_t>(box.volume() * o.in_channels * 4); };
    const std::size_t sent = bytes(intersect(have, tiles.need[p])),
                      received = bytes(intersect(tiles.have.boxes[p], need));
    if (p != me && sent + received > 0)
      bare.push_back({peer, std::vector<std::byte>(sent), std::vector<std::byte>(received)});
  }

  Timing timing;
  timing.bytes = exchange.bytes_sent(o.in_channels, 4);
  timing.messages = exchange.messages();
  const auto time = [&](std::vector<double>& into, int i, const auto& work) {
    world.barrier();
    const double begin = now_seconds();
    work();
    if (i >= o.warmup) into.push_back(now_seconds() - begin);
  };
  for (int i = 0; i < o.warmup + o.iterations; ++i) {
    time(timing.exchange, i, run);
    if (mpi) time(timing.bare, i, [&] { bare_mpi_exchange(bare); });
    if (!o.with_compute) continue;
    time(timing.compute, i, compute);
    time(timing.both, i, [&] {
      run();
      compute();
    });
  }
  return timing;
}

}  // namespace

void run_bench_halo(const HaloOptions& o, const Launch& launch) {
  Problems problems;
  const auto within = [&](std::int64_t value, const char* flag, std::int64_t least, std::int64_t most) {
    problems.check(least <= value && value <= most, flag, " ", value, " must be from ", least, " to ", most);
  };
  within(o.batch_size, "--batch-size", 1, 100'000);
  within(o.in_channels, "--in-channels", 1, most_channels);
  within(o.iterations, "--iterations", 1, 1'000'000);
  within(o.halo_len, "--halo-len", 0, 100'000);
  within(o.warmup, "--warmup", 0, 1'000'000);
  Shape image;
  Grid grid;
  problems.absorb([&] { image = parse_image_size(o.image_size); });
  problems.absorb([&] {
    PlanOptions plan;
    plan.num_spatial_parts = o.num_spatial_parts;
    plan.slice_method = o.slice_method;
    grid = requested_grids(plan).front();
  });
  problems.throw_if_any();
  image.channels = o.in_channels;
  const int ranks = static_cast<int>(grid.tiles());
  if (launch.ranks_started())
    require(*launch.ranks_started() == ranks, "the launcher started ", *launch.ranks_started(), " ranks for ", ranks,
            " tiles; use mpirun -np ", ranks, " or another --num-spatial-parts");
  require(grid.rows <= image.height && grid.columns <= image.width, "an image of ", image.height, "x", image.width,
          " cannot be cut into ", grid, " tiles; use fewer --num-spatial-parts or a larger --image-size");
  require(image.height / grid.rows > 2 * o.halo_len || !o.with_compute, "--halo-len ", o.halo_len,
          " is too wide for a tile of ", image.height / grid.rows, " rows; use --no-compute or a larger --image-size");
  if (launch.speaks()) check_writable("--json", o.json);
  install_cpu_allocator();

  const Tiles tiles = tiles_of(o, image, grid);
  const bool mpi = !launch.ranks_are_threads();
  // By rank: median and p99 of the exchange, of bare MPI, of exchange and convolution, of the convolution alone.
  constexpr std::int64_t columns = 8;
  at::Tensor all;
  launch.run(ranks, [&](Communicator& world) {
    at::set_num_threads(1);
    const Timing t = measure(o, tiles, image.width, world, mpi);
    const auto mine = at::tensor({percentile(t.exchange, 0.5), percentile(t.exchange, 0.99), percentile(t.bare, 0.5),
                                  percentile(t.bare, 0.99), percentile(t.compute, 0.5), percentile(t.both, 0.5),
                                  static_cast<double>(t.bytes), static_cast<double>(t.messages)},
                                 at::kDouble);
    at::Tensor gathered = at::empty({world.size(), columns}, at::kDouble);
    world.all_gather(mine, gathered).wait();
    if (world.rank() == Rank{0}) all = gathered;
  });
  if (!launch.speaks()) return;

  fmt::print("{} x {} channels of {}x{}, {} tiles, margin {}, {}; validated, then {} iterations\n", o.batch_size,
             o.in_channels, image.height, image.width, concat(grid), o.halo_len, mpi ? "MPI processes" : "threads",
             o.iterations);
  Table table({"rank", "messages", "bytes sent", "median us", "p99 us", "GB/s", "bare MPI us", "its p99", "ratio",
               "conv us", "exchange + conv us"});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const auto add = [&](const std::string& name, const at::Tensor& row) {
    const double* v = row.data_ptr<double>();
    const auto us = [](double seconds) {
      return seconds > 0 ? fmt::format("{:.1f}", 1e6 * seconds) : std::string("-");
    };
    table.row({name, fmt::format("{:.0f}", v[7]), human_bytes(static_cast<std::int64_t>(v[6])), us(v[0]), us(v[1]),
               v[0] > 0 ? fmt::format("{:.2f}", v[6] / v[0] / 1e9) : "-", us(v[2]), us(v[3]),
               v[2] > 0 ? fmt::format("{:.2f}", v[0] / v[2]) : "-", us(v[4]), us(v[5])});
    rows.push_back({{"rank", name},
                    {"messages", v[7]},
                    {"bytes", v[6]},
                    {"median_seconds", v[0]},
                    {"p99_seconds", v[1]},
                    {"bare_mpi_median_seconds", v[2]},
                    {"compute_median_seconds", v[4]},
                    {"exchange_and_compute_median_seconds", v[5]}});
  };
  for (int r = 0; r < ranks; ++r) add(std::to_string(r), all[r].contiguous());
  // An exchange is over when its slowest rank is.
  at::Tensor overall = std::get<0>(all.max(0)).contiguous();
  overall[6] = all.select(1, 6).sum();
  overall[7] = all.select(1, 7).sum();
  add("all", overall);
  fmt::print("{}", table.str());
  if (!o.json.empty())
    write_json(o.json, {{"grid", {grid.rows, grid.columns}}, {"halo_len", o.halo_len}, {"ranks", rows}});
}

}  // namespace tessera
