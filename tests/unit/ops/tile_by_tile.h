// Every kernel against torch's autograd, on the whole value and tile by tile: the tiles of a random partition must give
// the same output, and their gradients must add up to the whole one.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <random>

#include "support/compare.h"
#include "support/device.h"
#include "support/kernels.h"
#include "tessera/runtime/parameters.h"

namespace tessera::test {

inline constexpr double tolerance = 1e-12;

using Expected = std::function<torch::Tensor(const std::vector<torch::Tensor>& inputs,
                                             const std::vector<torch::Tensor>& parameters)>;

class Rig {
 public:
  explicit Rig(unsigned seed) : random_(seed) { torch::manual_seed(seed); }
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return std::data(list)[pick(0, static_cast<std::int64_t>(list.size()) - 1)];
  }
  // Cuts [0, size) at random into up to three pieces.
  std::vector<Interval> cuts(std::int64_t size) {
    std::vector<std::int64_t> at{0, size};
    for (std::int64_t i = pick(0, 2); i > 0; --i) at.push_back(pick(0, size));
    std::sort(at.begin(), at.end());
    std::vector<Interval> out;
    for (std::size_t i = 0; i + 1 < at.size(); ++i)
      if (at[i] < at[i + 1]) out.push_back({at[i], at[i + 1]});
    return out;
  }

 private:
  std::mt19937 random_;
};

inline Slab random_slab(const Shape& shape, std::int64_t samples) {
  const Box box = shape.box({0, samples});
  Slab slab = empty_slab(box, shape.channels, doubles());
  slab.data.copy_(torch::randn({samples, shape.channels, shape.height, shape.width}, at::kDouble));
  return slab;
}

// The last node of the graph, all of whose inputs are given random data.
inline void check(Rig& rig, const Graph& graph, std::int64_t samples, const Expected& expected) {
  const Node& node = graph.nodes().back();
  SCOPED_TRACE(tessera::concat(node.op->kind(), " of ", graph.input_shapes(node)[0], " to ", node.shape, ", ", samples,
                               " samples"));
  const Parameters parameters(graph, 0, static_cast<int>(graph.nodes().size()), doubles(), 7);
  const KernelOf kernel(graph, parameters);
  const auto shapes = graph.input_shapes(node);

  std::vector<Slab> inputs;
  std::vector<torch::Tensor> leaves, weights;
  for (const auto& shape : shapes) {
    inputs.push_back(random_slab(shape, samples));
    leaves.push_back(inputs.back().data.clone(at::MemoryFormat::Contiguous).requires_grad_(true));
  }
  for (const auto& p : parameters.of(node).values)
    weights.push_back(p.clone(at::MemoryFormat::Contiguous).requires_grad_(true));
  const auto reference = expected(leaves, weights);
  const Slab upstream = random_slab(node.shape, samples);
  ASSERT_EQ(reference.sizes(), upstream.data.sizes());
  (reference * upstream.data).sum().backward();

  PassInfo pass{3, 5, static_cast<double>(samples), {}};
  pass.options = doubles();
  // First the whole value as one tile, then a random grid of tiles.
  for (const bool whole : {true, false}) {
    SCOPED_TRACE(whole ? "whole" : "in tiles");
    parameters.flat_gradients().zero_();
    auto output = torch::full_like(upstream.data, std::nan(""));
    std::vector<torch::Tensor> input_gradients;
    for (const auto& leaf : leaves) input_gradients.push_back(torch::zeros_like(leaf));
    const auto rows = whole ? std::vector<Interval>{{0, node.shape.height}} : rig.cuts(node.shape.height);
    const auto columns = whole ? std::vector<Interval>{{0, node.shape.width}} : rig.cuts(node.shape.width);
    for (const auto& r : rows)
      for (const auto& c : columns) {
        const Box tile = image_box({0, samples}, r, c);
        std::vector<Slab> seen;
        for (std::size_t i = 0; i < inputs.size(); ++i)
          seen.push_back(
              narrowed(inputs[i], intersect(node.op->input_box(tile, i, shapes), shapes[i].box({0, samples}))));
        Saved saved;
        const Box owned = node.op->reduces_positions() ? seen[0].box : tile;
        const Slab out = kernel.forward({seen, tile, owned, pass, saved});
        ASSERT_EQ(out.box, tile);
        output.narrow(2, r.begin, r.size()).narrow(3, c.begin, c.size()).copy_(out.data);
        Slab gradient = narrowed(upstream, tile);
        gradient.data = channels_last(gradient.data);
        BackwardArgs args{seen, out, {gradient}, std::vector<bool>(inputs.size(), true), {}, owned, pass, saved};
        kernel->weight_gradients(args);
        const auto gradients = kernel.input_gradients(args);
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          const Box& box = gradients[i].box;
          if (box.empty()) continue;
          input_gradients[i]
              .narrow(2, box.height().begin, box.height().size())
              .narrow(3, box.width().begin, box.width().size())
              .add_(gradients[i].data);
        }
      }
    EXPECT_LT(relative_error(output, reference), tolerance);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      EXPECT_LT(relative_error(input_gradients[i], leaves[i].grad()), tolerance) << "gradient of input " << i;
    for (std::size_t i = 0; i < weights.size(); ++i)
      EXPECT_LT(relative_error(parameters.of(node).gradients[i], weights[i].grad()), tolerance)
          << "gradient of " << node.parameters[i].suffix;
  }
}

inline torch::Tensor explicit_pad(const torch::Tensor& x, const Windows& w, double value) {
  namespace F = torch::nn::functional;
  return F::pad(
      x, F::PadFuncOptions({w.width.pad_begin, w.width.pad_end, w.height.pad_begin, w.height.pad_end}).value(value));
}

}  // namespace tessera::test
