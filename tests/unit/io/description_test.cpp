#include "tessera/io/description.h"

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/io/checkpoint.h"

namespace tessera {
namespace {

RunDescription example() {
  return {.use = {.model = "unet",
                  .options = {{"num-layers", "3"}},
                  .classes = 2,
                  .class_names = {"ground", "a, quoted \"name\""},
                  .height = 300,
                  .width = 170,
                  .data = "medical",
                  .mean = {0.1, 0.2, 1.0 / 3},
                  .deviation = {0.5, 0.25, 0.125},
                  .mask_values = {0, 255},
                  .mask_ignore = 9},
          .command = {"tessera", "train"},
          .flags = {{"lr", "0.1"}},
          .commit = "abc"};
}

TEST(Description, ComesBackFromItsTextToTheBit) {
  EXPECT_EQ(parse_description(to_json(example(), true), "here"), example());
}

TEST(Description, OfAnExportedFileIsTheSameForEveryCommandLine) {
  RunDescription other = example();
  other.command = {"something", "else"};
  other.flags.clear();
  EXPECT_EQ(to_json(other, false), to_json(example(), false));
  EXPECT_EQ(parse_description(to_json(other, false), "here").use, example().use);
}

TEST(Description, ThatIsDamagedIsRefusedWithItsPlace) {
  for (const char* text : {"{}", "{\"use\": 3}", "{\"use\": {\"model\": 7}}"}) {
    try {
      parse_description(text, "file x");
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("file x"));
    }
  }
  std::string text = to_json(example(), true);
  text.replace(text.find("[300,170]"), 9, "[300,-17]");
  EXPECT_THROW(parse_description(text, "x"), Error);
}

TEST(Description, TravelsWithTheRunStateAndMayBeMissing) {
  RunState state{.version = "1"};
  EXPECT_EQ(parse_run_state(to_json(state), "x").description, std::nullopt);
  state.description = example();
  EXPECT_EQ(parse_run_state(to_json(state), "x").description, example());
}

TEST(Description, OfWhatIsNotThereIsNothing) { EXPECT_EQ(find_description("/nowhere/at/all"), std::nullopt); }

}  // namespace
}  // namespace tessera
