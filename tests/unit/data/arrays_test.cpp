// Several images, labels and masks in one array each.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "npy_bytes.h"
#include "reading.h"
#include "temp_folder.h"
#include "tessera/data/image_list.h"
#include "tessera/data/vips_images.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Arrays : public testing::Test {
 protected:
  // Images of 5 x 6 pixels and 2 channels of numbers that count on from one image to the next.
  void write_images(const std::string& path, int images) const {
    folder_.write(path, npy("|u1", concat("(", images, ", 5, 6, 2)"), counting(images * 60)));
  }
  std::string refusal(const ImageListOptions& options) const {
    try {
      list_images(options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  }
  static std::vector<std::string> names_of(const ImageList& list) {
    std::vector<std::string> out;
    for (const ImageFile& file : list.files) {
      const std::string name = file.name();
      out.push_back(concat(name.substr(name.rfind('/') + 1), "=", file.label));
    }
    return out;
  }
  VipsImages open(VipsOptions options) const {
    options.path = folder_.path();
    options.height = 5;
    options.width = 6;
    options.channels = 2;
    options.mean = {0};
    options.deviation = {1 / 255.0};
    return VipsImages(options);
  }
  const TempFolder folder_;
};

TEST_F(Arrays, OfAClassFolderAreAllOfThatClass) {
  write_images("a/x.npy", 2);
  write_images("b/y.npy", 1);
  EXPECT_THAT(names_of(list_images({.path = folder_.path()})), ElementsAre("x.npy[0]=0", "x.npy[1]=0", "y.npy=1"));
  const VipsImages images = open({});
  const at::Tensor wanted = at::arange(120, at::kDouble).view({2, 5, 6, 2}).permute({0, 3, 1, 2});
  for (int i = 0; i < 2; ++i) {
    const at::Tensor whole = read_whole(images, i);
    EXPECT_TRUE(at::allclose(whole, wanted[i]));
    for (const auto& [rows, columns] : some_boxes(5, 6))
      EXPECT_TRUE(at::equal(read(images, i, rows, columns), crop(whole, rows, columns)));
  }
}

TEST_F(Arrays, HaveTheirLabelsBesideThem) {
  write_images("images.npy", 3);
  folder_.write("labels.npy", npy("<i8", "(3,)", bytes_of_all<std::int64_t>({2, 0, 1})));
  const ImageList list = list_images({.path = folder_.path()});
  EXPECT_THAT(names_of(list), ElementsAre("images.npy[0]=2", "images.npy[1]=0", "images.npy[2]=1"));
  EXPECT_EQ(list.classes, 3);
  EXPECT_TRUE(list.class_names.empty());
  EXPECT_THAT(names_of(list_images({.path = folder_.path(), .class_names = {"x", "y", "z"}})),
              ElementsAre("images.npy[0]=2", "images.npy[1]=0", "images.npy[2]=1"));
  EXPECT_THAT(refusal({.path = folder_.path(), .class_names = {"x", "y"}}), HasSubstr("label '2'"));

  folder_.write("labels.npy", npy("|u1", "(3, 2)", std::string("\1\1\0\0\0\1", 6)));
  const auto several = list_images({.path = folder_.path(), .several = true, .classes = 2}).files;
  EXPECT_THAT(*several[0].labels, ElementsAre(0, 1));
  EXPECT_THAT(*several[1].labels, ElementsAre());
  EXPECT_THAT(*several[2].labels, ElementsAre(1));
  EXPECT_THAT(refusal({.path = folder_.path()}), HasSubstr("has 6 labels"));
  folder_.write("labels.npy", npy("|u1", "(2,)", "ab"));
  EXPECT_THAT(refusal({.path = folder_.path()}), HasSubstr("labels.npy' has 2 labels, and '"));
  folder_.write("labels.npy", npy("<f4", "(3,)", std::string(12, '\0')));
  EXPECT_THAT(refusal({.path = folder_.path()}), HasSubstr("labels.npy' has numbers of type '<f4', and not integers"));
}

TEST_F(Arrays, WithoutLabelsCanOnlyBeLookedAt) {
  write_images("images.npy", 2);
  EXPECT_THAT(refusal({.path = folder_.path()}), HasSubstr("labels.npy' with a label for each image"));
  EXPECT_THAT(names_of(list_images({.path = folder_.path(), .labels_optional = true})),
              ElementsAre("images.npy[0]=-1", "images.npy[1]=-1"));
  EXPECT_THAT(names_of(list_images({.path = folder_ / "images.npy", .labels_optional = true})),
              ElementsAre("images.npy[0]=-1", "images.npy[1]=-1"));
}

TEST_F(Arrays, OfAListAreNamedByTheirIndex) {
  write_images("x.npy", 3);
  const auto path = folder_.write("list.csv", "path,index,label\nx.npy,2,0\nx.npy,0,1\n");
  EXPECT_THAT(names_of(list_images({.path = path})), ElementsAre("x.npy[2]=0", "x.npy[0]=1"));
  folder_.write("list.csv", "path,label\nx.npy,1\n");
  EXPECT_THAT(names_of(list_images({.path = path})), ElementsAre("x.npy[0]=1", "x.npy[1]=1", "x.npy[2]=1"));
  folder_.write("list.csv", "path,index,label\nx.npy,3,0\n");
  EXPECT_THAT(refusal({.path = path}), HasSubstr("has 3 images, counted from 0, and no image 3"));
  folder_.write("list.csv", "path,index,label\nx.npy,-1,0\n");
  EXPECT_THAT(refusal({.path = path}), HasSubstr("index '-1' is not a number from 0 on"));
}

TEST_F(Arrays, OfMasksBelongToTheirImages) {
  write_images("images.npy", 2);
  std::string labels(60 * 8, '\0');
  for (std::size_t i = 0; i < 60; ++i) labels[i * 8] = static_cast<char>(i % 7);
  folder_.write("masks.npy", npy("<i8", "(2, 5, 6)", labels));
  const VipsImages images = open({.mask_classes = 7});
  ASSERT_EQ(images.size(), 2);
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(at::equal(read_whole_mask(images, i), at::arange(30 * i, 30 * (i + 1)).remainder(7).view({5, 6})));
  folder_.write("masks.npy", npy("|u1", "(3, 5, 6)", std::string(90, '\0')));
  EXPECT_THAT(refusal({.path = folder_.path(), .masks = true}), HasSubstr("has 2 images, and"));
  folder_.write("masks.npy", npy("<i4", "(2, 5, 6)", std::string(240, '\xff')));
  EXPECT_THAT(open({.mask_classes = 7}).fault_of(0), HasSubstr("has the value -1; values of a mask are 0 to 65535"));
}

}  // namespace
}  // namespace tessera
