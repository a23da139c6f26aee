#include "tessera/data/resample.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr double units = 1 << 14;

double centre_of(const Stretch& stretch, std::int64_t position) {
  return stretch.begin + (static_cast<double>(position) + 0.5) * stretch.scale();
}

std::int64_t inside(const Stretch& stretch, double at) {
  return std::clamp(static_cast<std::int64_t>(std::floor(at)), std::int64_t{0}, stretch.source_size - 1);
}

}  // namespace

std::int64_t nearest(const Stretch& stretch, std::int64_t position) {
  return inside(stretch, centre_of(stretch, position));
}

Taps::Taps(const Stretch& stretch, Interval positions) {
  ensure(stretch.size >= 1 && stretch.source_size >= 1 && stretch.end > stretch.begin, "nothing to stretch: [",
         stretch.begin, ",", stretch.end, ") of ", stretch.source_size, " to ", stretch.size);
  const double support = std::max(1.0, stretch.scale());
  taps_.reserve(static_cast<std::size_t>(positions.size()));
  std::vector<double> raw;
  for (std::int64_t position = positions.begin; position < positions.end; ++position) {
    const double centre = centre_of(stretch, position);
    const auto weight = [&](std::int64_t k) { return 1 - std::abs(static_cast<double>(k) + 0.5 - centre) / support; };
    Interval source{inside(stretch, centre - support), inside(stretch, centre + support) + 1};
    while (source.size() > 1 && weight(source.begin) <= 0) ++source.begin;
    while (source.size() > 1 && weight(source.end - 1) <= 0) --source.end;
    raw.clear();
    double sum = 0;
    for (std::int64_t k = source.begin; k < source.end; ++k) {
      raw.push_back(source.size() == 1 ? 1 : std::max(0.0, weight(k)));
      sum += raw.back();
    }
    taps_.push_back({source, weights_.size()});
    // Rounding the running sum, not each weight, makes them add up to exactly 1.
    double run = 0, given = 0;
    for (const double w : raw) {
      run += w;
      const double upto = std::nearbyint(run / sum * units);
      weights_.push_back(static_cast<float>((upto - given) / units));
      given = upto;
    }
    identity_ =
        identity_ && source.size() == 1 && source.begin == taps_.front().source.begin + (position - positions.begin);
  }
}

template <class Pixel>
Resampler<Pixel>::Resampler(const Taps& rows, const Taps& columns, std::int64_t channels)
    : rows_(rows), columns_(columns), channels_(channels), y_(rows.all().begin) {
  const auto width = static_cast<std::size_t>(columns.count() * channels);
  line_.resize(width);
  std::size_t most = 1;
  for (std::int64_t i = 0, first = 0; i < rows.count(); ++i) {
    while (rows.source(first).end <= rows.source(i).begin) ++first;
    most = std::max(most, static_cast<std::size_t>(i + 1 - first));
  }
  slots_.assign(most, std::vector<double>(width));
}

template <class Pixel>
template <int Channels>
void Resampler<Pixel>::squeeze_by(const Pixel* row) {
  const std::int64_t channels = Channels ? Channels : channels_, origin = columns_.all().begin;
  Partial* out = line_.data();
  for (std::int64_t i = 0; i < columns_.count(); ++i) {
    const Interval& source = columns_.source(i);
    const float* weights = columns_.weights(i);
    const Pixel* pixel = row + (source.begin - origin) * channels;
    for (std::int64_t c = 0; c < channels; ++c) out[c] = weights[0] * static_cast<Partial>(pixel[c]);
    for (std::int64_t k = 1; k < source.size(); ++k)
      for (std::int64_t c = 0; c < channels; ++c) out[c] += weights[k] * static_cast<Partial>(pixel[k * channels + c]);
    out += channels;
  }
}

template <class Pixel>
void Resampler<Pixel>::squeeze(const Pixel* row) {
  if (columns_.identity())
    std::copy_n(row, line_.size(), line_.data());
  else if (channels_ == 3)
    squeeze_by<3>(row);
  else
    squeeze_by<0>(row);
}

template <class Pixel>
void Resampler<Pixel>::add(std::int64_t i) {
  const Interval& source = rows_.source(i);
  const double weight = rows_.weights(i)[y_ - source.begin];
  double* sum = slot(i).data();
  const Partial* line = line_.data();
  const std::size_t width = line_.size();
  if (y_ == source.begin)
    for (std::size_t x = 0; x < width; ++x) sum[x] = weight * line[x];
  else
    for (std::size_t x = 0; x < width; ++x) sum[x] += weight * line[x];
}

template class Resampler<std::uint8_t>;
template class Resampler<std::uint16_t>;
template class Resampler<float>;
template class Resampler<double>;

}  // namespace tessera
