// HTML and SVG as text: escaping, numbers, and the few shapes that the charts are made of.
#pragma once

#include <string>
#include <vector>

namespace tessera::report {

/// For text between tags and inside quoted attributes.
std::string escaped(const std::string& text);
/// "0.0312", "1.25k", "3.1e-07": short, for axes and tables.
std::string short_number(double value);
/// "128.3 MiB".
std::string short_bytes(double bytes);
/// "12 ms", "3.4 s", "2:05:07".
std::string short_seconds(double seconds);
/// A coordinate: one decimal is a tenth of a pixel.
std::string at(double coordinate);

/// Where a value lies on an axis.
struct Scale {
  double low = 0, high = 1;   ///< of values
  double begin = 0, end = 1;  ///< of pixels
  double operator()(double value) const { return begin + (value - low) / (high - low) * (end - begin); }
};
/// An axis that holds these values and ends at round numbers. `from_zero`: 0 is on it.
Scale scale_for(const std::vector<double>& values, double begin, double end, bool from_zero);
/// About `count` round numbers in [low, high].
std::vector<double> ticks(double low, double high, int count);

/// Shapes in pixels; `attributes` is put into the tag as it is: class='s0'.
std::string line(double x1, double y1, double x2, double y2, const std::string& attributes = "");
std::string rectangle(double x, double y, double width, double height, const std::string& attributes,
                      const std::string& title = "");
std::string words(double x, double y, const std::string& text, const std::string& attributes = "");
std::string polyline(const std::vector<double>& x, const std::vector<double>& y, const std::string& attributes);

/// A picture that takes the width it is given; `label` is read to those who do not see it.
std::string svg(double width, double height, const std::string& label, const std::string& inside,
                const std::string& attributes = "");
/// A titled box of the page.
std::string card(const std::string& title, const std::string& inside, const std::string& attributes = "");
/// Coloured squares with names: what is what in a chart. Colours are those of class s0, s1, ...
std::string legend(const std::vector<std::string>& names);

}  // namespace tessera::report
