#include "tessera/models/unet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "unit/models/cell_outputs.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 31.04 million is what the well-known PyTorch version with batch norm and transposed convolutions has for 3 channels
// and 2 classes.
TEST(Unet, ItsDefaultIsThePublishedNetwork) {
  const Graph g = unet({.name = "unet", .image = {3, 64, 64}, .classes = 2});
  EXPECT_EQ(g.trainable_elements(), 31'037'698);
  std::vector<std::string> names;
  for (const Cell& cell : g.cells()) names.push_back(cell.name);
  EXPECT_THAT(names, ElementsAre("down1", "down2", "down3", "down4", "bottom", "up4", "up3", "up2", "up1", "head"));
}

TEST(Unet, OddImagesRoundUpOnTheWayDownAndComeBack) {
  for (const char* upsampling : {"transposed", "bilinear"})
    EXPECT_THAT(cell_outputs(unet({.name = "unet",
                                   .image = {3, 97, 130},
                                   .classes = 5,
                                   .num_layers = 3,
                                   .num_filters = 8,
                                   .upsampling = upsampling})),
                ElementsAre(Shape{8, 97, 130}, Shape{16, 49, 65}, Shape{32, 25, 33}, Shape{64, 13, 17},  // down
                            Shape{32, 25, 33}, Shape{16, 49, 65}, Shape{8, 97, 130}, Shape{1, 97, 130}));
}

TEST(Unet, EveryLevelIsJoinedWithItsCounterpart) {
  const Graph g = unet({.name = "unet", .image = {3, 33, 20}, .classes = 2, .num_layers = 2, .num_filters = 4});
  int joins = 0;
  for (const Node& node : g.nodes()) {
    if (node.op == nullptr || node.op->kind() != "concat") continue;
    ++joins;
    const Node& skip = g.node(node.inputs[0]);
    EXPECT_EQ("up" + g.cells()[static_cast<std::size_t>(skip.cell)].name.substr(4),
              g.cells()[static_cast<std::size_t>(node.cell)].name);
    EXPECT_EQ(skip.shape, g.shape(node.inputs[1]));
  }
  EXPECT_EQ(joins, 2);
  EXPECT_EQ(g.label_kind(), LabelKind::pixel);
  EXPECT_EQ(g.shape(g.logits()), (Shape{2, 33, 20}));
}

TEST(Unet, WrongOptionsAreRefusedAllAtOnce) {
  try {
    unet({.name = "unet", .num_layers = 0, .num_filters = 0, .upsampling = "nearest"});
    FAIL() << "built";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("--num-layers 0"), HasSubstr("--num-filters 0"),
                                    HasSubstr("--upsampling nearest is not one of transposed, bilinear")));
  }
}

TEST(Unet, AMaskHasAtMost255Classes) {
  EXPECT_NO_THROW(unet({.name = "unet", .image = {3, 8, 8}, .classes = 255, .num_layers = 1, .num_filters = 1}));
  try {
    unet({.name = "unet", .image = {3, 8, 8}, .classes = 256, .num_layers = 1, .num_filters = 1});
    FAIL() << "built";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("255"), HasSubstr("--num-classes")));
  }
}

}  // namespace
}  // namespace tessera
