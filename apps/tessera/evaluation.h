// What the commands that evaluate share: flags, and words for the result.
#pragma once

#include <string>

#include "job.h"
#include "tessera/io/metrics.h"
#include "tessera/runtime/evaluator.h"

namespace tessera {

/// --eval-every and --val-datapath, of train.
void add_validation_flags(CLI::App& command, EvaluationOptions& options);
/// Of eval and predict.
void add_weights_flags(CLI::App& command, EvaluationOptions& options);

/// What --keep-best and --early-stop look at; nothing if the evaluation does not have it.
std::optional<double> metric_of(const Evaluation& evaluation, const std::string& name);

/// The best evaluation so far: the same on all ranks, because evaluations are.
struct Best {
  std::string metric = "loss";
  std::optional<double> value;
  std::int64_t at_step = 0;
  std::int64_t evaluations_since = 0;

  /// Whether this one is better than all before it. Throws UsageError if it does not have the metric.
  bool take(const Evaluation& evaluation, std::int64_t step);
};

/// With the activations of training.
EvaluatorOptions evaluator_options(const Options& options);

/// "loss 0.2312  accuracy 93.5%  AUC 0.981  (200 images, 1.2 s, data 3%)"
std::string evaluation_line(const Evaluation& result);
/// For the logs: val/loss, val/accuracy and the like; what is not defined is left out.
std::vector<Metric> evaluation_metrics(const Evaluation& result);
/// One row per class: how many images, the recall, and what they were taken for.
std::string evaluation_table(const Evaluation& result, const std::vector<std::string>& class_names);

}  // namespace tessera
