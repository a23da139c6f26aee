#include "evaluation.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera {
namespace {

// More would not fit on a screen; --json has them all.
constexpr int most_columns = 20;

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f}%", 100 * *share) : std::string("-");
}

}  // namespace

void add_validation_flags(CLI::App& command, EvaluationOptions& o) {
  const char* group = "Evaluation";
  command
      .add_option("--eval-every", o.every,
                  "evaluate on the validation set every so many steps, and after the last step")
      ->group(group);
  command.add_option("--val-datapath", o.datapath, "the validation set. Default: val/, test/ or val.csv in --datapath")
      ->group(group);
  command
      .add_option(
          "--val-share", o.share,
          "hold out this share of the training set for evaluation, for example 0.1; the seed chooses the images")
      ->group(group);
  command
      .add_option("--keep-best", o.best,
                  "also keep the checkpoint of the best evaluation by this metric, in --checkpoint-dir/best")
      ->check(CLI::IsMember({"loss", "accuracy", "auc", "mean_iou"}))
      ->group(group);
  command
      .add_option("--early-stop", o.patience,
                  "stop after so many evaluations without a better one, by the metric of --keep-best (default: loss)")
      ->group(group);
}

void add_weights_flags(CLI::App& command, EvaluationOptions& o) {
  const char* group = "Evaluation";
  command
      .add_option("RUN,--weights", o.weights,
                  "the trained network: a folder of --run or --checkpoint-dir (its newest whole checkpoint), a "
                  "checkpoint, or a "
                  "safetensors file")
      ->group(group);
  command.add_option("--split", o.split, "which part of the data set")
      ->check(CLI::IsMember({"val", "train"}))
      ->capture_default_str()
      ->group(group);
}

EvaluatorOptions evaluator_options(const Options& o) {
  return {.dtype = o.train.dtype,
          .loader_workers = o.train.loader_workers,
          .device = o.train.device,
          .store = o.train.store,
          .scratch = o.train.scratch,
          .room = o.train.room,
          .leaving = o.train.leaving};
}

std::string evaluation_line(const Evaluation& r) {
  std::string line;
  if (r.loss) line = fmt::format("loss {:.4f}  accuracy {}  ", *r.loss, percent(r.confusion.accuracy()));
  if (r.labels == LabelKind::pixel && r.confusion.mean_iou())
    line += fmt::format("mean IoU {}  ", percent(r.confusion.mean_iou()));
  if (r.auc) line += fmt::format("{} {:.4f}  ", r.labels == LabelKind::several ? "mean AUC" : "AUC", *r.auc);
  const std::string labelled = r.labels == LabelKind::pixel || r.labelled == r.images ? ""
                               : r.labelled == 0                                      ? ", none of them labelled"
                                                 : fmt::format(", {} of them labelled", r.labelled);
  const std::string facts = fmt::format("{}{}, {:.1f} s, data {:.0f}%", counted(r.images, "image"), labelled, r.seconds,
                                        100 * r.parts[static_cast<std::size_t>(Part::data)] / r.seconds);
  return line.empty() ? facts : line + "(" + facts + ")";
}

std::optional<double> metric_of(const Evaluation& r, const std::string& name) {
  if (name == "accuracy") return r.confusion.accuracy();
  if (name == "auc") return r.auc;
  if (name == "mean_iou") return r.confusion.mean_iou();
  return r.loss;
}

bool Best::take(const Evaluation& evaluation, std::int64_t step) {
  ++evaluations_since;
  const auto now = metric_of(evaluation, metric);
  require(now.has_value(), "the validation set has no ", metric,
          "; --keep-best takes loss, accuracy, auc (of two classes, or of --loss binary) or mean_iou (of pixels)");
  const bool better = !value || (metric == "loss" ? *now < *value : *now > *value);
  if (!better) return false;
  value = now;
  at_step = step;
  evaluations_since = 0;
  return true;
}

std::vector<Metric> evaluation_metrics(const Evaluation& r) {
  std::vector<Metric> metrics;
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value) metrics.push_back({name, *value});
  };
  add("val/loss", r.loss);
  add("val/accuracy", r.confusion.accuracy());
  add("val/auc", r.auc);
  if (r.labels == LabelKind::pixel) add("val/mean_iou", r.confusion.mean_iou());
  add("val/seconds", r.seconds);
  return metrics;
}

namespace {

// Of several labels: each class is a question of its own.
std::string table_of_questions(const Evaluation& r, const std::vector<std::string>& class_names) {
  Table table({"class", "images", "recall", "precision", "AUC"});
  for (std::size_t k = 0; k < r.by_class.size(); ++k) {
    const Confusion& answers = r.by_class[k];
    const std::int64_t found = answers.count(1, 1), said = found + answers.count(0, 1);
    table.row({k < class_names.size() ? class_names[k] : std::to_string(k), std::to_string(found + answers.count(1, 0)),
               percent(answers.recall(1)),
               percent(said > 0 ? std::optional(static_cast<double>(found) / static_cast<double>(said)) : std::nullopt),
               r.class_auc[k] ? fmt::format("{:.4f}", *r.class_auc[k]) : "-"});
  }
  return table.str();
}

}  // namespace

std::string evaluation_table(const Evaluation& r, const std::vector<std::string>& class_names) {
  if (r.labels == LabelKind::several) return table_of_questions(r, class_names);
  const int classes = r.confusion.classes();
  const auto name = [&](int k) {
    return static_cast<std::size_t>(k) < class_names.size() ? class_names[static_cast<std::size_t>(k)]
                                                            : std::to_string(k);
  };
  const bool pixels = r.labels == LabelKind::pixel;
  std::vector<std::string> head{"class", pixels ? "pixels" : "images", "recall"};
  if (pixels) head.push_back("IoU");
  const auto first_count = head.size();
  for (int p = 0; p < classes && classes <= most_columns; ++p) head.push_back("as " + name(p));
  Table table(head);
  for (int k = 0; k < classes; ++k) {
    std::int64_t images = 0;
    for (int p = 0; p < classes; ++p) images += r.confusion.count(k, p);
    std::vector<std::string> row{name(k), std::to_string(images), percent(r.confusion.recall(k))};
    if (pixels) row.push_back(percent(r.confusion.iou(k)));
    for (std::size_t p = first_count; p < head.size(); ++p)
      row.push_back(std::to_string(r.confusion.count(k, static_cast<int>(p - first_count))));
    table.row(row);
  }
  return table.str();
}

}  // namespace tessera
