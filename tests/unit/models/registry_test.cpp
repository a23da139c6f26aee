#include "tessera/models/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string refusal(const ModelRegistry& registry, const ModelOptions& options) {
  try {
    registry.build(options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST(Registry, AnUnknownModelIsAnsweredWithTheKnownOnes) {
  EXPECT_EQ(refusal(builtin_models(), {.name = "vgg"}),
            "there is no model 'vgg'; --model takes amoebanet, resnet101, resnet152, resnet18, resnet34, resnet50, "
            "resnet_v1, resnet_v2, unet");
}

TEST(Registry, OptionsThatAModelDoesNotTakeAreRefusedAllAtOnce) {
  EXPECT_THAT(refusal(builtin_models(), {.name = "resnet18", .depth = 20, .num_layers = 3}),
              AllOf(HasSubstr("--depth means nothing to --model resnet18"),
                    HasSubstr("--num-layers means nothing to --model resnet18"), Not(HasSubstr("--num-filters"))));
  EXPECT_THAT(refusal(builtin_models(), {.name = "resnet_v2", .num_filters = 64}), HasSubstr("--num-filters means"));
  EXPECT_THAT(refusal(builtin_models(), {.name = "amoebanet", .depth = 20}), HasSubstr("--depth means nothing"));
  EXPECT_THAT(refusal(builtin_models(), {.name = "amoebanet", .upsampling = "bilinear"}),
              HasSubstr("--upsampling means nothing to --model amoebanet"));
}

TEST(Registry, AModelNeedsAClass) {
  EXPECT_THAT(refusal(builtin_models(), {.name = "resnet18", .classes = 0}), HasSubstr("--num-classes 0"));
}

TEST(Registry, OptionsThatAModelTakesReachIt) {
  const auto models = builtin_models();
  EXPECT_EQ(models.build({.name = "resnet_v1", .image = {3, 32, 32}, .depth = 20}).cells().size(), 11u);
  EXPECT_EQ(models.build({.name = "resnet_v2", .image = {3, 32, 32}, .depth = 20}).cells().size(), 8u);
  EXPECT_EQ(models.build({.name = "amoebanet", .num_layers = 3, .num_filters = 16}).cells().size(), 9u);
  const Graph g = models.build({.name = "resnet18", .image = {4, 32, 32}, .classes = 7});
  EXPECT_EQ(g.parameters().front().second.sizes[1], 4) << "image channels";
  EXPECT_EQ(g.parameters().back().second.sizes[0], 7) << "classes";
}

TEST(Registry, EveryModelEndsInTheLossOfItsClassifier) {
  const ModelRegistry registry = builtin_models();
  for (const auto& [name, model] : registry.models()) {
    const Graph g = model.build({.name = name, .image = {3, 40, 40}, .classes = 12});
    const Node& loss = g.nodes().back();
    EXPECT_EQ(loss.op->kind(), "cross_entropy") << name;
    EXPECT_EQ(g.shape(loss.inputs[0]), (g.label_kind() == LabelKind::image ? Shape{12, 1, 1} : Shape{12, 40, 40}))
        << name;
    EXPECT_FALSE(model.help.empty()) << name;
  }
}

TEST(Registry, EveryValueOfEveryModelIsRead) {
  const ModelRegistry registry = builtin_models();
  for (const auto& [name, model] : registry.models()) {
    const Graph g = model.build({.name = name, .image = {3, 40, 40}, .classes = 12});
    const auto consumers = g.consumers();
    for (std::size_t n = 0; n + 1 < consumers.size(); ++n)
      EXPECT_FALSE(consumers[n].empty()) << name << ": " << g.nodes()[n].name;
  }
}

TEST(Registry, EveryBuiltinModelTakesAnImageOfOnePixel) {
  const ModelRegistry registry = builtin_models();
  for (const auto& [name, model] : registry.models())
    EXPECT_NO_THROW(model.build({.name = name, .image = {3, 1, 1}, .classes = 12})) << name;
}

TEST(Registry, AnEmptyImageAndNoClassesAreRefusedTogether) {
  EXPECT_THAT(refusal(builtin_models(), {.name = "resnet18", .image = {3, 0, 224}, .classes = 0}),
              AllOf(HasSubstr("--image-size 0x224"), HasSubstr("--num-classes 0")));
}

ModelRegistry with_own_model() {
  ModelRegistry registry = builtin_models();
  registry.add("own", {"a user's network", {}, [](const ModelOptions& options) {
                         Graph g;
                         const Value x = g.conv(g.input(options.image), {.out = 8, .kernel = 5}, "valid5");
                         g.cross_entropy(g.linear(g.flatten(g.global_avg_pool(x)), {.out = options.classes}, "fc"));
                         return g;
                       }});
  return registry;
}

TEST(Registry, AUsersOwnModelJoinsTheBuiltinOnes) {
  const auto models = with_own_model();
  EXPECT_EQ(models.build({.name = "own", .image = {3, 9, 9}, .classes = 2}).nodes().size(), 6u);
  EXPECT_THAT(refusal(models, {.name = "vgg"}), HasSubstr("own"));
  EXPECT_THAT(refusal(models, {.name = "own", .depth = 3}), HasSubstr("--depth means nothing to --model own"));
}

TEST(Registry, AnImageThatIsTooSmallNamesTheNodeAndTheSizes) {
  EXPECT_THAT(
      refusal(with_own_model(), {.name = "own", .image = {3, 4, 9}}),
      AllOf(StartsWith("node 'valid5': "), HasSubstr("5x5 window"), HasSubstr("4x9"), HasSubstr("--image-size")));
}

}  // namespace
}  // namespace tessera
