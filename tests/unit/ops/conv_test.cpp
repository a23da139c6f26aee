// Convolutions: any window, in bands, few pixels, one pixel.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/ops/bands.h"
#include "tile_by_tile.h"

namespace tessera {
namespace {

using namespace test;

TEST(Kernel, ConvEqualsAutogradForAnyWindow) {
  Rig rig(1);
  for (int trial = 0; trial < 120; ++trial) {
    ConvOptions o;
    o.groups = rig.one_of({1, 1, 2, 3});
    o.out = o.groups * rig.pick(1, 4);
    o.kernel = {rig.pick(1, 5), rig.pick(1, 5)};
    o.stride = {rig.pick(1, 3), rig.pick(1, 3)};
    o.dilation = {rig.pick(1, 2), rig.pick(1, 2)};
    o.pad = {rig.pick(0, 3), rig.pick(0, 3)};
    if (rig.pick(0, 3) == 0) o.pad_end = Pair{rig.pick(0, 3), rig.pick(0, 3)};
    if (rig.pick(0, 5) == 0) o.pad = -1, o.pad_end = Pair{1};
    o.bias = rig.pick(0, 1);
    Graph graph;
    const Value x = graph.input({o.groups * rig.pick(1, 3), rig.pick(11, 23), rig.pick(11, 23)});
    graph.conv(x, o, "conv");
    const Windows windows = dynamic_cast<const Conv&>(*graph.nodes().back().op).windows;
    check(rig, graph, rig.pick(1, 3), [&](const auto& in, const auto& w) {
      return torch::conv2d(explicit_pad(in[0], windows, 0), w[0], o.bias ? w[1] : torch::Tensor(),
                           torch::IntArrayRef{o.stride.height, o.stride.width}, torch::IntArrayRef{0, 0},
                           torch::IntArrayRef{o.dilation.height, o.dilation.width}, o.groups);
    });
  }
}

TEST(Kernel, ConvInBandsEqualsConvInOnePiece) {
  Rig rig(21);
  for (int trial = 0; trial < 60; ++trial) {
    ConvOptions o;
    o.out = rig.pick(1, 4);
    o.kernel = {rig.pick(1, 5), rig.pick(1, 5)};
    o.stride = {rig.pick(1, 3), rig.pick(1, 3)};
    o.dilation = {rig.pick(1, 2), rig.pick(1, 2)};
    o.pad = {rig.pick(0, 3), rig.pick(0, 3)};
    o.bias = rig.pick(0, 1);
    Graph graph;
    graph.conv(graph.input({rig.pick(1, 3), rig.pick(11, 23), rig.pick(11, 23)}), o, "conv");
    const Node& node = graph.nodes().back();
    const std::int64_t samples = rig.pick(1, 3);
    SCOPED_TRACE(tessera::concat(o.kernel.height, "x", o.kernel.width, " /", o.stride.height, "x", o.stride.width, ", ",
                                 samples, " samples"));
    const std::vector<Slab> inputs{random_slab(graph.shape({0}), samples)};
    const Slab upstream = random_slab(node.shape, samples);
    PassInfo pass{3, 5, static_cast<double>(samples), {}};
    pass.options = test::doubles();
    std::array<at::Tensor, 2> outputs, input_gradients, weight_gradients;
    for (const bool bands : {false, true}) {
      const Parameters parameters(graph, 0, 2, test::doubles(), 7);
      KernelOf kernel(graph, parameters);
      if (bands)
        kernel.wrap([&](auto whole) { return in_bands(std::move(whole), node.shape.channels, rig.pick(30, 600)); });
      Saved saved;
      outputs[bands] = kernel->forward({inputs, upstream.box, upstream.box, pass, saved}).data;
      BackwardArgs args{inputs, {}, {upstream}, {true}, {}, upstream.box, pass, saved};
      kernel->weight_gradients(args);
      const Slab gradient = kernel->input_gradients(args)[0];
      const Slab whole{torch::zeros_like(inputs[0].data), inputs[0].box};
      narrowed(whole, gradient.box).data.copy_(gradient.data);
      input_gradients[bands] = whole.data;
      weight_gradients[bands] = parameters.flat_gradients().clone();
    }
    EXPECT_LT(relative_error(outputs[1], outputs[0]), tolerance);
    EXPECT_LT(relative_error(input_gradients[1], input_gradients[0]), tolerance);
    EXPECT_LT(relative_error(weight_gradients[1], weight_gradients[0]), tolerance);
  }
}

// A kernel that can writes its bands where they belong: here Winograd's, where it pays.
TEST(Kernel, BandsAreWrittenIntoTheMemoryThatIsGiven) {
  at::globalContext().setAllowTF32CuDNN(false);  // torch would let a GPU round
  Graph graph;
  graph.conv(graph.input({16, 81, 64}), {.out = 16, .kernel = 3, .pad = 1}, "conv");
  const auto floats = test::doubles().dtype(at::kFloat);
  const Parameters parameters(graph, 0, 2, floats, 7);
  Rig rig(22);
  const Slab image = random_slab(graph.shape({0}), 1);
  const std::vector<Slab> inputs{{image.data.to(at::kFloat), image.box}};
  const Slab frame = empty_slab(image_box({0, 1}, {-1, 83}, {-2, 65}), 16, floats);
  const Slab into = narrowed(frame, image.box);
  PassInfo pass{3, 5, 1, {}};
  pass.options = floats;
  Saved saved;
  KernelOf kernel(graph, parameters);
  const Slab whole = kernel->forward({inputs, image.box, image.box, pass, saved});
  kernel.wrap([](auto inner) { return in_bands(std::move(inner), 16, 16 * 64 * 30); });
  const Slab bands = kernel->forward({inputs, image.box, image.box, pass, saved, into});
  EXPECT_EQ(bands.data.data_ptr(), into.data.data_ptr());
  EXPECT_LT(relative_error(into.data, whole.data), 1e-6);
}

struct OneThread {
  const int before = at::get_num_threads();
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before); }
};

// More weights than pixels: a product of windows and weights.
TEST(Kernel, ConvOfFewPixelsEqualsAutogradOnOneThread) {
  const OneThread one;
  Rig rig(9);
  for (int trial = 0; trial < 40; ++trial) {
    const std::int64_t kernel = rig.one_of<std::int64_t>({1, 1, 3, 5}), pad = rig.pick(0, 2);
    const ConvOptions o{.out = rig.pick(60, 80),
                        .kernel = kernel,
                        .stride = rig.pick(1, 2),
                        .pad = pad,
                        .dilation = rig.pick(1, 2),
                        .bias = rig.pick(0, 1) == 1};
    Graph graph;
    graph.conv(graph.input({rig.pick(60, 80), rig.pick(9, 12), rig.pick(9, 12)}), o, "conv");
    check(rig, graph, 1, [&](const auto& in, const auto& w) {
      return torch::conv2d(in[0], w[0], o.bias ? w[1] : torch::Tensor(), o.stride.height, pad, o.dilation.height);
    });
  }
}

// What a convolution gives and hands back, in this type, of three weight gradients added up.
std::vector<torch::Tensor> passes_of(const Graph& graph, const torch::Tensor& image, const torch::Tensor& upstream,
                                     at::ScalarType dtype) {
  const Node& node = graph.nodes().back();
  const Parameters parameters(graph, 0, static_cast<int>(graph.nodes().size()), dtype, 7);
  const KernelOf kernel(graph, parameters);
  const std::vector<Slab> inputs{{channels_last(image.to(dtype)), graph.nodes()[0].shape.box({0, 1})}};
  const Box out = node.shape.box({0, 1});
  PassInfo pass;
  pass.options = dtype;
  Saved saved;
  std::vector<torch::Tensor> results{kernel->forward({inputs, out, out, pass, saved}).data};
  BackwardArgs args{inputs, {}, {{channels_last(upstream.to(dtype)), out}}, {true}, {}, out, pass, saved};
  for (int i = 0; i < 3; ++i) kernel->weight_gradients(args);
  // Some ways leave out what gets nothing.
  const Slab dx = kernel->input_gradients(args)[0], all = zero_slab(inputs[0].box, image.size(1), dtype);
  narrowed(all, dx.box).data.copy_(dx.data);
  results.push_back(all.data);
  results.push_back(parameters.of(node).gradients[0]);
  for (auto& result : results) result = result.to(at::kDouble);
  return results;
}

// Several ways lead there, and which is taken depends on the shape, and on TESSERA_WAYS.
TEST(Kernel, ConvInFloat32EqualsConvInFloat64) {
  Rig rig(21);
  const int before = at::get_num_threads();
  for (int trial = 0; trial < 60; ++trial) {
    const std::int64_t kernel = rig.one_of<std::int64_t>({1, 1, 3, 3, 5, 7});
    const ConvOptions o{.out = rig.pick(3, 40),
                        .kernel = kernel,
                        .stride = rig.pick(1, 3),
                        .pad = rig.pick(0, kernel / 2),
                        .bias = rig.pick(0, 1) == 1};
    Graph graph;
    // Some have fewer pixels than weights.
    const std::int64_t channels = rig.one_of<std::int64_t>({3, 16, 24, 37, 80});
    const std::int64_t height = rig.pick(7, 40), width = rig.pick(7, 40);
    graph.conv(graph.input({channels, height, width}), o, "conv");
    const Shape shape = graph.nodes().back().shape;
    const auto image = torch::randn({1, channels, height, width}, at::kDouble),
               upstream = torch::randn({1, o.out, shape.height, shape.width}, at::kDouble);
    at::set_num_threads(1 + trial % 2);
    const auto expected = passes_of(graph, image, upstream, at::kDouble);
    const auto got = passes_of(graph, image, upstream, at::kFloat);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_LT(relative_error(got[i], expected[i]), 5e-6)
          << "pass " << i << " of " << kernel << " by " << o.stride.height << ", " << channels << " to " << o.out;
  }
  at::set_num_threads(before);
}

// oneDNN 2.6 gets the weight gradient of these wrong if they are strided (docs/numerics.md), and one thread takes
// another way.
TEST(Kernel, ConvolutionsOfOnePixelAreRightInFloat32) {
  torch::manual_seed(4);
  for (const std::int64_t stride : {1, 2}) {
    Graph graph;
    graph.conv(graph.input({4, 256, 250}), {.out = 8, .stride = stride}, "conv");
    const auto image = torch::randn({1, 4, 256, 250}, at::kDouble),
               upstream = torch::randn({1, 8, 256 / stride, 250 / stride}, at::kDouble);
    const auto expected = passes_of(graph, image, upstream, at::kDouble);
    const auto compare = [&](const char* threads) {
      const auto got = passes_of(graph, image, upstream, at::kFloat);
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_LT(relative_error(got[i], expected[i]), 1e-4) << "stride " << stride << ", " << threads << ", " << i;
    };
    compare("all threads");
    const OneThread one;
    compare("one thread");
  }
}

}  // namespace
}  // namespace tessera
