#include "tessera/runtime/workspaces.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "support/kernels.h"
#include "tessera/ops/way_choices.h"
#include "tessera/runtime/memory.h"
#include "tessera/runtime/parameters.h"

namespace tessera {
namespace {

struct Case {
  std::string name;
  std::int64_t channels, rows, columns;
  ConvOptions conv;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// What each way to compute a convolution takes at work, beside what it reads and makes.
class Workspaces : public testing::TestWithParam<std::tuple<Case, std::string, int>> {
 protected:
  void SetUp() override {
    install_cpu_allocator();
    ways_.choose_by(std::get<1>(GetParam()));
    at::set_num_threads(std::get<2>(GetParam()));
  }
  void TearDown() override {
    ways_.choose_by("fixed");
    at::set_num_threads(1);
  }
  WayChoices& ways_ = WayChoices::of_process();
};

TEST_P(Workspaces, AreAtLeastWhatAConvolutionTakes) {
  const Case& c = std::get<0>(GetParam());
  Graph graph;
  graph.conv(graph.input({c.channels, c.rows, c.columns}), c.conv, "conv");
  const int nodes = static_cast<int>(graph.nodes().size());
  const Parameters parameters(graph, 0, nodes, at::kFloat, 1);
  const test::KernelOf kernel(graph, parameters);
  const Shape in = graph.input_shapes(graph.nodes().back())[0], out = graph.nodes().back().shape;
  const Interval samples{0, 2};
  const auto filled = [&](const Shape& shape) {
    Slab slab = empty_slab(shape.box(samples), shape.channels, at::kFloat);
    slab.data.fill_(0.5);
    return slab;
  };
  const std::vector<Slab> inputs{filled(in)};
  const Slab gradient = filled(out);
  const KernelWorkspace says = kernel_workspaces(graph, at::kFloat);
  const Workspace said = says(kernel.step(), gradient.box, inputs[0].box, at::get_num_threads()).value();

  const auto account = std::make_shared<MemoryAccount>();
  const MemoryScope scope(account);
  // The most that is taken at work, without the result.
  const auto taken = [&](const auto& work) {
    account->reset_peak();
    const std::int64_t before = account->live_bytes();
    work();
    return static_cast<double>(account->peak_bytes() - before);
  };
  const auto bytes = [](const Slab& slab) { return static_cast<double>(slab.data.nbytes()); };
  constexpr double small = 64 * 1024;  // a bias, what threads have for themselves
  const PassInfo pass;
  Saved saved;
  kernel.forward({inputs, gradient.box, gradient.box, pass, saved});  // oneDNN keeps what it has prepared
  const double forward = taken([&] { kernel.forward({inputs, gradient.box, gradient.box, pass, saved}); });
  EXPECT_LE(forward, said.forward + bytes(gradient) + small);
  BackwardArgs args{inputs, {}, {gradient}, {true}, {}, gradient.box, pass, saved};
  const double input_gradient = taken([&] { kernel.input_gradients(args); });
  EXPECT_LE(input_gradient, said.input_gradient + bytes(inputs[0]) + small);
  const double weight_gradient = taken([&] { kernel->weight_gradients(args); });
  EXPECT_LE(weight_gradient, said.weight_gradient + small);
}

std::vector<Case> cases() {
  std::vector<Case> out;
  const auto add = [&](const std::string& name, std::int64_t channels, std::int64_t side, const ConvOptions& conv) {
    out.push_back({name, channels, side, side, conv});
  };
  add("k3", 16, 31, {.out = 48, .kernel = 3, .pad = 1});
  add("k3_large", 16, 65, {.out = 32, .kernel = 3, .pad = 1});
  add("k3_stride", 32, 30, {.out = 32, .kernel = 3, .stride = 2, .pad = 1});
  add("k1", 64, 32, {.out = 128, .kernel = 1});
  add("k1_stride", 64, 32, {.out = 32, .kernel = 1, .stride = 2});
  add("k1_few", 256, 4, {.out = 512, .kernel = 1, .bias = true});
  add("k1x7", 32, 16, {.out = 32, .kernel = {1, 7}, .pad = {0, 3}});
  add("k7x1_stride", 32, 16, {.out = 32, .kernel = {7, 1}, .stride = {2, 1}, .pad = {3, 0}});
  add("k7_images", 3, 64, {.out = 64, .kernel = 7, .stride = 2, .pad = 3});
  add("k3_dilated", 24, 24, {.out = 24, .kernel = 3, .pad = 2, .dilation = 2});
  add("k3_uneven", 16, 20, {.out = 16, .kernel = 3, .pad = 0, .pad_end = Pair{2, 2}});
  add("k3_groups", 32, 20, {.out = 64, .kernel = 3, .pad = 1, .groups = 4});
  add("k5_depthwise", 48, 20, {.out = 48, .kernel = 5, .pad = 2, .groups = 48});
  return out;
}

INSTANTIATE_TEST_SUITE_P(Convolutions, Workspaces,
                         testing::Combine(testing::ValuesIn(cases()),
                                          testing::Values("fixed", "convolution", "rows", "product", "blocked"),
                                          testing::Values(1, 2)),
                         [](const auto& row) {
                           return std::get<0>(row.param).name + "_" + std::get<1>(row.param) + "_" +
                                  std::to_string(std::get<2>(row.param));
                         });

}  // namespace
}  // namespace tessera
