#include "tessera/data/image_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temp_folder.h"
#include "tessera/base/error.h"
#include "tessera/data/files.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class ImageLists : public testing::Test {
 protected:
  void touch(const std::vector<std::string>& names) const {
    for (const auto& name : names) folder_.write(name, "");
  }
  /// "path=label" or "path=label+mask", seen from the folder.
  std::vector<std::string> listed(ImageListOptions options) const {
    if (options.path.empty()) options.path = folder_.path();
    std::vector<std::string> out;
    for (const auto& file : list_images(options).files)
      out.push_back(concat(inner(file.path), "=", file.label, file.mask.empty() ? "" : "+" + inner(file.mask)));
    return out;
  }
  std::string refusal(ImageListOptions options = {}) const {
    if (options.path.empty()) options.path = folder_.path();
    try {
      list_images(options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  }
  std::string inner(const std::string& path) const { return path.substr(folder_.path().size() + 1); }

  TempFolder folder_;
};

TEST_F(ImageLists, AFolderForEachClassInTheOrderOfTheirNames) {
  touch({"b/2.png", "b/10.JPG", "a/x.tif", "a/notes.txt", "a/.hidden.png", "c/slide.svs", "readme.md"});
  EXPECT_THAT(listed({}), ElementsAre("a/x.tif=0", "b/10.JPG=1", "b/2.png=1", "c/slide.svs=2"));
  const ImageList list = list_images({.path = folder_.path()});
  EXPECT_EQ(list.classes, 3);
  EXPECT_THAT(list.class_names, ElementsAre("a", "b", "c"));
}

TEST_F(ImageLists, SaysWhereTheImagesAre) {
  touch({"train/a/1.png", "val/a/4.png", "a/5.png"});
  const auto source = [&](const ImageListOptions& o) { return inner(list_images(o).source); };
  EXPECT_EQ(source({.path = folder_.path()}), "train");
  EXPECT_EQ(source({.path = folder_.path(), .split = Split::test}), "val");
  folder_.write("list.csv", "a/5.png,0\n");
  EXPECT_EQ(source({.path = folder_.path() + "/list.csv"}), "list.csv");
  EXPECT_THAT(refusal({.path = folder_.path() + "/nothing", .flag = "--val-datapath"}),
              AllOf(HasSubstr("does not exist"), HasSubstr("see --val-datapath")));
}

TEST_F(ImageLists, OneImageIsLookedAtButNotLearntFrom) {
  touch({"slide.svs"});
  const std::string slide = folder_.path() + "/slide.svs";
  EXPECT_THAT(listed({.path = slide, .labels_optional = true}), ElementsAre("slide.svs=-1"));
  EXPECT_THAT(refusal({.path = slide}), AllOf(HasSubstr("is one image"), HasSubstr("--datapath")));
}

TEST_F(ImageLists, TrainAndValShareTheClassesOfTrain) {
  touch({"train/a/1.png", "train/b/2.png", "train/c/3.png", "val/c/4.png"});
  EXPECT_THAT(listed({}), ElementsAre("train/a/1.png=0", "train/b/2.png=1", "train/c/3.png=2"));
  EXPECT_THAT(listed({.split = Split::test}), ElementsAre("val/c/4.png=2")) << "not 0, although the only one here";
  EXPECT_EQ(list_images({.path = folder_.path(), .split = Split::test}).classes, 3);
  touch({"val/d/5.png"});
  EXPECT_THAT(refusal({.split = Split::test}),
              AllOf(HasSubstr("val/d/5.png"), HasSubstr("'d' is not a class of the training set")));
}

TEST_F(ImageLists, TestStandsInForVal) {
  touch({"train/a/1.png"});
  EXPECT_THAT(refusal({.split = Split::test}), AllOf(HasSubstr("no folder val or test"), HasSubstr("--datapath")));
  touch({"test/a/2.png"});
  EXPECT_THAT(listed({.split = Split::test}), ElementsAre("test/a/2.png=0"));
}

TEST_F(ImageLists, MasksLieInAFolderBesideTheClasses) {
  touch({"a/1.jpg", "b/1.jpg", "masks/a/1.png", "masks/b/1.tif"});
  EXPECT_THAT(listed({}), ElementsAre("a/1.jpg=0", "b/1.jpg=1")) << "masks is no class";
  EXPECT_THAT(listed({.masks = true}), ElementsAre("a/1.jpg=0+masks/a/1.png", "b/1.jpg=1+masks/b/1.tif"));
  touch({"b/2.jpg"});
  EXPECT_THAT(refusal({.masks = true}), AllOf(HasSubstr("b/2.jpg' has no mask"), Not(HasSubstr("1.jpg"))));
}

TEST_F(ImageLists, ImagesAndMasksWithoutClasses) {
  touch({"train/images/1.jpg", "train/images/2.jpg", "train/masks/2.png", "train/masks/1.png"});
  EXPECT_THAT(listed({.masks = true}),
              ElementsAre("train/images/1.jpg=0+train/masks/1.png", "train/images/2.jpg=0+train/masks/2.png"));
  EXPECT_EQ(list_images({.path = folder_.path(), .masks = true}).classes, 1);
  folder_.remove("train/masks");
  EXPECT_THAT(refusal({.masks = true}), HasSubstr("train/masks' with a mask for each image"));
}

TEST_F(ImageLists, ACsvNamesFilesFromItsOwnFolderAndLabelsByNumber) {
  touch({"in/1.svs", "in/deep/2.svs"});
  folder_.write("in/list.csv", concat("1.svs,3\ndeep/2.svs,0\n", folder_ / "in/1.svs", ",1\n"));
  const std::string path = folder_ / "in/list.csv";
  EXPECT_THAT(listed({.path = path}), ElementsAre("in/1.svs=3", "in/deep/2.svs=0", "in/1.svs=1"));
  EXPECT_EQ(list_images({.path = path}).classes, 4);
  EXPECT_TRUE(list_images({.path = path}).class_names.empty());
  EXPECT_EQ(list_images({.path = path, .classes = 7}).classes, 7);
}

TEST_F(ImageLists, ACsvMayNameItsColumnsAndItsClasses) {
  touch({"1.png", "2.png", "1m.png", "2m.png"});
  const std::string path =
      folder_.write("list.csv", "mask,patient,label,path\n1m.png,x,tumour,1.png\n2m.png,y,normal,2.png\n");
  EXPECT_THAT(listed({.path = path}), ElementsAre("1.png=1", "2.png=0"));
  EXPECT_THAT(listed({.path = path, .masks = true}), ElementsAre("1.png=1+1m.png", "2.png=0+2m.png"));
  EXPECT_THAT(listed({.path = path, .class_names = {"tumour", "other", "normal"}}), ElementsAre("1.png=0", "2.png=2"));
  const std::string masks_only = folder_.write("masks.csv", "path,mask\n1.png,1m.png\n");
  EXPECT_THAT(listed({.path = masks_only, .masks = true}), ElementsAre("1.png=0+1m.png"));
  EXPECT_THAT(refusal({.path = masks_only}), HasSubstr("no column 'label'"));
  const std::string bare = folder_.write("bare.csv", "1.png,0\n");
  EXPECT_THAT(refusal({.path = bare, .masks = true}), HasSubstr("no column 'mask'"));
}

TEST_F(ImageLists, ACsvSaysHowOftenAnImageIsTrainedOn) {
  touch({"1.png", "2.png"});
  const std::string path = folder_.write("list.csv", "path,label,repeat\n1.png,0,3\n2.png,1,\n1.png,1,0\n");
  std::vector<int> repeats;
  for (const ImageFile& file : list_images({.path = path}).files) repeats.push_back(file.repeat);
  EXPECT_THAT(repeats, ElementsAre(3, 1, 0));
  for (const char* wrong : {"-1", "x", "1001", "1.5"})
    EXPECT_THAT(refusal({.path = folder_.write("wrong.csv", concat("path,label,repeat\n1.png,0,", wrong, "\n"))}),
                HasSubstr(concat("line 2: repeat '", wrong, "' is not a number from 0 to 1000")));
}

TEST_F(ImageLists, TrainCsvAndValCsvShareTheClassesOfTrain) {
  touch({"1.png", "2.png"});
  folder_.write("train.csv", "1.png,a\n2.png,b\n");
  folder_.write("val.csv", "2.png,b\n");
  EXPECT_THAT(listed({}), ElementsAre("1.png=0", "2.png=1"));
  EXPECT_THAT(listed({.split = Split::test}), ElementsAre("2.png=1"));
  folder_.remove("val.csv");
  EXPECT_THAT(refusal({.split = Split::test}), HasSubstr("val.csv' does not exist"));
}

TEST_F(ImageLists, AllProblemsComeInOneMessage) {
  touch({"1.png"});
  const std::string path = folder_.write("list.csv", "path,label\n1.png,0\ngone.png,1\n1.png\n1.png,-2\n,3\n1.png,9\n");
  EXPECT_THAT(
      refusal({.path = path, .classes = 5}),
      AllOf(HasSubstr("5 problems"), HasSubstr(concat("list.csv' line 3: '", folder_ / "gone.png", "' does not exist")),
            HasSubstr("line 4: no label"), HasSubstr("line 5: label '-2' is not a number from 0 on"),
            HasSubstr("line 6: no path"), HasSubstr("line 7: label 9 does not fit 5 classes; see --num-classes")));
}

// What is only looked at may lack labels; what is trained on may not.
TEST_F(ImageLists, LabelsMayBeMissingWhereThatIsAllowed) {
  touch({"a.png", "b.png"});
  const std::string paths = folder_.write("paths.csv", "path\na.png\nb.png\n");
  const std::string some = folder_.write("some.csv", "path,label\na.png,\nb.png,1\n");
  EXPECT_THAT(listed({.path = paths, .labels_optional = true}), ElementsAre("a.png=-1", "b.png=-1"));
  EXPECT_THAT(listed({.path = some, .labels_optional = true}), ElementsAre("a.png=-1", "b.png=1"));
  EXPECT_THAT(listed({.labels_optional = true}), ElementsAre("a.png=-1", "b.png=-1")) << "a folder of images";
  EXPECT_THAT(refusal({.path = paths}), HasSubstr("no column 'label'"));
  EXPECT_THAT(refusal({.path = some}), HasSubstr("some.csv' line 2: no label"));
  EXPECT_THAT(refusal(), HasSubstr("holds no folders"));
  const std::string wrong = folder_.write("wrong.csv", "path,label\na.png,-3\n");
  EXPECT_THAT(refusal({.path = wrong, .labels_optional = true}), HasSubstr("'-3'"));
}

TEST_F(ImageLists, TheFirstTenOfManyProblemsAreNamed) {
  std::string text;
  for (int i = 0; i < 25; ++i) text += concat("gone", i, ".png,0\n");
  const std::string message = refusal({.path = folder_.write("list.csv", text)});
  EXPECT_THAT(message, AllOf(HasSubstr("gone9.png"), Not(HasSubstr("gone10.png")), HasSubstr("and 15 more problems")));
}

TEST_F(ImageLists, WhatIsNotThereIsSaid) {
  EXPECT_THAT(refusal({.path = folder_ / "nowhere"}),
              AllOf(HasSubstr("nowhere' does not exist"), HasSubstr("--datapath")));
  EXPECT_THAT(refusal(), HasSubstr("holds no folders"));
  folder_.folder("a");
  EXPECT_THAT(refusal(), HasSubstr("/a'"));
  EXPECT_THAT(refusal({.path = folder_.write("empty.csv", "path,label\n")}), HasSubstr("there are no images"));
}

TEST(Files, NamesAreTakenApart) {
  EXPECT_EQ(files::folder_of("a/b.png"), "a");
  EXPECT_EQ(files::folder_of("b.png"), ".");
  EXPECT_EQ(files::folder_of("/b.png"), "/");
  EXPECT_EQ(files::path_in("a", "b"), "a/b");
  EXPECT_EQ(files::path_in("a/", "b"), "a/b");
  EXPECT_EQ(files::path_in("a", "/b"), "/b");
  EXPECT_EQ(files::ending_of("b.x.PNG"), "png");
  EXPECT_EQ(files::ending_of("b"), "");
  EXPECT_EQ(files::stem_of("b.x.png"), "b.x");
}

}  // namespace
}  // namespace tessera
