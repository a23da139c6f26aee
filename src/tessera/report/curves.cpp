#include <fmt/format.h>

#include <algorithm>

#include "tessera/report/chart.h"
#include "tessera/report/markup.h"
#include "tessera/report/sections.h"

namespace tessera::report {
namespace {

struct Wanted {
  std::string title, train, validation;  // metrics; empty: none
  bool from_zero = false;
};

const std::vector<Wanted>& wanted() {
  static const std::vector<Wanted> all{
      {"Loss", "train/loss", "val/loss"},
      {"Accuracy on the validation set", "", "val/accuracy"},
      {"Mean IoU on the validation set", "", "val/mean_iou"},
      {"AUC on the validation set", "", "val/auc"},
      {"Learning rate", "train/learning_rate", "", true},
      {"Images per second", "speed/images_per_second", "", true},
      {"Peak memory of rank 0, bytes", "memory/peak_bytes", "", true},
  };
  return all;
}

// A loss jumps from batch to batch; the mean of the last few steps shows where it goes.
std::size_t window_of(std::size_t steps) { return std::max<std::size_t>(1, steps / 40); }

std::vector<Series> series_of(const Runs& runs, const Wanted& what, bool by_time) {
  std::vector<Series> out;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const std::string name = runs.size() > 1 ? runs[r].name + " " : "";
    const auto add = [&](const std::string& metric, const std::string& label, bool dots) {
      if (metric.empty()) return;
      Curve curve = curve_of(runs[r], metric);
      Series series{name + label, by_time ? curve.seconds : curve.steps, curve.values, static_cast<int>(r), dots};
      if (!dots && window_of(series.x.size()) > 1) {
        Series raw = series;
        raw.faint = true;
        out.push_back(std::move(raw));
        series = smoothed(series, window_of(series.x.size()));
      }
      out.push_back(std::move(series));
    };
    add(what.train, what.validation.empty() ? "" : "training", false);
    add(what.validation, what.train.empty() ? "" : "validation", true);
  }
  return out;
}

}  // namespace

std::string curves(const Runs& runs) {
  std::string cards;
  for (const Wanted& what : wanted()) {
    const std::string by_step = line_chart({what.title, "step", what.from_zero}, series_of(runs, what, false));
    const std::string by_time = line_chart({what.title, "seconds", what.from_zero}, series_of(runs, what, true));
    if (by_step.empty()) continue;
    const bool both = !what.train.empty() && !what.validation.empty();
    const bool has_dots = by_step.find("<circle") != std::string::npos;
    cards +=
        card(what.title,
             fmt::format("<div class='by-step'>{}</div><div class='by-time'>{}</div>{}", by_step, by_time,
                         both && has_dots ? "<p class='note'>Line: training; dashed with dots: validation.</p>" : ""));
  }
  if (cards.empty()) return "";
  return fmt::format(
      "<h2>Curves</h2><p class='switch'>over <button data-by='step' class='on'>steps</button>"
      "<button data-by='time'>time</button></p><div class='cards'>{}</div>\n",
      cards);
}

}  // namespace tessera::report
