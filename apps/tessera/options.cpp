#include "options.h"

#include <CLI/CLI.hpp>
#include <charconv>

#include "tessera/base/error.h"

namespace tessera {

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
  command.add_option("--model", o.model.name, "one of " + names + ", or a network file of PyTorch: net.pt, net.pt2")
      ->capture_default_str()
      ->group(group);
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
  command
      .add_option("--model-output", o.model.output,
                  "network files with several outputs: the one that is trained, by name or number (the first)")
      ->group(group);
  command
      .add_option_function<std::string>(
          "--init", [&o](const std::string& way) { o.model.random_start = way == "random"; },
          "network files: start from the file's weights, or from random ones")
      ->check(CLI::IsMember({"file", "random"}))
      ->group(group);
  command
      .add_option("--num-classes", o.model.classes,
                  "classes of images, or of pixels (unet); by default as many as image files have, or 10")
      ->group(group);
  command
      .add_option("--image-size", o.image_size,
                  "512, or height x width: 300x170; by default the size that all image files have, or 32")
      ->group(group);

  group = "Data";
  command
      .add_option("--app", o.app,
                  "medical (image files), cifar or synthetic (or 1, 2, 3); by default what --datapath holds")
      ->group(group);
  command
      .add_option("--datapath", o.datapath,
                  "the data set: a folder of images, a CSV file, or CIFAR-10's folder; without it, made-up images")
      ->group(group);
  command
      .add_option("--class-names", o.class_names,
                  "image files: what labels 0, 1, ... are called; the names in the training set, sorted, by default")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  command.add_option("--on-bad-image", o.on_bad_image, "image files: fail, or skip after a look at all files")
      ->check(CLI::IsMember({"fail", "skip"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--synthetic-images", o.synthetic_images, "made-up images per epoch")
      ->capture_default_str()
      ->group(group);
  command.add_option("--mean", o.mean, "image files: mean of red, green and blue, in 0 to 1")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str()
      ->group(group);
  command.add_option("--std", o.deviation, "image files: their standard deviations")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--mask-values", o.mask_values, "masks: the values that stand for class 0, 1, ...: 0,255 (0,1,2,...)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  command.add_option("--mask-ignore", o.mask_ignore, "masks: the value of pixels that do not count")->group(group);
  command
      .add_option(
          "--num-workers", o.workers,
          "threads of each rank that read images ahead; 0 reads in the step (as many as there are cores to spare)")
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
  command
      .add_option("--label-smoothing", o.model.loss.smoothing,
                  "this share of every label is spread evenly over all classes; 0.1 is usual")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--class-weights", o.model.loss.class_weights,
                  "what a label of each class counts in the loss, in the order of the classes: 1,4,2")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option_function<std::string>(
          "--loss", [&o](const std::string& name) { o.model.loss.binary = name == "binary"; },
          "of networks that label images: cross-entropy, for one label per image, or binary, for any number of labels "
          "per image (cross-entropy)")
      ->check(CLI::IsMember({"cross-entropy", "binary"}))
      ->group(group);
  command
      .add_option(
          "--dice-weight", o.model.loss.dice,
          "networks that label pixels: add the Dice loss to the cross entropy, and count it so much; 1 is usual")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--auxiliary-weight", o.model.loss.auxiliary,
                  "network files with several outputs: train the others, too, and count their losses so much")
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
  command.add_option("--parts", plan.parts, "micro-batches per batch; batch norm is over each of them")
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
  command
      .add_option("--turns", plan.turns,
                  "rows x columns of tiles that each rank works through in turn: 4x4, or one for each stage")
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
      .add_option(
          "--transport", o.transport,
          "how tensors travel between GPUs: nccl (needs one process per GPU) or mpi; auto takes nccl where it can")
      ->check(CLI::IsMember({"auto", "mpi", "nccl"}))
      ->capture_default_str()
      ->group(group);
  command.add_flag("--tf32", o.tf32, "float32 products on GPUs may round their factors to 10 bits")->group(group);
  command
      .add_option("--cudnn-search", o.cudnn_search,
                  "try cuDNN's algorithms on the first convolution of each shape; auto: in runs of 100 steps or more, "
                  "without NCCL")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--threads", o.threads,
                  "threads of each rank; by default the cores are shared out to the ranks that work at the same time")
      ->group(group);
  command
      .add_option("--timeout", o.timeout,
                  "seconds that a rank waits for another before it gives up (20 times the longest step, at least 300)")
      ->check(CLI::PositiveNumber)
      ->group(group);
  command
      .add_option("--memory-limit", o.memory_limit,
                  "refuse a plan in which a rank needs more than this, by estimate: 8GiB, 500MiB")
      ->transform(CLI::AsSizeValue(false))
      ->group(group);
  command
      .add_option("--recompute", o.recompute,
                  "what backward makes again to save memory: none, norm (norms and ReLUs), block (all that is inside a "
                  "cell), block:3 (inside three cells)")
      ->capture_default_str()
      ->group(group);

  command
      .add_option("--store", o.store,
                  "where values wait from forward to backward: device, host (memory beside a GPU), file (--scratch)")
      ->check(CLI::IsMember({"device", "host", "file"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--scratch", o.train.scratch, "folder on a local disk for --store file")->group(group);

  group = "Output";
  command.add_option("--json", o.json, "write plan, losses, times and memory to this file; - is standard output")
      ->group(group);
  command.add_flag("-v,--verbose", o.verbose, "print the plan and every step")->group(group);
  command.add_flag("--quiet", o.quiet, "print errors only")->group(group);
}

}  // namespace tessera
