#include <fmt/format.h>

#include <algorithm>

#include "tessera/report/markup.h"
#include "tessera/report/sections.h"

namespace tessera::report {
namespace {

constexpr std::size_t most_classes = 40;  // a larger matrix says nothing on a screen

// The newest evaluation that the documents have.
const Json& evaluation_of(const RunDocuments& run) {
  static const Json none;
  if (run.evaluation.is_object()) return run.evaluation;
  if (run.run.is_object() && run.run.contains("evaluation")) return run.run["evaluation"];
  const Json& all = list_at(run.run, {"evaluations"});
  return all.empty() ? none : all.back();
}

std::string class_name(const RunDocuments& run, const Json& evaluation, std::size_t k) {
  for (const Json* names : {&list_at(evaluation, {"class_names"}), &list_at(run.run, {"class_names"})})
    if (k < names->size() && (*names)[k].is_string()) return (*names)[k].get<std::string>();
  return std::to_string(k);
}

std::string cut(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // not inside of a letter
  return text.substr(0, end) + "…";
}

std::string matrix(const RunDocuments& run, const Json& evaluation) {
  const Json& counts = list_at(evaluation, {"confusion"});
  const std::size_t classes = counts.size();
  if (classes < 2 || classes > most_classes) return "";
  const double cell = std::clamp(320.0 / static_cast<double>(classes), 14.0, 56.0), left = 104, top = 74;
  const double side = cell * static_cast<double>(classes), width = left + side + 48, height = top + side + 8;
  std::string inside = words(left + side / 2, 12, "predicted", "class='axis middle'");
  for (std::size_t k = 0; k < classes; ++k) {
    const double middle = (static_cast<double>(k) + 0.5) * cell;
    const std::string name = cut(class_name(run, evaluation, k), 13);
    inside += words(left - 6, top + middle + 4, name, "class='axis end'");
    inside += fmt::format("<text class='axis' transform='translate({} {}) rotate(-45)'>{}</text>",
                          at(left + middle + 3), at(top - 6), escaped(name));
    if (!counts[k].is_array()) continue;
    double all = 0;
    for (const Json& count : counts[k]) all += count.is_number() ? count.get<double>() : 0;
    for (std::size_t p = 0; p < std::min(classes, counts[k].size()); ++p) {
      const double count = counts[k][p].is_number() ? counts[k][p].get<double>() : 0, share = all > 0 ? count / all : 0;
      const double x = left + static_cast<double>(p) * cell, y = top + static_cast<double>(k) * cell;
      inside += rectangle(x, y, cell - 1, cell - 1,
                          fmt::format("class='cell {}' style='--share:{:.3f}' data-count='{:.0f}'",
                                      k == p ? "good" : "bad", share, count),
                          fmt::format("{} taken for {}: {:.0f} ({:.1f} %)", class_name(run, evaluation, k),
                                      class_name(run, evaluation, p), count, 100 * share));
      if (cell >= 22 && count > 0)
        inside += words(x + cell / 2, y + cell / 2 + 4, short_number(count),
                        fmt::format("class='count{}'", share > 0.55 ? " light" : ""));
    }
  }
  return card("Confusion matrix", svg(width, height, "confusion matrix", inside, "class='confusion'") +
                                      "<p class='note'>One row per true class; darker: a larger share of the row.</p>");
}

std::string recalls(const RunDocuments& run, const Json& evaluation) {
  const Json& recall = list_at(evaluation, {"recall"});
  if (recall.empty() || recall.size() > 4 * most_classes) return "";
  const double width = 440, row = 20, left = 110, right = 60;
  const Scale across{0, 1, left, width - right};
  std::string inside;
  for (std::size_t k = 0; k < recall.size(); ++k) {
    const double y = 4 + static_cast<double>(k) * row;
    const bool known = recall[k].is_number();
    const double value = known ? recall[k].get<double>() : 0;
    inside += words(left - 6, y + 12, cut(class_name(run, evaluation, k), 16), "class='axis end'");
    inside += rectangle(left, y, across(1) - left, row - 6, "class='idle'");
    if (known)
      inside +=
          rectangle(left, y, across(value) - left, row - 6, fmt::format("class='part s0' data-recall='{:.4f}'", value));
    inside += words(across(1) + 6, y + 12, known ? fmt::format("{:.1f} %", 100 * value) : "none", "class='axis'");
  }
  return card("Recall of each class",
              svg(width, 8 + row * static_cast<double>(recall.size()), "recall by class", inside, "class='rows'"));
}

// The picture, with a mask over it where there is one.
std::string picture_under(const std::string& picture, const std::string& mask) {
  return fmt::format("<span><img src='{}' alt=''>{}</span>", escaped(picture),
                     mask.empty() ? "" : fmt::format("<img class='mask' src='{}' alt=''>", escaped(mask)));
}

}  // namespace

std::string classes(const RunDocuments& run) {
  const Json& evaluation = evaluation_of(run);
  if (!evaluation.is_object()) return "";
  return matrix(run, evaluation) + recalls(run, evaluation);
}

std::string samples(const RunDocuments& run) {
  std::string inside;
  for (const Json& sample : list_at(run.samples, {"samples"})) {
    const std::string picture = text_at(sample, {"picture"}), mask = text_at(sample, {"mask"});
    if (picture.empty()) continue;
    if (!mask.empty()) {
      for (const auto& [over, words] : {std::pair(text_at(sample, {"truth"}), "truth"), std::pair(mask, "prediction")})
        if (!over.empty())
          inside += fmt::format("<figure title='{}'>{}<figcaption>{}</figcaption></figure>",
                                escaped(text_at(sample, {"name"})), picture_under(picture, over), words);
      continue;
    }
    const std::string truth = text_at(sample, {"label"}), said = text_at(sample, {"predicted"});
    const bool known = !truth.empty() && !said.empty();
    std::string caption;
    if (!said.empty()) {
      caption = escaped(said);
      if (const auto p = number_at(sample, {"probability"})) caption += fmt::format(" {:.0f} %", 100 * *p);
      if (known && truth != said) caption += fmt::format("<br>is {}", escaped(truth));
    }
    inside += fmt::format("<figure class='{}' title='{}'>{}<figcaption>{}</figcaption></figure>",
                          !known          ? ""
                          : truth == said ? "right"
                                          : "wrong",
                          escaped(text_at(sample, {"name"})), picture_under(picture, ""), caption);
  }
  if (inside.empty()) return "";
  return card("Some images of the validation set", "<div class='samples'>" + inside + "</div>", "id='samples'");
}

}  // namespace tessera::report
