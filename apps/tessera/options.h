// Everything the flags say, in one struct.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/augmented.h"
#include "tessera/data/image_source.h"
#include "tessera/models/registry.h"
#include "tessera/plan/plan.h"
#include "tessera/runtime/device.h"
#include "tessera/runtime/trainer.h"

namespace CLI {
class App;
}

namespace tessera {

class NetworkFiles;

/// What is evaluated, and by which weights; train has only the first of them.
struct EvaluationOptions {
  std::optional<std::int64_t> every;     ///< steps
  bool each_epoch = false;               ///< where there is a validation set and `every` is not given
  std::string datapath;                  ///< --val-datapath
  std::optional<double> share;           ///< --val-share: of the training set
  std::string best;                      ///< --keep-best: loss, accuracy, auc or mean_iou; empty: none is kept
  std::optional<std::int64_t> patience;  ///< --early-stop: evaluations
  bool logits = false;                   ///< predict: beside the probabilities
  std::string heatmap;                   ///< predict: the folder of maps; empty: none
  std::string split = "val";
  std::string weights;
  std::string output;
  /// For the commands that do not train: there is no training set, and Job::images is what is evaluated.
  bool only = false;
  bool labels_optional = false;
};

/// --checkpoint-dir and its neighbours; unset: not given.
struct CheckpointOptions {
  std::string dir;
  std::optional<std::int64_t> every, keep;
  std::string resume;
  std::optional<std::string> on_save_error;
  std::string init_from;
};

struct Options {
  // What is trained: these change results.
  ModelOptions model{.name = "resnet_v2", .image = {3, 32, 32}, .classes = 10};
  std::shared_ptr<NetworkFiles> files;
  std::string network_name;  ///< what checkpoints call the network; empty: model.name
  std::string image_size;    ///< empty: that of the files, or 32
  std::string app;           ///< empty: what --datapath holds; synthetic without one
  std::string datapath;
  std::vector<std::string> class_names;
  bool planning = false;  ///< nothing is run: what the machine has does not matter
  bool training = false;  ///< for long, perhaps: --auto tries its plans on the ranks
  std::string on_bad_image = "fail";
  std::int64_t synthetic_images = 4096;
  std::optional<std::int64_t> channels;  ///< unset: those of the files, or 3
  std::vector<double> mean, deviation;   ///< of image files; empty: default_normalisation()
  std::vector<int> mask_values;
  std::optional<int> mask_ignore;
  AugmentOptions augment;
  std::int64_t num_epochs = 1;
  std::optional<std::int64_t> steps;
  TrainOptions train;
  std::string dtype = "float32";

  // How it is divided: exact, so these do not.
  PlanOptions plan;
  bool automatic = false;    ///< --auto: the program finds out
  std::optional<int> ranks;  ///< --ranks, with --auto; unset: those that there are
  std::optional<std::int64_t> batch_at_most;
  std::string scaling;    ///< plan --scaling: "1..4096"
  std::string machine;    ///< --machine: its description
  std::string plan_file;  ///< --plan: flags of the plan, from a document

  // How it is run and shown.
  std::string device = "cpu";
  std::string transport = "auto";
  bool tf32 = false;
  std::string cudnn_search = "auto";
  std::string conv_choice;  ///< empty: by TESSERA_WAYS, or measured
  std::optional<int> threads;
  std::string bind = "auto";      ///< auto: ranks keep to NUMA nodes; none
  std::optional<int> workers;     ///< that read images; unset: what the machine gives
  std::optional<double> timeout;  ///< seconds that a rank waits for others; unset: see Waiting
  std::optional<std::uint64_t> memory_limit;
  std::optional<std::uint64_t> memory, host_memory;  ///< of each rank, on its device and beside it
  std::string recompute = "norm";
  std::string store = "device";
  std::string json;
  std::string trace;
  EvaluationOptions evaluation;
  CheckpointOptions checkpoints;
  std::string log_dir;
  std::string run_dir;  ///< --run
  bool timeline = false;
  std::string config;
  std::vector<std::string> command;          ///< as it was typed
  std::map<std::string, std::string> given;  ///< flags that the command line or --config has, without dashes
  bool described = false;                    ///< the weights have said what they are
  bool has(const std::string& flag) const { return given.contains(flag); }
  bool on_gpus() const { return device != "cpu"; }
  double tolerance = 0;
  bool skip_verification = false;
  bool quiet = false;
  bool verbose = false;
};

/// Adds the flags that all commands on a network share, in groups.
void add_flags(CLI::App& command, Options& options, const ModelRegistry& models);

/// --auto, --plan and what goes with them.
void add_automatic_flags(CLI::App& command, Options& options);

/// "512" or "300x170", height x width. Throws UsageError.
Shape parse_image_size(const std::string& text);

}  // namespace tessera
