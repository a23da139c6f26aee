#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "checkpoints.h"
#include "commands.h"
#include "evaluation.h"
#include "progress.h"
#include "run.h"
#include "tessera/base/error.h"
#include "tessera/data/csv.h"
#include "tessera/data/files.h"
#include "tessera/data/label_image.h"
#include "tessera/io/file.h"
#include "tessera/io/report.h"
#include "tessera/io/weights.h"
#include "tessera/runtime/memory.h"

namespace tessera {
namespace {

// A file, a folder with weights, or of a folder of checkpoints the newest whole one.
std::string find_weights(const std::string& path) {
  if (!is_folder(path)) return path;
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"})
    if (is_file(join_path(path, name))) return path;
  return whole_checkpoint(path, print_warning);
}

// What becomes of the predictions. Called on rank 0 alone, though all ranks must be told of masks.
struct Takers {
  Evaluator::Take take = {};
  Evaluator::TakeMask take_mask = {};
};

// Runs the network on all images with the weights of --weights.
Evaluation evaluate(const Options& options, const Job& job, const Launch& launch, const Takers& takers = {}) {
  const std::string path = launch.told([&] {
    const std::string found = find_weights(options.evaluation.weights);
    check_weights("--weights", found, job.graph);
    return found;
  });
  Evaluation result;
  prepare_gpus(options, job, job.images->size() / job.plan.global_batch());
  run_ranks(options, job, launch, [&](Communicator& world) {
    const bool first = world.rank() == Rank{0};
    const Stage& stage = job.plan.stages[static_cast<std::size_t>(Evaluator::stage_of(job.plan, world.rank().value))];
    const Parameters parameters(job.graph, stage.first_node, stage.end_node, options.train.activations(),
                                options.train.seed);
    load_weights(path, parameters);
    Evaluator evaluator(job.graph, job.plan, parameters, evaluator_options(options), job.images, &world);
    Evaluation mine = takers.take_mask ? evaluator.run_masks(takers.take_mask)
                                       : evaluator.run(first ? takers.take : Evaluator::Take{});
    if (first) result = std::move(mine);
  });
  return result;
}

void describe(const Options& options, const Job& job) {
  fmt::print("{} with {} on {}, {}, {} {}\n", options.model.name, options.evaluation.weights, job.images->describe(),
             options.dtype, job.plan.ranks(), job.plan.ranks() == 1 ? "rank" : "ranks");
  if (!job.transport_words.empty()) fmt::print("GPUs: {}\n", job.transport_words);
  std::fflush(stdout);
}

// Lines of a CSV file, one an image.
class PredictionsFile {
 public:
  PredictionsFile(const std::string& path, const ImageSource& images, std::int64_t classes)
      : images_(images), file_(path + ".part"), path_(path) {
    std::string head = images.name(0) == "0" ? "index" : "path";
    head += ",label,predicted";
    for (std::int64_t k = 0; k < classes; ++k) head += "," + csv_field("p_" + class_name(k));
    file_.write(head + "\n");
  }

  void add(const Predictions& p) {
    const std::int64_t classes = p.logits.size(1);
    std::string lines;
    for (std::int64_t i = 0; i < p.labels.size(0); ++i) {
      const double* logits = p.logits.data_ptr<double>() + i * classes;
      const double largest = *std::max_element(logits, logits + classes);
      double sum = 0;
      for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(logits[k] - largest);
      const std::int64_t label = p.labels.data_ptr<std::int64_t>()[i];
      lines += csv_field(images_.name(p.first + i)) + "," + (label < 0 ? "" : csv_field(class_name(label))) + "," +
               csv_field(class_name(std::max_element(logits, logits + classes) - logits));
      for (std::int64_t k = 0; k < classes; ++k) lines += fmt::format(",{:.9g}", std::exp(logits[k] - largest) / sum);
      lines += "\n";
    }
    file_.write(lines);
  }

  /// Until then the file is not there.
  void close() {
    file_.close();
    rename_path(path_ + ".part", path_);
  }

 private:
  std::string class_name(std::int64_t k) const {
    const auto& names = images_.class_names();
    return static_cast<std::size_t>(k) < names.size() ? names[static_cast<std::size_t>(k)] : std::to_string(k);
  }

  const ImageSource& images_;
  OutputFile file_;
  const std::string path_;
};

}  // namespace

void run_eval(Options& options, const ModelRegistry& models, const Launch& launch) {
  options.evaluation.only = true;
  const Job job = make_job(options, models, launch);
  if (launch.speaks()) check_writable("--json", options.json);
  install_cpu_allocator();
  if (launch.speaks() && !options.quiet) describe(options, job);
  const Evaluation result = evaluate(options, job, launch);
  if (!launch.speaks()) return;
  if (!options.quiet)
    fmt::print("{}\n{}", evaluation_line(result), evaluation_table(result, job.images->class_names()));
  if (!options.json.empty()) write_evaluation(options.json, result, job.plan, job.graph);
}

// A file of its own for each image, whose number tells apart images of one name.
std::string mask_file(const std::string& folder, const ImageSource& images, std::int64_t index) {
  const std::string name = images.name(index), stem = files::stem_of(name.substr(name.rfind('/') + 1));
  return fmt::format("{}/{:06}_{}.tif", folder, index, stem);
}

void run_predict(Options& options, const ModelRegistry& models, const Launch& launch) {
  options.evaluation.only = true;
  options.evaluation.labels_optional = true;
  const Job job = make_job(options, models, launch);
  const std::string& output = options.evaluation.output;
  if (job.graph.label_kind() == LabelKind::pixel) {
    if (launch.speaks()) {
      make_folders(output);
      check_writable("--output", mask_file(output, *job.images, 0));
      check_writable("--json", options.json);
    }
    install_cpu_allocator();
    if (launch.speaks() && !options.quiet) describe(options, job);
    const Evaluation result = evaluate(options, job, launch, {.take_mask = [&](const PredictedMask& mask) {
                                         write_label_image(mask_file(output, *job.images, mask.image), mask.classes);
                                       }});
    if (launch.speaks() && !options.quiet) fmt::print("{}: {}\n", output, evaluation_line(result));
    if (launch.speaks() && !options.json.empty()) write_evaluation(options.json, result, job.plan, job.graph);
    return;
  }
  if (launch.speaks()) {
    check_writable("--output", options.evaluation.output);
    check_writable("--json", options.json);
  }
  install_cpu_allocator();
  if (launch.speaks() && !options.quiet) describe(options, job);
  std::unique_ptr<PredictionsFile> file;
  if (launch.speaks())
    file = std::make_unique<PredictionsFile>(options.evaluation.output, *job.images, options.model.classes);
  const Evaluation result = evaluate(options, job, launch, {.take = [&](const Predictions& p) { file->add(p); }});
  if (!launch.speaks()) return;
  file->close();
  if (!options.quiet) fmt::print("{}: {}\n", options.evaluation.output, evaluation_line(result));
  if (!options.json.empty()) write_evaluation(options.json, result, job.plan, job.graph);
}

}  // namespace tessera
