#include "tessera/runtime/scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera {
namespace {

std::optional<double> ratio(std::int64_t part, std::int64_t whole) {
  if (whole == 0) return std::nullopt;
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

Confusion::Confusion(int classes) : classes_(classes), counts_(static_cast<std::size_t>(classes) * classes) {}

void Confusion::add(std::int64_t label, std::int64_t predicted, std::int64_t times) {
  ensure(0 <= label && label < classes_ && 0 <= predicted && predicted < classes_, "class ", label, " taken for ",
         predicted, " of ", classes_, " classes");
  counts_[static_cast<std::size_t>(label * classes_ + predicted)] += times;
}

std::int64_t Confusion::count(int label, int predicted) const {
  return counts_[static_cast<std::size_t>(label * classes_ + predicted)];
}

std::int64_t Confusion::total() const { return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0}); }

std::int64_t Confusion::labelled(int label) const {
  std::int64_t sum = 0;
  for (int p = 0; p < classes_; ++p) sum += count(label, p);
  return sum;
}

std::int64_t Confusion::predicted(int label) const {
  std::int64_t sum = 0;
  for (int l = 0; l < classes_; ++l) sum += count(l, label);
  return sum;
}

std::optional<double> Confusion::accuracy() const {
  std::int64_t right = 0;
  for (int k = 0; k < classes_; ++k) right += count(k, k);
  return ratio(right, total());
}

std::optional<double> Confusion::recall(int label) const { return ratio(count(label, label), labelled(label)); }

std::optional<double> Confusion::iou(int label) const {
  return ratio(count(label, label), labelled(label) + predicted(label) - count(label, label));
}

std::optional<double> Confusion::mean_iou() const {
  double sum = 0;
  int classes = 0;
  for (int k = 0; k < classes_; ++k)
    if (const auto one = iou(k)) {
      sum += *one;
      ++classes;
    }
  if (classes == 0) return std::nullopt;
  return sum / classes;
}

std::optional<double> area_under_curve(std::span<const double> scores, std::span<const std::int64_t> labels) {
  ensure(scores.size() == labels.size(), scores.size(), " scores for ", labels.size(), " labels");
  if (std::any_of(scores.begin(), scores.end(), [](double s) { return std::isnan(s); })) return std::nullopt;
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] < scores[b]; });
  // Up the scores: every 1 is above all 0s that came before it, and half above those that have its own score.
  double above = 0;
  std::int64_t zeros = 0, ones = 0;
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    std::int64_t zeros_here = 0, ones_here = 0;
    for (; end < order.size() && scores[order[end]] == scores[order[begin]]; ++end)
      ++(labels[order[end]] == 1 ? ones_here : zeros_here);
    above += static_cast<double>(ones_here) * (static_cast<double>(zeros) + 0.5 * static_cast<double>(zeros_here));
    zeros += zeros_here;
    ones += ones_here;
  }
  if (zeros == 0 || ones == 0) return std::nullopt;
  return above / (static_cast<double>(zeros) * static_cast<double>(ones));
}

}  // namespace tessera
