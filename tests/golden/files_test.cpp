// Real files, each rank reading its own box of them: the same losses, gradients and parameters whether 1, 4 or 6 ranks
// read, and with images that are flipped, turned, cropped and recoloured anew in every epoch.
#include "golden/plans.h"
#include "tessera/data/augmented.h"
#include "tessera/data/vips_images.h"
#include "unit/data/picture.h"
#include "unit/data/temp_folder.h"

namespace tessera::golden {
namespace {

constexpr std::int64_t height = 45, width = 38;

/// Twelve pictures of three formats, none of the size that they are read at, in two classes. With batches of 4 three
/// steps are an epoch, and a fourth begins the next.
std::string write_files(const TempFolder& folder) {
  std::string list = "path,label\n";
  for (int i = 0; i < 12; ++i) {
    const Picture<> picture = i % 2 ? rough_picture(60 + 7 * i, 90 - 3 * i) : smooth_picture(88 - 2 * i, 50 + 9 * i);
    const std::string name = concat(i, i % 3 == 0 ? ".png" : i % 3 == 1 ? ".jpg" : ".tif");
    picture.save(folder / name, i % 3 == 2 ? "[tile,pyramid,tile-width=32,tile-height=32]" : "");
    list += concat(name, ",", i % 2, "\n");
  }
  return folder.write("list.csv", list);
}

/// Twelve measurements of four channels of 16 bits: half of them tiled, half of the size that they are read at.
std::string write_measurements(const TempFolder& folder) {
  std::string list = "path,label\n";
  for (int i = 0; i < 12; ++i) {
    Picture<std::uint16_t> picture(i % 4 < 2 ? height : 50 + i, i % 4 < 2 ? width : 60 - i, 4);
    for (std::size_t k = 0; k < picture.values.size(); ++k)
      picture.values[k] = static_cast<std::uint16_t>(((k + 977 * static_cast<std::size_t>(i)) * 2654435761u) >> 13);
    picture.save(folder / concat(i, ".tif"), i % 2 ? "[tile,tile-width=32,tile-height=32]" : "");
    list += concat(i, ".tif,", i % 2, "\n");
  }
  return folder.write("list.csv", list);
}

struct FilesRow {
  std::string name;
  PlanOptions plan;
  bool augmented;
  std::int64_t channels = 3;
};

class Files : public testing::TestWithParam<FilesRow> {};

TEST_P(Files, TrainLikeOneDevice) {
  const FilesRow& row = GetParam();
  const Graph graph =
      builtin_models().build({.name = "resnet_v1", .image = {row.channels, height, width}, .classes = 2, .depth = 8});
  const Plan plan = make_plan(graph, row.plan);
  if (plan.ranks() > test::most_ranks(1000)) GTEST_SKIP() << "needs " << plan.ranks() << " ranks";
  const TempFolder folder;
  std::shared_ptr<const ImageSource> images = std::make_shared<VipsImages>(
      VipsOptions{.path = row.channels == 3 ? write_files(folder) : write_measurements(folder),
                  .height = height,
                  .width = width,
                  .channels = row.channels});
  if (row.augmented)
    images = std::make_shared<Augmented>(images, AugmentOptions{.seed = 9,
                                                                .flip_horizontal = true,
                                                                .flip_vertical = true,
                                                                .rotate = true,
                                                                .crop_min = 0.4,
                                                                .brightness = 0.2,
                                                                .contrast = 0.2,
                                                                .saturation = row.channels == 3 ? 0.2 : 0});
  const TrainOptions options{.steps = 4, .optimizer = {.lr = 0.01}, .seed = 3, .dtype = at::kDouble};
  test::on_ranks(plan.ranks(), [&](Communicator& world) {
    const Verification result = verify(graph, plan, options, images, &world);
    EXPECT_TRUE(result.equal()) << words_for(result);
  });
}

std::vector<FilesRow> rows() {
  std::vector<FilesRow> rows;
  for (const bool augmented : {false, true}) {
    const char* suffix = augmented ? "_augmented" : "";
    const auto add = [&](const char* name, PlanOptions plan) {
      plan.batch_size = plan.replicas ? 2 : 4;
      rows.push_back({concat(name, suffix), plan, augmented});
    };
    add("read_by_1", {});
    add("read_by_4", {.grid = "2x2"});
    add("read_by_6", {.grid = "3x2"});
    add("read_by_2_for_2_stages", {.parts = 2, .split_size = 2, .grid = "1x2"});
    add("read_by_2_replicas_of_2x1", {.grid = "2x1", .replicas = 2});
    add("read_by_both_directions", {.split_size = 2, .schedule = "gems-mast"});
    rows.push_back({concat("four_channels_of_16_bits", suffix), {.batch_size = 4, .grid = "2x2"}, augmented, 4});
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Plans, Files, testing::ValuesIn(rows()), [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace tessera::golden
