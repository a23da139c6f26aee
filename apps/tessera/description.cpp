#include "description.h"

#include <fmt/ranges.h>

#include "data_sets.h"
#include "flags.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/io/report.h"

namespace tessera {
namespace {

std::string text_of(const std::string& value) { return value; }
template <class Number>
requires std::is_arithmetic_v<Number> std::string text_of(Number value) { return fmt::format("{}", value); }
template <class Number>
std::string text_of(const std::vector<Number>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}
template <class Value>
std::string text_of(const std::optional<Value>& value) {
  return value ? text_of(*value) : std::string();
}

std::string with_value(const std::string& flag, const std::string& value) {
  return value.empty() ? concat("no --", flag) : concat("--", flag, " ", value);
}

template <class Value>
Value parsed(const std::string& text);
template <>
std::string parsed(const std::string& text) {
  return text;
}
template <>
std::int64_t parsed(const std::string& text) {
  return std::stoll(text);
}
template <>
double parsed(const std::string& text) {
  return std::stod(text);
}

std::string loss_name(bool binary) { return binary ? "binary" : "cross-entropy"; }

// Auxiliary heads are part of the network.
std::optional<double> auxiliary_weight(const ModelOptions& model) {
  return model.loss.auxiliary > 0 ? std::optional(model.loss.auxiliary) : std::nullopt;
}

// Takes stored values over flags that were not given, and finds those that say something else.
class Taking {
 public:
  Taking(const Options& options, std::string whose, const Warn& warn)
      : options_(options), whose_(std::move(whose)), warn_(warn) {}

  /// Another value would be another network, or other pixels than it was trained on.
  template <class Value>
  void fixed(const std::string& flag, Value& mine, const Value& stored) {
    if (options_.has(flag))
      problems_.check(mine == stored, with_value(flag, text_of(mine)), " contradicts ", whose_,
                      ", which was trained with ", with_value(flag, text_of(stored)), "; leave it out");
    else
      mine = stored;
  }
  /// Another value may be meant.
  template <class Value>
  void usual(const std::string& flag, Value& mine, const Value& stored) {
    if (!options_.has(flag))
      mine = stored;
    else if (mine != stored)
      warn_(concat(with_value(flag, text_of(mine)), ", and ", whose_, " was trained with ",
                   with_value(flag, text_of(stored))));
  }
  template <class Value>
  void option_of_network(const NetworkUse& use, const std::string& flag, std::optional<Value>& mine) {
    const auto found = use.options.find(flag);
    fixed(flag, mine, found == use.options.end() ? std::optional<Value>() : parsed<Value>(found->second));
  }
  void finish() const { problems_.throw_if_any(); }

 private:
  const Options& options_;
  const std::string whose_;
  const Warn& warn_;
  Problems problems_;
};

std::string size_text(std::int64_t height, std::int64_t width) { return concat(height, "x", width); }

// The images that the run was judged by, where the command names none.
void take_data_set(Options& o, const RunDescription& d) {
  if (o.has("datapath") || o.has("app")) return;
  const auto flag = [&](const char* name) {
    const auto found = d.flags.find(name);
    return found == d.flags.end() ? std::string() : found->second;
  };
  o.app = d.use.data;
  const std::string validation = o.evaluation.split == "val" ? flag("val-datapath") : "";
  if (const std::string path = validation.empty() ? flag("datapath") : validation; !path.empty()) o.datapath = path;
  // What was held out is still not trained on.
  if (const auto share = flag("val-share"); !share.empty()) o.evaluation.share = std::stod(share);
  if (const auto images = flag("synthetic-images"); !images.empty() && !o.has("synthetic-images"))
    o.synthetic_images = std::stoll(images);
  if (const auto seed = flag("seed"); !seed.empty() && !o.has("seed")) o.train.seed = std::stoull(seed);
}

// A data set without a part for validation, and the one that the run was trained on.
bool evaluates_training_images(const Options& o, const RunDescription& d) {
  const auto trained = d.flags.find("datapath");
  return app_name(o.app) == "medical" && o.evaluation.split == "val" && !o.evaluation.share &&
         trained != d.flags.end() && absolute_path(o.datapath) == trained->second && evaluated_split(o) == Split::train;
}

}  // namespace

std::string network_name(const Options& o) {
  if (!o.network_name.empty()) return o.network_name;
  return names_network_file(o.model.name) ? absolute_path(o.model.name) : o.model.name;
}

RunDescription describe_run(const Options& o, const Job& job) {
  const ModelOptions& model = o.model;
  const Normalisation pixels = job.images->normalisation();
  RunDescription d{.use = {.model = network_name(o),
                           .classes = model.classes,
                           .class_names = job.class_names,
                           .height = model.image.height,
                           .width = model.image.width,
                           .data = app_name(o.app),
                           .mean = pixels.mean,
                           .deviation = pixels.deviation,
                           .mask_values = o.mask_values,
                           .mask_ignore = o.mask_ignore},
                   .command = o.command,
                   .flags = flags_to_keep(o.given),
                   .commit = build_info().commit};
  const auto keep = [&](const char* flag, const auto& value) {
    if (value) d.use.options[flag] = text_of(value);
  };
  keep("depth", model.depth);
  keep("num-layers", model.num_layers);
  keep("num-filters", model.num_filters);
  keep("upsampling", model.upsampling);
  keep("model-output", model.output);
  keep("auxiliary-weight", auxiliary_weight(model));
  if (model.loss.binary) d.use.options["loss"] = loss_name(true);
  return d;
}

void take_description(Options& o, const std::string& path, const Warn& warn) {
  const auto d = find_description(path);
  if (!d) return;
  const NetworkUse& use = d->use;
  o.described = true;
  Taking taking(o, path, warn);
  if (names_network_file(use.model)) {
    std::string mine = absolute_path(o.model.name);
    taking.fixed("model", mine, use.model);
    o.network_name = use.model;
    // The copy is what was trained; the file itself may be another one by now, or be gone.
    const std::string copy = find_network_copy(path, use.model);
    o.model.name = copy.empty() ? use.model : copy;
  } else {
    taking.fixed("model", o.model.name, use.model);
  }
  taking.finish();  // the options of another network say nothing
  taking.option_of_network(use, "depth", o.model.depth);
  taking.option_of_network(use, "num-layers", o.model.num_layers);
  taking.option_of_network(use, "num-filters", o.model.num_filters);
  taking.option_of_network(use, "upsampling", o.model.upsampling);
  taking.option_of_network(use, "model-output", o.model.output);
  auto auxiliary = auxiliary_weight(o.model);
  taking.option_of_network(use, "auxiliary-weight", auxiliary);
  o.model.loss.auxiliary = auxiliary.value_or(0);
  std::string loss = loss_name(o.model.loss.binary);
  const auto stored = use.options.find("loss");
  taking.fixed("loss", loss, stored == use.options.end() ? loss_name(false) : stored->second);
  require(loss == loss_name(true) || loss == loss_name(false), "'", path, "' was trained with --loss ", loss,
          ", which this tessera does not know");
  o.model.loss.binary = loss == loss_name(true);
  taking.fixed("num-classes", o.model.classes, use.classes);
  if (!use.class_names.empty()) taking.fixed("class-names", o.class_names, use.class_names);
  const std::string size = size_text(use.height, use.width);
  if (o.has("image-size")) {
    const Shape mine = parse_image_size(o.image_size);
    o.image_size = size_text(mine.height, mine.width);
  }
  taking.usual("image-size", o.image_size, size);
  if (o.evaluation.only) take_data_set(o, *d);
  if (o.evaluation.only && evaluates_training_images(o, *d))
    warn(concat("these are the images that ", path, " was trained on, for there is no validation set; name other ",
                "images with --datapath"));
  taking.fixed("channels", o.channels, std::optional(use.channels()));
  // Other sets have no say in it: synthetic images and CIFAR-10 have one normalisation each.
  if (use.data != "synthetic") {
    for (std::vector<double>* all : {&o.mean, &o.deviation})
      if (all->size() == 1) all->resize(use.mean.size(), all->front());
    taking.fixed("mean", o.mean, use.mean);
    taking.fixed("std", o.deviation, use.deviation);
  }
  taking.usual("mask-values", o.mask_values, use.mask_values);
  taking.usual("mask-ignore", o.mask_ignore, use.mask_ignore);
  taking.finish();
}

}  // namespace tessera
