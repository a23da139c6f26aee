#include "data_sets.h"

#include <algorithm>
#include <cmath>

#include "bad_images.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/cifar10.h"
#include "tessera/data/files.h"
#include "tessera/data/subset.h"
#include "tessera/data/synthetic.h"

namespace tessera {

std::string app_name(const std::string& app) {
  return app == "1" || app == "images" ? "medical" : app == "2" ? "cifar" : app == "3" ? "synthetic" : app;
}

Split evaluated_split(const Options& o) {
  if (o.evaluation.split == "train" || app_name(o.app) != "medical") {
    return o.evaluation.split == "train" ? Split::train : Split::test;
  }
  for (const char* part : {"val", "test", "val.csv"})
    if (const std::string inner = files::path_in(o.datapath, part); files::is_folder(inner) || files::is_file(inner))
      return Split::test;
  return Split::train;
}

namespace {

bool has_validation(const Options& o) {
  if (app_name(o.app) == "cifar") return files::is_file(files::path_in(o.datapath, "test_batch.bin"));
  return app_name(o.app) == "synthetic" || !o.evaluation.datapath.empty() || evaluated_split(o) == Split::test;
}

// `names`: what the classes of the training set are called, if that is known.
std::shared_ptr<VipsImages> open_image_files(const Options& o, Split split, bool masks,
                                             const std::vector<std::string>& names) {
  const Shape& image = o.model.image;
  VipsOptions options{.path = o.datapath,
                      .split = split,
                      .height = image.height,
                      .width = image.width,
                      .channels = image.channels,
                      .mean = o.mean,
                      .deviation = o.deviation};
  // With masks, classes are those of pixels, and a list may call its images what it likes.
  if (!masks) options.classes = static_cast<int>(o.model.classes);
  // What is only predicted needs none.
  if (masks && !o.evaluation.labels_optional) options.mask_classes = static_cast<int>(o.model.classes);
  if (options.mask_classes > 0) {
    options.mask_values = o.mask_values;
    options.mask_ignore = o.mask_ignore;
  }
  options.several = !masks && o.model.loss.binary;
  if (!masks) options.class_names = o.class_names.empty() ? names : o.class_names;
  options.labels_optional = o.evaluation.labels_optional;
  if (split == Split::test && !o.evaluation.datapath.empty()) {
    options.path = o.evaluation.datapath;
    options.path_flag = "--val-datapath";
    options.split = Split::train;  // as it is
  } else {
    require(split == Split::train || !files::is_file(o.datapath), "--eval-every needs images to evaluate on, and ",
            "--datapath ", o.datapath, " is one file of training images; name others with --val-datapath");
  }
  auto images = std::make_shared<VipsImages>(options);
  const auto own = static_cast<std::int64_t>(images->class_names().size());
  require(masks || !o.evaluation.only || split == Split::test || o.evaluation.split == "train" || own == 0 ||
              own == o.model.classes,
          "'", o.datapath, "' names ", counted(own, "class"), ", the network has ", o.model.classes,
          "; say with --class-names what labels 0, 1, ... of the training set were called");
  return images;
}

std::shared_ptr<const ImageSource> open_files(const Options& o, Split split, bool masks) {
  const std::string app = app_name(o.app);
  const Shape& image = o.model.image;
  if (app == "synthetic") {
    // Another seed gives other images of the same classes.
    const bool train = split == Split::train;
    return std::make_shared<SyntheticImages>(
        SyntheticOptions{.classes = static_cast<int>(o.model.classes),
                         .channels = image.channels,
                         .height = image.height,
                         .width = image.width,
                         .size = train ? o.synthetic_images : (o.synthetic_images + 3) / 4,
                         .seed = train ? o.train.seed : o.train.seed + 1'000'000'007,
                         .mask_classes = masks ? static_cast<int>(o.model.classes) : 0});
  }
  require(app == "cifar", "--app ", o.app, " is not one of medical, cifar, synthetic (or 1, 2, 3)");
  require(!masks, "--model ", o.model.name,
          " needs a mask for each image, and CIFAR-10 has none; use --app medical or synthetic");
  require(image.channels == 3, "CIFAR-10 images have 3 channels, and the network takes ", image.channels);
  require(image.height == 32 && image.width == 32, "CIFAR-10 images are 32x32, not ", image.height, "x", image.width,
          "; use --image-size 32");
  require(o.model.classes == 10, "CIFAR-10 has 10 classes; use --num-classes 10");
  return std::make_shared<Cifar10>(Cifar10Options{.folder = o.datapath, .split = split});
}

}  // namespace

void DataSets::open(bool masks) {
  masks_ = masks;
  require((masks && app_name(options_.app) == "medical") || (options_.mask_values.empty() && !options_.mask_ignore),
          "--mask-values and --mask-ignore are about mask files, for a network that labels pixels like --model unet; "
          "leave them out");
  const bool only = options_.evaluation.only;
  const bool training_set = !only || options_.evaluation.share;  // what is held out is a part of it
  images_ = open_one(training_set ? Split::train : evaluated_split(options_), {});
  if (only) return;
  if (options_.evaluation.share) return;
  if (options_.evaluation.every || (options_.evaluation.each_epoch && has_validation(options_))) {
    validation_ = open_one(Split::test, images_->class_names());
    require(validation_->class_names() == images_->class_names(), "the classes of the validation set are called ",
            "otherwise than those of the training set: ", validation_->describe());
  }
}

void DataSets::divide() {
  const EvaluationOptions& o = options_.evaluation;
  if (o.share) {
    const HeldOut parts = held_out(images_->size(), *o.share, options_.train.seed);
    require(!parts.training.empty(), "--val-share ", *o.share, " leaves none of ", counted(images_->size(), "image"),
            " to train on");
    const auto held = std::make_shared<Subset>(images_, parts.held_out);
    const auto rest = std::make_shared<Subset>(images_, parts.training);
    images_ = o.only && o.split == "val" ? held : rest;
    if (!o.only) validation_ = held;
  }
  if (!o.only && !files_.empty()) {
    images_ = repeated(images_);
    require(images_->size() > 0, "--datapath ", options_.datapath, ": all images have a repeat of 0");
  }
  AugmentOptions augment = options_.augment;
  augment.seed = options_.train.seed;
  if (!o.only && augment.any()) images_ = std::make_shared<Augmented>(images_, augment);
}

void DataSets::leave_out_bad_images(const Launch& launch) {
  if (options_.on_bad_image != "skip") return;
  const double crop = options_.evaluation.only ? 1 : std::sqrt(options_.augment.crop_min);
  for (const auto& files : files_) tessera::leave_out_bad_images(*files, crop, launch);
}

std::shared_ptr<const ImageSource> DataSets::open_one(Split split, const std::vector<std::string>& names) {
  if (app_name(options_.app) != "medical") return open_files(options_, split, masks_);
  files_.push_back(open_image_files(options_, split, masks_, names));
  return files_.back();
}

}  // namespace tessera
