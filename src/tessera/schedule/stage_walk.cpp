#include "tessera/schedule/stage_walk.h"

#include "tessera/base/index.h"

namespace tessera {
namespace {

std::vector<int> members_of(const std::vector<Plan::Place>& places) {
  std::vector<int> members;
  for (const auto& place : places) members.push_back(place.member);
  return members;
}

}  // namespace

StageWalk::StageWalk(const Graph& graph, const Plan& plan, const Layout& layout, const std::vector<Plan::Place>& places,
                     const FootprintOptions& options, int threads, int micros_alive, Ledger& ledger, Buffers& buffers)
    : program_(stage_program(graph, plan, layout, places[0].stage, options.recompute)),
      waits_(graph, program_, layout, places[0].stage, members_of(places), options.element_bytes, micros_alive),
      stage_{graph, plan, layout, program_, options, waits_, ledger, buffers, threads, places.size() > 1},
      micros_(index(static_cast<int>(plan.micros(places[0].direction)))) {
  for (auto& micro : micros_) micro.resize(places.size());
  if (options.store) waits_.fit(options.room / plan.directions());
  members_.reserve(places.size());
  for (const auto& place : places) members_.emplace_back(stage_, place, members_.size());
}

void StageWalk::expect(const Action& action) {
  auto& micro = micros_[index(action.micro)];
  for (std::size_t m = 0; m < members_.size(); ++m) {
    members_[m].expect_values(micro[m]);
    if (action.kind != Action::Kind::forward) members_[m].expect_gradients(micro[m]);
  }
}

void StageWalk::forget(const Action& action) {
  for (MemberMemory& mine : micros_[index(action.micro)]) mine = {};
}

void StageWalk::run(const Action& action) {
  auto& micro = micros_[index(action.micro)];
  switch (action.kind) {
    case Action::Kind::forward:
      return forward(micro);
    case Action::Kind::backward:
      return backward(micro, false);
    case Action::Kind::input_gradient:
      return backward(micro, true);
    case Action::Kind::weight_gradient:
      for (std::size_t m = 0; m < members_.size(); ++m)
        while (members_[m].fill_wait(micro[m])) continue;
      for (MemberMemory& mine : micro) mine = {};
      return;
    case Action::Kind::step:
      return;
  }
}

void StageWalk::forward(std::vector<MemberMemory>& micro) {
  for (std::size_t m = 0; m < members_.size(); ++m) members_[m].expect_values(micro[m]);
  int number = 0;
  for (const Phase& phase : waits_.phases().forward) {
    for (std::size_t m = 0; m < members_.size(); ++m) {
      MemberWalk& member = members_[m];
      if (number == 0) member.begin_forward(micro[m]);
      if (m + 1 < members_.size()) members_[m + 1].look_ahead(micro[m + 1], number);
      for (std::size_t s = phase.first; s < phase.end; ++s) member.forward_step(micro[m], s, number);
      if (phase.offers) member.offer(micro[m], phase.end);
      // Answers of pixels are taken tile by tile.
      const bool last = number + 1 == static_cast<int>(waits_.phases().forward.size());
      const bool made = program_.steps.back().output + 1 == static_cast<int>(stage_.graph.nodes().size());
      if (last && made && stage_.options.evaluating && stage_.graph.label_kind() == LabelKind::pixel)
        micro[m] = {};
      else if (stage_.options.store)
        member.put_down(micro[m], number);
    }
    for (MemberWalk& member : members_) member.end_phase();
    ++number;
  }
}

void StageWalk::backward(std::vector<MemberMemory>& micro, bool defer_weights) {
  for (std::size_t m = 0; m < members_.size(); ++m) members_[m].begin_backward(micro[m]);
  int number = waits_.phases().first_of_backward();
  bool halfway = false;
  for (const Phase& phase : waits_.phases().backward) {
    for (std::size_t m = 0; m < members_.size(); ++m) {
      MemberWalk& member = members_[m];
      if (m + 1 < members_.size()) members_[m + 1].look_ahead(micro[m + 1], number);
      for (std::size_t s = phase.end; s-- > phase.first;) {
        if (!(halfway && s + 1 == phase.end)) member.offer_gradient(micro[m], s, defer_weights);
        member.backward_step(micro[m], s, defer_weights);
        if (s == 0 && !defer_weights)
          while (member.fill_wait(micro[m])) continue;
      }
      if (phase.offers) member.offer_gradient(micro[m], phase.first - 1, defer_weights);
      if (stage_.options.store) member.put_down(micro[m], number);
    }
    for (MemberWalk& member : members_) member.end_phase();
    halfway = phase.offers;
    ++number;
  }
  for (std::size_t m = 0; m < members_.size(); ++m) {
    MemberMemory rest;
    if (defer_weights) {
      rest.expects_values = true;
      rest.deferred = std::move(micro[m].deferred);
    }
    micro[m] = std::move(rest);
  }
}

}  // namespace tessera
