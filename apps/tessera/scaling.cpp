#include "scaling.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "tessera/base/text.h"
#include "tessera/io/json_file.h"
#include "tessera/io/report.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string scaling_table(const std::vector<ScalingPoint>& points) {
  Table table({"ranks", "batch", "images/s", "efficiency", "memory", "computes", "limited by", "plan"});
  for (std::size_t i = 0; i < points.size(); ++i) {
    const ScalingPoint& p = points[i];
    const std::string ranks = std::to_string(p.ranks), batch = std::to_string(p.batch);
    if (!p.best) {
      table.row({ranks, batch, "-", "-", "-", "-", p.problem, "-"});
      continue;
    }
    const Forecast& f = p.best->expected;
    table.row({ranks, batch, fmt::format("{:.3g}", p.images_per_second()),
               fmt::format("{:.0f}%", 100 * efficiency(points, i)),
               human_bytes(static_cast<std::int64_t>(p.best->peak())),
               fmt::format("{:.0f}%", 100 * f.computing / f.seconds), limit_of(f), words_of(p.best->flags())});
  }
  return table.str();
}

OrderedJson points_json(const std::vector<ScalingPoint>& points) {
  OrderedJson out = OrderedJson::array();
  for (std::size_t i = 0; i < points.size(); ++i) {
    const ScalingPoint& p = points[i];
    OrderedJson& point = out.emplace_back(OrderedJson{{"ranks", p.ranks}, {"batch", p.batch}});
    if (!p.best) {
      point["problem"] = p.problem;
      continue;
    }
    const Forecast& f = p.best->expected;
    point["images_per_second"] = p.images_per_second();
    point["efficiency"] = efficiency(points, i);
    point["memory_bytes"] = p.best->peak();
    point["limit"] = limit_of(f);
    point["seconds"] = {{"step", f.seconds},      {"computing", f.computing}, {"talking", f.talking},
                        {"waiting", f.waiting()}, {"summing", f.summing},     {"updating", f.updating},
                        {"reading", f.reading}};
    point["flags"] = p.best->flags();
  }
  return out;
}

}  // namespace

std::string scaling_tables(const Scaling& scaling) {
  return concat("strong scaling: the same batch on all\n", scaling_table(scaling.strong),
                "\nweak scaling: the batch grows with the ranks\n", scaling_table(scaling.weak));
}

std::string scaling_json(const Scaling& scaling, const Job& job, const Options& o, bool measured) {
  const Shape& image = job.graph.nodes().front().shape;
  return OrderedJson{{"model", o.model.name},
                     {"image", {image.channels, image.height, image.width}},
                     {"dtype", o.dtype},
                     {"machine", o.machine},
                     {"costs", measured ? "measured" : "estimated"},
                     {"strong", points_json(scaling.strong)},
                     {"weak", points_json(scaling.weak)}}
      .dump();
}

void write_scaling(const std::string& path, const std::string& json) {
  const BuildInfo build = build_info();
  write_json(path, {{"tessera", {{"version", build.version}, {"commit", build.commit}}},
                    {"scaling", OrderedJson::parse(json)}});
}

}  // namespace tessera
