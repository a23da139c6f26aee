// What a run leaves behind for other programs: JSON documents.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/plan/plan.h"
#include "tessera/plan/plan_flags.h"
#include "tessera/runtime/evaluator.h"
#include "tessera/runtime/trainer.h"
#include "tessera/schedule/footprint.h"

namespace tessera {

struct BuildInfo {
  std::string version, commit, compiler, sanitizers;
};
BuildInfo build_info();

struct Spread {
  double low = 0, median = 0, high = 0;  ///< 10th, 50th and 90th percentile
};
Spread spread_of(std::vector<double> values);
/// Over all steps but the first, which also pays for memory and the choice of kernels.
Spread images_per_second(const std::vector<StepReport>& steps, std::int64_t batch_size);

struct RunReport {
  std::vector<std::string> command;
  std::string model, dtype;
  PlanFlags flags;           ///< that make the plan
  std::vector<int> threads;  ///< by rank
  std::vector<StepReport> steps;
  std::vector<std::int64_t> peak_bytes;  ///< of tensors, by rank
  // Means over all steps but the first, by rank.
  std::vector<double> rank_seconds;             ///< of a step
  std::vector<PartSeconds> rank_parts;          ///< of these, what was not computing
  std::vector<std::vector<TraceEvent>> events;  ///< by rank, where they were put down
  std::vector<std::vector<PartSpan>> spans;     ///< by rank: what of that time was not computing
  struct EvaluationAt {
    std::int64_t step;  ///< steps that were done
    Evaluation result;
  };
  std::vector<EvaluationAt> evaluations;
  std::optional<std::int64_t> stopped;  ///< after so many steps, by a signal
  // What the run is about, for the report.
  std::string state = "finished";        ///< running, stopped or finished
  std::string images;                    ///< the training set, in words
  std::vector<std::string> class_names;  ///< empty: classes have numbers
  std::vector<double> predicted_bytes;   ///< by rank of a replica: the planner's estimate of peak_bytes
  /// What --auto expects of a step on a rank of a replica; empty without it.
  struct Expected {
    double seconds = 0;  ///< of the step
    double computing = 0;
    PartSeconds parts = {};
    std::vector<TraceEvent> actions = {};  ///< from the beginning of the step
  };
  std::vector<Expected> expected;
  std::optional<double> expected_speed = {};  ///< images/s, likewise: where the plan was tried out, what that gave
};

struct VerifyReport {
  struct Entry {
    std::string what;
    std::int64_t step;
    double relative;
    double rounding;  ///< what the last bits of images and parameters move; 0: not looked at
    double allowed;
  };
  bool passed = false;
  double tolerance = 0, factor = 0, largest = 0;
  std::int64_t compared = 0;
  std::int64_t beyond_tolerance = 0;  ///< of `differences`
  std::int64_t hidden = 0;            ///< of these: rounding would hide an error of a tenth
  std::vector<Entry> differences;     ///< farthest beyond what is allowed first
};

/// Throws UsageError, which names the flag, now rather than after hours of training. Nothing to do for an empty path.
void check_writable(const std::string& flag, const std::string& path);

/// The plan alone, as it stands in all of these documents.
std::string plan_text(const Plan& plan, const Graph& graph);

// Each writes a temporary file and renames it, so that a document is whole or not there. Throw Error.
void write_report(const std::string& path, const RunReport& report, const Plan& plan, const Graph& graph);
/// run.json of a log: the same without steps and evaluations, which are in documents of their own.
void write_run(const std::string& path, const RunReport& report, const Plan& plan, const Graph& graph);
/// evaluation.json of a log.
void write_evaluation_at(const std::string& path, const RunReport::EvaluationAt& evaluation,
                         const std::vector<std::string>& class_names);
/// With what it costs: work and messages of each stage, the pipeline's bubble, the memory of each rank of a replica;
/// and with the flags that make it, for --plan.
void write_plan(const std::string& path, const Plan& plan, const Graph& graph, const std::vector<Footprint>& memory,
                std::int64_t element_bytes, const PlanFlags& flags);
void write_evaluation(const std::string& path, const Evaluation& result, const Plan& plan, const Graph& graph);
void write_verification(const std::string& path, const VerifyReport& report, const Plan& plan, const Graph& graph);

}  // namespace tessera
