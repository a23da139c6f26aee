// How the passes of pointwise_loops.h walk through memory, and how they add up.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>

#include "tessera/ops/cpu/isa/pointwise.h"
#include "tessera/ops/cpu/pointwise_loops.h"
#include "tessera/ops/slab.h"

namespace tessera::loops {

/// A multiple of the channels and of the machine's vectors, and long enough for `unroll` of them.
template <class T>
std::int64_t period_of(std::int64_t channels) {
  const std::int64_t width = pointwise_kernels().vector_bytes / static_cast<std::int64_t>(sizeof(T));
  const std::int64_t least = std::lcm(channels, width), wanted = lanes::unroll * width;
  return least >= wanted ? least : least * ((wanted + least - 1) / least);
}

/// One coefficient a channel, repeated over a period.
template <class T>
std::vector<T> repeated(const std::vector<double>& values, std::int64_t period) {
  std::vector<T> out(static_cast<std::size_t>(period));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(values[i % values.size()]);
  return out;
}

/// Runs a loop over n adjacent numbers, which start at the beginning of a period.
template <class Loop>
void run_loop(const Loop& loop, std::int64_t n, std::int64_t period) {
  pointwise_loops<typename Loop::Number>().runs.run(loop, n, period);
}

// ---- Which memory, in which order ----

// Tensors of one size, as runs of adjacent numbers that begin with channel 0: rows, or, where no tensor has gaps,
// everything in one run.
struct Runs {
  std::int64_t count = 1, length = 0, channels = 0;
};

template <class T>
struct Stream {
  Rows<T> rows;
  bool dense = false;
  T* at(const Runs& runs, std::int64_t run) const { return runs.count == 1 ? rows.data : rows.row(run); }
};

template <class T>
Stream<T> stream_of(const at::Tensor& t) {
  if (!t.defined()) return {{}, true};
  const auto rows = rows_of<T>(t);
  const bool dense = (rows.rows == 1 || rows.row_stride == rows.row_elements()) &&
                     (rows.samples == 1 || rows.sample_stride == rows.rows * rows.row_elements());
  return {rows, dense};
}

template <class T, class... Streams>
Runs runs_of(const Stream<T>& first, const Streams&... others) {
  const auto& r = first.rows;
  if (first.dense && (others.dense && ...)) return {1, r.count() * r.row_elements(), r.channels};
  return {r.count(), r.row_elements(), r.channels};
}

// Numbers that are dealt with at once: all streams of a block stay in the first two caches.
inline constexpr std::int64_t block_numbers = 16384;

// Calls body(run, offset, n) for all blocks, in parallel. Blocks begin with a period.
template <class Body>
void each_block(const Runs& runs, std::int64_t period, const Body& body, std::int64_t numbers = block_numbers) {
  const std::int64_t block = std::max<std::int64_t>(1, numbers / period) * period;
  const std::int64_t per_run = (runs.length + block - 1) / block;
  at::parallel_for(0, runs.count * per_run, std::max<std::int64_t>(1, 32768 / block),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       const std::int64_t offset = i % per_run * block;
                       body(i / per_run, offset, std::min(block, runs.length - offset));
                     }
                   });
}

// ---- Sums over a whole slab ----

// Two sums a lane in the data's type, flushed into two sums a channel in double before they grow long.
template <class T>
class LaneSums {
 public:
  LaneSums(std::int64_t period, std::int64_t channels)
      : first_(static_cast<std::size_t>(period)),
        second_(first_.size()),
        total_first_(static_cast<std::size_t>(channels)),
        total_second_(total_first_.size()) {}
  Sums<T> lanes() { return {first_.data(), second_.data()}; }
  void added(std::int64_t numbers) {
    additions_ += numbers / static_cast<std::int64_t>(first_.size()) + 1;
    if (additions_ >= 512) flush();
  }
  void flush() {
    const std::size_t channels = total_first_.size();
    for (std::size_t at = 0; at < first_.size(); at += channels)
      for (std::size_t c = 0; c < channels; ++c) {
        total_first_[c] += static_cast<double>(first_[at + c]);
        total_second_[c] += static_cast<double>(second_[at + c]);
      }
    std::fill(first_.begin(), first_.end(), T(0));
    std::fill(second_.begin(), second_.end(), T(0));
    additions_ = 0;
  }
  const Channels& total_first() const { return total_first_; }
  const Channels& total_second() const { return total_second_; }

 private:
  std::vector<T> first_, second_;
  Channels total_first_, total_second_;
  std::int64_t additions_ = 0;
};

// One LaneSums a thread; added up in the order of the threads, so that a run repeats itself to the bit.
template <class T>
class ThreadSums {
 public:
  ThreadSums(std::int64_t period, std::int64_t channels)
      : mine_(static_cast<std::size_t>(at::get_num_threads()), LaneSums<T>(period, channels)) {}
  LaneSums<T>& here() { return mine_[static_cast<std::size_t>(at::get_thread_num())]; }
  std::pair<Channels, Channels> total() {
    std::pair<Channels, Channels> out{Channels(mine_[0].total_first().size()), Channels(mine_[0].total_first().size())};
    for (auto& sums : mine_) {
      sums.flush();
      for (std::size_t c = 0; c < out.first.size(); ++c) {
        out.first[c] += sums.total_first()[c];
        out.second[c] += sums.total_second()[c];
      }
    }
    return out;
  }

 private:
  std::vector<LaneSums<T>> mine_;
};

// A guess at each channel's mean from a few pixels all over the slab: sums of deviations from it lose no digits.
template <class T>
Channels guess_mean(const Rows<const T>& x) {
  Channels guess(static_cast<std::size_t>(x.channels), 0.0);
  constexpr std::int64_t samples = 16;
  for (std::int64_t s = 0; s < samples; ++s) {
    const T* p = x.row(s * (x.count() - 1) / (samples - 1)) + (s * 7 % x.width) * x.channels;
    for (std::size_t c = 0; c < guess.size(); ++c) guess[c] += static_cast<double>(p[c]) / samples;
  }
  return guess;
}

// An affine term with its coefficients repeated over a period.
template <class T>
struct TermData {
  TermData(const Affine& term, std::int64_t period)
      : x(stream_of<const T>(term.x)),
        mean(repeated<T>(term.mean, period)),
        scale(repeated<T>(term.scale, period)),
        shift(repeated<T>(term.shift, period)) {}
  Term<T> at(const Runs& runs, std::int64_t run, std::int64_t offset) const {
    return {x.at(runs, run) + offset, mean.data(), scale.data(), shift.data()};
  }
  Stream<const T> x;
  std::vector<T> mean, scale, shift;
};

}  // namespace tessera::loops
