// The torch::nn oracles and the graphs are two descriptions of the same networks, made apart from each other.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <map>

#include "support/torch_models.h"
#include "tessera/models/registry.h"

namespace tessera {
namespace {

using torch::Tensor;
constexpr int classes = 7;

struct Case {
  std::string title;
  std::function<std::shared_ptr<OracleModel>()> oracle;
  ModelOptions options;
};

std::vector<Case> cases() {
  return {{"resnet18", [] { return oracle_resnet18(classes); }, {.name = "resnet18"}},
          {"resnet50", [] { return oracle_resnet50(classes); }, {.name = "resnet50"}},
          {"resnet_v2_11", [] { return oracle_resnet_v2(11, classes); }, {.name = "resnet_v2", .depth = 11}},
          {"resnet_v2_20", [] { return oracle_resnet_v2(20, classes); }, {.name = "resnet_v2", .depth = 20}},
          {"amoebanet_3_16",
           [] { return oracle_amoebanet(3, 16, classes); },
           {.name = "amoebanet", .num_layers = 3, .num_filters = 16}},
          {"amoebanet_6_40",
           [] { return oracle_amoebanet(6, 40, classes); },
           {.name = "amoebanet", .num_layers = 6, .num_filters = 40}},
          {"unet_transposed",
           [] { return oracle_unet(3, 5, classes, false); },
           {.name = "unet", .num_layers = 3, .num_filters = 5}},
          {"unet_bilinear",
           [] { return oracle_unet(2, 4, classes, true); },
           {.name = "unet", .num_layers = 2, .num_filters = 4, .upsampling = "bilinear"}}};
}

class Oracle : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr std::int64_t samples = 2, height = 75, width = 98;

  void SetUp() override {
    torch::manual_seed(1);
    ModelOptions options = GetParam().options;
    options.image = {3, height, width};
    options.classes = classes;
    graph = builtin_models().build(options);
    oracle = GetParam().oracle();
    oracle->to(torch::kFloat64);
    // Norms that are not the identity, so that a swapped one shows.
    torch::NoGradGuard no_grad;
    for (auto& p : oracle->parameters())
      if (p.dim() == 1) p.uniform_(0.5, 1.5);
    images = torch::randn({samples, 3, height, width}, torch::kFloat64);
  }

  Graph graph;
  std::shared_ptr<OracleModel> oracle;
  Tensor images;
};

TEST_P(Oracle, HasTheNamesAndShapesOfTheGraph) {
  std::map<std::string, std::vector<std::int64_t>> trained, expected_trained, kept, expected_kept;
  for (const auto& p : oracle->named_parameters()) trained[p.key()] = p.value().sizes().vec();
  for (const auto& b : oracle->named_buffers()) kept[b.key()] = b.value().sizes().vec();
  for (const auto& [name, spec] : graph.parameters())
    (spec.trainable ? expected_trained : expected_kept)[name] = spec.sizes;
  EXPECT_EQ(trained, expected_trained);
  EXPECT_EQ(kept, expected_kept);
}

TEST_P(Oracle, GivesLogitsForAnOddImage) {
  const Tensor logits = oracle->forward(images);
  std::vector<std::int64_t> sizes{samples, classes};
  if (graph.label_kind() == LabelKind::pixel) sizes.insert(sizes.end(), {height, width});
  EXPECT_EQ(logits.sizes().vec(), sizes);
  EXPECT_EQ(logits.scalar_type(), torch::kFloat64);
  EXPECT_TRUE(logits.isfinite().all().item<bool>());
}

TEST_P(Oracle, ReachesEveryParameterWithAGradient) {
  oracle->forward(images).square().sum().backward();
  for (const auto& p : oracle->named_parameters()) {
    ASSERT_TRUE(p.value().grad().defined()) << p.key();
    EXPECT_GT(p.value().grad().abs().max().item<double>(), 0) << p.key();
  }
}

TEST_P(Oracle, GivesTheSameLogitsInChannelsLast) {
  const Tensor plain = oracle->forward(images);
  torch::NoGradGuard no_grad;
  for (auto& p : oracle->parameters())
    if (p.dim() == 4) p.set_data(p.contiguous(torch::MemoryFormat::ChannelsLast));
  const Tensor last = oracle->forward(images.contiguous(torch::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(torch::allclose(last, plain, 1e-8, 1e-8)) << (last - plain).abs().max();
}

// Runs the graph node by node with torch's own functions; every window is padded by hand first.
class Walk {
 public:
  Walk(const Graph& graph, const OracleModel& oracle) : graph_(graph) {
    for (const auto& p : oracle.named_parameters()) parameters_[p.key()] = p.value();
  }
  Tensor logits(const Tensor& images) {
    values_ = {images};
    for (std::size_t n = 1; n + 1 < graph_.nodes().size(); ++n) values_.push_back(run(graph_.nodes()[n]));
    return values_.back();
  }

 private:
  static Tensor padded(const Tensor& x, const Windows& w, double value) {
    return torch::constant_pad_nd(x, {w.width.pad_begin, w.width.pad_end, w.height.pad_begin, w.height.pad_end}, value);
  }
  static std::vector<std::int64_t> kernel(const Windows& w) { return {w.height.kernel, w.width.kernel}; }
  static std::vector<std::int64_t> stride(const Windows& w) { return {w.height.stride, w.width.stride}; }
  static std::vector<std::int64_t> dilation(const Windows& w) { return {w.height.dilation, w.width.dilation}; }

  static Tensor cropped(const Tensor& x, const Shape& shape) {
    return x.narrow(2, 0, shape.height).narrow(3, 0, shape.width);
  }
  Tensor average(const AvgPool& op, const Tensor& x) const {
    const auto mean = [&](const Tensor& t) {
      return torch::avg_pool2d(padded(t, op.windows, 0), kernel(op.windows), stride(op.windows));
    };
    return op.count_include_pad ? mean(x) : mean(x) / mean(torch::ones_like(x));
  }
  Tensor run(const Node& node) const {
    const auto input = [&](std::size_t i) { return values_.at(static_cast<std::size_t>(node.inputs.at(i).id)); };
    const auto parameter = [&](const char* suffix) {
      const auto found = parameters_.find(node.name + "." + suffix);
      return found == parameters_.end() ? Tensor() : found->second;
    };
    const Tensor x = input(0);
    const Operation* op = node.op.get();
    if (const auto* conv = dynamic_cast<const Conv*>(op))
      return torch::conv2d(padded(x, conv->windows, 0), parameter("weight"), parameter("bias"), stride(conv->windows),
                           torch::IntArrayRef({0, 0}), dilation(conv->windows), conv->options.groups);
    if (const auto* up = dynamic_cast<const ConvTranspose*>(op))
      return cropped(torch::conv_transpose2d(x, parameter("weight"), parameter("bias"),
                                             torch::IntArrayRef({up->options.scale.height, up->options.scale.width})),
                     node.shape);
    if (op->kind() == "upsample")
      return cropped(torch::upsample_bilinear2d(x, {2 * x.size(2), 2 * x.size(3)}, false), node.shape);
    if (const auto* norm = dynamic_cast<const Norm*>(op))
      return torch::batch_norm(x, parameter("weight"), parameter("bias"), {}, {}, true, 0, norm->norm.epsilon, false);
    if (const auto* pool = dynamic_cast<const MaxPool*>(op))
      return torch::max_pool2d(padded(x, pool->windows, -std::numeric_limits<double>::infinity()),
                               kernel(pool->windows), stride(pool->windows));
    if (const auto* pool = dynamic_cast<const AvgPool*>(op)) return average(*pool, x);
    if (op->kind() == "relu") return torch::relu(x);
    if (op->kind() == "add") return x + input(1);
    if (op->kind() == "global_avg_pool") return x.mean({2, 3}, true);
    if (op->kind() == "flatten") return x.flatten(1);
    if (op->kind() == "linear") return torch::linear(x, parameter("weight"), parameter("bias"));
    if (op->kind() != "concat") throw std::runtime_error("the walk does not know " + std::string(op->kind()));
    std::vector<Tensor> parts;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) parts.push_back(input(i));
    return torch::cat(parts, 1);
  }

  const Graph& graph_;
  std::map<std::string, Tensor> parameters_;
  std::vector<Tensor> values_;
};

TEST_P(Oracle, ComputesWhatTheGraphSays) {
  torch::NoGradGuard no_grad;
  const Tensor expected = oracle->forward(images), logits = Walk(graph, *oracle).logits(images);
  EXPECT_TRUE(torch::allclose(logits, expected, 1e-9, 1e-9)) << (logits - expected).abs().max();
}

INSTANTIATE_TEST_SUITE_P(Models, Oracle, ::testing::ValuesIn(cases()), [](const auto& one) { return one.param.title; });

}  // namespace
}  // namespace tessera
