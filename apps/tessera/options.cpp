#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <thread>

#include "bad_images.h"
#include "launch.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/comm/nccl_communicator.h"
#include "tessera/data/cifar10.h"
#include "tessera/data/files.h"
#include "tessera/data/synthetic.h"
#include "tessera/data/vips_images.h"
#include "tessera/runtime/device.h"
#include "tessera/runtime/footprint.h"

namespace tessera {
namespace {

// The seeds call the data sets by number.
std::string app_name(const std::string& app) {
  return app == "1" ? "medical" : app == "2" ? "cifar" : app == "3" ? "synthetic" : app;
}

// A set that is not divided into training and validation is evaluated as it is.
Split evaluated_split(const Options& o) {
  if (o.evaluation.split == "train" || app_name(o.app) != "medical") {
    return o.evaluation.split == "train" ? Split::train : Split::test;
  }
  for (const char* part : {"val", "test", "val.csv"})
    if (const std::string inner = files::path_in(o.datapath, part); files::is_folder(inner) || files::is_file(inner))
      return Split::test;
  return Split::train;
}

// `names`: what the classes of the training set are called, if that is known.
std::shared_ptr<VipsImages> open_image_files(const Options& o, Split split, bool masks,
                                             const std::vector<std::string>& names) {
  const Shape& image = o.model.image;
  VipsOptions options{.path = o.datapath, .split = split, .height = image.height, .width = image.width};
  std::copy_n(o.mean.begin(), 3, options.mean.begin());
  std::copy_n(o.deviation.begin(), 3, options.deviation.begin());
  // With masks, classes are those of pixels, and a list may call its images what it likes.
  if (!masks) options.classes = static_cast<int>(o.model.classes);
  // What is only predicted needs none.
  if (masks && !o.evaluation.labels_optional) options.mask_classes = static_cast<int>(o.model.classes);
  options.mask_values = o.mask_values;
  options.mask_ignore = o.mask_ignore;
  if (!masks) options.class_names = o.class_names.empty() ? names : o.class_names;
  options.labels_optional = o.evaluation.labels_optional;
  if (split == Split::test && !o.evaluation.datapath.empty()) {
    options.path = o.evaluation.datapath;
    options.split = Split::train;  // as it is
  } else {
    require(split == Split::train || !files::is_file(o.datapath), "--eval-every needs images to evaluate on, and ",
            "--datapath ", o.datapath, " is one file of training images; name others with --val-datapath");
  }
  auto images = std::make_shared<VipsImages>(options);
  const auto own = static_cast<std::int64_t>(images->class_names().size());
  require(masks || !o.evaluation.only || split == Split::test || o.evaluation.split == "train" || own == 0 ||
              own == o.model.classes,
          "'", o.datapath, "' names ", own, " classes, the network has ", o.model.classes,
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
                         .height = image.height,
                         .width = image.width,
                         .size = train ? o.synthetic_images : (o.synthetic_images + 3) / 4,
                         .seed = train ? o.train.seed : o.train.seed + 1'000'000'007,
                         .mask_classes = masks ? static_cast<int>(o.model.classes) : 0});
  }
  require(app == "cifar", "--app ", o.app, " is not one of medical, cifar, synthetic (or 1, 2, 3)");
  require(!masks, "--model ", o.model.name,
          " needs a mask for each image, and CIFAR-10 has none; use --app medical or synthetic");
  require(image.height == 32 && image.width == 32, "CIFAR-10 images are 32x32, not ", image.height, "x", image.width,
          "; use --image-size 32");
  require(o.model.classes == 10, "CIFAR-10 has 10 classes; use --num-classes 10");
  return std::make_shared<Cifar10>(Cifar10Options{.folder = o.datapath, .split = split});
}

// The sets of a job while they are opened: those of files may still lose images.
class DataSets {
 public:
  explicit DataSets(const Options& options) : options_(options) {}

  /// masks: a label for each pixel is needed.
  void open(bool masks) {
    masks_ = masks;
    require((masks && app_name(options_.app) == "medical") || (options_.mask_values.empty() && !options_.mask_ignore),
            "--mask-values and --mask-ignore are about the mask files of --app medical for a network that labels "
            "pixels, like --model unet; leave them out");
    const bool only = options_.evaluation.only;
    images_ = open_one(only ? evaluated_split(options_) : Split::train, {});
    if (only) return;
    if (options_.evaluation.every) {
      validation_ = open_one(Split::test, images_->class_names());
      require(validation_->class_names() == images_->class_names(), "the classes of the validation set are called ",
              "otherwise than those of the training set: ", validation_->describe());
    }
    AugmentOptions augment = options_.augment;
    augment.seed = options_.train.seed;
    if (augment.any()) images_ = std::make_shared<Augmented>(images_, augment);
  }

  void leave_out_bad_images(const Launch& launch) {
    if (options_.on_bad_image != "skip") return;
    const double crop = options_.evaluation.only ? 1 : std::sqrt(options_.augment.crop_min);
    for (const auto& files : files_) tessera::leave_out_bad_images(*files, crop, launch);
  }

  std::shared_ptr<const ImageSource> images() const { return images_; }
  std::shared_ptr<const ImageSource> validation() const { return validation_; }

 private:
  std::shared_ptr<const ImageSource> open_one(Split split, const std::vector<std::string>& names) {
    if (app_name(options_.app) != "medical") return open_files(options_, split, masks_);
    files_.push_back(open_image_files(options_, split, masks_, names));
    return files_.back();
  }

  const Options& options_;
  bool masks_ = false;
  std::vector<std::shared_ptr<VipsImages>> files_;
  std::shared_ptr<const ImageSource> images_, validation_;
};

DeviceWish device_wish(const Options& o) {
  return {.cuda = o.device == "cuda", .bfloat16 = o.dtype == "bfloat16", .tf32 = o.tf32, .transport = o.transport};
}

// "NCCL 2.28.9 for sums, Open MPI v4.1.4 through pinned memory for the rest": how ranks on GPUs talk.
std::string transport_words(const DeviceFacts& facts, Transport transport) {
  if (!facts.ranks_are_processes) return "ranks are threads, and messages copies on the GPU";
  const std::string mpi = concat(mpi_library_version(), mpi_reads_gpu_memory() ? ", which reads GPU memory," : "");
  const std::string through = mpi_reads_gpu_memory() ? "" : " through pinned memory";
  if (transport == Transport::mpi) return concat("messages and sums by ", mpi, through);
  return concat("sums by NCCL ", nccl_version(), ", messages by ", mpi, through);
}

void check_values(const Options& o, Problems& problems) {
  problems.check(o.cudnn_search != "on" || o.device == "cuda",
                 "--cudnn-search on is for GPUs; use --device cuda, or leave it out");
  problems.check(o.train.optimizer.lr >= 0, "--lr ", o.train.optimizer.lr, " must not be negative");
  problems.check(o.train.optimizer.momentum >= 0 && o.train.optimizer.momentum < 1, "--momentum ",
                 o.train.optimizer.momentum, " must be at least 0 and less than 1");
  problems.check(o.train.optimizer.weight_decay >= 0, "--weight-decay ", o.train.optimizer.weight_decay,
                 " must not be negative");
  problems.check(o.train.optimizer.clip_norm >= 0, "--clip-norm ", o.train.optimizer.clip_norm,
                 " must not be negative (0 clips nothing)");
  problems.check(o.train.learning_rate.warmup_steps >= 0, "--warmup-steps ", o.train.learning_rate.warmup_steps,
                 " must not be negative");
  problems.check(o.train.learning_rate.step_every > 0, "--lr-step-every ", o.train.learning_rate.step_every,
                 " must be at least 1");
  problems.check(o.steps.value_or(1) > 0, "--steps ", o.steps.value_or(1), " must be at least 1");
  problems.check(o.num_epochs > 0, "--num-epochs ", o.num_epochs, " must be at least 1");
  problems.check(o.threads.value_or(1) > 0, "--threads ", o.threads.value_or(1), " must be at least 1");
  problems.check(o.train.loader_workers >= 0, "--num-workers ", o.train.loader_workers, " must not be negative");
  problems.check(o.evaluation.every.value_or(1) > 0, "--eval-every ", o.evaluation.every.value_or(1),
                 " must be at least 1");
  problems.check(o.evaluation.datapath.empty() || (o.evaluation.every && app_name(o.app) == "medical"),
                 "--val-datapath is for --eval-every and --app medical");
  const auto names = static_cast<std::int64_t>(o.class_names.size());
  problems.check(names == 0 || (names == o.model.classes && app_name(o.app) == "medical"), "--class-names are ", names,
                 " names, for --app medical and --num-classes ", o.model.classes);
  problems.check(o.on_bad_image == "fail" || app_name(o.app) == "medical", "--on-bad-image is for --app medical");
  problems.check(o.mean.size() == 3, "--mean takes three numbers: of red, green and blue");
  problems.check(o.deviation.size() == 3, "--std takes three numbers: of red, green and blue");
  problems.check(o.synthetic_images > 0, "--synthetic-images ", o.synthetic_images, " must be at least 1");
}

}  // namespace

Shape parse_image_size(const std::string& text) {
  const auto number = [&](std::string_view part) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    require(error == std::errc() && end == part.data() + part.size() && value > 0 && value <= 1'000'000,
            "--image-size ", text, " is neither a size like 512 nor height x width like 300x170");
    return value;
  };
  const auto cross = text.find('x');
  const std::string_view view = text;
  if (cross == std::string::npos) return {3, number(view), number(view)};
  return {3, number(view.substr(0, cross)), number(view.substr(cross + 1))};
}

void add_flags(CLI::App& command, Options& o, const ModelRegistry& models) {
  std::string names;
  for (const auto& [name, model] : models.models()) names += (names.empty() ? "" : ", ") + name;
  command.add_option("--config", o.config, "read flags from this file (name = value); the command line wins")
      ->check(CLI::ExistingFile)
      ->group("Output");

  const char* group = "Network";
  command.add_option("--model", o.model.name, "one of " + names)->capture_default_str()->group(group);
  command.add_option("--depth", o.model.depth, "layers: resnet_v1 takes 6n+2, resnet_v2 9n+2")->group(group);
  command
      .add_option("--num-layers", o.model.num_layers, "amoebanet: normal cells, a multiple of 3 (18); unet: levels (4)")
      ->group(group);
  command
      .add_option("--num-filters", o.model.num_filters,
                  "amoebanet: a multiple of 8 (416); unet: channels of the first level (64)")
      ->group(group);
  command.add_option("--upsampling", o.model.upsampling, "unet: transposed (convolution, the default) or bilinear")
      ->group(group);
  command.add_option("--num-classes", o.model.classes, "classes of images, or of pixels (unet)")
      ->capture_default_str()
      ->group(group);
  command.add_option("--image-size", o.image_size, "512, or height x width: 300x170")
      ->capture_default_str()
      ->group(group);

  group = "Data";
  command.add_option("--app", o.app, "medical, cifar or synthetic (or 1, 2, 3)")->capture_default_str()->group(group);
  command.add_option("--datapath", o.datapath, "folder of the data set")->capture_default_str()->group(group);
  command
      .add_option("--class-names", o.class_names,
                  "--app medical: what labels 0, 1, ... are called; the names in the training set, sorted, by default")
      ->delimiter(',')
      ->group(group);
  command.add_option("--on-bad-image", o.on_bad_image, "--app medical: fail, or skip after a look at all files")
      ->check(CLI::IsMember({"fail", "skip"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--synthetic-images", o.synthetic_images, "images an epoch of --app synthetic")
      ->capture_default_str()
      ->group(group);
  command.add_option("--mean", o.mean, "--app medical: of red, green and blue, in 0 to 1")
      ->delimiter(',')
      ->capture_default_str()
      ->group(group);
  command.add_option("--std", o.deviation, "--app medical: their standard deviations")
      ->delimiter(',')
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--mask-values", o.mask_values,
                  "--app medical with masks: the values that stand for class 0, 1, ...: 0,255 (0,1,2,...)")
      ->delimiter(',')
      ->group(group);
  command.add_option("--mask-ignore", o.mask_ignore, "--app medical with masks: the value of pixels that do not count")
      ->group(group);
  command.add_option("--num-workers", o.train.loader_workers, "threads that read ahead; 0 reads in the step")
      ->capture_default_str()
      ->group(group);
  command.add_option("--seed", o.train.seed, "of parameters, images, order and dropout")
      ->capture_default_str()
      ->group(group);

  group = "Augmentation (a function of seed, epoch and image: the same on every tile)";
  auto& augment = o.augment;
  command.add_flag("--flip-horizontal", augment.flip_horizontal, "left and right swapped, half of the time")
      ->group(group);
  command.add_flag("--flip-vertical", augment.flip_vertical, "top and bottom swapped, half of the time")->group(group);
  command.add_flag("--rotate", augment.rotate, "by a multiple of 90 degrees")->group(group);
  command.add_option("--crop-min", augment.crop_min, "least share of the area that a random crop keeps")
      ->capture_default_str()
      ->group(group);
  command.add_option("--crop-max", augment.crop_max, "largest share")->capture_default_str()->group(group);
  command.add_option("--brightness", augment.brightness, "factor drawn from 1 - this to 1 + this")
      ->capture_default_str()
      ->group(group);
  command.add_option("--contrast", augment.contrast, "")->capture_default_str()->group(group);
  command.add_option("--saturation", augment.saturation, "")->capture_default_str()->group(group);

  group = "Training";
  command.add_option("--batch-size", o.plan.batch_size, "images of a batch; replicas and --times multiply it")
      ->capture_default_str()
      ->group(group);
  command.add_option("--num-epochs", o.num_epochs, "times through the data")->capture_default_str()->group(group);
  command.add_option("--steps", o.steps, "steps of the optimizer; stands in for --num-epochs")->group(group);
  auto& optimizer = o.train.optimizer;
  command.add_option("--optimizer", optimizer.name, "")
      ->check(CLI::IsMember({"sgd", "adam", "adamw"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--lr", optimizer.lr, "learning rate")->capture_default_str()->group(group);
  command.add_option("--momentum", optimizer.momentum, "of sgd")->capture_default_str()->group(group);
  command.add_option("--weight-decay", optimizer.weight_decay, "")->capture_default_str()->group(group);
  command.add_option("--clip-norm", optimizer.clip_norm, "largest norm of all gradients; 0 clips nothing")
      ->capture_default_str()
      ->group(group);
  auto& rate = o.train.learning_rate;
  command.add_option("--lr-schedule", rate.schedule, "")
      ->check(CLI::IsMember({"constant", "step", "cosine"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--warmup-steps", rate.warmup_steps, "steps in which --lr is reached")
      ->capture_default_str()
      ->group(group);
  command.add_option("--lr-step-every", rate.step_every, "--lr-schedule step: steps between drops")
      ->capture_default_str()
      ->group(group);
  command.add_option("--lr-step-factor", rate.step_factor, "--lr-schedule step: size of a drop")
      ->capture_default_str()
      ->group(group);
  command.add_option("--dtype", o.dtype, "bfloat16: activations only, on GPUs")
      ->check(CLI::IsMember({"float32", "float64", "bfloat16"}))
      ->capture_default_str()
      ->group(group);

  group = "Parallelism (exact: any plan trains like one device)";
  auto& plan = o.plan;
  command.add_option("--parts", plan.parts, "micro-batches a batch; batch norm is over each of them")
      ->capture_default_str()
      ->group(group);
  command.add_option("--split-size", plan.split_size, "stages")->group(group);
  command.add_option("--balance", plan.balance, "cells of each stage: 5,7,6")->group(group);
  command.add_option("--balance-by", plan.balance_by, "without --balance: even out time or memory")
      ->check(CLI::IsMember({"time", "memory"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--schedule", plan.schedule, "gpipe, 1f1b (default), zero-bubble, gems-mast, gems-master, chimera")
      ->group(group);
  command.add_option("--replicas", plan.replicas, "data parallelism: copies of the whole pipeline")->group(group);
  command.add_option("--num-spatial-parts", plan.num_spatial_parts, "tiles of each spatial stage: 4 or 4,2")
      ->group(group);
  command.add_option("--spatial-size", plan.spatial_size, "how many of the first stages are spatial")->group(group);
  command.add_option("--slice-method", plan.slice_method, "square, vertical or horizontal tiles")
      ->check(CLI::IsMember({"square", "vertical", "horizontal"}))
      ->group(group);
  command.add_option("--grid", plan.grid, "rows x columns of tiles: 3x5, or a list of these")->group(group);
  command
      .add_option("--batch-norm", plan.batch_norm,
                  "statistics over each micro, each rank's part of it (local), or all replicas' (global)")
      ->check(CLI::IsMember({"micro", "local", "global"}))
      ->capture_default_str()
      ->group(group);
  command.add_flag("--halo-D2", plan.halo_d2, "one wider margin exchange for several blocks")->group(group);
  command.add_option("--fused-layers", plan.fused_layers, "blocks that share an exchange with --halo-D2")->group(group);
  command.add_option("--local-DP", plan.local_dp, "ranks that share the batch after the spatial stages")->group(group);
  command.add_option("--times", plan.times, "bidirectional: 1 is 2 replications of the batch, 2 is 4")->group(group);
  command.add_option("--num-hp", plan.num_hp, "bundles (front and rear) on each node")->group(group);
  command.add_flag("--DP-ONLY", plan.dp_only, "with --num-hp: whole networks in place of bundles")->group(group);
  command
      .add_option("--grad-sync", plan.grad_sync,
                  "sum gradients flat over all copies, or hierarchical: by each node's master (default with --num-hp)")
      ->check(CLI::IsMember({"flat", "hierarchical"}))
      ->group(group);
  command.add_option("--ranks-per-node", plan.ranks_per_node, "where nodes end, if not as the launcher says")
      ->group(group);

  group = "Machine";
  command.add_option("--device", o.device, "cuda: the ranks of a machine take its GPUs in turn")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--transport", o.transport,
                  "what sums over GPUs go by: nccl takes processes with a GPU each, auto uses it where that is so")
      ->check(CLI::IsMember({"auto", "mpi", "nccl"}))
      ->capture_default_str()
      ->group(group);
  command.add_flag("--tf32", o.tf32, "float32 products on GPUs may round their factors to 10 bits")->group(group);
  command
      .add_option("--cudnn-search", o.cudnn_search,
                  "try cuDNN's algorithms on the first convolution of each shape; auto: in runs of 100 steps or more")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--threads", o.threads,
                  "threads of each rank; by default the cores are shared out to the ranks that work at the same time")
      ->group(group);
  command
      .add_option("--memory-limit", o.memory_limit,
                  "refuse a plan in which a rank needs more than this, by estimate: 8GiB, 500MiB")
      ->transform(CLI::AsSizeValue(false))
      ->group(group);
  command
      .add_option("--recompute", o.recompute,
                  "what backward makes again to save memory: nothing, norms and ReLUs, or all that is inside a block")
      ->check(CLI::IsMember({"none", "norm", "block"}))
      ->capture_default_str()
      ->group(group);

  group = "Output";
  command.add_option("--json", o.json, "write plan, losses, times and memory to this file")->group(group);
  command.add_flag("-v,--verbose", o.verbose, "print the plan and every step")->group(group);
  command.add_flag("--quiet", o.quiet, "print errors only")->group(group);
}

MemoryNeeds memory_needs(const Job& job, const Options& o) {
  const std::string& rule = o.train.optimizer.name;
  const int states = rule != "sgd" ? 2 : o.train.optimizer.momentum != 0 ? 1 : 0;
  return predicted_memory(job.plan, job.graph,
                          {.element_bytes = static_cast<double>(element_bytes(o)),
                           .states = states,
                           .common = job.common_copies,
                           .recompute = o.train.recompute});
}

namespace {

void check_memory(const Job& job, const Options& o) {
  const MemoryNeeds needs = memory_needs(job, o);
  const auto most = std::max_element(needs.begin(), needs.end()) - needs.begin();
  const auto bytes = static_cast<std::int64_t>(needs[static_cast<std::size_t>(most)]);
  if (bytes <= static_cast<std::int64_t>(*o.memory_limit)) return;
  std::vector<std::string> stages;
  for (const auto& place : job.plan.places_of(static_cast<int>(most)))
    stages.push_back(concat(place.stage, place.direction == Direction::up ? " of the direction up" : ""));
  throw UsageError(concat(
      "rank ", most, " needs about ", human_bytes(bytes), " for stage ", join(stages, " and stage "),
      ", more than --memory-limit ", human_bytes(static_cast<std::int64_t>(*o.memory_limit)),
      "; use more tiles (--num-spatial-parts), more stages (--split-size), smaller micros (--parts)",
      job.plan.bidirectional() ? ", another --balance, or a --schedule of one direction" : ", or --balance-by memory"));
}

}  // namespace

Job make_job(Options& o, const ModelRegistry& models, const Launch& launch) {
  const auto ranks_started = launch.ranks_started();
  const int ranks_on_node = launch.ranks_on_node();
  Problems problems;
  const DeviceWish wish = device_wish(o);
  const DeviceFacts facts =
      device_facts(wish, launch.world(), launch.world() ? launch.rank_on_machine(*launch.world()) : 0);
  for (const std::string& problem : device_problems(wish, facts)) problems.add(problem);
  check_values(o, problems);
  problems.absorb([&] { check_plan_options(o.plan); });
  o.train.dtype = o.dtype == "float64" ? at::kDouble : o.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  o.train.device = o.device == "cuda" ? at::kCUDA : at::kCPU;
  o.train.recompute = o.recompute == "none"    ? Recompute::none
                      : o.recompute == "block" ? Recompute::block
                                               : Recompute::norm;

  Job job;
  DataSets data(o);
  problems.absorb([&] {
    o.model.image = parse_image_size(o.image_size);
    problems.absorb([&] { job.graph = models.build(o.model); });
    // Whether images need masks is for the network to say.
    if (!job.graph.nodes().empty() && o.synthetic_images > 0 && o.mean.size() == 3 && o.deviation.size() == 3)
      data.open(job.graph.label_kind() == LabelKind::pixel);
  });
  problems.throw_if_any();
  job.transport = chosen_transport(wish, facts);
  if (wish.cuda) job.transport_words = transport_words(facts, job.transport);

  job.plan = make_plan(job.graph, o.plan, ranks_started);
  job.common_copies = launch.ranks_are_threads() && !wish.cuda;
  if (job.plan.ranks_per_node == 0) job.plan.ranks_per_node = ranks_started ? ranks_on_node : job.plan.ranks();
  const std::int64_t batch = job.plan.global_batch();
  data.leave_out_bad_images(launch);
  job.images = data.images();
  job.validation = data.validation();
  require(o.evaluation.only || batch <= job.images->size(), "--batch-size ", o.plan.batch_size,
          batch == o.plan.batch_size ? std::string() : concat(" (", batch, " over all copies)"), " is more than the ",
          job.images->size(), " images there are; use a smaller one",
          app_name(o.app) == "synthetic" ? " or more --synthetic-images" : "");
  job.steps = o.evaluation.only ? 0 : o.steps.value_or(o.num_epochs * (job.images->size() / batch));
  o.train.steps = job.steps;
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (int rank = 0; rank < job.plan.ranks(); ++rank)
    job.threads.push_back(o.threads.value_or(std::max(1, cores / job.plan.ranks_at_work_beside(rank))));
  if (o.memory_limit) check_memory(job, o);
  return job;
}

}  // namespace tessera
