// Margin exchange of 4 ranks, 2×2 tiles of a 1024×1024 image, beside bare MPI_Isend/MPI_Irecv of the same bytes between
// the same peers from buffers that are packed already.
//
//     mpirun -np 4 bench_exchange [--json FILE] [--rounds N] [--max-shared-bytes N]      processes, with the bare loop
//     bench_exchange ...                                                                 beside; or 4 threads, alone
//
// --max-shared-bytes 0 leaves all messages to MPI, as those between machines are.
//
// Each exchange is checked first. The two are timed in turn, round by round, because the machine may have fewer cores
// than ranks and other work. A round is a barrier and then 20 exchanges in a row, as neighbours in training run:
// nothing but the messages keeps them together. Its time is that of the slowest rank; the table has the median round,
// by 20, and the tenth percentile, which other work on the machine disturbs less. GB/s is the bytes that all ranks send
// by the time of the exchange.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/text.h"
#include "tessera/comm/exchange.h"
#include "tessera/comm/mpi/mpi_communicator.h"
#include "tessera/comm/threads/thread_communicator.h"
#include "tessera/runtime/memory.h"

using namespace tessera;

namespace {

constexpr std::int64_t image_size = 1024;
constexpr int ranks = 4;
constexpr int exchanges_per_round = 20;

struct Options {
  std::string json;
  int rounds = 100;
  CommunicatorOptions communicator;
};

/// The boxes of one margin width: tiles, and tiles with a margin on the sides that touch another tile.
struct Boxes {
  Partition have;
  std::vector<Box> need;

  explicit Boxes(std::int64_t width) {
    const Box whole = image_box({0, 1}, {0, image_size}, {0, image_size});
    have = grid_partition(whole, {2, 2});
    for (Box tile : have.boxes) {
      for (const Axis axis : {Axis::height, Axis::width})
        tile[axis] = intersect({tile[axis].begin - width, tile[axis].end + width}, whole[axis]);
      need.push_back(tile);
    }
  }
};

/// A tile's buffer with its margin, and the view of its inside.
struct Tile {
  at::Tensor buffer, inside;

  Tile(const Box& have, const Box& need, std::int64_t channels)
      : buffer(at::empty({1, channels, need.height().size(), need.width().size()},
                         at::TensorOptions().dtype(at::kFloat).memory_format(at::MemoryFormat::ChannelsLast))),
        inside(buffer.narrow(2, have.height().begin - need.height().begin, have.height().size())
                   .narrow(3, have.width().begin - need.width().begin, have.width().size())) {}
};

/// Each pixel knows where it is, so a strip in the wrong place shows.
void verify(Communicator& communicator, const Exchange& exchange, const Tile& tile, const Box& have, const Box& need) {
  const auto value = [](std::int64_t h, std::int64_t w, std::int64_t c) {
    return static_cast<float>((h * image_size + w + c * 7) % 8191);
  };
  tile.buffer.fill_(-1);
  auto pixels = tile.buffer.accessor<float, 4>();
  const auto for_each = [&](const Box& box, const auto& visit) {
    for (std::int64_t h = box.height().begin; h < box.height().end; ++h)
      for (std::int64_t w = box.width().begin; w < box.width().end; ++w)
        for (std::int64_t c = 0; c < tile.buffer.size(1); ++c)
          visit(pixels[0][c][h - need.height().begin][w - need.width().begin], value(h, w, c));
  };
  for_each(have, [](float& pixel, float expected) { pixel = expected; });
  exchange.start(communicator, tile.inside, tile.buffer, Tag{0}).finish();
  for_each(need, [](float pixel, float expected) { ensure(pixel == expected, "got ", pixel, ", not ", expected); });
}

/// The bare loop: contiguous buffers, allocated once, and MPI_Waitall.
class BareLoop {
 public:
  BareLoop(const Boxes& boxes, int me, std::int64_t channels) {
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == me) continue;
      const auto floats = [&](int from, int to) {
        const auto& have = boxes.have.boxes[static_cast<std::size_t>(from)];
        return at::full({intersect(have, boxes.need[static_cast<std::size_t>(to)]).volume() * channels}, 1.0f);
      };
      messages_.push_back({peer, floats(me, peer), floats(peer, me)});
    }
    requests_.resize(2 * messages_.size());
  }
  void operator()() {
    std::size_t next = 0;
    for (const auto& m : messages_)
      MPI_Irecv(m.in.data_ptr(), static_cast<int>(m.in.numel()), MPI_FLOAT, m.peer, 0, MPI_COMM_WORLD,
                &requests_[next++]);
    for (const auto& m : messages_)
      MPI_Isend(m.out.data_ptr(), static_cast<int>(m.out.numel()), MPI_FLOAT, m.peer, 0, MPI_COMM_WORLD,
                &requests_[next++]);
    MPI_Waitall(static_cast<int>(next), requests_.data(), MPI_STATUSES_IGNORE);
  }

 private:
  struct Message {
    int peer;
    at::Tensor out, in;
  };
  std::vector<Message> messages_;
  std::vector<MPI_Request> requests_;
};

/// Microseconds of one piece of work on the slowest rank, over a round.
template <class Work>
double time_of(Communicator& communicator, Work&& work) {
  communicator.barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < exchanges_per_round; ++i) work();
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
  const at::Tensor time = at::full({1}, elapsed.count() / exchanges_per_round, at::kDouble);
  communicator.all_reduce(time, Reduce::max).wait();
  return time.item<double>();
}

/// Of sorted times, the one that `share` of them are below.
double quantile(const std::vector<double>& times, double share) {
  return times[static_cast<std::size_t>(share * static_cast<double>(times.size()))];
}

void run(Communicator& communicator, bool under_mpi, const Options& options) {
  at::set_num_threads(1);  // what is timed is the ranks' own threads; idle helpers of theirs would spin beside them
  require(communicator.size() == ranks, "this benchmark is for ", ranks, " ranks, not ", communicator.size());
  std::vector<std::string> header{"channels", "width", "bytes/rank", "GB/s", "exchange us 10 %", "median"};
  if (under_mpi) header.insert(header.end(), {"bare us 10 %", "median", "ratio 10 %", "median"});
  Table table(std::move(header));
  nlohmann::json rows = nlohmann::json::array();
  for (const std::int64_t width : {1, 2, 3})
    for (const std::int64_t channels : {1, 2, 4, 8, 16, 32, 64}) {
      const Boxes boxes(width);
      const auto me = static_cast<std::size_t>(communicator.rank().value);
      const Exchange exchange(boxes.have, boxes.need, communicator.rank());
      const Tile tile(boxes.have.boxes[me], boxes.need[me], channels);
      verify(communicator, exchange, tile, boxes.have.boxes[me], boxes.need[me]);

      BareLoop bare(boxes, communicator.rank().value, channels);
      std::vector<double> exchange_times, bare_times;
      for (int round = 0; round < options.rounds; ++round) {
        exchange_times.push_back(
            time_of(communicator, [&] { exchange.start(communicator, tile.inside, tile.buffer, Tag{0}).finish(); }));
        if (under_mpi) bare_times.push_back(time_of(communicator, bare));
      }
      std::sort(exchange_times.begin(), exchange_times.end());
      std::sort(bare_times.begin(), bare_times.end());
      const double exchange_us = quantile(exchange_times, 0.5);
      const std::int64_t bytes = exchange.bytes_sent(channels, sizeof(float));
      const double gigabytes_per_second = static_cast<double>(ranks * bytes) / exchange_us / 1e3;
      const double exchange_quiet_us = quantile(exchange_times, 0.1);
      std::vector<std::string> cells{fmt::format("{}", channels),
                                     fmt::format("{}", width),
                                     fmt::format("{}", bytes),
                                     fmt::format("{:.2f}", gigabytes_per_second),
                                     fmt::format("{:.1f}", exchange_quiet_us),
                                     fmt::format("{:.1f}", exchange_us)};
      rows.push_back({{"channels", channels},
                      {"width", width},
                      {"bytes_per_rank", bytes},
                      {"exchange_us", exchange_us},
                      {"exchange_tenth_us", exchange_quiet_us},
                      {"gigabytes_per_second", gigabytes_per_second}});
      if (under_mpi) {
        const double bare_us = quantile(bare_times, 0.5), bare_quiet_us = quantile(bare_times, 0.1);
        for (const double cell : {bare_quiet_us, bare_us}) cells.push_back(fmt::format("{:.1f}", cell));
        for (const double cell : {exchange_quiet_us / bare_quiet_us, exchange_us / bare_us})
          cells.push_back(fmt::format("{:.2f}", cell));
        rows.back().update({{"bare_us", bare_us}, {"bare_tenth_us", bare_quiet_us}, {"ratio", exchange_us / bare_us}});
      }
      table.row(std::move(cells));
    }
  if (communicator.rank() != Rank{0}) return;
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  fmt::print("{} ranks as {} on {}, {} rounds\n{}", ranks, under_mpi ? "MPI processes" : "threads", host,
             options.rounds, table.str());
  if (options.json.empty()) return;
  std::ofstream(options.json) << nlohmann::json{{"benchmark", "exchange"},
                                                {"ranks", ranks},
                                                {"ranks_as", under_mpi ? "processes" : "threads"},
                                                {"host", host},
                                                {"rounds", options.rounds},
                                                {"max_shared_bytes", options.communicator.max_shared_bytes},
                                                {"rows", rows}}
                                     .dump(2)
                              << '\n';
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    require((flag == "--json" || flag == "--rounds" || flag == "--max-shared-bytes") && i + 1 < argc,
            "usage: ", argv[0], " [--json FILE] [--rounds N] [--max-shared-bytes N]");
    if (flag == "--json") options.json = argv[i + 1];
    if (flag == "--rounds") options.rounds = std::stoi(argv[i + 1]);
    if (flag == "--max-shared-bytes") options.communicator.max_shared_bytes = std::stoll(argv[i + 1]);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  install_cpu_allocator();  // as the program does: a column of a large tile touches a page a row, so large pages matter
  const Options options = parse(argc, argv);
  if (MpiSession::started_by_launcher()) {
    const MpiSession session;
    run_mpi_ranks(
        session, [&](Communicator& c) { run(c, true, options); }, options.communicator);
  } else {
    run_thread_ranks(ranks, [&](Communicator& c) { run(c, false, options); });
  }
}
