#include "tessera/planner/scaling.h"

#include <algorithm>
#include <charconv>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera {
namespace {

ScalingPoint point_of(int ranks, std::int64_t batch, const RankSearch& search) {
  ScalingPoint point{.ranks = ranks, .batch = batch, .best = {}};
  try {
    SearchResult found = search(ranks, batch);
    if (!found.best.empty())
      point.best = std::move(found.best.front());
    else if (found.smallest)
      point.problem = concat("no plan fits: the smallest needs ",
                             human_bytes(static_cast<std::int64_t>(found.smallest->peak())), " per rank");
  } catch (const UsageError& error) {
    point.problem = error.what();  // with this number of ranks; another may do
  }
  return point;
}

}  // namespace

std::pair<int, int> parse_scaling(const std::string& text) {
  const auto number = [&](std::string_view word) {
    int value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    require(error == std::errc() && end == word.data() + word.size() && !word.empty(), "--scaling ", text,
            " is not a range of ranks; write the smallest and the largest number, like --scaling 1..4096");
    return value;
  };
  const std::size_t dots = text.find("..");
  const int first = number(text.substr(0, dots));
  const int last = dots == std::string::npos ? first : number(text.substr(dots + 2));
  constexpr int most = 65'536;
  require(first >= 1 && last <= most, "--scaling ", text, " goes beyond what is possible; use numbers from 1 to ",
          most);
  require(first <= last, "--scaling ", text, " ends before it begins; use --scaling ", last, "..", first);
  return {first, last};
}

std::vector<int> doubled(std::pair<int, int> ranks) {
  std::vector<int> out;
  for (std::int64_t n = ranks.first; n <= ranks.second; n *= 2) out.push_back(static_cast<int>(n));
  return out;
}

Scaling scaling_of(std::pair<int, int> ranks, std::int64_t batch, const RankSearch& search) {
  Scaling out;
  for (const int n : doubled(ranks)) {
    out.strong.push_back(point_of(n, batch, search));
    const std::int64_t grown = batch * (n / ranks.first);
    out.weak.push_back(grown == batch ? out.strong.back() : point_of(n, grown, search));
  }
  return out;
}

double efficiency(const std::vector<ScalingPoint>& points, std::size_t i) {
  const auto per_rank = [](const ScalingPoint& p) { return p.images_per_second() / p.ranks; };
  const auto first = std::find_if(points.begin(), points.end(), [](const ScalingPoint& p) { return p.best; });
  return first == points.end() ? 0 : per_rank(points[i]) / per_rank(*first);
}

std::string limit_of(const Forecast& f) {
  const std::vector<std::pair<double, std::string>> parts{{f.talking, "margins and norms"},
                                                          {f.waiting(), "waiting for stages"},
                                                          {f.summing, "gradient sums"},
                                                          {f.updating, "optimizer"},
                                                          {f.reading, "reading images"}};
  const auto most = std::max_element(parts.begin(), parts.end());
  constexpr double little = 0.05;
  return most->first < little * f.seconds ? "computing" : most->second;
}

}  // namespace tessera
