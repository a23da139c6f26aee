#include "tessera/models/resnet.h"

#include <array>
#include <cmath>
#include <map>
#include <numbers>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// He et al.'s initialisation, as torchvision has it: normal with √(2/fan-out).
constexpr double he_gain = std::numbers::sqrt2;

struct Layer {
  std::int64_t out, kernel = 1, stride = 1;
};

Value conv(Graph& g, Value x, Layer layer, std::string name) {
  return g.conv(x,
                {.out = layer.out,
                 .kernel = layer.kernel,
                 .stride = layer.stride,
                 .pad = layer.kernel / 2,
                 .fan_out_gain = he_gain},
                std::move(name));
}

Value conv_bn(Graph& g, Value x, Layer layer, const std::string& conv_name, const std::string& norm_name) {
  return g.batch_norm(conv(g, x, layer, conv_name), norm_name);
}

void head(Graph& g, Value x, std::int64_t classes) {
  g.cell("head");
  x = g.flatten(g.global_avg_pool(x));
  g.cross_entropy(g.linear(x, {.out = classes}, "fc"));
}

// A block of torchvision's resnet: two 3×3 (basic), or 1×1, 3×3, 1×1 (bottleneck).
Value block(Graph& g, Value x, std::int64_t width, std::int64_t stride, bool bottleneck, const std::string& name) {
  const std::int64_t out = bottleneck ? 4 * width : width;
  const Value in = x;
  if (bottleneck) {
    x = g.relu(conv_bn(g, x, {width}, name + ".conv1", name + ".bn1"));
    x = g.relu(conv_bn(g, x, {width, 3, stride}, name + ".conv2", name + ".bn2"));
    x = conv_bn(g, x, {out}, name + ".conv3", name + ".bn3");
  } else {
    x = g.relu(conv_bn(g, x, {width, 3, stride}, name + ".conv1", name + ".bn1"));
    x = conv_bn(g, x, {width, 3}, name + ".conv2", name + ".bn2");
  }
  const bool same = stride == 1 && g.shape(in).channels == out;
  const Value shortcut = same ? in : conv_bn(g, in, {out, 1, stride}, name + ".downsample.0", name + ".downsample.1");
  return g.relu(g.add(x, shortcut));
}

std::int64_t blocks_of(const ModelOptions& options, std::int64_t convs, const char* name) {
  const std::int64_t depth = options.depth.value_or(110);
  const std::int64_t n = std::max<std::int64_t>(1, (depth - 2) / convs);
  require(depth > 2 && (depth - 2) % convs == 0, "--depth ", depth, " does not fit ", name, ", whose depth is ", convs,
          "n+2; use --depth ", n * convs + 2, " or --depth ", (n + 1) * convs + 2);
  return (depth - 2) / convs;
}

}  // namespace

Graph resnet(int depth, const ModelOptions& options) {
  static const std::map<int, std::array<int, 4>> blocks{
      {18, {2, 2, 2, 2}}, {34, {3, 4, 6, 3}}, {50, {3, 4, 6, 3}}, {101, {3, 4, 23, 3}}, {152, {3, 8, 36, 3}}};
  const auto& counts = blocks.at(depth);
  Graph g;
  g.cell("stem");
  Value x = g.input(options.image);
  x = g.relu(conv_bn(g, x, {64, 7, 2}, "conv1", "bn1"));
  x = g.max_pool(x, {.kernel = 3, .stride = 2, .pad = 1});
  for (int group = 0; group < 4; ++group)
    for (int i = 0; i < counts[static_cast<std::size_t>(group)]; ++i) {
      const std::string name = concat("layer", group + 1, ".", i);
      g.cell(name);
      x = block(g, x, std::int64_t{64} << group, group > 0 && i == 0 ? 2 : 1, depth >= 50, name);
    }
  head(g, x, options.classes);
  return g;
}

Graph resnet_v1(const ModelOptions& options) {
  const std::int64_t count = blocks_of(options, 6, "resnet_v1");
  Graph g;
  g.cell("stem");
  Value x = g.input(options.image);
  x = g.relu(conv_bn(g, x, {16, 3}, "conv1", "bn1"));
  for (int group = 0; group < 3; ++group)
    for (int i = 0; i < count; ++i) {
      const std::string name = concat("layer", group + 1, ".", i);
      g.cell(name);
      x = block(g, x, std::int64_t{16} << group, group > 0 && i == 0 ? 2 : 1, /*bottleneck=*/false, name);
    }
  head(g, x, options.classes);
  return g;
}

Graph resnet_v2(const ModelOptions& options) {
  const std::int64_t count = blocks_of(options, 9, "resnet_v2");
  constexpr std::array<std::int64_t, 3> widths{16, 64, 128}, outputs{64, 128, 256};
  Graph g;
  g.cell("stem");
  Value x = g.input(options.image);
  x = conv(g, x, {16, 3}, "conv1");
  for (std::size_t group = 0; group < 3; ++group)
    for (int i = 0; i < count; ++i) {
      const std::string name = concat("layer", group + 1, ".", i);
      const std::int64_t stride = group > 0 && i == 0 ? 2 : 1;
      g.cell(name);
      // The block's input is normalised once; the projection of a group's first block takes that, too.
      const Value active = g.relu(g.batch_norm(x, name + ".bn1"));
      Value y = conv(g, active, {widths[group], 3, stride}, name + ".conv1");
      y = conv(g, g.relu(g.batch_norm(y, name + ".bn2")), {widths[group], 3}, name + ".conv2");
      y = conv(g, g.relu(g.batch_norm(y, name + ".bn3")), {outputs[group]}, name + ".conv3");
      const Value shortcut = i == 0 ? conv(g, active, {outputs[group], 1, stride}, name + ".downsample") : x;
      x = g.add(y, shortcut);
    }
  x = g.relu(g.batch_norm(x, "bn"));
  head(g, x, options.classes);
  return g;
}

}  // namespace tessera
