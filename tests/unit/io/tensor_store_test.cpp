#include "tessera/io/tensor_store.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/scratch.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

at::Tensor filled(std::vector<std::int64_t> shape, double value) { return at::full(shape, value); }

// A network of two convolutions with batch norm and a head of `classes`.
Graph network(std::int64_t classes) {
  Graph g;
  Value x = g.input({3, 8, 8});
  x = g.batch_norm(g.conv(x, {.out = 4, .kernel = 3, .pad = 1}, "conv1"), "bn1");
  x = g.flatten(g.global_avg_pool(g.relu(x)));
  g.cross_entropy(g.linear(x, {.out = classes}, "fc"));
  return g;
}

std::vector<NamedTensor> weights(std::int64_t classes) {
  std::vector<NamedTensor> tensors;
  for (const auto& spec : tensor_specs(network(classes)))
    tensors.push_back(
        {spec.name, spec.name.ends_with("num_batches_tracked") ? at::full({}, 5, at::kLong) : filled(spec.shape, 0.5)});
  return tensors;
}

class Stored : public test::ScratchFolder {
 protected:
  void two_shards() const {
    write_safetensors(path("m-1.safetensors"), {{"a", filled({2}, 1)}, {"b", filled({3}, 2)}});
    write_safetensors(path("m-2.safetensors"), {{"c", filled({4}, 3)}});
    write_text(path("model.safetensors.index.json"),
               index_text({{"a", "m-1.safetensors"}, {"b", "m-1.safetensors"}, {"c", "m-2.safetensors"}}, 36));
  }
  TensorStore without(const std::string& name, std::int64_t classes = 10) const {
    auto tensors = weights(classes);
    std::erase_if(tensors, [&](const NamedTensor& t) { return t.name == name; });
    write_safetensors(path("w"), tensors);
    return TensorStore::open(path("w"));
  }
};

TEST_F(Stored, TensorsAreFoundInFilesIndicesAndFolders) {
  two_shards();
  for (const auto& place : {path("model.safetensors.index.json"), path("")}) {
    const TensorStore store = TensorStore::open(place);
    EXPECT_THAT(store.names(), ElementsAre("a", "b", "c"));
    EXPECT_THAT(store.files(), ElementsAre("m-1.safetensors", "m-2.safetensors"));
    EXPECT_TRUE(at::equal(store.read("c"), filled({4}, 3)));
    EXPECT_THAT(store.entry("b").shape, ElementsAre(3));
  }
  const TensorStore one = TensorStore::open(path("m-1.safetensors"));
  EXPECT_THAT(one.names(), ElementsAre("a", "b"));
  const at::Tensor into = at::zeros({3}, at::kDouble);
  one.read("b", into);
  EXPECT_EQ(into.sum().item<double>(), 6);
  make_folders(path("one"));
  write_safetensors(path("one/model.safetensors"), {{"z", filled({1}, 9)}});
  EXPECT_THAT(TensorStore::open(path("one")).names(), ElementsAre("z"));
  make_folders(path("none"));
  EXPECT_THAT(test::error_of([&] { TensorStore::open(path("none")); }), HasSubstr("model.safetensors.index.json"));
}

TEST_F(Stored, AnIndexThatLiesIsFoundOut) {
  two_shards();
  const auto with_map = [&](const std::string& map) {
    write_text(path("x.index.json"), "{\"metadata\":{},\"weight_map\":" + map + "}");
    return TensorStore::open(path("x.index.json"));
  };
  EXPECT_THAT(test::error_of([&] { with_map(R"({"c":"m-1.safetensors"})").read("c"); }),
              AllOf(HasSubstr("'c'"), HasSubstr("m-1.safetensors"), HasSubstr("x.index.json")));
  EXPECT_THAT(test::error_of([&] { with_map(R"({"c":"m-3.safetensors"})").read("c"); }), HasSubstr("m-3.safetensors"));
  EXPECT_THAT(test::error_of([&] { with_map("{}").read("c"); }), HasSubstr("'c'"));
  for (const char* bad : {R"({"c":"../m-1.safetensors"})", R"({"c":"/etc/passwd"})", R"({"c":".."})", R"({"c":""})",
                          R"({"c":3})", R"({"c":"m\u0000"})", "[]", R"({"c":"a","c":"b"})"})
    EXPECT_THAT(test::error_of([&] { with_map(bad); }), HasSubstr(path("x.index.json"))) << bad;
  write_text(path("x.index.json"), "{}");
  EXPECT_THAT(test::error_of([&] { TensorStore::open(path("x.index.json")); }), HasSubstr("weight_map"));
}

TEST_F(Stored, DifferencesListWhatIsMissingUnknownAndOfAnotherShape) {
  two_shards();
  const TensorStore store = TensorStore::open(path(""));
  EXPECT_TRUE(compare(store, {{"a", {2}}, {"b", {3}}, {"c", {4}}}).none());
  const Differences d = compare(store, {{"a", {2}}, {"b", {3, 1}}, {"x", {1}}, {"y", {1}}});
  EXPECT_THAT(d.missing, ElementsAre("x", "y"));
  EXPECT_THAT(d.extra, ElementsAre("c"));
  EXPECT_EQ(d.str(), "2 missing: x, y\n1 of another shape: b is [3] instead of [3, 1]\n1 unknown: c");
  EXPECT_THAT(d.str(1), HasSubstr("2 missing: x, and 1 more"));
}

TEST_F(Stored, NamesAreThoseOfTheGraph) {
  std::vector<std::string> names;
  for (const auto& spec : tensor_specs(network(10))) names.push_back(spec.name);
  EXPECT_THAT(names, testing::IsSupersetOf(
                         {"conv1.weight", "bn1.weight", "bn1.running_mean", "bn1.num_batches_tracked", "fc.bias"}));
  EXPECT_THAT(heads_of(network(10)), testing::ElementsAre("fc"));
}

TEST_F(Stored, WeightsOfTheSameNetworkAreAllLoaded) {
  write_safetensors(path("w"), weights(10));
  const Import import = plan_import(TensorStore::open(path("w")), tensor_specs(network(10)), {"fc"});
  EXPECT_EQ(import.loaded.size(), weights(10).size());
  EXPECT_THAT(import.head, IsEmpty());
  EXPECT_THAT(import.counters, IsEmpty());
  EXPECT_THAT(import.summary, Not(HasSubstr(";")));
}

TEST_F(Stored, AHeadOfAnotherSizeStartsAnewAsAWholeAndIsReported) {
  write_safetensors(path("w"), weights(1000));
  const Import import = plan_import(TensorStore::open(path("w")), tensor_specs(network(10)), {"fc"});
  EXPECT_THAT(import.head, ElementsAre("fc.weight", "fc.bias"));
  EXPECT_FALSE(import.loaded.contains("fc.weight"));
  EXPECT_TRUE(import.loaded.contains("conv1.weight"));
  EXPECT_EQ(import.loaded.size(), weights(10).size() - 2);
  EXPECT_THAT(import.summary, AllOf(HasSubstr("fc.weight, fc.bias"), HasSubstr("anew")));
  // A bias alone is no head.
  EXPECT_THAT(plan_import(without("fc.weight"), tensor_specs(network(10)), {"fc"}).head,
              ElementsAre("fc.weight", "fc.bias"));
}

TEST_F(Stored, OldFilesWithoutBatchCountersAndFilesWithMoreTensorsAreTaken) {
  EXPECT_THAT(plan_import(without("bn1.num_batches_tracked"), tensor_specs(network(10)), {"fc"}).counters,
              ElementsAre("bn1.num_batches_tracked"));
  auto more = weights(10);
  more.push_back({"ema.decay", filled({1}, 0)});
  write_safetensors(path("more"), more);
  const Import import = plan_import(TensorStore::open(path("more")), tensor_specs(network(10)), {"fc"});
  EXPECT_THAT(import.extra, ElementsAre("ema.decay"));
  EXPECT_THAT(import.summary, HasSubstr("1 not needed: ema.decay"));
}

TEST_F(Stored, WeightsOfAnotherNetworkAreRefusedWithTheNames) {
  const auto refusal = [&](const TensorStore& store) -> std::string {
    try {
      plan_import(store, tensor_specs(network(10)), {"fc"});
    } catch (const UsageError& error) {
      return error.what();
    }
    return "taken";
  };
  EXPECT_THAT(refusal(without("bn1.bias")),
              AllOf(HasSubstr("--init-from " + path("w")), HasSubstr("1 missing: bn1.bias")));
  auto wide = weights(10);
  wide[0].tensor = filled({4, 3, 5, 5}, 1);
  write_safetensors(path("wide"), wide);
  EXPECT_THAT(refusal(TensorStore::open(path("wide"))),
              HasSubstr("conv1.weight is [4, 3, 5, 5] instead of [4, 3, 3, 3]"));
}

TEST_F(Stored, ShardsBecomeOneFile) {
  two_shards();
  export_tensors(TensorStore::open(path("")), path("all.safetensors"), {{"format", "pt"}});
  const SafetensorsFile all(path("all.safetensors"));
  EXPECT_EQ(all.tensors().size(), 3u);
  EXPECT_TRUE(at::equal(all.read("c"), filled({4}, 3)));
  EXPECT_EQ(all.metadata().at("format"), "pt");
  EXPECT_FALSE(is_file(path("all.safetensors.part")));
}

}  // namespace
}  // namespace tessera
