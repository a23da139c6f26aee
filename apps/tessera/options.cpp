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
  command
      .add_option("--config", o.config, "read flags from this file (name = value); the command line takes precedence")
      ->check(CLI::ExistingFile)
      ->group("Output");

  const char* group = "Network";
  command
      .add_option(
          "--model", o.model.name,
          "one of " + names +
              ", or a network saved by PyTorch: net.pt, net.pt2. Default: resnet18 for image files, else resnet_v2")
      ->group(group);
  command.add_option("--depth", o.model.depth, "number of layers: 6n+2 for resnet_v1, 9n+2 for resnet_v2")
      ->group(group);
  command
      .add_option("--num-layers", o.model.num_layers,
                  "amoebanet: number of normal cells, a multiple of 3 (default 18); unet: number of levels (default 4)")
      ->group(group);
  command
      .add_option("--num-filters", o.model.num_filters,
                  "amoebanet: a multiple of 8 (default 416); unet: channels of the first level (default 64)")
      ->group(group);
  command
      .add_option("--upsampling", o.model.upsampling,
                  "unet: how to enlarge, transposed (convolution, the default) or bilinear")
      ->group(group);
  command
      .add_option("--model-output", o.model.output,
                  "network files with several outputs: which one to train, by name or number (default: the first)")
      ->group(group);
  command
      .add_option_function<std::string>(
          "--init", [&o](const std::string& way) { o.model.random_start = way == "random"; },
          "network files: start from the weights in the file (default) or from random ones")
      ->check(CLI::IsMember({"file", "random"}))
      ->group(group);
  command
      .add_option("--num-classes", o.model.classes,
                  "number of classes of images, or of pixels (unet). Default: as many as the image files have, else 10")
      ->group(group);
  command
      .add_option("--image-size", o.image_size,
                  "512, or height x width: 300x170. Default: the common size of the image files, else 32")
      ->group(group);

  group = "Data";
  command
      .add_option(
          "--app", o.app,
          "kind of data: medical (image files), cifar or synthetic (or 1, 2, 3). Default: found from --datapath")
      ->group(group);
  command
      .add_option("--datapath", o.datapath,
                  "the data set: a folder of images, a CSV file, or the CIFAR-10 folder. Default: synthetic images")
      ->group(group);
  command
      .add_option("--class-names", o.class_names,
                  "image files: names of labels 0, 1, ... Default: the names in the training set, sorted")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option("--on-bad-image", o.on_bad_image,
                  "image files that cannot be decoded: fail, or skip (decodes every file once before the run)")
      ->check(CLI::IsMember({"fail", "skip"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--synthetic-images", o.synthetic_images, "number of synthetic images per epoch")
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--channels", o.channels,
          "channels of synthetic images. Default: 3; image files: 3 reads grey as colour, and a fourth channel as "
          "transparency on white. Default: as many as the files have")
      ->group(group);
  command
      .add_option(
          "--mean", o.mean,
          "image files: mean of all channels, or one per channel; from 0 to 1 for integers. Default: ImageNet's "
          "for 3 channels, 0.5 for others, 0 for floats")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option(
          "--std", o.deviation,
          "image files: standard deviation, likewise. Default: ImageNet's for 3 channels, 0.25 for others, 1 for "
          "floats")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option("--mask-values", o.mask_values,
                  "masks: pixel values of class 0, 1, ..., for example 0,255. Default: 0,1,2,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  command.add_option("--mask-ignore", o.mask_ignore, "masks: pixel value to leave out of loss and metrics")
      ->group(group);
  command
      .add_option("--num-workers", o.workers,
                  "threads per rank that read images ahead; 0 reads within the step. Default: from the number of cores")
      ->group(group);
  command
      .add_option("--seed", o.train.seed,
                  "seed of initial weights, synthetic images, shuffling, augmentation and dropout")
      ->capture_default_str()
      ->group(group);

  group = "Augmentation (depends on seed, epoch and image only: the same on every tile)";
  auto& augment = o.augment;
  command.add_flag("--flip-horizontal", augment.flip_horizontal, "mirror left and right, with probability 1/2")
      ->group(group);
  command.add_flag("--flip-vertical", augment.flip_vertical, "mirror top and bottom, with probability 1/2")
      ->group(group);
  command.add_flag("--rotate", augment.rotate, "rotate by a random multiple of 90 degrees")->group(group);
  command.add_option("--crop-min", augment.crop_min, "random crop: smallest share of the area to keep")
      ->capture_default_str()
      ->group(group);
  command.add_option("--crop-max", augment.crop_max, "random crop: largest share of the area to keep")
      ->capture_default_str()
      ->group(group);
  command.add_option("--brightness", augment.brightness, "multiply by a random factor from 1 - this to 1 + this")
      ->capture_default_str()
      ->group(group);
  command.add_option("--contrast", augment.contrast, "the same, for contrast")->capture_default_str()->group(group);
  command.add_option("--saturation", augment.saturation, "the same, for saturation")
      ->capture_default_str()
      ->group(group);

  group = "Training";
  command.add_option("--batch-size", o.plan.batch_size, "images per batch; --replicas and --times multiply it")
      ->capture_default_str()
      ->group(group);
  command.add_option("--num-epochs", o.num_epochs, "passes over the data")->capture_default_str()->group(group);
  command.add_option("--steps", o.steps, "number of optimizer steps, instead of --num-epochs")->group(group);
  auto& optimizer = o.train.optimizer;
  command.add_option("--optimizer", optimizer.name, "which optimizer")
      ->check(CLI::IsMember({"sgd", "adam", "adamw"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--label-smoothing", o.model.loss.smoothing,
                  "spread this share of every label evenly over all classes; 0.1 is usual")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--class-weights", o.model.loss.class_weights,
                  "weight of each class in the loss, in class order: 1,4,2")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option_function<std::string>(
          "--loss", [&o](const std::string& name) { o.model.loss.binary = name == "binary"; },
          "cross-entropy: one label per image (default); binary: any number of labels per image")
      ->check(CLI::IsMember({"cross-entropy", "binary"}))
      ->group(group);
  command
      .add_option("--dice-weight", o.model.loss.dice,
                  "networks that label pixels: add the Dice loss with this weight; 1 is usual")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--auxiliary-weight", o.model.loss.auxiliary,
                  "network files with several outputs: also train the other outputs, with this weight of their losses")
      ->capture_default_str()
      ->group(group);
  command.add_option("--lr", optimizer.lr, "learning rate")->capture_default_str()->group(group);
  command.add_option("--momentum", optimizer.momentum, "momentum of sgd")->capture_default_str()->group(group);
  command.add_option("--weight-decay", optimizer.weight_decay, "weight decay")->capture_default_str()->group(group);
  command.add_option("--clip-norm", optimizer.clip_norm, "clip gradients to this total norm; 0: no clipping")
      ->capture_default_str()
      ->group(group);
  auto& rate = o.train.learning_rate;
  command.add_option("--lr-schedule", rate.schedule, "how the learning rate changes")
      ->check(CLI::IsMember({"constant", "step", "cosine"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--warmup-steps", rate.warmup_steps, "steps over which the learning rate rises to --lr")
      ->capture_default_str()
      ->group(group);
  command.add_option("--lr-step-every", rate.step_every, "--lr-schedule step: steps between drops")
      ->capture_default_str()
      ->group(group);
  command.add_option("--lr-step-factor", rate.step_factor, "--lr-schedule step: factor of each drop")
      ->capture_default_str()
      ->group(group);
  command.add_option("--dtype", o.dtype, "data type; bfloat16 is for activations on GPUs, weights stay float32")
      ->check(CLI::IsMember({"float32", "float64", "bfloat16"}))
      ->capture_default_str()
      ->group(group);

  group = "Parallelism (exact: any plan trains like one device)";
  auto& plan = o.plan;
  command
      .add_option("--parts", plan.parts, "micro-batches per batch; batch norm takes its statistics over each of them")
      ->capture_default_str()
      ->group(group);
  command.add_option("--split-size", plan.split_size, "number of pipeline stages")->group(group);
  command.add_option("--balance", plan.balance, "number of cells per stage: 5,7,6. Default: balanced automatically")
      ->group(group);
  command.add_option("--balance-by", plan.balance_by, "what automatic balancing evens out")
      ->check(CLI::IsMember({"time", "memory"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--schedule", plan.schedule,
                  "pipeline schedule: gpipe, 1f1b (default), zero-bubble, gems-mast, gems-master, chimera")
      ->group(group);
  command.add_option("--replicas", plan.replicas, "data parallelism: copies of the whole pipeline")->group(group);
  command
      .add_option("--num-spatial-parts", plan.num_spatial_parts, "tiles per spatial stage: 4, or 4,2 for two stages")
      ->group(group);
  command
      .add_option("--spatial-size", plan.spatial_size, "how many of the first stages are spatial (divided into tiles)")
      ->group(group);
  command.add_option("--slice-method", plan.slice_method, "shape of tiles: square, vertical or horizontal")
      ->check(CLI::IsMember({"square", "vertical", "horizontal"}))
      ->group(group);
  command.add_option("--grid", plan.grid, "rows x columns of tiles: 3x5, or a list with one grid per spatial stage")
      ->group(group);
  command
      .add_option("--turns", plan.turns,
                  "rows x columns of tiles that each rank works through in turn: 4x4, or a list with one per stage")
      ->group(group);
  command
      .add_option(
          "--batch-norm", plan.batch_norm,
          "statistics over each micro-batch, each rank's part of it (local; not exact), or all replicas (global)")
      ->check(CLI::IsMember({"micro", "local", "global"}))
      ->capture_default_str()
      ->group(group);
  command.add_flag("--halo-D2", plan.halo_d2, "fused margins: one wider margin (halo) exchange for several blocks")
      ->group(group);
  command.add_option("--fused-layers", plan.fused_layers, "--halo-D2: how many blocks share one exchange")
      ->group(group);
  command.add_option("--local-DP", plan.local_dp, "ranks that share the batch in the stages after the spatial ones")
      ->group(group);
  command.add_option("--times", plan.times, "gems-master: batches per direction; a step trains twice as many")
      ->group(group);
  command.add_option("--num-hp", plan.num_hp, "bundles (front and rear stage) per node")->group(group);
  command.add_flag("--DP-ONLY", plan.dp_only, "with --num-hp: workers with the whole network instead of bundles")
      ->group(group);
  command
      .add_option(
          "--grad-sync", plan.grad_sync,
          "sum gradients over all copies at once (flat), or per node first (hierarchical, the default with --num-hp)")
      ->check(CLI::IsMember({"flat", "hierarchical"}))
      ->group(group);
  command.add_option("--ranks-per-node", plan.ranks_per_node, "ranks per node. Default: as the launcher says")
      ->group(group);

  group = "Machine";
  command
      .add_option("--device", o.device,
                  "cpu or cuda; with cuda, the ranks of a machine are assigned to its GPUs in turn")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--transport", o.transport,
                  "how tensors travel between GPUs: nccl (needs one process per GPU) or mpi; auto: nccl where possible")
      ->check(CLI::IsMember({"auto", "mpi", "nccl"}))
      ->capture_default_str()
      ->group(group);
  command.add_flag("--tf32", o.tf32, "allow TF32: float32 products on GPUs may round their factors to 10 bits")
      ->group(group);
  command
      .add_option(
          "--cudnn-search", o.cudnn_search,
          "measure cuDNN's algorithms once per convolution shape; auto: in runs of 100 steps or more, without NCCL")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--conv-choice", o.conv_choice,
                  "how to compute float32 convolutions on CPUs: measured (the default: the fastest of several ways, "
                  "tried once per shape and machine) or fixed (by rules: the same bits in every run)")
      ->check(CLI::IsMember({"measured", "fixed"}))
      ->group(group);
  command
      .add_option("--threads", o.threads,
                  "compute threads per rank. Default: the cores are divided among the ranks that work at the same time")
      ->group(group);
  command
      .add_option(
          "--bind", o.bind,
          "auto: on machines with several NUMA nodes, each rank uses the cores and memory of one node, if that has "
          "enough cores; none: ranks run where the system or the launcher puts them")
      ->check(CLI::IsMember({"auto", "none"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--timeout", o.timeout,
          "seconds that a rank waits for another before it gives up. Default: 20 times the longest step, at least 300")
      ->group(group);
  command
      .add_option(
          "--memory", o.memory,
          "memory that each rank may take on its device: 8GiB, 500MiB. Turns, --store and --recompute are then "
          "chosen so that it is enough, as far as they are not given. Default: what a GPU has; no limit on CPUs")
      ->transform(CLI::AsSizeValue(false))
      ->group(group);
  command
      .add_option("--host-memory", o.host_memory,
                  "memory beside a GPU that each rank may take for what waits there. Default: what the host has")
      ->transform(CLI::AsSizeValue(false))
      ->group(group);
  command
      .add_option("--memory-limit", o.memory_limit,
                  "refuse a plan in which a rank would need more memory than this: 8GiB, 500MiB")
      ->transform(CLI::AsSizeValue(false))
      ->group(group);
  command
      .add_option("--recompute", o.recompute,
                  "what to recompute in backward to save memory: none, norm (norms and ReLUs), block (everything in a "
                  "block), or block:3 (everything in three blocks)")
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
  command
      .add_option("--json", o.json, "write plan, losses, times and memory to this file as JSON; - is standard output")
      ->group(group);
  command.add_flag("-v,--verbose", o.verbose, "print the plan and every step")->group(group);
  command.add_flag("--quiet", o.quiet, "print errors only")->group(group);
}

void add_automatic_flags(CLI::App& command, Options& o) {
  const char* group = "Parallelism (exact: any plan trains like one device)";
  command
      .add_flag("--auto", o.automatic,
                "find the fastest plan: measures the network's cells and the ranks' messages first. Flags that are "
                "given stay; "
                "--batch-size is then the batch of all copies together")
      ->group(group);
  command.add_option("--ranks", o.ranks, "--auto: number of ranks. Default: those started, or up to the cores or GPUs")
      ->group(group);
  command.add_option("--batch-at-most", o.batch_at_most, "--auto: the batch may be doubled up to this size")
      ->group(group);
  command
      .add_option("--machine", o.machine,
                  "plan --auto: the description of a machine that is not here, like machines/dgx_h100.json")
      ->check(CLI::ExistingFile)
      ->group(group);
  command.add_option("--plan", o.plan_file, "take the plan's flags from this file, written by tessera plan --json")
      ->check(CLI::ExistingFile)
      ->group(group);
}

}  // namespace tessera
