#include "random_graph.h"

#include <algorithm>
#include <functional>

#include "dice.h"
#include "tessera/base/error.h"

namespace tessera::plans {
namespace {

/// A graph that grows, and what is drawn for it.
struct Sketch {
  Graph graph = {};
  Dice dice;
  std::vector<Value> values = {};  ///< all planes so far: what a skip may come from
  int names = 0;

  std::string name(const char* kind) { return concat(kind, names++); }
  std::int64_t channels(Value x) const { return graph.shape(x).channels; }
  Pair pair(std::int64_t least, std::int64_t most) { return {dice.number(least, most), dice.number(least, most)}; }

  /// An earlier value that x goes together with, or x itself.
  Value partner(Value x, bool same_channels) {
    std::vector<Value> fitting{x};
    for (const Value v : values) {
      const Shape &a = graph.shape(v), &b = graph.shape(x);
      if (a.height == b.height && a.width == b.width && (!same_channels || a.channels == b.channels) &&
          a.channels + b.channels <= 24)
        fitting.push_back(v);
    }
    return dice.one_of(fitting);
  }
};

struct Word {
  const char* kind;  ///< of an operation that it adds
  int weight;
  std::function<Value(Sketch&, Value)> add;
};

Value any_conv(Sketch& s, Value x) {
  const Pair kernel = s.pair(1, 4), dilation = s.dice.chance(0.2) ? s.pair(1, 2) : Pair(1);
  const std::int64_t out = s.dice.one_of<std::int64_t>({4, 6, 8});
  ConvOptions o{.out = out, .kernel = kernel, .dilation = dilation, .bias = s.dice.chance(0.4)};
  o.stride = s.dice.chance(0.3) ? s.pair(1, 3) : Pair(1);
  o.pad = {s.dice.number(0, dilation.height * (kernel.height - 1)), s.dice.number(0, dilation.width * (kernel.width - 1))};
  if (s.dice.chance(0.2)) o.pad_end = s.pair(0, 2);
  if (s.dice.chance(0.2)) o.groups = s.channels(x) % 2 == 0 ? 2 : s.channels(x) % 3 == 0 && out % 3 == 0 ? 3 : 1;
  return s.graph.conv(x, o, s.name("conv"));
}

PoolOptions any_window(Sketch& s) {
  PoolOptions o{.kernel = s.pair(1, 4)};
  if (s.dice.chance(0.8)) o.stride = s.pair(1, 2);
  // Torch allows half a window of padding.
  o.pad = {s.dice.number(0, o.kernel.height / 2), s.dice.number(0, o.kernel.width / 2)};
  o.count_include_pad = s.dice.chance(0.5);
  o.ceil_mode = s.dice.chance(0.3);
  return o;
}

Activation any_activation(Sketch& s) {
  static const std::vector<ActivationKind> kinds{
#define TESSERA_KIND(name, value, derivative, by_value) ActivationKind::name,
      TESSERA_ACTIVATIONS(TESSERA_KIND)
#undef TESSERA_KIND
  };
  return {s.dice.one_of(kinds), 0.3};
}

Value any_pad(Sketch& s, Value x) {
  const auto mode = s.dice.one_of<PadMode>({PadMode::zeros, PadMode::reflect, PadMode::replicate, PadMode::circular});
  const std::int64_t least = mode == PadMode::zeros ? -1 : 0;
  return s.graph.pad(x, {.before = s.pair(least, 2), .after = s.pair(least, 2), .mode = mode});
}

Value any_resize(Sketch& s, Value x) {
  ResizeOptions o{.mode = s.dice.chance(0.5) ? ResizeMode::nearest : ResizeMode::bilinear};
  if (s.dice.chance(0.5))
    o.factor = s.dice.one_of<double>({0.6, 1.5, 2.0});
  else
    o.size = s.pair(5, 40);
  o.align_corners = o.mode == ResizeMode::bilinear && s.dice.chance(0.5);
  return s.graph.resize(x, o);
}

// A value of one position, or of one channel, times the plane that it was made of.
Value gate(Sketch& s, Value x, bool of_positions) {
  const Value from = of_positions ? s.graph.global_avg_pool(x) : x;
  const Value g = s.graph.conv(from, {.out = of_positions ? s.channels(x) : 1, .bias = true}, s.name("gate"));
  return s.graph.multiply(x, s.graph.activate(g, {ActivationKind::sigmoid}));
}

// A new operation is one more line. What the shapes do not allow is refused by the graph, and another word is drawn.
const std::vector<Word>& words() {
  static const std::vector<Word> all{
      {"conv", 6, any_conv},
      {"conv_same", 4,
       [](Sketch& s, Value x) {
         const std::int64_t k = s.dice.one_of<std::int64_t>({1, 3, 5});
         return s.graph.conv(x, {.out = s.channels(x), .kernel = k, .pad = k / 2}, s.name("conv"));
       }},
      {"conv_transpose", 1,
       [](Sketch& s, Value x) {
         return s.graph.conv_transpose(x, {.out = 4, .scale = s.pair(1, 2)}, s.name("up"));
       }},
      {"conv_transpose", 1,
       [](Sketch& s, Value x) {
         return s.graph.conv_transpose(x, {.out = 4, .scale = 2, .kernel = s.pair(2, 4), .pad = s.pair(0, 1)},
                                       s.name("up"));
       }},
      {"conv", 2,
       [](Sketch& s, Value x) {
         const std::int64_t c = s.channels(x), k = s.dice.one_of<std::int64_t>({3, 5, 7});
         return s.graph.conv(x, {.out = c, .kernel = k, .pad = k / 2, .groups = c}, s.name("conv"));
       }},
      {"mish", 5, [](Sketch& s, Value x) { return s.graph.activate(x, any_activation(s)); }},
      {"batch_norm", 4,
       [](Sketch& s, Value x) { return s.graph.activate(s.graph.batch_norm(x, s.name("norm")), any_activation(s)); }},
      {"group_norm", 2,
       [](Sketch& s, Value x) { return s.graph.group_norm(x, s.name("norm"), {.groups = s.dice.number(1, 3)}); }},
      {"instance_norm", 1, [](Sketch& s, Value x) { return s.graph.instance_norm(x, s.name("norm")); }},
      {"layer_norm", 1, [](Sketch& s, Value x) { return s.graph.layer_norm(x, s.name("norm")); }},
      {"batch_norm", 1, [](Sketch& s, Value x) { return s.graph.batch_norm(x, s.name("norm"), {.frozen = true}); }},
      {"scale", 1, [](Sketch& s, Value x) { return s.graph.scale(x, s.name("scale"), {.start = 0.5}); }},
      {"prelu", 1, [](Sketch& s, Value x) { return s.graph.prelu(x, s.name("prelu"), s.dice.chance(0.5)); }},
      {"multiply", 2, [](Sketch& s, Value x) { return s.graph.multiply(x, s.partner(x, /*same_channels=*/true)); }},
      {"global_avg_pool", 2, [](Sketch& s, Value x) { return gate(s, x, /*of_positions=*/true); }},
      {"sigmoid", 1, [](Sketch& s, Value x) { return gate(s, x, /*of_positions=*/false); }},
      {"pad", 1, any_pad},
      {"resize", 1, any_resize},
      {"adaptive_max_pool", 1,
       [](Sketch& s, Value x) { return s.graph.adaptive_pool(x, {.size = s.pair(4, 12), .max = s.dice.chance(0.4)}); }},
      {"slice_channels", 1,
       [](Sketch& s, Value x) { return s.graph.slice_channels(x, 1, std::max<std::int64_t>(2, s.channels(x) - 2)); }},
      {"channel_shuffle", 1, [](Sketch& s, Value x) { return s.graph.channel_shuffle(x, 2); }},
      {"dropout", 1, [](Sketch& s, Value x) { return s.graph.dropout(x, 0.25, DropoutOf::channels); }},
      {"dropout", 1, [](Sketch& s, Value x) { return s.graph.dropout(x, 0.25, DropoutOf::samples); }},
      {"upsample", 1, [](Sketch& s, Value x) { return s.graph.upsample(x); }},
      {"batch_norm", 5, [](Sketch& s, Value x) { return s.graph.batch_norm(x, s.name("norm")); }},
      {"relu", 5, [](Sketch& s, Value x) { return s.graph.relu(x); }},
      {"max_pool", 2, [](Sketch& s, Value x) { return s.graph.max_pool(x, any_window(s)); }},
      {"avg_pool", 2, [](Sketch& s, Value x) { return s.graph.avg_pool(x, any_window(s)); }},
      {"add", 4, [](Sketch& s, Value x) { return s.graph.add(x, s.partner(x, /*same_channels=*/true)); }},
      {"concat", 2, [](Sketch& s, Value x) { return s.graph.concat({x, s.partner(x, /*same_channels=*/false)}); }},
      {"dropout", 1, [](Sketch& s, Value x) { return s.graph.dropout(x, 0.25); }},
  };
  return all;
}

// The largest plane that is still quick to train on, and the least that still has something to cut.
bool sensible(const Shape& shape) {
  return shape.height >= 3 && shape.width >= 3 && shape.height * shape.width <= 70 * 70 && shape.channels <= 24;
}

Value grown(Sketch& s, Value x) {
  std::vector<const Word*> bag;
  for (const Word& word : words()) bag.insert(bag.end(), static_cast<std::size_t>(word.weight), &word);
  for (int tries = 0; tries < 20; ++tries) {
    const Graph before = s.graph;
    try {
      const Value y = s.dice.one_of(bag)->add(s, x);
      if (sensible(s.graph.shape(y))) return y;
    } catch (const UsageError&) {
    }
    s.graph = before;
  }
  return s.graph.relu(x);
}

}  // namespace

std::vector<std::string> random_words() {
  std::vector<std::string> names;
  for (const Word& word : words()) names.emplace_back(word.kind);
  return names;
}

Graph random_graph(const ModelOptions& options) {
  const auto seed = static_cast<std::uint64_t>(options.depth.value_or(0));
  const std::int64_t operations = options.num_layers.value_or(8);
  require(operations >= 1 && operations <= 200, "--num-layers ", operations, " of model random is not in 1 to 200");
  Sketch s{.dice = Dice(seed, "graph")};
  const bool by_pixel = s.dice.chance(0.2);
  const bool all_in_one_cell = s.dice.chance(0.1);
  s.graph.cell("stem");
  Value x = s.graph.input(options.image);
  s.values.push_back(x);
  x = s.graph.conv(x, {.out = s.dice.one_of<std::int64_t>({4, 6}), .kernel = 3, .pad = 1}, "stem");
  for (std::int64_t i = 0; i < operations; ++i) {
    if (!all_in_one_cell && s.dice.chance(0.45)) s.graph.cell(concat("cell", i));
    s.values.push_back(x);
    x = grown(s, x);
  }
  s.graph.cell("head");
  if (by_pixel) {
    const Shape& image = options.image;
    while (s.graph.shape(x).height < image.height || s.graph.shape(x).width < image.width) x = s.graph.upsample(x);
    // The image's own size again: a window that is just as much larger than 1 as the plane is too large.
    const Shape& plane = s.graph.shape(x);
    x = s.graph.conv(x,
                     {.out = options.classes,
                      .kernel = {plane.height - image.height + 1, plane.width - image.width + 1},
                      .bias = true},
                     "head");
    s.graph.pixel_cross_entropy(x);
  } else {
    x = s.graph.global_avg_pool(x);
    if (s.dice.chance(0.2)) x = s.graph.dropout(x, 0.3);
    s.graph.cross_entropy(s.graph.linear(s.graph.flatten(x), {.out = options.classes}, "head"));
  }
  return s.graph;
}

ModelRegistry models_with_random() {
  ModelRegistry models = builtin_models();
  models.add("random", {"--num-layers random operations, drawn by --depth", {"depth", "num-layers"}, random_graph});
  return models;
}

}  // namespace tessera::plans
