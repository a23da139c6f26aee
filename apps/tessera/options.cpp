#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/data/cifar10.h"
#include "tessera/data/synthetic.h"
#include "tessera/data/vips_images.h"
#include "tessera/ops/gpu.h"
#include "tessera/runtime/device.h"

namespace tessera {
namespace {

// The seeds call the data sets by number.
std::string app_name(const std::string& app) {
  return app == "1" ? "medical" : app == "2" ? "cifar" : app == "3" ? "synthetic" : app;
}

std::shared_ptr<const ImageSource> open_files(const Options& o) {
  const std::string app = app_name(o.app);
  const Shape& image = o.model.image;
  if (app == "synthetic")
    return std::make_shared<SyntheticImages>(SyntheticOptions{.classes = static_cast<int>(o.model.classes),
                                                              .height = image.height,
                                                              .width = image.width,
                                                              .size = o.synthetic_images,
                                                              .seed = o.train.seed});
  if (app == "medical") {
    VipsOptions files{.path = o.datapath, .height = image.height, .width = image.width};
    std::copy_n(o.mean.begin(), 3, files.mean.begin());
    std::copy_n(o.deviation.begin(), 3, files.deviation.begin());
    files.classes = static_cast<int>(o.model.classes);
    return std::make_shared<VipsImages>(files);
  }
  require(app == "cifar", "--app ", o.app, " is not one of medical, cifar, synthetic (or 1, 2, 3)");
  require(image.height == 32 && image.width == 32, "CIFAR-10 images are 32x32, not ", image.height, "x", image.width,
          "; use --image-size 32");
  require(o.model.classes == 10, "CIFAR-10 has 10 classes; use --num-classes 10");
  return std::make_shared<Cifar10>(Cifar10Options{.folder = o.datapath});
}

std::shared_ptr<const ImageSource> open_images(const Options& o) {
  auto images = open_files(o);
  AugmentOptions augment = o.augment;
  augment.seed = o.train.seed;
  if (augment.any()) images = std::make_shared<Augmented>(std::move(images), augment);
  return images;
}

void check_device(const Options& o, Problems& problems) {
  const bool narrow = o.dtype == "bfloat16";
  if (o.device == "cpu") {
    problems.check(!narrow, "--dtype bfloat16 is for GPUs; use --device cuda, or --dtype float32");
    problems.check(!o.tf32, "--tf32 is for GPUs; use --device cuda, or leave it out");
    return;
  }
  if (!gpu::built())
    problems.add("--device ", o.device, ": this program was built without CUDA; use --device cpu, or build with the ",
                 "preset cuda (docs/gpu.md)");
  else if (gpu_count() == 0)
    problems.add("--device ", o.device, ": no GPU is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES, or use ",
                 "--device cpu");
  else if (narrow)
    problems.check(gpu::has_bfloat16(), "--dtype bfloat16: this GPU does not compute in it (it takes compute ",
                   "capability 8.0); use --dtype float32");
}

void check_values(const Options& o, Problems& problems) {
  check_device(o, problems);
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
  command.add_option("--num-layers", o.model.num_layers, "amoebanet: normal cells, a multiple of 3 (18)")->group(group);
  command.add_option("--num-filters", o.model.num_filters, "amoebanet: a multiple of 8 (416)")->group(group);
  command.add_option("--num-classes", o.model.classes, "classes")->capture_default_str()->group(group);
  command.add_option("--image-size", o.image_size, "512, or height x width: 300x170")
      ->capture_default_str()
      ->group(group);

  group = "Data";
  command.add_option("--app", o.app, "medical, cifar or synthetic (or 1, 2, 3)")->capture_default_str()->group(group);
  command.add_option("--datapath", o.datapath, "folder of the data set")->capture_default_str()->group(group);
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
  command.add_flag("--tf32", o.tf32, "float32 products on GPUs may round their factors to 10 bits")->group(group);
  command.add_option("--threads", o.threads, "threads of each rank; all cores shared out by default")->group(group);
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

Job make_job(Options& o, const ModelRegistry& models, std::optional<int> ranks_started, int ranks_on_node) {
  Problems problems;
  check_values(o, problems);
  problems.absorb([&] { check_plan_options(o.plan); });
  o.train.dtype = o.dtype == "float64" ? at::kDouble : o.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  o.train.device = o.device == "cuda" ? at::kCUDA : at::kCPU;
  o.train.recompute = o.recompute == "none"    ? Recompute::none
                      : o.recompute == "block" ? Recompute::block
                                               : Recompute::norm;

  Job job;
  problems.absorb([&] {
    o.model.image = parse_image_size(o.image_size);
    problems.absorb([&] { job.graph = models.build(o.model); });
    if (o.model.classes > 0 && o.synthetic_images > 0 && o.mean.size() == 3 && o.deviation.size() == 3)
      job.images = open_images(o);
  });
  problems.throw_if_any();

  job.plan = make_plan(job.graph, o.plan, ranks_started);
  if (job.plan.ranks_per_node == 0) job.plan.ranks_per_node = ranks_started ? ranks_on_node : job.plan.ranks();
  const std::int64_t batch = job.plan.global_batch();
  require(batch <= job.images->size(), "--batch-size ", o.plan.batch_size,
          batch == o.plan.batch_size ? std::string() : concat(" (", batch, " over all copies)"), " is more than the ",
          job.images->size(), " images there are; use a smaller one",
          app_name(o.app) == "synthetic" ? " or more --synthetic-images" : "");
  job.steps = o.steps.value_or(o.num_epochs * (job.images->size() / batch));
  o.train.steps = job.steps;
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int sharing = ranks_started ? ranks_on_node : job.plan.ranks();
  job.threads = o.threads.value_or(std::max(1, cores / std::max(1, sharing)));
  return job;
}

}  // namespace tessera
