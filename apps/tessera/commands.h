// One function per subcommand. Each checks the whole job before it starts and throws on failure.
#pragma once

#include "job.h"
#include "launch.h"

namespace tessera {

void run_train(Options& options, const ModelRegistry& models, const Launch& launch);
void run_plan(Options& options, const ModelRegistry& models, const Launch& launch);
/// Throws Error when a difference is beyond the tolerance.
void run_verify(Options& options, const ModelRegistry& models, const Launch& launch);
/// Both load weights and look at images; nothing is trained.
void run_eval(Options& options, const ModelRegistry& models, const Launch& launch);
void run_predict(Options& options, const ModelRegistry& models, const Launch& launch);
/// family: layer, spatial, bundle, gems or gems-spatial. The defaults are the seeds'.
void apply_bench_defaults(const std::string& family, Options& options);
void run_bench(Options& options, const std::string& family, const ModelRegistry& models, const Launch& launch);

struct ExportOptions {
  std::string checkpoint, output;
  bool quiet = false;
};
/// The weights of a checkpoint as one safetensors file.
void run_export(const ExportOptions& options, const Launch& launch);

struct ShowOptions {
  std::string model, image_size = "224";
  std::int64_t channels = 3;
  std::optional<std::string> output;
  bool verbose = false;
};
/// A network as a table, or what of it is not supported.
void run_show(const ShowOptions& options, const ModelRegistry& models, NetworkFiles& files);

struct ReportOptions {
  std::vector<std::string> runs;
  std::string output;  ///< empty: report.html
  bool watch = false;
  std::optional<int> port;
  bool quiet = false;
};
/// One HTML page about runs, to a file or, while they go on, to a browser on this machine.
void run_report(const ReportOptions& options);

struct HaloOptions {
  std::string image_size = "1024";
  std::int64_t batch_size = 1;
  std::int64_t halo_len = 3;
  std::int64_t in_channels = 3;
  std::string num_spatial_parts = "4";
  std::string slice_method = "square";
  int warmup = 10, iterations = 100;
  bool with_compute = true;
  std::string json;
};
void run_bench_halo(const HaloOptions& options, const Launch& launch);

std::string version_text();

}  // namespace tessera
