#include "tessera/runtime/trainer.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/runtime/groups.h"
#include "tessera/runtime/image_delivery.h"
#include "tessera/runtime/loss_terms.h"
#include "tessera/schedule/footprint.h"

namespace tessera {
namespace {

// What those who read for a rank hand out counts as the rank's.
struct WorkerScope {
  WorkerScope(const MemoryAccountPtr& host_account, const MemoryAccountPtr& gpu_account)
      : host(host_account), gpu(gpu_account, c10::DeviceType::CUDA) {}
  MemoryScope host, gpu;
};

}  // namespace

static_assert(ignored_label == CrossEntropy::ignored_label, "what masks say and what the loss understands");

std::vector<int> owners_of(const Plan& plan) {
  std::vector<int> owners(plan.stages.size(), plan.ranks());
  for (int rank = 0; rank < plan.ranks_per_replica(); ++rank)
    for (const auto& place : plan.places_of(rank)) {
      int& owner = owners[static_cast<std::size_t>(place.stage)];
      owner = std::min(owner, rank);
    }
  return owners;
}

Trainer::Trainer(const Graph& graph, const Plan& plan, const TrainOptions& options,
                 std::shared_ptr<const ImageSource> images, Communicator* world)
    : graph_(graph), plan_(plan), options_(options), world_(world), layout_(make_layout(graph, plan)) {
  ensure(plan.ranks() == (world ? world->size() : 1), "a plan of ", plan.ranks(), " ranks on a world of ",
         world ? world->size() : 1);
  const int rank = world ? world->rank().value : 0, one = plan.ranks_per_replica();
  replica_ = rank / one;
  pipeline_ = world ? world->split(replica_, rank) : nullptr;
  actions_ = make_schedule(plan)[static_cast<std::size_t>(rank % one)];
  store_ = make_store(options.store, options.device, options.scratch, options.leaving);

  const auto places = plan.places_of(rank % one);
  const int node = plan.ranks_per_node > 0 ? rank / static_cast<int>(plan.ranks_per_node) : 0;
  for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
    const bool mine = std::any_of(places.begin(), places.end(), [&](const auto& p) { return p.stage == s; });
    Copies copies(group_of(world, mine ? 0 : -1, rank), options.device);
    if (!mine) continue;
    const Stage& stage = plan.stages[static_cast<std::size_t>(s)];
    Parameters parameters(graph, stage.first_node, stage.end_node, options.activations(), options.seed, copies);
    Optimizer optimizer(options.optimizer, parameters.flat_values(), parameters.flat_gradients(), copies);
    auto sync = std::make_unique<GradientSync>(parameters.flat_sums(), copies.group(), plan.grad_sync, node);
    held_.push_back(std::make_unique<Held>(
        Held{s, std::move(copies), std::move(parameters), std::move(optimizer), std::move(sync)}));
    Held& held = *held_.back();
    if (options.optimizer.average > 0)
      held.averages = std::make_unique<Averages>(options.optimizer.average, held.parameters, held.copies);
  }
  for (const auto& place : plan.first_places_of(rank % one)) add_worker(place, images);
  std::set<Rank> peers;
  for (const Worker& w : workers_) peers.merge(w.executor->peers());
  if (pipeline_) pipeline_->connect(peers);
  for (std::size_t i = 0; i < actions_.size(); ++i)
    if (actions_[i].kind != Action::Kind::step) worker(actions_[i]).held->last_action = i;
  if (world_) world_->waiting().set_doing([this] { return doing(); });
  if (options.device == at::kCUDA)
    there_ = {at::zeros({1}, options_.activations().dtype(at::kLong)),
              at::zeros({1}, options_.activations().dtype(at::kDouble)),
              at::zeros({1}, options_.activations().dtype(at::kDouble))};
  recordable_ = options.device == at::kCUDA && options.replay != TrainOptions::Replay::never && !store_ &&
                plan.repeats_itself() &&
                std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.executor->records(); });
}

Trainer::~Trainer() {
  if (world_) world_->waiting().set_doing(nullptr);
}

// For the lines of a rank that waits: "step 7, action B2 of stage 1".
std::string Trainer::doing() const {
  const Action& action = actions_[action_];
  return action.kind == Action::Kind::step
             ? concat("step ", step_ + 1, ", its update")
             : concat("step ", step_ + 1, ", action ", action, " of stage ", action.stage);
}

void Trainer::add_worker(const Plan::Place& place, const std::shared_ptr<const ImageSource>& images) {
  const int stages = static_cast<int>(plan_.stages.size());
  Worker& w = workers_.emplace_back();
  w.place = place;
  w.held = std::find_if(held_.begin(), held_.end(), [&](const auto& h) { return h->stage == place.stage; })->get();

  const int replicas_apart = plan_.batch_norm == NormScope::global ? 0 : replica_;
  auto norm = group_of(world_, replicas_apart * stages + place.stage, rank());
  if (plan_.batch_norm != NormScope::local) w.norm_group = std::move(norm);
  w.tile_group = tile_group(world_, plan_, place, replica_);

  w.executor = std::make_unique<Executor>(
      graph_, w.held->parameters,
      Wiring{plan_, layout_, place, pipeline_.get(), w.norm_group.get(), w.tile_group.get(), &meter_, store_.get(),
             options_.room / plan_.directions(), micros_alive(actions_, place.direction)},
      options_.recompute);
  LoaderOptions loader = delivered_as(options_.activations(), options_.loader_workers);
  loader.batch_size = plan_.global_batch();
  loader.seed = options_.seed;
  loader.worker_scope = [host = current_account(), gpu = current_gpu_account(), node = takes_blocks_of()] {
    take_blocks_of(node);
    return std::make_shared<WorkerScope>(host, gpu);
  };
  if (graph_.label_kind() == LabelKind::pixel) loader.mask_dtype = at::kByte;
  if (graph_.label_kind() == LabelKind::several) loader.label_sets_of = graph_.shape(graph_.logits()).channels;
  std::vector<Interval> samples;
  for (std::int64_t m = 0; m < plan_.micros(place.direction); ++m)
    samples.push_back(plan_.samples_of(place).shifted(plan_.first_sample(replica_, place.direction, m)));
  w.images = std::make_unique<RankImages>(images, loader, *w.executor, std::move(samples), meter_);
  w.micros.resize(static_cast<std::size_t>(plan_.micros(place.direction)));
}

Trainer::Worker& Trainer::worker(const Action& action) {
  return *std::find_if(workers_.begin(), workers_.end(),
                       [&](const Worker& w) { return w.place.direction == action.direction; });
}

StepReport Trainer::step() {
  const double start = now_seconds();
  // Kernels are called below autograd: it has nothing to record here.
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  StepReport report{.step = step_};
  for (Worker& w : workers_) {
    if (!w.images->reads()) continue;
    w.images->next_batch();
    report.epoch = w.images->batch().epoch;
  }
  loss_terms_ = count_loss_terms();
  if (there_.step.defined()) {
    there_.step.fill_(step_);
    there_.loss_share.fill_(loss_terms_ > 0 ? 1 / loss_terms_ : 0);
    there_.terms_per_sample.fill_(loss_terms_ / static_cast<double>(plan_.global_batch()));
  }
  const bool replayed = replay();
  if (!replayed) begin_step();
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    action_ = i;
    const double begin = now_seconds();
    if (actions_[i].kind == Action::Kind::step)
      update(report);
    else if (!replayed)
      run(i);
    if (events_) events_->push_back({actions_[i], step_, begin, now_seconds()});
  }
  ++step_;
  report.seconds = now_seconds() - start;
  report.parts = meter_.take();
  if (world_) world_->waiting().step_took(Waiting::Seconds(report.seconds));
  slow_steps_ = waits_for_host(report) ? slow_steps_ + 1 : 0;
  return report;
}

// A recording keeps its memory, so that others do not have it: where this is next to nothing it need not gain much.
bool Trainer::waits_for_host(const StepReport& report) const {
  constexpr double little = 0.1;
  if (!recordable_ || recording_) return false;
  if (options_.replay == TrainOptions::Replay::soon) return true;
  const double takes = static_cast<double>(peak_gpu_bytes()), free = free_gpu_bytes();
  if (takes > free) return false;  // there must be room for others beside the recording
  // Nothing to wait for at the end, and no images before: the GPU was done as soon as the host was.
  return report.part(Part::sync) + report.part(Part::data) < little * report.seconds ||
         takes < small_enough_to_record * free;
}

void Trainer::begin_step() const {
  for (const auto& held : held_) {
    held->parameters.flat_sums().zero_();
    held->parameters.refresh();
  }
}

// Whether the actions of the step were played from a recording. They are recorded after a few steps: by then libraries
// have chosen their algorithms, and it is known who waits for whom.
bool Trainer::replay() {
  if (!recordable_ || events_) return false;
  const int enough = options_.replay == TrainOptions::Replay::soon ? 1 : 5;
  if (!recording_) {
    if (slow_steps_ < enough) return false;
    for (Worker& w : workers_) w.images->keep_in_place();
    recording_ = record_kernels([&] {
      begin_step();
      for (std::size_t i = 0; i < actions_.size(); ++i)
        if (actions_[i].kind != Action::Kind::step) run(i);
    });
    const at::Tensor sum = std::exchange(loss_sum_, {});
    if (!recording_) {  // then as before
      recordable_ = false;
      for (Worker& w : workers_) {
        w.micros = std::vector<MicroState>(w.micros.size());
        w.images->leave_place();
      }
      return false;
    }
    recorded_loss_sum_ = sum;
  }
  recording_->play();
  loss_sum_ = recorded_loss_sum_;
  return true;
}

void Trainer::run(std::size_t index) {
  const Action& action = actions_[index];
  Worker& w = worker(action);
  MicroState& micro = w.micros[static_cast<std::size_t>(action.micro)];
  Executor::WeightsDone done;
  if (index == w.held->last_action)
    done = [&](int node) { w.held->sync->complete_from(w.held->parameters.offset_of(node)); };
  expect_next(index);
  switch (action.kind) {
    case Action::Kind::forward:
      forward(w, action.micro);
      break;
    case Action::Kind::backward:
      w.executor->backward(micro, /*defer_weights=*/false, done);
      break;
    case Action::Kind::input_gradient:
      w.executor->backward(micro, /*defer_weights=*/true);
      break;
    case Action::Kind::weight_gradient:
      w.executor->weight_gradients(micro, done);
      break;
    case Action::Kind::step:
      break;
  }
}

// Receives of the next actions are posted before this one starts, so that their messages need not wait for it.
void Trainer::expect_next(std::size_t index) {
  constexpr std::size_t ahead = 2;
  for (std::size_t i = index + 1; i < std::min(index + 1 + ahead, actions_.size()); ++i) {
    const Action& next = actions_[i];
    if (next.kind == Action::Kind::step || next.kind == Action::Kind::weight_gradient) continue;
    Worker& w = worker(next);
    MicroState& micro = w.micros[static_cast<std::size_t>(next.micro)];
    w.executor->expect_values(micro, next.micro, options_.activations());
    if (next.kind != Action::Kind::forward) w.executor->expect_gradients(micro);
  }
}

void Trainer::forward(Worker& w, int micro) {
  const bool solo = plan_.batch_norm == NormScope::local;
  const Stage& stage = plan_.stages[static_cast<std::size_t>(w.place.stage)];
  const std::int64_t first = plan_.first_sample(replica_, w.place.direction, micro);
  PassInfo pass{
      .seed = options_.seed,
      .step = step_,
      .loss_terms = loss_terms_,
      .labels = {},
      .first_sample = first,
      .statistics = {.micro = first / (plan_.global_batch() / plan_.global_micros()), .micros = plan_.global_micros()},
      .options = options_.activations(),
      .terms_per_sample = loss_terms_ / static_cast<double>(plan_.global_batch()),
      .there = there_};
  // Ranks that were normalised together have the same statistics: one of them hands them in. Alone, each has its own.
  const bool first_of_replicas = plan_.batch_norm != NormScope::global || replica_ == 0;
  pass.statistics.share = solo                                       ? 1.0 / static_cast<double>(stage.ranks.size())
                          : w.place.member == 0 && first_of_replicas ? 1
                                                                     : 0;
  const Batch& batch = w.images->batch();
  pass.labels = w.images->of_micro(batch.masks.defined() ? batch.masks : batch.labels, micro);
  const at::Tensor losses = w.executor->forward(w.micros[static_cast<std::size_t>(micro)], micro,
                                                w.images->images_of(micro), std::move(pass));
  if (losses.defined()) loss_sum_ = loss_sum_.defined() ? loss_sum_.add(losses) : losses;
}

// What the loss of this step is a mean of, over all ranks. How many pixels of the masks have a label, and how much the
// labels count, nobody knows before they are read.
double Trainer::count_loss_terms() {
  const bool by_pixel = graph_.label_kind() == LabelKind::pixel;
  const std::vector<double> weights = graph_.loss_weights();
  if (!by_pixel && weights.empty()) return static_cast<double>(plan_.global_batch());
  const Meter::Timed timed(&meter_, Part::data);
  double mine = 0;
  for (const Worker& w : workers_) {
    const Batch& batch = w.images->batch();
    const at::Tensor& labels = by_pixel ? batch.masks : batch.labels;
    if (labels.defined() && !w.executor->loss_box().empty())
      mine += weight_of_labels(labels, weights, graph_.label_kind());
  }
  return reduced(mine);
}

void Trainer::update(StepReport& report) {
  for (Worker& w : workers_) w.executor->flush();
  {
    const Meter::Timed timed(&meter_, Part::sync);
    for (const auto& held : held_) held->sync->finish();
    const bool any = loss_sum_.defined() && loss_terms_ > 0;
    const double mine = any ? loss_sum_.item<double>() / loss_terms_ : 0;
    loss_sum_.reset();
    report.loss = reduced(mine);
  }
  if (!std::isfinite(report.loss))
    throw NumericError(concat("the loss is ", report.loss, " at step ", step_ + 1,
                              "; try a smaller --lr, or --warmup-steps or --clip-norm"));
  if (options_.on_gradients) {
    std::vector<at::Tensor> gradients;
    for (const auto& held : held_)
      for (const Parameter& p : held->parameters.all())
        if (p.trainable) gradients.push_back(p.sum);
    options_.on_gradients(gradients);
  }
  report.learning_rate = learning_rate(options_.learning_rate, options_.optimizer.lr, step_, options_.steps);
  if (options_.optimizer.clip_norm > 0) {
    double squares = 0;
    for (const auto& held : held_) {
      const double norm = held->parameters.flat_gradients().norm().item<double>();
      squares += norm * norm / held->copies.count();
    }
    report.gradient_norm = std::sqrt(reduced(squares));
  }
  const Meter::Timed timed(&meter_, Part::optimizer);
  for (const auto& held : held_) {
    held->optimizer.clip(report.gradient_norm);
    held->optimizer.step(report.learning_rate);
    held->parameters.update_statistics(plan_.global_micros());
    if (held->averages) held->averages->follow(step_);
  }
  for (const auto& held : held_) held->copies.settle();
}

// The sum over all ranks.
double Trainer::reduced(double value) const {
  if (!world_) return value;
  const at::Tensor sum = at::full({1}, value, at::kDouble);
  world_->all_reduce(sum).wait();
  return sum.item<double>();
}

void Trainer::start_at(std::int64_t step) {
  step_ = step;
  for (const auto& held : held_) {
    held->optimizer.set_steps(step);
    // Copies set what they write of the tensors, each its own.
    held->copies.settle();
    // Weights that a run starts from are given as averages.
    if (!held->averages || step > 0) continue;
    held->averages->restart();
    held->copies.settle();
  }
  for (Worker& w : workers_) w.images->start_at(step);
}

void Trainer::swap_averages() {
  for (const auto& held : held_) {
    if (!held->averages) continue;
    held->copies.settle();  // nobody looks at the old ones any more
    held->averages->swap();
    held->copies.settle();
  }
}

RunTensors Trainer::tensors(Which which) const {
  const auto owners = owners_of(plan_);
  RunTensors out;
  for (const auto& held : held_) {
    if (which == Which::owned && owners[static_cast<std::size_t>(held->stage)] != rank()) continue;
    const auto state = held->optimizer.state();
    const auto& all = held->parameters.all();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Parameter& p = all[i];
      if (which == Which::held && p.trainable && !held->copies.writes(static_cast<std::int64_t>(i))) continue;
      const at::Tensor average = held->averages ? held->averages->of(p) : at::Tensor();
      out.model.emplace_back(p.name, p.stored(average.defined() ? average : p.value));
      if (average.defined()) out.optimizer.emplace_back(p.name + ".value", p.stored(p.value));
      if (!p.trainable) continue;
      for (const auto& s : state)
        out.optimizer.emplace_back(p.name + "." + s.name, p.stored(held->parameters.part_like(p, s.values)));
    }
  }
  return out;
}

std::vector<const Parameters*> Trainer::parameters() const {
  std::vector<const Parameters*> out;
  for (const auto& held : held_) out.push_back(&held->parameters);
  return out;
}

const Parameters& Trainer::parameters_of(int stage) const {
  const auto found = std::find_if(held_.begin(), held_.end(), [&](const auto& h) { return h->stage == stage; });
  ensure(found != held_.end(), "stage ", stage, " is not on this rank");
  return (*found)->parameters;
}

const Parameter* Trainer::find(const std::string& name) const {
  for (const auto& held : held_)
    if (const Parameter* p = held->parameters.find(name)) return p;
  return nullptr;
}

}  // namespace tessera
