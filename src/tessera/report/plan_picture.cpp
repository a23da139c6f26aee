#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tessera/report/markup.h"
#include "tessera/report/sections.h"

namespace tessera::report {
namespace {

struct Tiles {
  std::size_t rows = 1, columns = 1;
};

Tiles tiles_of(const Json& stage) {
  const Json& grid = list_at(stage, {"grid"});
  if (grid.size() != 2 || !grid[0].is_number_integer() || !grid[1].is_number_integer()) return {};
  return {std::max<std::size_t>(1, grid[0].get<std::size_t>()), std::max<std::size_t>(1, grid[1].get<std::size_t>())};
}

// The first stage's tiles over an image of the set, each with the rank that has it.
std::string tiles_over_image(const RunDocuments& run, const Json& plan) {
  const Json &image = list_at(plan, {"image"}), &stages = list_at(plan, {"stages"});
  if (image.size() != 3 || stages.empty()) return "";
  const double height = image[1].get<double>(), width = image[2].get<double>();
  const double scale = 320 / std::max(height, width), w = scale * width, h = scale * height;
  const Tiles tiles = tiles_of(stages[0]);
  const Json& all = list_at(run.samples, {"samples"});
  const std::string picture = all.empty() ? "" : text_at(all[0], {"picture"});
  if (picture.empty() && tiles.rows * tiles.columns == 1) return "";  // an empty frame
  std::string inside = rectangle(0, 0, w, h, "class='idle'");
  if (!picture.empty())
    inside += fmt::format("<image href='{}' x='0' y='0' width='{}' height='{}' preserveAspectRatio='none'/>",
                          escaped(picture), at(w), at(h));
  const Json& ranks = list_at(stages[0], {"ranks"});
  // Tiles are even: row i of the grid begins at i * height / rows.
  for (std::size_t i = 0; i < tiles.rows; ++i)
    for (std::size_t j = 0; j < tiles.columns; ++j) {
      const double y = h * static_cast<double>(i) / static_cast<double>(tiles.rows);
      const double x = w * static_cast<double>(j) / static_cast<double>(tiles.columns);
      const double tile_h = h / static_cast<double>(tiles.rows), tile_w = w / static_cast<double>(tiles.columns);
      const std::size_t member = i * tiles.columns + j;
      inside += rectangle(
          x, y, tile_w, tile_h, "class='tile'",
          fmt::format("tile row {}, column {}: about {:.0f}x{:.0f} pixels", i, j, tile_h / scale, tile_w / scale));
      if (member < ranks.size() && tile_w > 44 && tile_h > 20)
        inside +=
            words(x + tile_w / 2, y + tile_h / 2 + 4, fmt::format("rank {}", ranks[member].dump()), "class='on-image'");
    }
  return card("Tiles of the first stage", svg(w, h, "the grid of tiles", inside, "class='tiles'") +
                                              fmt::format("<p class='note'>{:.0f}x{:.0f} pixels, {} x {} tiles.</p>",
                                                          height, width, tiles.rows, tiles.columns));
}

// The network from its input (top) to its end, one band per cell, as high as its share of the work.
std::string bands(const Json& run) {
  const Json& cells = list_at(run, {"cells"});
  if (cells.empty()) return "";
  double all = 0;
  for (const Json& cell : cells) all += number_at(cell, {"gflop"}).value_or(0);
  const double pictured = std::max(220.0, 15.0 * static_cast<double>(cells.size())), width = 440;
  // Every band is high enough for its name; what is left goes by work.
  const double least = 15, rest = std::max(0.0, pictured - least * static_cast<double>(cells.size()));
  std::string inside;
  double y = 0;
  for (const Json& cell : cells) {
    const double flops = number_at(cell, {"gflop"}).value_or(0), share = all > 0 ? flops / all : 0;
    const double height = least + rest * share;
    const auto stage = static_cast<int>(number_at(cell, {"stage"}).value_or(0));
    const Json& output = list_at(cell, {"output"});
    std::string shape;
    for (const Json& side : output) shape += (shape.empty() ? "" : "x") + side.dump();
    inside += rectangle(
        0, y, width, height - 1, fmt::format("class='band s{}'", stage % 8),
        fmt::format("{}: stage {}, {:.3g} GFLOP per micro, output {}", text_at(cell, {"name"}), stage, flops, shape));
    inside += words(8, y + 11.5, text_at(cell, {"name"}), "class='band-name'");
    inside += words(width - 8, y + 11.5, fmt::format("{}  {:.0f} %", shape, 100 * share), "class='band-name end'");
    y += height;
  }
  std::vector<std::string> names;
  for (std::size_t s = 0; s < list_at(run, {"plan", "stages"}).size(); ++s) names.push_back(fmt::format("stage {}", s));
  return card("The network in stages", svg(width, y, "cells by stage", inside, "class='bands'") + legend(names) +
                                           "<p class='note'>Higher bands take more arithmetic.</p>");
}

}  // namespace

std::string plan_words(const Json& plan) {
  const Json& stages = list_at(plan, {"stages"});
  std::vector<std::string> words;
  std::size_t tiles = 1;
  for (const Json& stage : stages) {
    const Tiles t = tiles_of(stage);
    tiles = std::max(tiles, t.rows * t.columns);
  }
  if (tiles > 1) words.push_back(fmt::format("{} tiles", tiles));
  if (stages.size() > 1) words.push_back(fmt::format("{} stages", stages.size()));
  if (const auto replicas = number_at(plan, {"replicas"}); replicas && *replicas > 1)
    words.push_back(fmt::format("{:.0f} replicas", *replicas));
  if (const auto micros = number_at(plan, {"micros"}); micros && *micros > 1)
    words.push_back(fmt::format("{:.0f} micros", *micros));
  const double ranks = number_at(plan, {"ranks"}).value_or(1);
  if (stages.size() > 1) words.push_back(text_at(plan, {"schedule"}));
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : ", ") + word;
  return out.empty() ? "one rank" : fmt::format("{}; {:.0f} ranks", out, ranks);
}

std::string plan_picture(const RunDocuments& run) {
  const Json plan = run.run.is_object() ? run.run.value("plan", Json()) : Json();
  return tiles_over_image(run, plan) + bands(run.run);
}

}  // namespace tessera::report
