// Every other kernel: pools, concatenation, the head, dropout.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tile_by_tile.h"

namespace tessera {
namespace {

using namespace test;

// Where the plane must have fewer rows or columns than the blocks, the last ones are not made.
std::optional<Pair> cropped_size(Rig& rig, const Shape& in, Pair scale) {
  if (rig.pick(0, 1)) return std::nullopt;
  return Pair{in.height * scale.height - rig.pick(0, scale.height - 1),
              in.width * scale.width - rig.pick(0, scale.width - 1)};
}

torch::Tensor cropped(const torch::Tensor& x, const Shape& shape) {
  return x.narrow(2, 0, shape.height).narrow(3, 0, shape.width);
}

TEST(Kernel, ConvTransposeEqualsAutograd) {
  Rig rig(9);
  for (int trial = 0; trial < 60; ++trial) {
    ConvTransposeOptions o;
    o.out = rig.pick(1, 6);
    if (rig.pick(0, 2) == 0) o.scale = {rig.pick(1, 3), rig.pick(1, 3)};
    o.bias = rig.pick(0, 1);
    const Shape in{rig.pick(1, 5), rig.pick(1, 9), rig.pick(1, 9)};
    o.size = cropped_size(rig, in, o.scale);
    Graph graph;
    graph.conv_transpose(graph.input(in), o, "up");
    check(rig, graph, rig.pick(1, 3), [&](const auto& x, const auto& w) {
      return cropped(torch::conv_transpose2d(x[0], w[0], o.bias ? w[1] : torch::Tensor(),
                                             torch::IntArrayRef{o.scale.height, o.scale.width}),
                     graph.nodes().back().shape);
    });
  }
}

TEST(Kernel, UpsampleEqualsAutograd) {
  namespace F = torch::nn::functional;
  Rig rig(10);
  for (int trial = 0; trial < 60; ++trial) {
    const Shape in{rig.pick(1, 5), rig.pick(1, 9), rig.pick(1, 9)};
    Graph graph;
    graph.upsample(graph.input(in), {.size = cropped_size(rig, in, Upsample::scale)});
    check(rig, graph, rig.pick(1, 3), [&](const auto& x, const auto&) {
      return cropped(F::interpolate(x[0], F::InterpolateFuncOptions()
                                              .scale_factor(std::vector<double>{2, 2})
                                              .mode(torch::kBilinear)
                                              .align_corners(false)),
                     graph.nodes().back().shape);
    });
  }
}

TEST(Kernel, MaxPoolEqualsAutograd) {
  Rig rig(2);
  for (int trial = 0; trial < 60; ++trial) {
    PoolOptions o;
    o.kernel = {rig.pick(1, 4), rig.pick(1, 4)};
    if (rig.pick(0, 1)) o.stride = Pair{rig.pick(1, 3), rig.pick(1, 3)};
    o.pad = {rig.pick(0, o.kernel.height / 2), rig.pick(0, o.kernel.width / 2)};
    if (rig.pick(0, 2) == 0) o.pad = 0, o.pad_end = Pair{o.kernel.height - 1, o.kernel.width - 1};
    Graph graph;
    graph.max_pool(graph.input({rig.pick(1, 5), rig.pick(7, 19), rig.pick(7, 19)}), o);
    const Windows w = dynamic_cast<const MaxPool&>(*graph.nodes().back().op).windows;
    check(rig, graph, rig.pick(1, 3), [&](const auto& in, const auto&) {
      return torch::max_pool2d(explicit_pad(in[0], w, -std::numeric_limits<double>::infinity()),
                               {w.height.kernel, w.width.kernel}, {w.height.stride, w.width.stride});
    });
  }
}

TEST(Kernel, MaxPoolGivesTiesToTheFirstPixelAndLetsNanThrough) {
  Graph graph;
  graph.max_pool(graph.input({1, 2, 2}), {.kernel = 2});
  const KernelOf kernel(graph, test::doubles());
  Slab in = empty_slab(image_box({0, 1}, {0, 2}, {0, 2}), 1, test::doubles());
  in.data.fill_(3.0);
  const std::vector<Slab> inputs{in};
  const PassInfo pass{};
  Saved saved;
  const Slab out =
      kernel.forward({inputs, image_box({0, 1}, {0, 1}, {0, 1}), image_box({0, 1}, {0, 1}, {0, 1}), pass, saved});
  Slab gradient{torch::ones_like(out.data), out.box};
  BackwardArgs args{inputs, out, {gradient}, {true}, {}, out.box, pass, saved};
  EXPECT_TRUE(torch::equal(kernel.input_gradients(args)[0].data.flatten().cpu(),
                           torch::tensor({1.0, 0.0, 0.0, 0.0}, at::kDouble)));
  in.data[0][0][1][0] = std::nan("");
  EXPECT_TRUE(std::isnan(kernel.forward({inputs, out.box, out.box, pass, saved}).data.item<double>()));
}

TEST(Kernel, AvgPoolEqualsAutogradWithAndWithoutPaddingInTheCount) {
  Rig rig(3);
  for (int trial = 0; trial < 60; ++trial) {
    PoolOptions o;
    o.kernel = {rig.pick(1, 4), rig.pick(1, 4)};
    o.stride = Pair{rig.pick(1, 3), rig.pick(1, 3)};
    o.pad = {rig.pick(0, o.kernel.height / 2), rig.pick(0, o.kernel.width / 2)};
    o.count_include_pad = rig.pick(0, 1);
    Graph graph;
    graph.avg_pool(graph.input({rig.pick(1, 5), rig.pick(7, 19), rig.pick(7, 19)}), o);
    check(rig, graph, rig.pick(1, 3), [&](const auto& in, const auto&) {
      return torch::avg_pool2d(in[0], {o.kernel.height, o.kernel.width}, {o.stride->height, o.stride->width},
                               {o.pad.height, o.pad.width}, false, o.count_include_pad);
    });
  }
}

TEST(Kernel, ConcatEqualsAutograd) {
  Rig rig(4);
  for (int trial = 0; trial < 10; ++trial) {
    Graph graph;
    const Value x = graph.input({rig.pick(1, 4), rig.pick(3, 9), rig.pick(3, 9)});
    const Value y = graph.conv(x, {.out = rig.pick(1, 4)}, "conv");
    graph.concat({x, y, x});
    check(rig, graph, 2, [](const auto& in, const auto&) { return torch::cat(in, 1); });
  }
}

TEST(Kernel, GlobalAvgPoolFlattenAndLinearEqualAutograd) {
  Rig rig(5);
  for (int trial = 0; trial < 10; ++trial) {
    const Shape shape{rig.pick(1, 6), rig.pick(1, 7), rig.pick(1, 7)};
    Graph pool;
    pool.global_avg_pool(pool.input(shape));
    check(rig, pool, 3, [](const auto& in, const auto&) { return in[0].mean(torch::IntArrayRef{2, 3}, true); });
    Graph flat;
    flat.flatten(flat.input(shape));
    check(rig, flat, 3, [](const auto& in, const auto&) { return in[0].flatten(1).unsqueeze(2).unsqueeze(3); });
    for (const bool bias : {true, false}) {
      Graph linear;
      linear.linear(linear.input({shape.channels, 1, 1}), {.out = rig.pick(1, 5), .bias = bias}, "fc");
      check(rig, linear, 3, [&](const auto& in, const auto& w) {
        return torch::linear(in[0].flatten(1), w[0], bias ? w[1] : torch::Tensor()).unsqueeze(2).unsqueeze(3);
      });
    }
  }
}

TEST(Kernel, CrossEntropyEqualsAutograd) {
  torch::manual_seed(6);
  Graph graph;
  graph.cross_entropy(graph.input({7, 1, 1}));
  const KernelOf kernel(graph, test::doubles());
  const Slab logits = random_slab({7, 1, 1}, 5);
  const auto leaf = (logits.data * 30).clone().requires_grad_(true);
  const std::vector<Slab> inputs{{leaf.detach(), logits.box}};
  const PassInfo pass{0, 0, 5, torch::tensor({0, 6, 3, 3, 1}, at::kLong).to(test::device())};
  Saved saved;
  const Slab losses =
      kernel.forward({inputs, image_box({0, 5}, {0, 1}, {0, 1}), image_box({0, 5}, {0, 1}, {0, 1}), pass, saved});
  const auto reference = torch::nn::functional::cross_entropy(leaf.flatten(1), pass.labels);
  EXPECT_LT(relative_error(losses.data.mean(), reference), tolerance);
  reference.backward();
  BackwardArgs args{inputs, losses, {{torch::full_like(losses.data, 0.2), losses.box}}, {true}, {}, losses.box,
                    pass,   saved};
  EXPECT_LT(relative_error(kernel.input_gradients(args)[0].data, leaf.grad()), tolerance);
}

// In tiles, each with the labels of its own pixels. What has no label gives nothing and gets nothing.
TEST(Kernel, PixelCrossEntropyEqualsAutogradTileByTile) {
  namespace F = torch::nn::functional;
  Rig rig(11);
  for (const auto dtype : {at::kByte, at::kLong})
    for (int trial = 0; trial < 10; ++trial) {
      const Shape shape{rig.pick(1, 6), rig.pick(1, 9), rig.pick(1, 9)};
      Graph graph;
      graph.pixel_cross_entropy(graph.input(shape));
      const KernelOf kernel(graph, test::doubles());
      const Slab logits = random_slab(shape, 3);
      logits.data.mul_(20);
      const auto labels =
          torch::randint(shape.channels, {3, shape.height, shape.width}, test::doubles().dtype(at::kLong));
      labels.masked_fill_(torch::rand(labels.sizes(), test::doubles()) < 0.3, CrossEntropy::ignored_label);
      const auto leaf = logits.data.clone(at::MemoryFormat::Contiguous).requires_grad_(true);
      const auto upstream = torch::randn(labels.sizes(), test::doubles());
      const auto reference = F::cross_entropy(
          leaf, labels, F::CrossEntropyFuncOptions().reduction(torch::kNone).ignore_index(CrossEntropy::ignored_label));
      (reference * upstream).sum().backward();
      auto losses = torch::full(labels.sizes(), std::nan(""), test::doubles());
      auto gradients = torch::full_like(leaf, std::nan("")).detach();
      for (const auto& r : rig.cuts(shape.height))
        for (const auto& c : rig.cuts(shape.width)) {
          const Box tile = image_box({0, 3}, r, c);
          const auto part = [&](const torch::Tensor& t) {
            return t.narrow(-2, r.begin, r.size()).narrow(-1, c.begin, c.size());
          };
          const PassInfo pass{0, 0, static_cast<double>(labels.numel()), part(labels).to(dtype)};
          const std::vector<Slab> inputs{logits};
          Saved saved;
          const Slab out = kernel.forward({inputs, tile, tile, pass, saved});
          ASSERT_EQ(out.box, tile);
          part(losses).copy_(out.data.squeeze(1));
          BackwardArgs args{inputs, out,  {{channels_last(part(upstream).unsqueeze(1)), tile}}, {true}, {}, tile,
                            pass,   saved};
          part(gradients).copy_(kernel.input_gradients(args)[0].data);
        }
      EXPECT_LT(relative_error(losses, reference), tolerance);
      EXPECT_LT(relative_error(gradients, leaf.grad()), tolerance);
    }
}

// With 1000 classes, 255 is one of them.
TEST(Kernel, AnImagesLabelIsNeverIgnored) {
  torch::manual_seed(12);
  Graph graph;
  graph.cross_entropy(graph.input({300, 1, 1}));
  const KernelOf kernel(graph, test::doubles());
  const std::vector<Slab> inputs{random_slab({300, 1, 1}, 1)};
  const PassInfo pass{0, 0, 1, torch::tensor({255}, at::kLong).to(test::device())};
  Saved saved;
  const Box box = image_box({0, 1}, {0, 1}, {0, 1});
  EXPECT_LT(relative_error(kernel.forward({inputs, box, box, pass, saved}).data.flatten()[0],
                           torch::nn::functional::cross_entropy(inputs[0].data.flatten(1), pass.labels)),
            tolerance);
}

TEST(Kernel, DropoutIsAFunctionOfPositionNotOfTheTile) {
  Rig rig(8);
  Graph graph;
  graph.dropout(graph.input({3, 13, 9}), 0.3);
  const KernelOf kernel(graph, test::doubles());
  const std::vector<Slab> ones{
      {channels_last(torch::ones({4, 3, 13, 9}, test::doubles())), Shape{3, 13, 9}.box({0, 4})}};
  const PassInfo pass{11, 2, 4, {}};
  Saved saved;
  const auto mask = kernel.forward({ones, ones[0].box, ones[0].box, pass, saved}).data;
  // Kept elements are scaled so that the mean stays.
  EXPECT_NEAR(mask.mean().item<double>(), 1.0, 0.1);
  EXPECT_TRUE(torch::logical_or(mask == 0, (mask - 1 / 0.7).abs() < 1e-12).all().item<bool>());
  check(rig, graph, 4, [&](const auto& in, const auto&) {
    // check() runs with another seed and step: take the mask from the same pass.
    Saved none;
    const PassInfo same{3, 5, 4, {}};
    return in[0] * kernel.forward({ones, ones[0].box, ones[0].box, same, none}).data;
  });
  const Box part = image_box({2, 3}, {4, 9}, {1, 6});
  const auto tile = kernel.forward({ones, part, part, pass, saved}).data;
  EXPECT_TRUE(torch::equal(tile, mask.narrow(0, 2, 1).narrow(2, 4, 5).narrow(3, 1, 5)));
  const PassInfo next{11, 3, 4, {}};
  EXPECT_FALSE(torch::equal(kernel.forward({ones, ones[0].box, ones[0].box, next, saved}).data, mask));
}

// Output and input's gradient of the graph's last node, which has no parameters, in double.
std::pair<at::Tensor, at::Tensor> pass_through(const Graph& graph, const Slab& in, const Slab& upstream) {
  const KernelOf kernel(graph, in.data.options());
  const std::vector<Slab> inputs{in};
  PassInfo pass{11, 2, static_cast<double>(in.data.size(0)), {}};
  pass.options = in.data.options();
  Saved saved;
  const Slab out = kernel.forward({inputs, upstream.box, upstream.box, pass, saved});
  BackwardArgs args{inputs, out, {upstream}, {true}, {}, upstream.box, pass, saved};
  const at::Tensor gradient = kernel.input_gradients(args)[0].data;
  return {out.data.to(at::kDouble), gradient.to(at::kDouble)};
}

// By groups of channels and one by one; GPUs have a kernel for each.
TEST(Kernel, PoolsAndDropoutOfNarrowerTypesEqualThoseOfDouble) {
  torch::manual_seed(9);
  std::vector<std::pair<at::ScalarType, double>> types{{at::kFloat, 1e-6}};
  if (test::device() == at::kCUDA) types.push_back({at::kBFloat16, 1e-2});
  for (const std::int64_t channels : {5, 16})
    for (const int which : {0, 1, 2})
      for (const auto& [dtype, most] : types) {
        SCOPED_TRACE(tessera::concat("operation ", which, ", ", channels, " channels, ", dtype));
        Graph graph;
        const auto input = graph.input({channels, 13, 11});
        if (which == 0) graph.max_pool(input, {.kernel = 3, .stride = Pair{2, 2}, .pad = 1});
        if (which == 1) graph.avg_pool(input, {.kernel = 3, .stride = Pair{2, 2}, .pad = 1});
        if (which == 2) graph.dropout(input, 0.3);
        const auto narrow = [type = dtype](const Slab& slab) { return Slab{slab.data.to(type), slab.box}; };
        const auto widened = [](const Slab& slab) { return Slab{slab.data.to(at::kDouble), slab.box}; };
        const Slab in = narrow(random_slab({channels, 13, 11}, 2)),
                   upstream = narrow(random_slab(graph.nodes().back().shape, 2));
        const auto [out, gradient] = pass_through(graph, in, upstream);
        const auto [exact_out, exact_gradient] = pass_through(graph, widened(in), widened(upstream));
        EXPECT_LT(relative_error(out, exact_out), most);
        EXPECT_LT(relative_error(gradient, exact_gradient), most);
      }
}

}  // namespace
}  // namespace tessera
