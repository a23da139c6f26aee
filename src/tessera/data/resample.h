// Stretching images to another size, in a way that does not depend on the box that is asked for.
//
// One formula for both directions, the triangle filter (Pillow's "bilinear"): an output pixel is the weighted mean of
// the source pixels around its centre, with a weight that falls to 0 at a distance of max(1, scale) source pixels.
// Enlarging, this is linear interpolation; shrinking, no source pixel is left out.
//
// Weights are functions of the position in the whole image, and multiples of 2^-14 that add up to 1. So the sums over
// bytes are exact (8 + 14 bits along a row fit float32, 14 more across rows fit float64; 16 bits fit float64 with
// both), and a pixel has the same bits in every box, whatever the order of additions. Sums of floats are rounded, in
// float64: there it is the order, from top to bottom and from left to right, that is the same in every box.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "tessera/geometry/box.h"

namespace tessera {

/// The part [begin, end) of one side of a source, in its pixels, becomes `size` pixels.
struct Stretch {
  double begin = 0, end = 0;
  std::int64_t source_size = 0;  ///< pixels that the source has; what is outside does not count
  std::int64_t size = 0;
  double scale() const { return (end - begin) / static_cast<double>(size); }
};

/// The source pixel nearest to the centre of an output pixel.
std::int64_t nearest(const Stretch& stretch, std::int64_t position);

/// For some output positions along one side: which source pixels count, and how much.
class Taps {
 public:
  Taps(const Stretch& stretch, Interval positions);

  std::int64_t count() const { return static_cast<std::int64_t>(taps_.size()); }
  /// Of the i-th of the positions. Begins and ends never decrease with i.
  const Interval& source(std::int64_t i) const { return taps_[static_cast<std::size_t>(i)].source; }
  const float* weights(std::int64_t i) const { return &weights_[taps_[static_cast<std::size_t>(i)].first_weight]; }
  /// All source pixels that count.
  Interval all() const {
    return taps_.empty() ? Interval{} : Interval{taps_.front().source.begin, taps_.back().source.end};
  }
  /// Each position is one source pixel, one after the other.
  bool identity() const { return identity_; }

 private:
  struct Tap {
    Interval source;
    std::size_t first_weight;
  };
  std::vector<Tap> taps_;
  std::vector<float> weights_;
  bool identity_ = true;
};

/// Takes the rows of a source box one by one and gives the rows of the output box as soon as they are complete: only
/// the rows that are under way are held. Pixels have their channels innermost. `Pixel` is uint8_t, uint16_t, float or
/// double.
template <class Pixel>
class Resampler {
 public:
  Resampler(const Taps& rows, const Taps& columns, std::int64_t channels);

  /// The next source row: rows.all() from top to bottom, each columns.all() wide. Calls emit(i, values) for each output
  /// row that it completes, in order; values are columns.count() × channels doubles.
  template <class Emit>
  void feed(const Pixel* row, const Emit& emit) {
    squeeze(row);
    for (; next_ < rows_.count() && rows_.source(next_).begin <= y_; ++next_) {
    }
    for (std::int64_t i = first_; i < next_; ++i) add(i);
    ++y_;
    for (; first_ < next_ && rows_.source(first_).end == y_; ++first_) emit(first_, slot(first_).data());
  }

 private:
  // Exact for bytes.
  using Partial = std::conditional_t<std::is_same_v<Pixel, std::uint8_t>, float, double>;

  void squeeze(const Pixel* row);
  template <int Channels>
  void squeeze_by(const Pixel* row);
  void add(std::int64_t i);
  std::vector<double>& slot(std::int64_t i) { return slots_[static_cast<std::size_t>(i) % slots_.size()]; }

  const Taps& rows_;
  const Taps& columns_;
  std::int64_t channels_;
  std::int64_t y_;                          // the next source row
  std::int64_t first_ = 0, next_ = 0;       // output rows under way
  std::vector<Partial> line_;               // the source row, resampled along itself
  std::vector<std::vector<double>> slots_;  // output row i lives in slot i % slots
};

extern template class Resampler<std::uint8_t>;
extern template class Resampler<std::uint16_t>;
extern template class Resampler<float>;
extern template class Resampler<double>;

}  // namespace tessera
