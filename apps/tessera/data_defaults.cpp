#include "data_defaults.h"

#include <sstream>

#include "data_sets.h"
#include "launch.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/data_kind.h"
#include "tessera/data/image_decoder.h"

namespace tessera {
namespace {

// Whoever gives such a flag believes that it does something.
void refuse_idle_flags(const Options& o) {
  const std::string app = app_name(o.app);
  Problems problems;
  const auto only_for = [&](const char* flag, bool good, const std::string& whom) {
    problems.check(!o.has(flag) || good, "--", flag, " is for ", whom, ", and ",
                   o.has("app") ? concat("--app is ", o.app) : concat("the images are ", app), "; leave it out",
                   o.datapath.empty() ? ", or name a data set by --datapath" : "");
  };
  for (const char* flag : {"mean", "std"}) only_for(flag, app == "medical", "image files");
  only_for("channels", app != "cifar", "image files and synthetic images");
  only_for("synthetic-images", app == "synthetic", "--app synthetic");
  problems.check(!o.has("datapath") || app != "synthetic", "--datapath ", o.datapath,
                 " is not looked at with --app synthetic; leave one of them out");
  problems.throw_if_any();
}

bool labels_pixels(const Options& o, const ModelRegistry& models) {
  ModelOptions any = o.model;
  if (!o.image_size.empty()) any.image = parse_image_size(o.image_size);
  any.image.channels = o.channels.value_or(3);
  return models.build(any).label_kind() == LabelKind::pixel;
}

// Only names and labels are looked at; every file of the set has to be there later, too.
ImageList listed(const Options& o, bool only_files = false) {
  return list_images({.path = o.datapath,
                      .split = o.evaluation.only ? evaluated_split(o) : Split::train,
                      .several = o.model.loss.binary,
                      .class_names = o.class_names,
                      .labels_optional = true,
                      .only_files = only_files});
}

// What was trained on one number of channels cannot look at another. Of the other files, reading says it.
void check_channels(const Options& o, const ImageList& images) {
  const ImageFile& file = images.files.front();
  PixelFormat format;
  try {
    format = read_header(file.path, file.item.value_or(0)).format;
  } catch (const UsageError&) {
    throw;
  } catch (const Error&) {
    return;  // reading will say that, too
  }
  require(can_become(format.channels, *o.channels), "image '", file.name(), "' has ", format.text(), ", and ",
          o.has("channels") ? concat("--channels is ", *o.channels)
                            : concat("the network was trained on ", counted(*o.channels, "channel")));
}

void settle_format(Options& o, const Launch& launch) {
  const bool known = !o.image_size.empty() && o.channels && !o.mean.empty() && !o.deviation.empty();
  std::istringstream found(launch.told([&] {
    const ImageList images = listed(o, /*only_files=*/true);
    if (o.channels) check_channels(o, images);
    if (known) return std::string();
    const ImageFacts facts = common_facts(images, {.size = o.image_size.empty(), .channels = !o.channels});
    return concat(facts.size.height, "x", facts.size.width, " ", facts.format.channels, " ",
                  facts.format.type == PixelType::float32 ? 1 : 0);
  }));
  if (known) return;
  std::string size;
  std::int64_t channels = 0;
  bool floats = false;
  found >> size >> channels >> floats;
  if (o.image_size.empty()) o.image_size = size;
  if (!o.channels) o.channels = channels;
  const Normalisation usual = default_normalisation(*o.channels, floats);
  if (o.mean.empty()) o.mean = usual.mean;
  if (o.deviation.empty()) o.deviation = usual.deviation;
}

}  // namespace

void settle_kind(Options& o) {
  if (o.app.empty())
    o.app = o.datapath.empty() ? "synthetic" : data_kind_of(o.datapath) == DataKind::cifar10 ? "cifar" : "medical";
  if (o.datapath.empty() && app_name(o.app) != "synthetic") o.datapath = "./train";
  refuse_idle_flags(o);
  // resnet_v2 works at full resolution: photographs and slides would take hours.
  if (app_name(o.app) == "medical" && !o.has("model") && !o.has("depth") && !o.described) o.model.name = "resnet18";
}

void settle_shape(Options& o, const ModelRegistry& models, const Launch& launch) {
  const bool files = app_name(o.app) == "medical";
  if (!files && o.image_size.empty()) o.image_size = "32";
  require(o.channels.value_or(3) >= 1, "--channels ", o.channels.value_or(3), " must be at least 1");
  if (!files && !o.channels) o.channels = 3;
  if (!files) return;
  settle_format(o, launch);
  // Weights without a description are as the flags say.
  if (o.has("num-classes") || o.described || o.evaluation.only) return;
  if (!o.class_names.empty()) {
    o.model.classes = static_cast<std::int64_t>(o.class_names.size());
  } else if (!labels_pixels(o, models)) {
    o.model.classes = listed(o).classes;
    require(o.model.classes >= 2 || o.model.loss.binary, "the images of '", o.datapath,
            "' are all of one class; --datapath takes one folder per class. To learn masks, use --model unet");
  } else {
    require(!o.mask_values.empty(), "how many classes do the pixels have? Give --num-classes, or --mask-values ",
            "with the pixel value of each class");
    o.model.classes = static_cast<std::int64_t>(o.mask_values.size());
  }
}

}  // namespace tessera
