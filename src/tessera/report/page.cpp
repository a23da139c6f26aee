#include "tessera/report/page.h"

#include <fmt/format.h>

#include "tessera/report/markup.h"
#include "tessera/report/sections.h"

namespace tessera::report {
namespace {

// A document that is not as it should be costs its own part of the page, and no other.
template <class Section, class... Arguments>
std::string part(const Section& section, const Arguments&... arguments) {
  try {
    return section(arguments...);
  } catch (const Json::exception&) {
    return "";
  }
}

// What is of one run alone: pictures side by side where there are several.
std::string of_one_run(const RunDocuments& run, bool named) {
  const std::string cards = part(ranks, run) + part(plan_picture, run) + part(classes, run);
  const std::string wide = part(timeline, run) + part(samples, run);
  if (cards.empty() && wide.empty()) return "";
  return fmt::format("<article>{}<div class='cards'>{}</div>{}</article>\n",
                     named ? fmt::format("<h2>{}</h2>", escaped(run.name)) : "", cards, wide);
}

}  // namespace

std::string page(const std::vector<RunDocuments>& runs, const PageOptions& options) {
  std::string body = part(summary, runs) + part(benchmarks, runs) + part(scaling, runs);
  if (runs.size() > 1) {
    std::vector<std::string> names;
    for (const auto& run : runs) names.push_back(run.name);
    body += legend(names);
  }
  body += part(curves, runs);
  for (const RunDocuments& run : runs) body += of_one_run(run, runs.size() > 1);
  return fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>\n"
      "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
      "<meta name='color-scheme' content='light dark'>\n<title>{0}</title>\n<style>{1}</style></head>\n"
      "<body{2}><header><h1>{0}</h1></header><main>\n{3}</main>\n<script>{4}</script></body></html>\n",
      escaped(options.title), style_sheet(), options.watch ? " data-watch='1'" : "", body, script());
}

}  // namespace tessera::report
