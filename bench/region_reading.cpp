// What one rank pays for its part of a huge image: a pyramidal tiled TIFF is made by libvips, and rank 5 of a 4x4 grid
// of resnet18 reads the box that it trains on, at full resolution, beside a reader of the whole image.
//
//     bench_region_reading [--side N] [--rounds N] [--file FILE] [--json FILE]
//
// The whole image as float32 is 10.8 GB at the default side, more than many machines have. So it is read in 16 strips
// into the same memory, which makes the whole read cheaper than it would be, not dearer.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <unistd.h>
#include <vips/vips.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/meter.h"
#include "tessera/base/text.h"
#include "tessera/data/files.h"
#include "tessera/data/vips_images.h"
#include "tessera/models/registry.h"
#include "tessera/plan/layout.h"

using namespace tessera;

namespace {

constexpr int strips = 16;

/// Waves and noise, about as hard to compress as a stained slide; replicated, so that making it takes no time.
void write_image(const std::string& file, std::int64_t side) {
  constexpr int period = 1000;
  std::vector<std::uint8_t> pixels;
  for (int y = 0; y < period; ++y)
    for (int x = 0; x < period; ++x)
      for (int c = 0; c < 3; ++c) {
        const auto mixed = static_cast<std::uint32_t>((y * period + x) * 3 + c) * 2654435761u;
        const double wave = std::sin(0.05 * x + 0.3 * c) + std::cos(0.04 * y) + std::sin(0.011 * (x + y));
        pixels.push_back(static_cast<std::uint8_t>(120 + 30 * wave + (mixed >> 28)));
      }
  require(vips_init("bench") == 0, "libvips does not start");
  VipsImage* texture = vips_image_new_from_memory(pixels.data(), pixels.size(), period, period, 3, VIPS_FORMAT_UCHAR);
  VipsImage *many = nullptr, *cut = nullptr, *image = nullptr;
  const int times = static_cast<int>((side + period - 1) / period), size = static_cast<int>(side);
  const bool failed =
      vips_replicate(texture, &many, times, times, nullptr) != 0 ||
      vips_crop(many, &cut, 0, 0, size, size, nullptr) != 0 ||
      vips_copy(cut, &image, "interpretation", VIPS_INTERPRETATION_sRGB, nullptr) != 0 ||
      vips_tiffsave(image, file.c_str(), "tile", TRUE, "pyramid", TRUE, "tile_width", 256, "tile_height", 256,
                    "compression", VIPS_FOREIGN_TIFF_COMPRESSION_JPEG, "Q", 80, "bigtiff", TRUE, nullptr) != 0;
  for (VipsImage* each : {image, cut, many, texture})
    if (each) g_object_unref(each);
  require(!failed, "cannot write ", file, ": ", vips_error_buffer());
}

std::int64_t own_kilobytes(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return std::stoll(line.substr(key.size()));
  return 0;
}

at::Tensor memory_for(std::int64_t rows, std::int64_t columns) {
  return at::empty({1, 3, rows, columns}, at::TensorOptions().dtype(at::kFloat), at::MemoryFormat::ChannelsLast)
      .select(0, 0);
}

struct Figures {
  double tile_seconds = 1e300, whole_seconds = 1e300;
  std::int64_t tile_bytes = 0;  ///< the most that the process grew by, tensor and decoder together
};

void run_round(const VipsImages& source, std::int64_t side, const Box& box, Figures& figures) {
  std::ofstream("/proc/self/clear_refs") << 5;  // starts the high-water mark anew
  const std::int64_t before = own_kilobytes("VmRSS:");
  double begin = now_seconds();
  const at::Tensor tile = memory_for(box.height().size(), box.width().size());
  source.read(0, box.height(), box.width(), tile);
  figures.tile_seconds = std::min(figures.tile_seconds, now_seconds() - begin);
  figures.tile_bytes = std::max(figures.tile_bytes, (own_kilobytes("VmHWM:") - before) * 1024);

  double whole = 0;
  const at::Tensor memory = memory_for((side + strips - 1) / strips, side);
  memory.zero_();
  for (const Interval rows : split_evenly({0, side}, strips)) {
    const at::Tensor strip = memory.narrow(1, 0, rows.size());
    begin = now_seconds();
    source.read(0, rows, {0, side}, strip);
    whole += now_seconds() - begin;
    const Interval shared = intersect(rows, box.height());
    if (shared.empty()) continue;
    require(
        at::equal(
            tile.narrow(1, shared.begin - box.height().begin, shared.size()),
            strip.narrow(1, shared.begin - rows.begin, shared.size()).narrow(2, box.width().begin, box.width().size())),
        "the tile is not the crop of the whole image in rows ", shared);
  }
  figures.whole_seconds = std::min(figures.whole_seconds, whole);
}

}  // namespace

int main(int argc, char** argv) try {
  std::int64_t side = 30000;
  int rounds = 1;
  std::string file, json;
  CLI::App app{"A rank's part of a huge image against the whole of it"};
  app.add_option("--side", side, "height and width of the image")->capture_default_str();
  app.add_option("--rounds", rounds, "the fastest of these counts")->capture_default_str();
  app.add_option("--file", file, "the image; made if it is not there, and kept");
  app.add_option("--json", json, "write the figures to this file");
  CLI11_PARSE(app, argc, argv);

  const bool keep = !file.empty();
  if (!keep) file = fmt::format("/tmp/tessera_region_{}.tif", ::getpid());
  if (!files::is_file(file)) {
    const double begin = now_seconds();
    write_image(file, side);
    fmt::print("made {} in {:.0f} s\n", human_bytes(files::file_bytes(file)), now_seconds() - begin);
  }
  const std::string list = file + ".csv";
  std::ofstream(list) << file << ",0\n";
  const VipsImages source({.path = list, .height = side, .width = side});
  const Graph graph = builtin_models().build({.name = "resnet18", .image = {3, side, side}, .classes = 2});
  const Plan plan = make_plan(graph, {.batch_size = 1, .grid = "4x4"});
  const Box box = make_layout(graph, plan).at(0, 0).held[5];

  Figures figures;
  for (int r = 0; r < rounds; ++r) run_round(source, side, box, figures);
  ::unlink(list.c_str());
  if (!keep) ::unlink(file.c_str());

  const auto whole_bytes = side * side * 3 * static_cast<std::int64_t>(sizeof(float));
  const double memory = static_cast<double>(figures.tile_bytes) / static_cast<double>(whole_bytes);
  const double time = figures.tile_seconds / figures.whole_seconds;
  Table table({"float32 pixels", "read", "memory", "seconds"});
  table.row({"the whole image", fmt::format("{}x{}", side, side), human_bytes(whole_bytes),
             fmt::format("{:.2f}", figures.whole_seconds)});
  table.row({"rank 5 of 4x4", fmt::format("{}x{}", box.height().size(), box.width().size()),
             human_bytes(figures.tile_bytes), fmt::format("{:.2f}", figures.tile_seconds)});
  fmt::print("{}the rank needs {:.3f} of the memory (must be below 0.15) and {:.3f} of the time (below 0.25)\n",
             table.str(), memory, time);
  if (!json.empty())
    std::ofstream(json) << nlohmann::ordered_json{{"side", side},
                                                  {"whole_bytes", whole_bytes},
                                                  {"whole_seconds", figures.whole_seconds},
                                                  {"tile_bytes", figures.tile_bytes},
                                                  {"tile_seconds", figures.tile_seconds},
                                                  {"memory_ratio", memory},
                                                  {"time_ratio", time}}
                               .dump(2)
                        << '\n';
  return memory < 0.15 && time < 0.25 ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "bench_region_reading: {}\n", error.what());
  return 1;
}
