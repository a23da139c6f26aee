// Charts of numbers over steps or time, of one or several runs.
#pragma once

#include <string>
#include <vector>

namespace tessera::report {

struct Series {
  std::string name;
  std::vector<double> x, y;
  int colour = 0;      ///< which run it is of
  bool dots = false;   ///< a few values that stand for themselves: evaluations
  bool faint = false;  ///< drawn behind: what another one smooths
};

struct ChartOptions {
  std::string title;
  std::string x_unit;      ///< "step", "seconds"
  bool from_zero = false;  ///< the axis of values begins at 0
};

/// The chart alone, to be put into a card. Series without points are left out; empty if none has any. The points are
/// in the attribute data-series, too, from which the page's script reads what is under the pointer.
std::string line_chart(const ChartOptions& options, const std::vector<Series>& series);

/// At most about `most` points, which keep every peak: the smallest and the largest value of each stretch.
Series thinned(const Series& series, std::size_t most);
/// A running mean over the last `window` values.
Series smoothed(const Series& series, std::size_t window);

}  // namespace tessera::report
