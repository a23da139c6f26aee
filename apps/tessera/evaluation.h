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

/// With the activations of training.
EvaluatorOptions evaluator_options(const Options& options);

/// "loss 0.2312  accuracy 93.5%  AUC 0.981  (200 images, 1.2 s, data 3%)"
std::string evaluation_line(const Evaluation& result);
/// For the logs: val/loss, val/accuracy and the like; what is not defined is left out.
std::vector<Metric> evaluation_metrics(const Evaluation& result);
/// A row a class: how many images, the recall, and what they were taken for.
std::string evaluation_table(const Evaluation& result, const std::vector<std::string>& class_names);

}  // namespace tessera
