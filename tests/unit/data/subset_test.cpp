#include "tessera/data/subset.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "tessera/data/synthetic.h"

namespace tessera {
namespace {

TEST(HeldOut, DividesTheSetBySeedAndLosesNothing) {
  const HeldOut parts = held_out(100, 0.1, 7);
  EXPECT_EQ(parts.held_out.size(), 10U);
  std::vector<std::int64_t> all = parts.training;
  all.insert(all.end(), parts.held_out.begin(), parts.held_out.end());
  std::sort(all.begin(), all.end());
  for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(held_out(100, 0.1, 7).held_out, parts.held_out);
  EXPECT_NE(held_out(100, 0.1, 8).held_out, parts.held_out);
  EXPECT_EQ(held_out(3, 0.01, 7).held_out.size(), 1U);
}

TEST(Subset, IsTheImagesOfItsSource) {
  const auto all = std::make_shared<SyntheticImages>(
      SyntheticOptions{.classes = 3, .height = 8, .width = 6, .size = 10, .seed = 1, .mask_classes = 0});
  const Subset some(all, {7, 2});
  EXPECT_EQ(some.size(), 2);
  EXPECT_EQ(some.label(0), all->label(7));
  EXPECT_EQ(some.name(1), "2");
  const at::Tensor mine = at::zeros({3, 8, 6}), theirs = at::zeros({3, 8, 6});
  some.read(0, {0, 8}, {0, 6}, mine);
  all->read(7, {0, 8}, {0, 6}, theirs);
  EXPECT_TRUE(mine.equal(theirs));
}

TEST(Thumbnail, OfAnImageHasItsColours) {
  const auto all = std::make_shared<SyntheticImages>(
      SyntheticOptions{.classes = 3, .height = 40, .width = 60, .size = 2, .seed = 1, .mask_classes = 0});
  const at::Tensor small = all->thumbnail(1, {10, 15});
  EXPECT_EQ(small.sizes(), (std::vector<std::int64_t>{10, 15, 3}));
  const at::Tensor whole = at::zeros({3, 40, 60}, at::kDouble);
  all->read(1, {0, 40}, {0, 60}, whole);
  const at::Tensor bytes = (whole * 0.25 + 0.5).clamp(0, 1).mul(255).mean(at::IntArrayRef({1, 2}));
  EXPECT_TRUE(at::allclose(small.to(at::kDouble).mean(at::IntArrayRef({0, 1})), bytes, 0, 8))
      << small.to(at::kDouble).mean(at::IntArrayRef({0, 1})) << bytes;
}

TEST(Subset, RepeatsWhatIsToBeTrainedOnOften) {
  class Repeating : public SyntheticImages {
   public:
    using SyntheticImages::SyntheticImages;
    int repeats(std::int64_t index) const override { return static_cast<int>(index); }
  };
  const auto plain = std::make_shared<SyntheticImages>(SyntheticOptions{.height = 4, .width = 4, .size = 4});
  EXPECT_EQ(repeated(plain), plain);
  const auto all = std::make_shared<Repeating>(SyntheticOptions{.height = 4, .width = 4, .size = 4});
  const auto often = repeated(all);
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < often->size(); ++i) names.push_back(often->name(i));
  EXPECT_EQ(names, (std::vector<std::string>{all->name(1), all->name(2), all->name(2), all->name(3), all->name(3),
                                             all->name(3)}));
  // Of a part of it, too: what is held out is held out with all its repeats.
  EXPECT_EQ(repeated(std::make_shared<Subset>(all, std::vector<std::int64_t>{0, 3}))->size(), 3);
}

}  // namespace
}  // namespace tessera
