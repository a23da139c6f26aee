#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "checkpoints.h"
#include "commands.h"
#include "description.h"
#include "evaluation.h"
#include "flags.h"
#include "heatmaps.h"
#include "progress.h"
#include "run.h"
#include "tessera/base/error.h"
#include "tessera/data/csv.h"
#include "tessera/data/files.h"
#include "tessera/data/label_image.h"
#include "tessera/data/vips_images.h"
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
  Evaluator::TakeMaps take_maps = {};
};

// Runs the network on all images with the weights of --weights.
Evaluation evaluate(const Options& options, const Job& job, const Launch& launch, const Takers& takers = {}) {
  const std::string path = launch.told([&] {
    const std::string found = find_weights(options.evaluation.weights);
    check_weights("--weights", found, job.whole_network.value_or(job.graph));
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
    EvaluatorOptions how = evaluator_options(options);
    how.maps = job.maps;
    Evaluator evaluator(job.graph, job.plan, parameters, how, job.images, &world);
    Evaluation mine = takers.take_mask ? evaluator.run_masks(takers.take_mask)
                                       : evaluator.run(first ? takers.take : Evaluator::Take{}, takers.take_maps);
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

// Lines of a CSV file, one per image.
class PredictionsFile {
 public:
  PredictionsFile(const std::string& path, const ImageSource& images, std::int64_t classes, bool with_logits)
      : images_(images), with_logits_(with_logits), file_(path + ".part"), path_(path) {
    // Images that are no files have numbers.
    const bool numbered = images.name(0).find_first_not_of("0123456789") == std::string::npos;
    std::string head = numbered ? "index" : "path";
    head += ",label,predicted";
    for (std::int64_t k = 0; k < classes; ++k) head += "," + csv_field("p_" + class_name(k));
    for (std::int64_t k = 0; k < classes && with_logits_; ++k) head += "," + csv_field("logit_" + class_name(k));
    file_.write(head + "\n");
  }

  void add(const Predictions& p) {
    const std::int64_t classes = p.logits.size(1);
    std::string lines;
    for (std::int64_t i = 0; i < p.labels.size(0) && p.several(); ++i) lines += several_labels(p, i);
    for (std::int64_t i = 0; i < p.labels.size(0) && !p.several(); ++i) {
      const double* logits = p.logits.data_ptr<double>() + i * classes;
      const double largest = *std::max_element(logits, logits + classes);
      double sum = 0;
      for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(logits[k] - largest);
      const std::int64_t label = p.labels.data_ptr<std::int64_t>()[i];
      lines += csv_field(images_.name(p.first + i)) + "," + (label < 0 ? "" : csv_field(class_name(label))) + "," +
               csv_field(class_name(std::max_element(logits, logits + classes) - logits));
      for (std::int64_t k = 0; k < classes; ++k) lines += fmt::format(",{:.9g}", std::exp(logits[k] - largest) / sum);
      for (std::int64_t k = 0; k < classes && with_logits_; ++k) lines += fmt::format(",{:.9g}", logits[k]);
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
  // "a;b", as they are read.
  std::string several_labels(const Predictions& p, std::int64_t i) const {
    const std::int64_t classes = p.logits.size(1);
    const double* logits = p.logits.data_ptr<double>() + i * classes;
    const std::int64_t* labels = p.labels.data_ptr<std::int64_t>() + i * classes;
    const auto set = [&](const auto& has) {
      std::string names;
      for (std::int64_t k = 0; k < classes; ++k)
        if (has(k)) names += (names.empty() ? "" : ";") + class_name(k);
      return csv_field(names);
    };
    std::string line = csv_field(images_.name(p.first + i)) + "," +
                       set([&](std::int64_t k) { return labels[k] == 1; }) + "," +
                       set([&](std::int64_t k) { return logits[k] > 0; });
    for (std::int64_t k = 0; k < classes; ++k) line += fmt::format(",{:.9g}", 1 / (1 + std::exp(-logits[k])));
    for (std::int64_t k = 0; k < classes && with_logits_; ++k) line += fmt::format(",{:.9g}", logits[k]);
    return line + "\n";
  }

  std::string class_name(std::int64_t k) const {
    const auto& names = images_.class_names();
    return static_cast<std::size_t>(k) < names.size() ? names[static_cast<std::size_t>(k)] : std::to_string(k);
  }

  const ImageSource& images_;
  const bool with_logits_;
  OutputFile file_;
  const std::string path_;
};

// What eval and predict begin with: the weights say what they are, and the flags the rest.
Job evaluation_job(Options& options, const ModelRegistry& models, const Launch& launch) {
  const std::string& weights = options.evaluation.weights;
  require(!weights.empty(), "which weights? Name a run's folder, a checkpoint or a safetensors file, for example ",
          "tessera eval runs/slides");
  options.evaluation.only = true;
  try {
    take_description(options, weights, [&](const std::string& warning) {
      if (launch.speaks()) print_warning(warning);
    });
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    throw UsageError(concat("--weights: ", error.what()));
  }
  return make_job(options, models, launch);
}

// The names of files by image, without endings, below `folder`: as the images lie below the data path, so that classes
// keep their folders. Images of one name are told apart by their numbers.
std::vector<std::string> names_below(const std::string& folder, const ImageSource& images, const std::string& root) {
  std::set<std::string> read;
  for (std::int64_t i = 0; i < images.size(); ++i) read.insert(absolute_path(images.name(i)));
  std::set<std::string> taken;
  std::vector<std::string> out;
  for (std::int64_t i = 0; i < images.size(); ++i) {
    const std::string name = images.name(i), above = root.ends_with('/') ? root : root + "/";
    const std::string below = name.starts_with(above) ? name.substr(above.size()) : name.substr(name.rfind('/') + 1);
    // "a.npy[3]" is one of several images of a file.
    const std::size_t bracket = below.ends_with(']') ? below.rfind('[') : std::string::npos;
    std::string stem = files::stem_of(below.substr(0, bracket));
    if (bracket != std::string::npos) stem += "_" + below.substr(bracket + 1, below.size() - bracket - 2);
    if (!taken.insert(stem).second) stem += fmt::format("_{:06}", i);
    out.push_back(fmt::format("{}/{}", folder, stem));
    for (const char* ending : {".tif", ".jpg"})
      require(!read.contains(absolute_path(out.back() + ending)), out.back(), ending,
              " would be written, and is an image that is read; choose another folder");
  }
  return out;
}

// A folder for files that are called like the images: among these, they might take their places.
void make_output_folder(const std::string& flag, const std::string& folder, const std::string& images) {
  require(has_vips(), flag, " writes TIFF files and pictures, and this tessera was built without libvips; install ",
          "libvips-dev (scripts/install-deps) and build again");
  std::string there = folder;  // as far as it exists
  while (!is_folder(there) && there != "." && there != "/") there = files::folder_of(there);
  require(images.empty() || !(absolute_path(there) + "/").starts_with(absolute_path(images) + "/"), flag, " ", folder,
          " lies among the images of --datapath ", images,
          ", and files there would be taken for images; choose another ", "folder");
  try {
    make_folders(folder);
  } catch (const Error& error) {
    throw UsageError(concat(flag, ": ", error.what()));
  }
  check_writable(flag, join_path(folder, "probe"));
}

// The values that masks have in the files, where --mask-values says so.
at::Tensor as_mask_values(const at::Tensor& classes, const std::vector<int>& values) {
  if (values.empty()) return classes;
  at::Tensor out = classes.contiguous().clone();
  std::uint8_t* pixels = out.data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < out.numel(); ++i) pixels[i] = static_cast<std::uint8_t>(values[pixels[i]]);
  return out;
}

}  // namespace

void run_eval(Options& options, const ModelRegistry& models, const Launch& launch) {
  const Job job = evaluation_job(options, models, launch);
  if (launch.speaks()) check_writable("--json", options.json);
  install_cpu_allocator();
  if (launch.speaks() && !options.quiet) describe(options, job);
  const Evaluation result = evaluate(options, job, launch);
  if (!launch.speaks()) return;
  if (!options.quiet) fmt::print("{}\n{}", evaluation_line(result), evaluation_table(result, job.class_names));
  if (!options.json.empty()) write_evaluation(options.json, result, job.plan, job.graph);
}

void run_predict(Options& options, const ModelRegistry& models, const Launch& launch) {
  options.evaluation.labels_optional = true;
  const Job job = evaluation_job(options, models, launch);
  std::string& output = options.evaluation.output;
  const bool pixels = job.graph.label_kind() == LabelKind::pixel;
  if (output.empty()) output = pixels ? "predictions" : "predictions.csv";
  if (pixels) {
    for (const int value : options.mask_values)
      require(value <= 255, "--mask-values ", value, " does not fit into predicted masks, which have 8 bits");
    if (launch.speaks()) {
      make_output_folder("--output", output, options.datapath);
      check_writable("--json", options.json);
    }
    const auto names = names_below(output, *job.images, options.datapath);
    install_cpu_allocator();
    if (launch.speaks() && !options.quiet) describe(options, job);
    const auto take = [&](const PredictedMask& mask) {
      const std::string name = names[static_cast<std::size_t>(mask.image)] + ".tif";
      make_folders(files::folder_of(name));
      write_label_image(name, as_mask_values(mask.classes, options.mask_values), job.images->own_size(mask.image));
    };
    const Evaluation result = evaluate(options, job, launch, {.take_mask = take});
    if (launch.speaks() && !options.quiet) fmt::print("{}: {}\n", output, evaluation_line(result));
    if (launch.speaks() && !options.json.empty()) write_evaluation(options.json, result, job.plan, job.graph);
    return;
  }
  const std::string& heatmap = options.evaluation.heatmap;
  if (launch.speaks()) {
    check_writable("--output", options.evaluation.output);
    check_writable("--json", options.json);
    if (!heatmap.empty()) make_output_folder("--heatmap", heatmap, options.datapath);
  }
  install_cpu_allocator();
  if (launch.speaks() && !options.quiet) describe(options, job);
  std::unique_ptr<PredictionsFile> file;
  if (launch.speaks())
    file = std::make_unique<PredictionsFile>(options.evaluation.output, *job.images, options.model.classes,
                                             options.evaluation.logits);
  Takers takers{.take = [&](const Predictions& p) { file->add(p); }};
  std::optional<Heatmaps> maps;
  if (job.maps) {
    maps.emplace(*job.images, names_below(heatmap, *job.images, options.datapath));
    takers.take_maps = [&](const PredictedMaps& m) { maps->add(m); };
  }
  const Evaluation result = evaluate(options, job, launch, takers);
  if (!launch.speaks()) return;
  file->close();
  if (!options.quiet) fmt::print("{}: {}\n", options.evaluation.output, evaluation_line(result));
  if (!options.quiet && maps) fmt::print("{}: a map (.tif) and a picture (.jpg) of each image\n", heatmap);
  if (!options.json.empty()) write_evaluation(options.json, result, job.plan, job.graph);
}

}  // namespace tessera
