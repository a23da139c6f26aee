// Where the time of a step goes, and which action ran when.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <string_view>
#include <vector>

namespace tessera {

/// Seconds on a clock that never goes back and that the processes of one machine share.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// What a rank does besides computing.
enum class Part {
  data,       ///< waiting for images
  margins,    ///< exchange of margins between tiles, there and back
  norms,      ///< agreeing on statistics and sums of batch norm and global pooling
  transfers,  ///< sending values and gradients to other stages
  waiting,    ///< for values and gradients of other stages
  sync,       ///< summing gradients over copies
  optimizer,
  count
};
inline constexpr std::array<std::string_view, static_cast<std::size_t>(Part::count)> part_names{
    "data", "margin exchange", "norm agreement", "transfers", "waiting", "gradient sync", "optimizer"};
using PartSeconds = std::array<double, static_cast<std::size_t>(Part::count)>;

/// When a rank did it, by now_seconds().
struct PartSpan {
  Part part;
  double begin, end;
};

/// Belongs to one thread. Parts do not overlap: the innermost one counts.
class Meter {
 public:
  /// Counts the time of its own life; a null meter counts nothing.
  class Timed {
   public:
    Timed(Meter* meter, Part part) : meter_(meter), part_(part), outer_(meter ? meter->current_ : nullptr) {
      if (!meter_) return;
      begin_ = now_seconds();
      if (outer_) meter_->add(outer_->part_, outer_->begin_, begin_);
      meter_->current_ = this;
    }
    ~Timed() {
      if (!meter_) return;
      const double end = now_seconds();
      meter_->add(part_, begin_, end);
      if (outer_) outer_->begin_ = end;
      meter_->current_ = outer_;
    }
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    Meter* meter_;
    Part part_;
    Timed* outer_;
    double begin_ = 0;
  };

  /// The parts since the last call.
  PartSeconds take() {
    const PartSeconds out = seconds_;
    seconds_ = {};
    return out;
  }

  /// From now on every stretch of a part is put down; null: no more.
  void record(std::vector<PartSpan>* spans) { spans_ = spans; }

 private:
  void add(Part part, double begin, double end) {
    seconds_[static_cast<std::size_t>(part)] += end - begin;
    if (spans_) spans_->push_back({part, begin, end});
  }
  PartSeconds seconds_{};
  std::vector<PartSpan>* spans_ = nullptr;
  Timed* current_ = nullptr;
};

}  // namespace tessera
