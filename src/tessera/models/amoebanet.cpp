#include "tessera/models/amoebanet.h"

#include <array>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// One half of a pair: an operation on one of the cell's states. States 0 and 1 are the outputs of the two cells before,
// the nearer one first; state i + 2 is the sum of the i-th pair.
struct Half {
  std::size_t state;
  std::string_view operation;
};
struct CellPlan {
  std::array<std::array<Half, 2>, 5> pairs;
  std::vector<std::size_t> joined;  // the states that are joined to the cell's output
};

const CellPlan& normal_plan() {
  static const CellPlan plan{{{{{{1, "conv1x1"}, {1, "max3x3"}}},
                               {{{1, "none"}, {0, "conv1x7_7x1"}}},
                               {{{0, "conv1x1"}, {0, "conv1x7_7x1"}}},
                               {{{2, "max3x3"}, {2, "none"}}},
                               {{{1, "avg3x3"}, {5, "conv1x1"}}}}},
                             {0, 3, 4, 6}};
  return plan;
}

const CellPlan& reduction_plan() {
  static const CellPlan plan{{{{{{0, "max2x2"}, {0, "max3x3"}}},
                               {{{2, "none"}, {1, "conv3x3"}}},
                               {{{2, "conv1x7_7x1"}, {2, "max3x3"}}},
                               {{{3, "none"}, {1, "max2x2"}}},
                               {{{2, "avg3x3"}, {3, "conv1x1"}}}}},
                             {4, 5, 6}};
  return plan;
}

Value relu_conv_bn(Graph& g, Value x, const ConvOptions& options, const std::string& name) {
  return g.batch_norm(g.conv(g.relu(x), options, name + ".conv"), name + ".bn");
}

// Halves the resolution with two 1×1 convolutions of stride 2, one of them shifted by a pixel, so that between them
// they see both diagonals of every 2×2 square.
Value factorized_reduction(Graph& g, Value x, std::int64_t channels, const std::string& name) {
  const Value active = g.relu(x);
  const Value straight = g.conv(active, {.out = channels / 2, .stride = 2}, name + ".conv1");
  const Value shifted =
      g.conv(active, {.out = channels - channels / 2, .stride = 2, .pad = -1, .pad_end = Pair{1}}, name + ".conv2");
  return g.batch_norm(g.concat({straight, shifted}), name + ".bn");
}

Value apply(Graph& g, Value x, std::string_view operation, std::int64_t stride, const std::string& name) {
  const std::int64_t channels = g.shape(x).channels, narrow = channels / 4;
  if (operation == "none") return stride == 1 ? x : factorized_reduction(g, x, channels, name);
  if (operation == "max3x3") return g.max_pool(x, {.kernel = 3, .stride = stride, .pad = 1});
  // Padding at the end only, so that odd sizes are rounded up as the 3×3 operations beside it round them.
  if (operation == "max2x2") return g.max_pool(x, {.kernel = 2, .stride = stride, .pad = 0, .pad_end = Pair{1}});
  if (operation == "avg3x3")
    return g.avg_pool(x, {.kernel = 3, .stride = stride, .pad = 1, .count_include_pad = false});
  if (operation == "conv1x1") return relu_conv_bn(g, x, {.out = channels, .stride = stride}, name);
  if (operation == "conv3x3") {
    x = relu_conv_bn(g, x, {.out = narrow}, name + ".0");
    x = relu_conv_bn(g, x, {.out = narrow, .kernel = 3, .stride = stride, .pad = 1}, name + ".1");
    return relu_conv_bn(g, x, {.out = channels}, name + ".2");
  }
  ensure(operation == "conv1x7_7x1", "no AmoebaNet operation '", operation, "'");
  x = relu_conv_bn(g, x, {.out = narrow}, name + ".0");
  x = relu_conv_bn(g, x, {.out = narrow, .kernel = {1, 7}, .stride = {1, stride}, .pad = {0, 3}}, name + ".1");
  x = relu_conv_bn(g, x, {.out = narrow, .kernel = {7, 1}, .stride = {stride, 1}, .pad = {3, 0}}, name + ".2");
  return relu_conv_bn(g, x, {.out = channels}, name + ".3");
}

struct States {
  Value near, far;            // the outputs of the last cell and of the one before it
  bool near_reduced = false;  // the last cell halved the resolution, so `far` is twice as large
};

States cell(Graph& g, const States& before, std::int64_t channels, bool reduction, const std::string& name) {
  g.cell(name);
  const CellPlan& plan = reduction ? reduction_plan() : normal_plan();
  std::vector<Value> states{relu_conv_bn(g, before.near, {.out = channels}, name + ".reduce1")};
  if (before.near_reduced)
    states.push_back(factorized_reduction(g, before.far, channels, name + ".reduce2"));
  else if (g.shape(before.far).channels != channels)
    states.push_back(relu_conv_bn(g, before.far, {.out = channels}, name + ".reduce2"));
  else
    states.push_back(before.far);

  for (std::size_t pair = 0; pair < plan.pairs.size(); ++pair) {
    std::array<Value, 2> halves;
    for (std::size_t i = 0; i < 2; ++i) {
      const Half& half = plan.pairs[pair][i];
      const std::int64_t stride = reduction && half.state < 2 ? 2 : 1;
      halves[i] = apply(g, states[half.state], half.operation, stride, concat(name, ".op", 2 * pair + i));
    }
    states.push_back(g.add(halves[0], halves[1]));
  }
  std::vector<Value> joined;
  for (std::size_t i : plan.joined) joined.push_back(states[i]);
  return {g.concat(joined), before.near, reduction};
}

}  // namespace

Graph amoebanet(const ModelOptions& options) {
  const std::int64_t layers = options.num_layers.value_or(18), filters = options.num_filters.value_or(416);
  Problems problems;
  problems.check(layers > 0 && layers % 3 == 0, "--num-layers ", layers,
                 " is not a positive multiple of 3; use --num-layers ",
                 (std::max<std::int64_t>(layers, 1) + 2) / 3 * 3);
  problems.check(filters >= 8 && filters % 8 == 0, "--num-filters ", filters,
                 " is not a multiple of 8; use --num-filters ", (std::max<std::int64_t>(filters, 1) + 7) / 8 * 8);
  problems.throw_if_any();

  Graph g;
  g.cell("stem");
  const Value image = g.input(options.image);
  std::int64_t channels = filters / 4;
  const Value stem =
      g.batch_norm(g.conv(image, {.out = channels, .kernel = 3, .stride = 2, .pad = 1}, "stem.conv"), "stem.bn");
  States states{stem, stem};
  int count = 0;
  const auto next = [&](bool reduction) {
    channels *= reduction ? 2 : 1;
    states = cell(g, states, channels, reduction, concat("cell", ++count));
  };
  next(true);
  next(true);
  for (int run = 0; run < 3; ++run) {
    if (run > 0) next(true);
    for (std::int64_t i = 0; i < layers / 3; ++i) next(false);
  }
  g.cell("head");
  const Value features = g.flatten(g.global_avg_pool(states.near));
  g.cross_entropy(g.linear(features, {.out = options.classes}, "classifier"));
  return g;
}

}  // namespace tessera
