#include "draw.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "dice.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/plan.h"

namespace tessera::plans {
namespace {

/// What the flags say about each other while they are drawn.
struct Draft {
  Flags flags;
  Dice dice;
  std::int64_t max_ranks;
  std::int64_t cells = 1;
  std::int64_t stages = 1, spatial = 0, ways = 1, replicas = 1;
  std::int64_t members = 1;  ///< ranks of one replica
  bool file = false;         ///< the network is from a file

  template <class T>
  void set(const std::string& flag, const T& value) {
    flags[flag] = concat(value);
  }
  void set(const std::string& flag) { flags[flag] = ""; }
  /// With some probability, one of these.
  template <class T>
  void maybe(double probability, const std::string& flag, std::initializer_list<T> values) {
    const T value = dice.one_of(values);
    if (dice.chance(probability)) set(flag, value);
  }
};

std::string size_between(Dice& dice, std::int64_t least, std::int64_t most) {
  return dice.chance(0.2) ? std::to_string(dice.number(least, most))
                          : concat(dice.number(least, most), "x", dice.number(least, most));
}

// Its classes are those of the file, and its channels.
void draw_file(Draft& d, const std::vector<std::string>& files) {
  d.file = true;
  d.set("--model", files[static_cast<std::size_t>(d.dice.number(0, std::ssize(files) - 1))]);
  d.set("--image-size", size_between(d.dice, 40, 70));
}

// Small enough that a plan takes about a second.
void draw_network(Draft& d, const std::vector<std::string>& files) {
  Dice& dice = d.dice;
  if (!files.empty() && dice.chance(0.05)) return draw_file(d, files);
  // Deep ones take a minute each.
  const std::string model =
      dice.chance(0.01)
          ? "deep"
          : dice.one_of<std::string>({"random", "random", "random", "random", "random", "random", "resnet_v1",
                                      "resnet_v1", "resnet_v2", "resnet_v2", "resnet18", "amoebanet", "unet", "unet"});
  const std::int64_t least = model == "amoebanet" ? 48 : model == "resnet18" || model == "deep" ? 40 : 9;
  d.set("--image-size", size_between(dice, least, model == "amoebanet" ? 72 : least + 32));
  d.set("--num-classes", dice.number(2, 7));
  d.set("--model", model == "deep" ? dice.one_of<std::string>({"resnet34", "resnet50"}) : model);
  if (model == "random") {
    d.set("--depth", dice.number(1, 9'999));
    d.set("--num-layers", dice.number(1, 16));
  } else if (model == "resnet_v1") {
    d.maybe(0.9, "--depth", {8, 14});
  } else if (model == "resnet_v2") {
    d.maybe(0.9, "--depth", {11, 20});
  } else if (model == "amoebanet") {
    d.set("--num-layers", 3);
    d.set("--num-filters", 16);
  } else if (model == "unet") {
    d.set("--num-layers", dice.number(1, 3));
    d.set("--num-filters", dice.number(2, 5));
    d.maybe<std::string>(0.6, "--upsampling", {"transposed", "bilinear"});
  }
}

Grid draw_grid(Draft& d, std::int64_t most_tiles) {
  for (;;) {
    const Grid grid{d.dice.number(1, 4), d.dice.number(1, 4)};
    if (grid.tiles() <= most_tiles) return grid;
  }
}

// Tiles of the first stages: as grids, or as a number of tiles and how they lie.
void draw_tiles(Draft& d) {
  Dice& dice = d.dice;
  if (!dice.chance(0.6)) return;
  d.spatial = dice.number(1, dice.chance(0.7) ? std::min<std::int64_t>(2, d.stages) : d.stages);
  std::int64_t left = d.max_ranks - (d.stages - d.spatial);
  const bool by_number = dice.chance(0.35), one_for_all = d.spatial == 1 || dice.chance(0.3);
  std::string list;
  std::int64_t tiles = 0;
  if (by_number) d.maybe<std::string>(0.7, "--slice-method", {"square", "vertical", "horizontal"});
  for (std::int64_t s = 0; s < (one_for_all ? 1 : d.spatial); ++s) {
    const std::int64_t most = std::max<std::int64_t>(1, one_for_all ? left / d.spatial : left - (d.spatial - 1 - s));
    const Grid grid = draw_grid(d, std::min<std::int64_t>(most, 9));
    list += concat(s == 0 ? "" : ",", by_number ? concat(grid.tiles()) : concat(grid));
    tiles += grid.tiles() * (one_for_all ? d.spatial : 1);
    left -= grid.tiles();
  }
  d.set(by_number ? "--num-spatial-parts" : "--grid", list);
  if ((one_for_all && d.spatial > 1) || dice.chance(0.2)) d.set("--spatial-size", d.spatial);
  d.members += tiles - d.spatial;
  if (dice.chance(0.4)) {
    d.set("--halo-D2");
    d.maybe(0.8, "--fused-layers", {1, 2, 3, 4});
  }
  if (d.spatial < d.stages && dice.chance(0.35)) {
    d.ways = dice.number(2, 4);
    d.set("--local-DP", d.ways);
    d.members += (d.stages - d.spatial) * (d.ways - 1);
  }
}

// Tiles of a rank: of every stage, or one list.
void draw_turns(Draft& d) {
  Dice& dice = d.dice;
  if (!dice.chance(0.3)) return;
  const auto some = [&] { return concat(Grid{dice.number(1, 3), dice.number(1, 3)}); };
  std::string list = some();
  if (dice.chance(0.5))
    for (std::int64_t s = 1; s < d.stages; ++s) list += "," + (dice.chance(0.5) ? some() : "1x1");
  d.set("--turns", list);
  if (!d.flags.contains("--halo-D2") && dice.chance(0.3)) d.set("--halo-D2");
}

void draw_stages(Draft& d) {
  Dice& dice = d.dice;
  d.stages = std::min(d.cells, dice.one_of<std::int64_t>({1, 1, 2, 2, 2, 3, 3, 4, 5}));
  d.members = d.stages;
  if (d.stages > 1 && dice.chance(0.2)) {
    // Any cut of the cells.
    std::vector<std::int64_t> counts(static_cast<std::size_t>(d.stages), 1);
    for (std::int64_t c = d.stages; c < d.cells; ++c) ++counts[static_cast<std::size_t>(dice.number(0, d.stages - 1))];
    std::string list;
    for (const auto count : counts) list += concat(list.empty() ? "" : ",", count);
    d.set("--balance", list);
  } else if (d.stages > 1 || dice.chance(0.2)) {
    d.set("--split-size", d.stages);
    d.maybe<std::string>(0.3, "--balance-by", {"time", "memory"});
  }
}

// Copies of the whole pipeline, as replicas or as bundles.
void draw_copies(Draft& d) {
  Dice& dice = d.dice;
  const std::int64_t most = std::max<std::int64_t>(1, d.max_ranks / d.members);
  if (d.stages <= 2 && most >= 2 && dice.chance(0.2)) {
    const std::int64_t on_a_node = dice.number(1, 2);
    d.replicas = on_a_node * dice.number(1, std::max<std::int64_t>(1, most / on_a_node));
    d.set("--num-hp", on_a_node);
    if (d.stages == 1) d.set("--DP-ONLY");
    d.set("--replicas", d.replicas);
  } else if (most >= 2 && dice.chance(0.35)) {
    d.replicas = dice.number(2, std::min<std::int64_t>(most, 4));
    d.set("--replicas", d.replicas);
  }
  d.maybe<std::string>(0.3, "--grad-sync", {"flat", "hierarchical"});
  if (dice.chance(0.2)) d.set("--ranks-per-node", dice.number(1, 5));
  d.maybe<std::string>(0.4, "--batch-norm", {"micro", "global", "global"});
}

void draw_batch(Draft& d) {
  Dice& dice = d.dice;
  std::string schedule = dice.one_of<std::string>(
      {"", "", "gpipe", "1f1b", "zero-bubble", "gems-mast", "gems-master", "chimera", "chimera"});
  if (d.stages == 1 && schedule.size() > 5 && schedule != "zero-bubble") schedule = "";
  if (!schedule.empty()) d.set("--schedule", schedule);
  if (schedule == "gems-master") d.maybe(0.7, "--times", {1, 2, 3});
  const std::int64_t parts = dice.one_of<std::int64_t>({1, 1, 2, 2, 3, 4, 5});
  const std::int64_t samples = dice.one_of<std::int64_t>({1, 2, 2, 2, 3, 4});
  // A micro is shared out to the ways.
  const std::int64_t micro = dice.chance(0.97) ? (samples + d.ways - 1) / d.ways * d.ways : samples;
  if (parts > 1 || dice.chance(0.5)) d.set("--parts", parts);
  d.set("--batch-size", parts * micro);
}

void draw_training(Draft& d) {
  Dice& dice = d.dice;
  const auto optimizer = dice.one_of<std::string>({"sgd", "sgd", "sgd", "adam", "adamw"});
  if (optimizer != "sgd" || dice.chance(0.3)) d.set("--optimizer", optimizer);
  d.maybe(0.7, "--lr", {0.1, 0.02, 0.001});
  if (optimizer == "sgd") d.maybe(0.4, "--momentum", {0.0, 0.5, 0.9});
  d.maybe(0.3, "--weight-decay", {0.01, 1e-4});
  d.maybe(0.3, "--clip-norm", {0.01, 0.1, 1.0, 100.0});
  d.maybe(0.2, "--label-smoothing", {0.1, 0.5});
  if (d.flags.at("--model") == "unet") d.maybe(0.4, "--dice-weight", {1.0, 0.3});
  // Random graphs may label pixels.
  if (d.flags.at("--model") != "unet" && d.flags.at("--model") != "random" && !d.file)
    d.maybe<std::string>(0.3, "--loss", {"binary", "binary", "cross-entropy"});
  if (!d.file && dice.chance(0.2)) {
    std::vector<std::string> weights;
    for (std::int64_t c = 0; c < std::stoll(d.flags.at("--num-classes")); ++c)
      weights.push_back(dice.one_of<std::string>({"1", "2", "0.25", "0"}));
    weights.front() = "3";  // something counts
    d.set("--class-weights", join(weights, ","));
  }
  const auto schedule = dice.one_of<std::string>({"constant", "step", "cosine"});
  if (dice.chance(0.3)) d.set("--lr-schedule", schedule);
  if (d.flags.contains("--lr-schedule") && schedule == "step") {
    d.maybe(0.5, "--lr-step-every", {1, 2});
    d.maybe(0.5, "--lr-step-factor", {0.5, 0.1});
  }
  d.maybe(0.2, "--warmup-steps", {1, 2, 5});
  d.maybe(0.5, "--steps", {1, 2, 3, 4});
  d.maybe<std::string>(0.6, "--recompute", {"none", "norm", "block", "block:2", "block:5"});
  if (dice.chance(0.15)) {
    d.set("--store", "file");
    d.set("--scratch", std::filesystem::temp_directory_path().string());
  }
  if (dice.chance(0.7)) d.set("--seed", dice.number(0, 1'000'000));
}

void draw_data(Draft& d) {
  Dice& dice = d.dice;
  d.maybe(0.3, "--num-workers", {0, 1, 2});
  d.maybe(0.3, "--threads", {1, 2, 3});
  d.maybe(0.1, "--timeout", {200, 1000});
  d.maybe(0.2, "--synthetic-images", {64, 77, 100});
  for (const char* flag : {"--flip-horizontal", "--flip-vertical", "--rotate"})
    if (dice.chance(0.08)) d.set(flag);
  // Only a square image can be turned.
  if (d.flags.count("--rotate") && d.flags["--image-size"].find('x') != std::string::npos) d.flags.erase("--rotate");
  d.maybe(0.08, "--crop-min", {0.3, 0.8});
  d.maybe(0.05, "--brightness", {0.1});
  d.maybe(0.05, "--contrast", {0.2});
  d.maybe(0.05, "--saturation", {0.3});
  // Only colours have a saturation.
  if (!d.flags.count("--saturation") && !d.file) d.maybe(0.15, "--channels", {1, 2, 4, 13});
}

std::optional<std::int64_t> number_of(const Flags& flags, const char* flag) {
  const auto found = flags.find(flag);
  return found == flags.end() ? std::nullopt : std::optional<std::int64_t>(std::stoll(found->second));
}

std::optional<std::string> text_of(const Flags& flags, const char* flag) {
  const auto found = flags.find(flag);
  return found == flags.end() ? std::nullopt : std::optional(found->second);
}

ModelOptions model_options(const Flags& flags) {
  const std::string size = flags.at("--image-size");
  return {.name = flags.at("--model"),
          .image = {number_of(flags, "--channels").value_or(3), std::stoll(size),
                    std::stoll(size.substr(size.find('x') + 1))},
          .classes = number_of(flags, "--num-classes").value_or(2),
          .depth = number_of(flags, "--depth"),
          .num_layers = number_of(flags, "--num-layers"),
          .num_filters = number_of(flags, "--num-filters"),
          .upsampling = text_of(flags, "--upsampling")};
}

bool planner_accepts(const Graph& graph, const Flags& flags) {
  try {
    const PlanOptions options{.batch_size = *number_of(flags, "--batch-size"),
                              .parts = number_of(flags, "--parts").value_or(1),
                              .split_size = number_of(flags, "--split-size"),
                              .balance = text_of(flags, "--balance"),
                              .num_spatial_parts = text_of(flags, "--num-spatial-parts"),
                              .grid = text_of(flags, "--grid"),
                              .spatial_size = number_of(flags, "--spatial-size"),
                              .slice_method = text_of(flags, "--slice-method"),
                              .turns = text_of(flags, "--turns"),
                              .schedule = text_of(flags, "--schedule"),
                              .times = number_of(flags, "--times"),
                              .local_dp = number_of(flags, "--local-DP"),
                              .replicas = number_of(flags, "--replicas"),
                              .fused_layers = number_of(flags, "--fused-layers"),
                              .halo_d2 = flags.contains("--halo-D2"),
                              .batch_norm = text_of(flags, "--batch-norm").value_or("micro"),
                              .num_hp = number_of(flags, "--num-hp"),
                              .dp_only = flags.contains("--DP-ONLY")};
    make_plan(graph, options);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

}  // namespace

Flags draw_plan(std::uint64_t seed, std::int64_t number, const DrawOptions& options, const ModelRegistry& models) {
  Dice dice(seed, concat("plan ", number));
  // Most drafts that the planner refuses are drawn again. Not all: it has to refuse them in the program, too.
  const int tries = dice.chance(0.1) ? 1 : 20;
  for (int i = 1;; ++i) {
    Draft d{.flags = {}, .dice = dice, .max_ranks = options.max_ranks};
    draw_network(d, options.files);
    std::optional<Graph> graph;
    try {
      graph = models.build(model_options(d.flags));
      d.cells = static_cast<std::int64_t>(graph->cells().size());
    } catch (const UsageError&) {
    }
    draw_stages(d);
    draw_tiles(d);
    draw_turns(d);
    draw_copies(d);
    draw_batch(d);
    draw_training(d);
    draw_data(d);
    if (i == tries || (graph && planner_accepts(*graph, d.flags))) return d.flags;
    dice = d.dice;
  }
}

std::vector<std::string> arguments(const Flags& flags) {
  std::vector<std::string> out;
  for (const auto& [flag, value] : flags) {
    out.push_back(flag);
    if (!value.empty()) out.push_back(value);
  }
  return out;
}

std::string command_line(const Flags& flags) {
  std::string line;
  for (const auto& argument : arguments(flags)) line += (line.empty() ? "" : " ") + argument;
  return line;
}

}  // namespace tessera::plans
