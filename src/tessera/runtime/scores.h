// How good predictions are. Plain counting, without tensors; docs/evaluation.md has the definitions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tessera {

/// How often each class was taken for which: of images, or of pixels where every pixel has a label.
class Confusion {
 public:
  explicit Confusion(int classes = 0);

  void add(std::int64_t label, std::int64_t predicted, std::int64_t times = 1);

  int classes() const { return classes_; }
  std::int64_t count(int label, int predicted) const;
  /// All counts, [label][predicted]: a sum over ranks may be put back.
  std::vector<std::int64_t>& counts() { return counts_; }
  const std::vector<std::int64_t>& counts() const { return counts_; }
  std::int64_t total() const;

  /// The share that was predicted right; nothing if nothing was counted.
  std::optional<double> accuracy() const;
  /// Of those that are of the class, the share that was found; nothing if there are none.
  std::optional<double> recall(int label) const;
  /// What is of the class and was found, over all that is of the class or was taken for it; nothing if there is none.
  std::optional<double> iou(int label) const;
  /// The mean over the classes that have one.
  std::optional<double> mean_iou() const;

 private:
  std::int64_t labelled(int label) const;
  std::int64_t predicted(int label) const;

  int classes_;
  std::vector<std::int64_t> counts_;
};

/// The chance that a sample of class 1 has a higher score than one of class 0, where equal scores count half: the area
/// under the receiver operating characteristic. Labels are 0 or 1; nothing if one of them is missing or a score is not
/// a number.
std::optional<double> area_under_curve(std::span<const double> scores, std::span<const std::int64_t> labels);

}  // namespace tessera
