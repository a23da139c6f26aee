#include "rank_figures.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace tessera {
namespace {

using Rows = std::vector<std::vector<double>>;

// Peak bytes, seconds of a step, and the parts of these.
std::vector<double> means_of(const std::vector<StepReport>& steps, std::int64_t peak_bytes) {
  std::vector<double> out(2 + static_cast<std::size_t>(Part::count));
  out[0] = static_cast<double>(peak_bytes);
  // The first step also pays for memory and for the choice of kernels.
  const std::size_t first = steps.size() > 1 ? 1 : 0;
  const auto counted = static_cast<double>(steps.size() - first);
  for (std::size_t s = first; s < steps.size(); ++s) {
    out[1] += steps[s].seconds / counted;
    for (std::size_t p = 0; p < steps[s].parts.size(); ++p) out[2 + p] += steps[s].parts[p] / counted;
  }
  return out;
}

// The rows of all ranks, each of `fields` numbers; ranks may have different numbers of rows.
std::vector<Rows> gathered(const Rows& mine, std::int64_t fields, Communicator& world) {
  const at::Tensor count = at::full({1}, static_cast<std::int64_t>(mine.size()), at::kLong);
  at::Tensor counts = at::empty({world.size(), 1}, at::kLong);
  world.all_gather(count, counts).wait();
  const std::int64_t most = std::max<std::int64_t>(1, counts.max().item<std::int64_t>());
  at::Tensor local = at::zeros({most, fields}, at::kDouble), all = at::empty({world.size(), most, fields}, at::kDouble);
  double* to = local.data_ptr<double>();
  for (const auto& row : mine) to = std::copy(row.begin(), row.end(), to);
  world.all_gather(local, all).wait();
  std::vector<Rows> out(static_cast<std::size_t>(world.size()));
  for (int r = 0; r < world.size(); ++r)
    for (std::int64_t i = 0; i < counts[r][0].item<std::int64_t>(); ++i) {
      const double* from = all.data_ptr<double>() + (r * most + i) * fields;
      out[static_cast<std::size_t>(r)].emplace_back(from, from + fields);
    }
  return out;
}

double number(auto value) { return static_cast<double>(value); }

void gather_means(const RankFigures& mine, Communicator& world, RunReport& report) {
  const auto means = means_of(mine.steps, mine.peak_bytes);
  report.peak_bytes.clear();
  report.rank_seconds.clear();
  report.rank_parts.clear();
  for (const Rows& rank : gathered({means}, static_cast<std::int64_t>(means.size()), world)) {
    report.peak_bytes.push_back(static_cast<std::int64_t>(rank[0][0]));
    report.rank_seconds.push_back(rank[0][1]);
    std::copy(rank[0].begin() + 2, rank[0].end(), report.rank_parts.emplace_back().begin());
  }
}

void gather_events(const RankFigures& mine, Communicator& world, RunReport& report) {
  Rows actions, spans;
  for (const auto& e : mine.events)
    actions.push_back({number(e.action.kind), number(e.action.stage), number(e.action.micro),
                       number(e.action.direction), number(e.step), e.begin, e.end});
  for (const auto& s : mine.spans) spans.push_back({number(s.part), s.begin, s.end});
  report.events.clear();
  report.spans.clear();
  for (const Rows& rank : gathered(actions, 7, world)) {
    auto& out = report.events.emplace_back();
    for (const auto& row : rank)
      out.push_back({{static_cast<Action::Kind>(row[0]), static_cast<int>(row[1]), static_cast<int>(row[2]),
                      static_cast<Direction>(row[3])},
                     static_cast<std::int64_t>(row[4]),
                     row[5],
                     row[6]});
  }
  for (const Rows& rank : gathered(spans, 3, world)) {
    auto& out = report.spans.emplace_back();
    for (const auto& row : rank) out.push_back({static_cast<Part>(row[0]), row[1], row[2]});
  }
}

}  // namespace

void gather_figures(const RankFigures& mine, Communicator& world, RunReport& report) {
  gather_means(mine, world, report);
  gather_events(mine, world, report);
}

}  // namespace tessera
