#include "tessera/trials/rehearsal.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/index.h"
#include "tessera/base/meter.h"
#include "tessera/base/text.h"
#include "tessera/comm/threads/thread_communicator.h"
#include "tessera/runtime/conv_trials.h"
#include "tessera/runtime/executor.h"
#include "tessera/runtime/memory.h"
#include "tessera/runtime/recording.h"
#include "tessera/runtime/threads.h"

namespace tessera {
namespace {

// A group of which only one rank is there. Messages to others are lost; what comes from them is there at once, and has
// to be written to memory, as a message would. All others bring to a sum nothing, and to a gathering the same.
class Alone : public Communicator {
 public:
  Alone(Rank rank, int size) : Communicator(rank, size, "rehearsal", {}) {}
  std::string title(Rank rank) const override { return concat(rank); }
  Pending send(const Region&, Rank, Tag) override { return {}; }
  Pending receive(const Region& into, Rank, Tag) override {
    if (into.count() > 0) tensor_of(into).fill_(0.5);  // zeros would let some processors save power
    return {};
  }
  Pending all_reduce(at::Tensor, Reduce) override { return {}; }
  Pending broadcast(at::Tensor, Rank) override { return {}; }
  Pending all_gather(const at::Tensor& mine, at::Tensor into) override {
    into.copy_(mine.unsqueeze(0).expand_as(into));
    return {};
  }
  void barrier() override {}
  std::unique_ptr<Communicator> split(int, int) override { return std::make_unique<Alone>(rank(), size()); }
  [[noreturn]] void abort(const std::string& message, ExitCode) override { throw Error(message); }
};

// A GPU works behind the host's back, until somebody looks at a number.
void wait_for_device(const at::TensorOptions& options) {
  if (!options.device().is_cpu()) static_cast<void>(at::zeros({1}, options.dtype(at::kFloat)).item<float>());
}

int busiest_member(const Plan& plan, const Layout& layout, int stage) {
  const Stage& s = plan.stages[index(stage)];
  int best = 0;
  std::int64_t most = -1;
  for (int m = 0; m < s.members(); ++m) {
    std::int64_t volume = 0;
    for (int n = s.first_node; n < s.end_node; ++n)
      if (const ValueLayout& v = layout.at(stage, n); v.used()) volume += v.held[index(m)].volume();
    if (volume > most) {
      most = volume;
      best = m;
    }
  }
  return best;
}

at::Tensor labels_for(const Graph& graph, const Box& loss, std::int64_t samples) {
  switch (graph.label_kind()) {
    case LabelKind::pixel:
      return at::zeros({samples, loss.height().size(), loss.width().size()}, at::kByte);
    case LabelKind::several:
      return at::zeros({samples, graph.shape(graph.logits()).channels}, at::kLong);
    case LabelKind::image:
      break;
  }
  return at::zeros({samples}, at::kLong);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One of those that rehearse.
class Player {
 public:
  Player(const Rehearsal& r, const Plan& plan, const Layout& layout, int stage)
      : r_(r),
        plan_(plan),
        place_{Direction::down, stage, busiest_member(plan, layout, stage)},
        parameters_(r.graph, plan.stages[index(stage)].first_node, plan.stages[index(stage)].end_node, r.activations,
                    /*seed=*/1),
        pipeline_(Rank{plan.rank_of(Direction::down, stage, place_.member)}, plan.ranks_per_replica()),
        stage_group_(Rank{0}, static_cast<int>(plan.stages[index(stage)].ranks.size())),
        executor_(r.graph, parameters_,
                  Wiring{.plan = plan,
                         .layout = layout,
                         .place = place_,
                         .pipeline = plan.ranks_per_replica() > 1 ? &pipeline_ : nullptr,
                         .norm = stage_group_.size() > 1 ? &stage_group_ : nullptr,
                         .meter = &meter_},
                  r.recompute) {
    const std::int64_t samples = plan.samples_of(place_).size();
    for (const Box& box : executor_.image_boxes()) {
      const at::Tensor image = at::rand(
          {samples, r.graph.nodes()[0].shape.channels, box.height().size(), box.width().size()}, r.activations);
      images_.push_back(image.contiguous(at::MemoryFormat::ChannelsLast));
    }
    labels_ = labels_for(r.graph, executor_.loss_box(), samples).to(r.activations.device());
    parameters_.refresh();
  }

  Work play(bool split) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    parameters_.flat_sums().zero_();
    wait_for_device(r_.activations);
    const double begin = now_seconds();
    MicroState state;
    forward(state);
    wait_for_device(r_.activations);
    const double forward = now_seconds();
    executor_.backward(state, split);
    wait_for_device(r_.activations);
    const double backward = now_seconds();
    if (split) executor_.weight_gradients(state);
    executor_.flush();
    wait_for_device(r_.activations);
    return {forward - begin, backward - forward, split ? now_seconds() - backward : 0};
  }

  /// Seconds of so many micros in a row: the host of a GPU is ahead of it, and waits for it once, at the end.
  double play_in_a_row(bool split, int micros) {
    return timed([&] { in_a_row(split, micros); });
  }

  bool records() const { return executor_.records(); }
  /// Likewise, as they take when they are recorded (runtime/recording.h); nothing where they cannot be.
  std::optional<double> play_recorded(bool split, int micros) {
    if (!recording_) recording_ = record_kernels([&] { in_a_row(split, micros); });
    if (!recording_) return {};
    return timed([&] { recording_->play(); });
  }

 private:
  template <class Work>
  double timed(const Work& work) const {
    wait_for_device(r_.activations);
    const double begin = now_seconds();
    work();
    wait_for_device(r_.activations);
    return now_seconds() - begin;
  }

  void in_a_row(bool split, int micros) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    parameters_.flat_sums().zero_();
    parameters_.refresh();
    for (int i = 0; i < micros; ++i) {
      MicroState state;
      forward(state);
      executor_.backward(state, split);
      if (split) executor_.weight_gradients(state);
      executor_.flush();
    }
  }

  void forward(MicroState& state) {
    const PassInfo pass{.seed = 1, .labels = labels_, .options = r_.activations};
    std::size_t next = 0;
    executor_.forward(
        state, 0, [&](const Box&) { return images_[next++]; }, pass);
  }

  const Rehearsal& r_;
  const Plan& plan_;
  const Plan::Place place_;
  const Parameters parameters_;
  Alone pipeline_, stage_group_;
  Meter meter_;
  Executor executor_;
  std::vector<at::Tensor> images_;
  at::Tensor labels_;
  std::unique_ptr<Recording> recording_;
};

// What is quick is played often: its figures spread.
template <class Play>
auto played_often(const Play& play) {
  constexpr double enough = 0.25;
  constexpr int least = 2, most = 15;
  play();  // memory is mapped, and libraries compile
  std::vector<decltype(play())> all;
  const double begin = now_seconds();
  for (int i = 0; i < most && (i < least || now_seconds() - begin < enough); ++i) all.push_back(play());
  return all;
}

Work work_of(Player& player, const Rehearsal& r, const Plan& plan, bool split) {
  std::vector<double> forward, input, weight;
  for (const Work& w : played_often([&] { return player.play(split); })) {
    forward.push_back(w.forward);
    input.push_back(w.input_gradient);
    weight.push_back(w.weight_gradient);
  }
  const Work apart{median(forward), median(input), median(weight)};
  if (r.activations.device().is_cpu()) return apart;
  // On a GPU the passes of a step run into each other: what they take apart says only how they share it.
  constexpr int most_in_a_row = 8;
  const int micros = static_cast<int>(std::min<std::int64_t>(most_in_a_row, plan.micros(Direction::down)));
  double together = median(played_often([&] { return player.play_in_a_row(split, micros); }));
  // A trainer whose GPU waits for its host records its steps.
  if (plan.repeats_itself() && player.records() && player.play_recorded(split, micros))
    together = std::min(together, median(played_often([&] { return *player.play_recorded(split, micros); })));
  const double share = together / micros / apart.total();
  return {apart.forward * share, apart.input_gradient * share, apart.weight_gradient * share};
}

}  // namespace

Work rehearse(const Rehearsal& r, const Plan& plan, const Layout& layout, int stage, bool split) {
  if (r.activations.device().is_cpu()) install_cpu_allocator();
  std::vector<Work> all(index(r.company));
  run_thread_ranks(r.company, [&](Communicator& company) {
    use_threads(r.threads, r.company);
    Player player(r, plan, layout, stage);
    company.barrier();
    all[index(company.rank().value)] = work_of(player, r, plan, split);
    company.barrier();  // nobody is done while others still measure
  });
  Work mean;
  for (const Work& w : all) mean += w;
  // Those that share a core took longer by their number; what each of them computed counts.
  const double demand = r.company * r.threads, share = r.cores > 0 ? std::max(1.0, demand / r.cores) : 1;
  const double n = r.company * share;
  return {mean.forward / n, mean.input_gradient / n, mean.weight_gradient / n};
}

void choose_ways(const Rehearsal& r, const Plan& plan) {
  if (!r.activations.device().is_cpu() || r.activations.dtype() != at::kFloat) return;
  try_convolutions({.graph = r.graph,
                    .plan = plan,
                    .threads = std::vector<int>(index(plan.ranks_per_replica()), r.threads),
                    .activations = r.activations});
}

void rehearse_cells(const Rehearsal& r, std::int64_t samples, CellCosts& costs) {
  const int cells = static_cast<int>(r.graph.cells().size());
  PlanOptions options{.batch_size = samples};
  if (cells > 1) options.split_size = cells;
  options.balance = join(std::vector<std::string>(index(cells), "1"), ",");
  const Plan plan = make_plan(r.graph, options);
  const Layout layout = make_layout(r.graph, plan);
  choose_ways(r, plan);
  for (int cell = 0; cell < cells; ++cell)
    costs.add(cell, r.threads, static_cast<double>(samples), rehearse(r, plan, layout, cell, /*split=*/true));
}

double update_rate(const OptimizerOptions& options, const at::TensorOptions& activations, int threads) {
  constexpr std::int64_t elements = 4 << 20;
  double seconds = 0;
  run_thread_ranks(1, [&](Communicator&) {
    use_threads(threads, 1);
    const at::TensorOptions wide = activations.dtype(activations.dtype() == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor values = at::rand({elements}, wide), gradients = at::rand({elements}, wide);
    Optimizer optimizer(options, values, gradients);
    std::vector<double> times;
    for (int i = 0; i < 6; ++i) {
      wait_for_device(activations);
      const double begin = now_seconds();
      optimizer.step(1e-6);
      gradients.zero_();
      wait_for_device(activations);
      if (i > 0) times.push_back(now_seconds() - begin);
    }
    seconds = median(times);
  });
  return 4.0 * static_cast<double>(elements) / seconds;
}

}  // namespace tessera
