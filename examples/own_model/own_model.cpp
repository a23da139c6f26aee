// A network of one's own in one file, with every command and flag of tessera:
//
//     own_model train --model slide_net --image-size 96 --batch-size 4 --steps 5
//
// slide_net is for tissue slides: what it looks for is small and the neighbourhood matters, so it keeps its resolution
// after the stem and widens its view by dilation instead of stride.
//
//     image -> stem /4 -> [1] -> [2] -> [4] -> concat -> fuse -> mean -> linear -> loss
//                          |      |      |       |
//                          +------+------+-------+     [d]: residual block with dilation d
#include <numbers>
#include <string>
#include <vector>

#include "tessera/app/program.h"

namespace {

using namespace tessera;

// He et al.'s initialisation, for convolutions before a ReLU.
constexpr double he_gain = std::numbers::sqrt2;

Value conv_norm(Graph& g, Value x, ConvOptions options, const std::string& name) {
  options.fan_out_gain = he_gain;
  return g.batch_norm(g.conv(x, options, name + ".conv"), name + ".norm");
}

// x + f(x): a grouped 3x3 convolution that looks `dilation` pixels away, and a 1x1 that mixes the groups.
Value dilated_block(Graph& g, Value x, std::int64_t dilation, const std::string& name) {
  const std::int64_t channels = g.shape(x).channels;
  Value y = g.relu(
      conv_norm(g, x, {.out = channels, .kernel = 3, .pad = dilation, .dilation = dilation, .groups = channels / 8},
                name + ".look"));
  y = conv_norm(g, y, {.out = channels}, name + ".mix");
  return g.relu(g.add(y, x));
}

// --depth: blocks of each dilation (1).
Graph slide_net(const ModelOptions& options, double dropout) {
  Graph g;
  g.cell("stem");
  Value x = g.input(options.image);
  x = g.relu(conv_norm(g, x, {.out = 32, .kernel = 5, .stride = 2, .pad = 2}, "stem"));
  x = g.max_pool(x, {.kernel = 3, .stride = 2, .pad = 1});

  std::vector<Value> views;
  for (const std::int64_t dilation : {1, 2, 4}) {
    for (std::int64_t i = 0; i < options.depth.value_or(1); ++i) {
      const std::string name = "look" + std::to_string(dilation) + "." + std::to_string(i);
      g.cell(name);  // a place where a pipeline may cut
      x = dilated_block(g, x, dilation, name);
    }
    views.push_back(x);
  }

  g.cell("head");
  x = g.relu(conv_norm(g, g.concat(views), {.out = 64}, "fuse"));
  x = g.global_avg_pool(x);
  if (dropout > 0) x = g.dropout(x, dropout);
  g.cross_entropy(g.linear(x, {.out = options.classes}, "classes"));
  return g;
}

}  // namespace

int main(int argc, char** argv) {
  ModelRegistry models = builtin_models();
  models.add("slide_net", {"dilated network for tissue slides, --depth blocks of each dilation",
                           {"depth"},
                           [](const ModelOptions& options) { return slide_net(options, 0); }});
  models.add("slide_net_dropout", {"slide_net with dropout before the last layer",
                                   {"depth"},
                                   [](const ModelOptions& options) { return slide_net(options, 0.2); }});
  return run_program(argc, argv, models);
}
