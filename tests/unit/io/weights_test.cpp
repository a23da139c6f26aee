// Weights that were written by one network are read by another of the same graph, whatever stage it holds.
#include "tessera/io/weights.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/scratch.h"
#include "tessera/base/error.h"
#include "tessera/models/registry.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Graph network(std::int64_t classes = 4) {
  return builtin_models().build({.name = "resnet_v1", .image = {3, 12, 10}, .classes = classes, .depth = 8});
}

Parameters parameters(const Graph& graph, std::uint64_t seed, at::ScalarType dtype = at::kFloat) {
  return {graph, 0, static_cast<int>(graph.nodes().size()), dtype, seed};
}

class Weights : public test::ScratchFolder {
 protected:
  std::string saved(const Parameters& from, bool counters = true) const {
    std::vector<NamedTensor> tensors;
    for (const auto& p : from.all())
      if (counters || p.value.scalar_type() != at::kLong) tensors.push_back({p.name, p.value});
    const std::string file = path("model.safetensors");
    write_safetensors_file(file, tensors);
    return file;
  }
  static std::string refusal(const std::string& file, const Graph& graph) {
    try {
      check_weights("--weights", file, graph);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(Weights, AreReadByName) {
  const Graph graph = network();
  const Parameters from = parameters(graph, 1), into = parameters(graph, 2);
  from.at("bn1.running_mean").value.fill_(0.25);
  const std::string file = saved(from);
  EXPECT_EQ(refusal(file, graph), "no error");
  load_weights(file, into);
  for (const auto& p : from.all()) EXPECT_TRUE(at::equal(into.at(p.name).value, p.value)) << p.name;
}

TEST_F(Weights, OfAStageAndOfAnotherTypeAreReadToo) {
  const Graph graph = network();
  const Parameters from = parameters(graph, 1);
  const int end = static_cast<int>(graph.nodes().size());
  const Parameters rear(graph, end / 2, end, at::kDouble, 2);
  load_weights(saved(from), rear);
  for (const auto& p : rear.all())
    EXPECT_TRUE(at::equal(p.value, from.at(p.name).value.to(p.value.scalar_type()))) << p.name;
}

TEST_F(Weights, WithoutBatchCountersFit) {
  const Graph graph = network();
  EXPECT_EQ(refusal(saved(parameters(graph, 1), /*counters=*/false), graph), "no error");
}

TEST_F(Weights, OfAnotherNetworkAreRefusedWithWhatDiffers) {
  const Graph graph = network();
  const std::string file = saved(parameters(graph, 1));
  EXPECT_THAT(refusal(file, network(7)),
              AllOf(HasSubstr("--weights"), HasSubstr("fc.weight is [4, "), HasSubstr("[7, ")));
  EXPECT_THAT(refusal(path("none"), graph), AllOf(HasSubstr("--weights"), HasSubstr("none")));
}

}  // namespace
}  // namespace tessera
