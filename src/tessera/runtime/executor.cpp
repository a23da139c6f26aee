#include "tessera/runtime/executor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "tessera/base/index.h"
#include "tessera/runtime/out_of_memory.h"

namespace tessera {
namespace {

StageWork work_of(const Graph& graph, const Parameters& parameters, const Wiring& wiring, const Program& program) {
  StageWork work{.graph = graph,
                 .program = program,
                 .kernels = {},
                 .plan = wiring.plan,
                 .layout = wiring.layout,
                 .meter = wiring.meter};
  for (const Step& step : program.steps)
    work.kernels.push_back(
        kernels().make({graph, step, [&](const Node& node) { return parameters.of(node); }, parameters.activations()}));
  return work;
}

// Of masks that cover `whole`, in rows and columns, the part where the member has `box`.
at::Tensor cut(const at::Tensor& masks, const Box& whole, const Box& box) {
  if (box.empty()) return {};
  return masks.narrow(1, box.height().begin - whole.height().begin, box.height().size())
      .narrow(2, box.width().begin - whole.width().begin, box.width().size());
}

}  // namespace

Executor::Executor(const Graph& graph, const Parameters& parameters, const Wiring& wiring, Recompute recompute)
    : graph_(graph),
      wiring_(wiring),
      program_(stage_program(graph, wiring.plan, wiring.layout, wiring.place.stage, recompute)),
      work_(work_of(graph, parameters, wiring, program_)) {
  const Plan& plan = wiring.plan;
  const auto& [direction, stage, first] = wiring.place;
  const int rank = plan.rank_of(direction, stage, first);
  std::vector<Plan::Place> places;
  for (int m = 0; m < plan.stages[index(stage)].members(); ++m)
    if (plan.rank_of(direction, stage, m) == rank) places.push_back({direction, stage, m});
  // By number, as a PostOffice wants it: their order decides that of messages between ranks.
  if (direction == Direction::up) std::reverse(places.begin(), places.end());
  if (plan.turns()) {
    std::vector<int> rank_of(index(plan.places()));
    for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s)
      for (int m = 0; m < plan.stages[index(s)].members(); ++m)
        rank_of[index(plan.number_of(direction, s, m))] = plan.rank_of(direction, s, m);
    office_ = std::make_unique<PostOffice>(wiring.pipeline, std::move(rank_of));
  }
  work_.fills_waits = wiring.pipeline != nullptr && places.size() == 1;
  work_.agrees_on_norms = wiring.norm != nullptr;
  work_.store = wiring.store;
  work_.turns = places.size() > 1;
  std::vector<int> members;
  for (const auto& place : places) members.push_back(place.member);
  const auto element_bytes = static_cast<std::int64_t>(parameters.activations().dtype().itemsize());
  waits_ = std::make_unique<Waits>(graph, program_, wiring.layout, stage, members, element_bytes, wiring.micros_alive);
  if (wiring.store) waits_->fit(wiring.room);
  work_.waits = waits_.get();
  members_.reserve(places.size());
  for (const auto& place : places) {
    Communicator* door = wiring.pipeline;
    if (office_)
      door = windows_.emplace_back(office_->window(Rank{plan.number_of(direction, stage, place.member)})).get();
    members_.emplace_back(work_, place, door, members_.size());
  }
}

at::Tensor Executor::agree(const Step& step, std::vector<Offer> offers, const std::function<void()>& meanwhile) const {
  Communicator* const group = step.agreement == Agreement::norm ? wiring_.norm : wiring_.tiles;
  if (!offers[0].data.defined()) return {};
  const bool gather = offers[0].how == Offer::How::gather;
  Offer mine = offers[0];
  if (offers.size() > 1) {
    std::vector<at::Tensor> all;
    for (const Offer& offer : offers) all.push_back(offer.data);
    mine.data = at::stack(all);
    if (!gather) mine.data = mine.data.sum(0);
  }
  if (group == nullptr) return gather && offers.size() > 1 ? mine.data : agreed_alone(mine);
  at::Tensor result;
  if (gather) {
    auto sizes = mine.data.sizes().vec();
    sizes.insert(sizes.begin(), group->size());
    result = at::empty(sizes, mine.data.options());
  } else {
    result = mine.data.clone(at::MemoryFormat::Contiguous);  // the rank's own part is still wanted
  }
  Pending pending = gather ? group->all_gather(mine.data, result) : group->all_reduce(result);
  if (meanwhile) meanwhile();
  const Meter::Timed timed(wiring_.meter, Part::norms);
  pending.wait();
  return gather && offers.size() > 1 ? result.flatten(0, 1) : result;
}

bool Executor::records() const {
  return std::all_of(work_.kernels.begin(), work_.kernels.end(), [](const auto& k) { return k->records(); });
}

void Executor::expect_values(MicroState& state, int micro, const at::TensorOptions& options) {
  if (state.members.empty()) state.members.resize(members());
  for (std::size_t m = 0; m < members(); ++m) members_[m].expect_values(state.members[m], micro, options);
}

void Executor::expect_gradients(MicroState& state) {
  for (std::size_t m = 0; m < members(); ++m) members_[m].expect_gradients(state.members[m]);
}

at::Tensor Executor::forward(MicroState& state, int micro, const ImagesOf& images, const PassInfo& pass,
                             const TakePart& take) {
  for (Member& member : members_) member.let_go_of_sent();
  expect_values(state, micro, pass.options);
  const Box loss = loss_box();
  const auto begin = [&](std::size_t m) {
    PassInfo mine = pass;
    if (members_[m].place() != wiring_.place)
      mine.statistics.share = 0;  // they have the same statistics: one hands them in
    if (pass.labels.defined() && pass.labels.dim() == 3)
      mine.labels = cut(pass.labels, loss, members_[m].owned_box_of(static_cast<int>(graph_.nodes().size()) - 1));
    const Box& image = members_[m].image_box();
    members_[m].begin_forward(state.members[m], image.empty() ? at::Tensor() : images(image), std::move(mine));
  };
  std::vector<Offer> offers(members());
  at::Tensor agreed;
  bool halfway = false;  // the first step of the phase has been agreed on
  int number = 0;
  const bool by_parts = take && makes_loss();
  for (const Phase& phase : waits_->phases().forward) {
    for (std::size_t m = 0; m < members(); ++m) {
      MemberState& mine = state.members[m];
      if (number == 0) begin(m);  // not all at once: images take memory
      if (wiring_.store && m + 1 < members()) members_[m + 1].look_ahead(state.members[m + 1], number);
      for (std::size_t s = phase.first; s < phase.end; ++s)
        naming_node(steps()[s].name, [&] {
          members_[m].forward_step(mine, s, halfway && s == phase.first ? agreed : at::Tensor(), number);
        });
      if (phase.offers) naming_node(steps()[phase.end].name, [&] { offers[m] = members_[m].offer(mine, phase.end); });
      const bool last = number + 1 == static_cast<int>(waits_->phases().forward.size());
      if (by_parts && last)
        take_part(m, mine, take);
      else if (wiring_.store)
        members_[m].put_down(mine, number);
    }
    ++number;
    if (office_) office_->dispatch();
    halfway = phase.offers;
    if (halfway) agreed = agree(steps()[phase.end], offers);
  }
  if (by_parts) return {};
  at::Tensor losses;
  for (std::size_t m = 0; m < members(); ++m) {
    members_[m].end_forward(state.members[m]);
    const int v = steps().back().output;
    if (!makes_loss() || !members_[m].owns(v)) continue;
    const at::Tensor sum = state.members[m].values[index(v)].data.sum(at::kDouble);
    losses = losses.defined() ? losses.add(sum) : sum;
  }
  return losses;
}

void Executor::take_part(std::size_t m, MemberState& state, const TakePart& take) {
  members_[m].end_forward(state);
  const int loss = steps().back().output;
  if (members_[m].owns(loss))
    take({.logits = members_[m].owned(state, steps().back().inputs[0]),
          .losses = members_[m].owned(state, loss),
          .kept = {},
          .labels = state.pass.labels});
  state = {};
}

void Executor::backward(MicroState& state, bool defer_weights, const WeightsDone& done) {
  for (Member& member : members_) member.let_go_of_sent();
  for (std::size_t m = 0; m < members(); ++m) members_[m].begin_backward(state.members[m]);
  const bool alone = members() == 1;
  std::vector<Offer> offers(members());
  at::Tensor agreed;
  bool halfway = false;
  int number = waits_->phases().first_of_backward();
  for (const Phase& phase : waits_->phases().backward) {
    for (std::size_t m = 0; m < members(); ++m) {
      MemberState& mine = state.members[m];
      Member& member = members_[m];
      if (wiring_.store && m + 1 < members()) members_[m + 1].look_ahead(state.members[m + 1], number);
      for (std::size_t s = phase.end; s-- > phase.first;)
        naming_node(steps()[s].name, [&] {
          const bool offered = halfway && s + 1 == phase.end;
          if (!offered) member.offer_gradient(mine, s, defer_weights);
          member.backward_step(mine, s, defer_weights, offered ? agreed : at::Tensor());
          if (s == 0 && !defer_weights)
            while (member.fill_wait(mine)) continue;
          if (m + 1 == members() && !defer_weights) complete(state, s, done);
        });
      if (phase.offers)
        naming_node(steps()[phase.first - 1].name,
                    [&] { offers[m] = member.offer_gradient(mine, phase.first - 1, defer_weights); });
      if (wiring_.store) member.put_down(mine, number);
    }
    ++number;
    if (office_) office_->dispatch();
    halfway = phase.offers;
    if (halfway)
      agreed = agree(steps()[phase.first - 1], offers, [&] {
        if (alone && !defer_weights) members_[0].fill_wait(state.members[0]);
      });
    for (Offer& offer : offers) offer = {};
  }
  if (!defer_weights) {
    state = {};
    return;
  }
  for (MemberState& mine : state.members) {
    MemberState rest;
    rest.pass = std::move(mine.pass);
    rest.deferred = std::move(mine.deferred);
    mine = std::move(rest);
  }
}

// After a step of backward on the last member: all members have gone so far, but for what they put off.
void Executor::complete(const MicroState& state, std::size_t s, const WeightsDone& done) const {
  if (!done) return;
  for (const MemberState& mine : state.members)
    if (!mine.deferred.empty()) s = std::max(s, mine.deferred.front().step + 1);
  if (s < steps().size()) done(steps()[s].complete_from);
}

void Executor::weight_gradients(MicroState& state, const WeightsDone& done) {
  for (std::size_t m = 0; m < members(); ++m) {
    MemberState& mine = state.members[m];
    while (!mine.deferred.empty()) {
      const std::size_t s = mine.deferred.front().step;
      members_[m].fill_wait(mine);
      if (done && m + 1 == members()) done(steps()[s].complete_from);
    }
  }
  if (done) done(steps().front().complete_from);
  state = {};
}

void Executor::keep_for_answer(Value v) {
  ensure(program_.producer[index(v.id)] >= 0, "value ", v.id, " is not made by this stage");
  work_.kept = v.id;
}

Executor::Answer Executor::take_answer(MicroState& state) {
  Answer answer;
  if (makes_loss()) {
    answer.logits = joined(state, steps().back().inputs[0]);
    answer.losses = joined(state, steps().back().output);
  }
  if (work_.kept >= 0 && !owned_box(work_.kept).empty()) answer.kept = joined(state, work_.kept);
  state = {};
  return answer;
}

Slab Executor::joined(MicroState& state, int v) const {
  Slab all;
  for (std::size_t m = 0; m < members(); ++m) {
    if (!members_[m].owns(v)) continue;
    const Slab part = members_[m].owned(state.members[m], v);
    if (part.box == owned_box(v)) return part;
    if (!all.defined()) all = empty_slab(owned_box(v), part.data.size(1), part.data.options());
    narrowed(all, part.box).data.copy_(part.data);
  }
  return all;
}

Box Executor::owned_box(int v) const {
  Box box;
  for (const Member& member : members_) box = hull(box, member.owned_box_of(v));
  return box;
}

std::vector<Box> Executor::image_boxes() const {
  std::vector<Box> boxes;
  for (const Member& member : members_)
    if (!member.image_box().empty()) boxes.push_back(member.image_box());
  return boxes;
}

Box Executor::loss_box() const {
  const int loss = static_cast<int>(graph_.nodes().size()) - 1;
  return steps().back().output == loss ? owned_box(loss) : Box{};
}

std::set<Rank> Executor::peers() const {
  std::set<Rank> out;
  for (const Member& member : members_)
    for (const Rank place : member.peers()) {
      const Rank rank = office_ ? office_->rank_of(place) : place;
      if (!wiring_.pipeline || rank != wiring_.pipeline->rank()) out.insert(rank);
    }
  return out;
}

void Executor::flush() {
  for (Member& member : members_) member.flush();
}

}  // namespace tessera
