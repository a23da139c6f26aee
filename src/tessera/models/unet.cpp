#include "tessera/models/unet.h"

#include <numbers>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::int64_t most_levels = 10;

// Two 3×3 convolutions, each normalised and rectified.
Value double_conv(Graph& g, Value x, std::int64_t channels, const std::string& name) {
  for (const char* number : {"1", "2"}) {
    x = g.conv(x, {.out = channels, .kernel = 3, .pad = 1, .fan_out_gain = std::numbers::sqrt2},
               concat(name, ".conv", number));
    x = g.relu(g.batch_norm(x, concat(name, ".bn", number)));
  }
  return x;
}

// Padding at the end rounds odd sizes up.
Value halved(Graph& g, Value x) { return g.max_pool(x, {.kernel = 2, .pad = 0, .pad_end = Pair{1}}); }

// To the size of `skip` with this many channels. A 1×1 convolution and bilinear upsampling may change places, and a
// quarter of the pixels is a quarter of the work.
Value enlarged(Graph& g, Value x, Value skip, std::int64_t channels, bool bilinear, const std::string& name) {
  const Pair size{g.shape(skip).height, g.shape(skip).width};
  if (!bilinear) return g.conv_transpose(x, {.out = channels, .size = size}, name);
  return g.upsample(g.conv(x, {.out = channels, .bias = true}, name), {.size = size});
}

}  // namespace

Graph unet(const ModelOptions& options) {
  const std::int64_t levels = options.num_layers.value_or(4), filters = options.num_filters.value_or(64);
  const std::string upsampling = options.upsampling.value_or("transposed");
  Problems problems;
  problems.check(1 <= levels && levels <= most_levels, "--num-layers ", levels, " of unet must be 1 to ", most_levels);
  problems.check(filters >= 1, "--num-filters ", filters, " must be at least 1");
  problems.check(upsampling == "transposed" || upsampling == "bilinear", "--upsampling ", upsampling,
                 " is not one of transposed, bilinear");
  problems.throw_if_any();

  Graph g;
  g.cell("down1");
  Value x = g.input(options.image);
  std::vector<Value> skips;
  for (std::int64_t level = 0; level < levels; ++level) {
    const std::string name = concat("down", level + 1);
    if (level > 0) {
      g.cell(name);
      x = halved(g, x);
    }
    x = double_conv(g, x, filters << level, name);
    skips.push_back(x);
  }
  g.cell("bottom");
  x = double_conv(g, halved(g, x), filters << levels, "bottom");
  for (std::int64_t level = levels - 1; level >= 0; --level) {
    const std::string name = concat("up", level + 1);
    const Value skip = skips[static_cast<std::size_t>(level)];
    g.cell(name);
    x = enlarged(g, x, skip, filters << level, upsampling == "bilinear", name + ".up");
    x = double_conv(g, g.concat({skip, x}), filters << level, name);
  }
  g.cell("head");
  g.pixel_cross_entropy(g.conv(x, {.out = options.classes, .bias = true}, "head"));
  return g;
}

}  // namespace tessera
