#include "tessera/plan/phases.h"

#include <algorithm>

#include "tessera/base/index.h"

namespace tessera {
namespace {

// A phase ends where the next step looks at what other members make in it, or has to agree. All ranks cut alike.
std::vector<Phase> forward_phases(const Program& program, const Layout& layout, int stage) {
  const auto& steps = program.steps;
  std::vector<Phase> phases(1);
  std::vector<bool> made_here(program.producer.size());  // in the present phase, and needed by others
  const auto begin = [&](std::size_t s, bool offers) {
    phases.back().end = s;
    phases.back().offers = offers;
    phases.push_back({.first = s});
    made_here.assign(made_here.size(), false);
  };
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const Step& step = steps[s];
    if (std::any_of(step.inputs.begin(), step.inputs.end(), [&](int v) { return made_here[index(v)]; }))
      begin(s, false);
    if (step.agreement != Agreement::none) begin(s, true);
    if (layout.at(stage, step.output).exchanged) made_here[index(step.output)] = true;
  }
  phases.back().end = steps.size();
  return phases;
}

// From the last step to the first. A phase ends where a gradient comes back from other members, or where a step has to
// agree.
std::vector<Phase> backward_phases(const Program& program, const Layout& layout, int stage) {
  const auto& steps = program.steps;
  std::vector<Phase> phases(1);
  phases.back().end = steps.size();
  const auto begin = [&](std::size_t s, bool offers) {
    phases.back().first = s + 1;
    phases.back().offers = offers;
    phases.push_back({.end = s + 1});
  };
  for (std::size_t s = steps.size(); s-- > 0;) {
    if (layout.at(stage, steps[s].output).exchanged) begin(s, false);
    if (steps[s].agreement != Agreement::none) begin(s, true);
  }
  return phases;
}

// Goes through the phases, and notes what each looks at.
class Looks {
 public:
  Looks(const Program& program, Phases& phases)
      : program_(program), phases_(phases), remade_(program.producer.size(), false) {
    phases.values.resize(program.producer.size());
    phases.gradients.resize(program.producer.size());
    phases.saved.resize(program.steps.size());
    for (const Keep keep : program.keep) phases.made_again.push_back(keep == Keep::recomputed);
  }

  void run() {
    int number = 0;
    for (const Phase& phase : phases_.forward) {
      const std::size_t end = phase.end + (phase.offers ? 1 : 0);
      for (std::size_t s = phase.first; s < end; ++s) {
        const Step& step = program_.steps[s];
        for (const int v : step.inputs) {
          note(phases_.values[index(v)], number);
          if (program_.light_in_forward[index(v)])
            for (const int from : program_.steps[index(program_.producer[index(v)])].inputs)
              note(phases_.values[index(from)], number);
        }
        note(phases_.saved[s], number);
        if (s < phase.end) note(phases_.values[index(step.output)], number);
      }
      ++number;
    }
    for (const Phase& phase : phases_.backward) {
      const std::size_t first = phase.first - (phase.offers ? 1 : 0);
      for (std::size_t s = phase.end; s-- > first;) {
        const Step& step = program_.steps[s];
        for (std::size_t i = 0; i < step.inputs.size(); ++i)
          if (step.needs_input[i]) look(step.inputs[i], number);
        if (step.needs_output) look(step.output, number);
        note(phases_.saved[s], number);
        note(phases_.gradients[index(step.output)], number);
        if (s < phase.first) continue;
        for (const int v : step.inputs)
          if (v != 0) note(phases_.gradients[index(v)], number);
      }
      ++number;
    }
  }

 private:
  static void note(std::vector<int>& list, int phase) {
    if (list.empty() || list.back() != phase) list.push_back(phase);
  }
  // What is made again wants its inputs: once, or, where it costs little, whenever it is wanted.
  void look(int v, int phase) {
    const auto i = index(v);
    if (!phases_.values[i].empty() && phases_.values[i].back() == phase) return;
    note(phases_.values[i], phase);
    if (program_.keep[i] != Keep::recomputed || (remade_[i] && !program_.light[i])) return;
    remade_[i] = true;
    for (const int input : program_.steps[index(program_.producer[i])].inputs) look(input, phase);
  }

  const Program& program_;
  Phases& phases_;
  std::vector<bool> remade_;
};

}  // namespace

Phases phases_of(const Program& program, const Layout& layout, int stage) {
  Phases phases{.forward = forward_phases(program, layout, stage),
                .backward = backward_phases(program, layout, stage),
                .values = {},
                .gradients = {},
                .saved = {},
                .made_again = {}};
  Looks(program, phases).run();
  return phases;
}

}  // namespace tessera
