#include "tessera/plan/waits.h"

#include <algorithm>

#include "tessera/base/index.h"

namespace tessera {

Waits::Waits(const Graph& graph, const Program& program, const Layout& layout, int stage,
             const std::vector<int>& members, std::int64_t element_bytes, int micros)
    : phases_(phases_of(program, layout, stage)),
      micros_(micros),
      light_(program.light),
      light_in_forward_(program.light_in_forward) {
  const auto bytes_of = [&](int v, std::vector<Box> ValueLayout::*boxes) {
    std::vector<double> bytes(members.size());
    const ValueLayout& value = layout.at(stage, v);
    for (std::size_t m = 0; m < members.size() && value.used(); ++m)
      bytes[m] =
          static_cast<double>((value.*boxes)[index(members[m])].volume() * graph.shape({v}).channels * element_bytes);
    return bytes;
  };
  const auto finish = [&](Idle thing) { begin_[static_cast<std::size_t>(thing)].push_back(waits_.size()); };
  for (int v = 0; v < static_cast<int>(phases_.values.size()); ++v) {
    finish(Idle::value);
    add(Idle::value, v, phases_.values[index(v)], bytes_of(v, &ValueLayout::frame), phases_.made_again[index(v)]);
  }
  finish(Idle::value);
  for (int v = 0; v < static_cast<int>(phases_.gradients.size()); ++v) {
    finish(Idle::gradient);
    add(Idle::gradient, v, phases_.gradients[index(v)], bytes_of(v, &ValueLayout::held), false);
  }
  finish(Idle::gradient);
  for (int s = 0; s < static_cast<int>(program.steps.size()); ++s) {
    finish(Idle::saved);
    const Step& step = program.steps[index(s)];
    if (step.pointwise) continue;
    std::vector<double> bytes(members.size());
    const Node& node = graph.node({step.node});
    const ValueLayout& value = layout.at(stage, step.output);
    for (std::size_t m = 0; m < members.size() && value.used(); ++m)
      bytes[m] = node.op->workspace(graph.input_shapes(node), value.made[index(members[m])], element_bytes).saved;
    add(Idle::saved, s, phases_.saved[index(s)], bytes, false);
  }
  finish(Idle::saved);
}

bool Waits::crosses(const Wait& wait) const {
  return wait.from < phases_.first_of_backward() && wait.until >= phases_.first_of_backward();
}

void Waits::add(Idle thing, int id, const std::vector<int>& looks, const std::vector<double>& bytes, bool made_again) {
  if (std::all_of(bytes.begin(), bytes.end(), [](double b) { return b == 0; })) return;
  for (std::size_t i = 0; i + 1 < looks.size(); ++i) {
    const Wait wait{thing, id, looks[i], looks[i + 1], bytes, static_cast<int>(bytes.size())};
    // A member without company has no turns of others to wait for: only what backward wants waits.
    if (crosses(wait) ? !made_again : bytes.size() > 1) waits_.push_back(wait);
  }
}

const Wait* Waits::find(Idle thing, int id, int phase) const {
  const auto& begin = begin_[static_cast<std::size_t>(thing)];
  for (std::size_t w = begin[index(id)]; w < begin[index(id) + 1]; ++w)
    if (waits_[w].from <= phase && phase < waits_[w].until) return &waits_[w];
  return nullptr;
}

bool Waits::stays(Idle thing, int id, int phase, std::size_t m) const {
  const Wait* const wait = find(thing, id, phase);
  return wait == nullptr || static_cast<int>(m) < wait->staying;
}

// By phase: what waits after it. A micro that is through its forward waits whole, while others are at work.
std::vector<double> Waits::waiting(bool on_device) const {
  std::vector<double> bytes(index(phases_.count()));
  double between = 0;
  for (const Wait& wait : waits_) {
    if (!on_device && is_let_go(wait)) continue;
    const double away = wait.all_bytes(wait.staying), mine = on_device ? wait.all_bytes(0) - away : away;
    for (int p = wait.from; p < wait.until; ++p) bytes[index(p)] += mine;
    if (crosses(wait)) between += mine;
  }
  for (double& b : bytes) b += (micros_ - 1) * between;
  return bytes;
}

double Waits::most_staying() const {
  const auto bytes = waiting(true);
  return *std::max_element(bytes.begin(), bytes.end());
}
double Waits::most_away() const {
  const auto bytes = waiting(false);
  return *std::max_element(bytes.begin(), bytes.end());
}

double Waits::bytes_moved() const {
  double sum = 0;
  for (const Wait& wait : waits_)
    if (!is_let_go(wait)) sum += 2 * wait.all_bytes(wait.staying);
  return sum;
}

void Waits::fit(double room) {
  for (Wait& wait : waits_) wait.staying = room > 0 ? static_cast<int>(wait.bytes.size()) : 0;
  if (room <= 0) return;
  // Where several micros are alive, what waits for backward does so in all phases.
  const auto always = [&](const Wait& wait) { return micros_ > 1 && crosses(wait); };
  const auto length = [&](const Wait& wait) { return always(wait) ? phases_.count() : wait.until - wait.from; };
  while (true) {
    const std::vector<double> bytes = waiting(true);
    const auto worst = std::max_element(bytes.begin(), bytes.end());
    const int phase = static_cast<int>(worst - bytes.begin());
    double excess = *worst - room;
    if (excess <= 0) return;
    Wait* longest = nullptr;
    for (Wait& wait : waits_)
      if (wait.staying > 0 && (always(wait) || (wait.from <= phase && phase < wait.until)) &&
          (longest == nullptr || length(wait) > length(*longest)))
        longest = &wait;
    if (longest == nullptr) return;
    while (longest->staying > 0 && excess > 0) excess -= longest->bytes[index(--longest->staying)];
  }
}

}  // namespace tessera
