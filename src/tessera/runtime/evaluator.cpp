#include "tessera/runtime/evaluator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/data/loader.h"
#include "tessera/data/padded.h"
#include "tessera/runtime/groups.h"
#include "tessera/schedule/schedule.h"

namespace tessera {
namespace {

int rank_in(const Communicator* world) { return world ? world->rank().value : 0; }

Plan::Place place_down(const Plan& plan, int rank) { return plan.places_of(rank % plan.ranks_per_replica()).front(); }

// Adds predictions up, in the order of the data set: the same sums on every plan.
class Tally {
 public:
  explicit Tally(int classes) { result_.confusion = Confusion(classes); }

  void add(const Predictions& p) {
    const std::int64_t classes = p.logits.size(1);
    const double *logits = p.logits.data_ptr<double>(), *losses = p.losses.data_ptr<double>();
    const std::int64_t* labels = p.labels.data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < p.labels.size(0); ++i, logits += classes) {
      ++result_.images;
      if (labels[i] < 0) continue;
      ++result_.labelled;
      loss_ += losses[i];
      result_.confusion.add(labels[i], std::max_element(logits, logits + classes) - logits);
      if (classes != 2) continue;
      // In the order of the probabilities, which are rounded to 0 or 1 where logits still tell apart.
      scores_.push_back(logits[1] - logits[0]);
      labels_.push_back(labels[i]);
    }
  }

  Evaluation result() {
    if (result_.labelled > 0) result_.loss = loss_ / static_cast<double>(result_.labelled);
    if (result_.confusion.classes() == 2) result_.auc = area_under_curve(scores_, labels_);
    return std::move(result_);
  }

 private:
  Evaluation result_;
  double loss_ = 0;
  std::vector<double> scores_;
  std::vector<std::int64_t> labels_;
};

}  // namespace

int Evaluator::stage_of(const Plan& plan, int rank) { return place_down(plan, rank).stage; }

Evaluator::Evaluator(const Graph& graph, const Plan& plan, const Parameters& parameters,
                     const EvaluatorOptions& options, std::shared_ptr<const ImageSource> images, Communicator* world)
    : graph_(graph),
      plan_(plan),
      options_(options),
      images_(std::move(images)),
      world_(world),
      layout_(make_layout(graph, plan)),
      rank_(rank_in(world)),
      replica_(rank_ / plan.ranks_per_replica()),
      place_(place_down(plan, rank_)),
      pipeline_(world ? world->split(replica_, rank_) : nullptr),
      tile_group_(tile_group(world, plan, place_, replica_)),
      executor_(std::make_unique<Executor>(graph, parameters, Wiring{plan_, layout_, place_, pipeline_.get(), &meter_},
                                           Recompute::norm)) {}

Evaluation Evaluator::run(const Take& take) {
  const double start = now_seconds();
  // Kernels are called below autograd: it has nothing to record here.
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  // Made anew each time: between evaluations it would hold memory.
  std::unique_ptr<Loader> loader;
  if (const Box& box = executor_->image_box(); !box.empty()) {
    LoaderOptions options{.batch_size = batch(),
                          .part = box,
                          .shuffle = false,
                          .dtype = options_.dtype,
                          .workers = options_.loader_workers};
    (*options.part)[Axis::batch] = {0, 0};
    for (int m = 0; m < plan_.micros(Direction::down); ++m) options.samples.push_back(samples_of(m));
    loader = std::make_unique<Loader>(std::make_shared<Padded>(images_, batch()), options);
  }
  Tally tally(static_cast<int>(graph_.input_shapes(graph_.nodes().back())[0].channels));
  for (std::int64_t first = 0; first < images_->size(); first += batch()) {
    Batch next;
    if (loader) {
      const Meter::Timed timed(&meter_, Part::data);
      next = loader->next();
    }
    const Predictions predictions = run_batch(next.images, first, std::min(batch(), images_->size() - first));
    tally.add(predictions);
    if (take) take(predictions);
  }
  Evaluation result = tally.result();
  result.parts = meter_.take();
  result.seconds = now_seconds() - start;
  return result;
}

Predictions Evaluator::run_batch(const at::Tensor& images, std::int64_t first, std::int64_t count) {
  const std::int64_t together = plan_.replicas * plan_.micro_size();  // images of a micro of all replicas
  const auto micros = static_cast<int>((count + together - 1) / together);
  const auto actions =
      make_forward_schedule(plan_, micros)[static_cast<std::size_t>(rank_ % plan_.ranks_per_replica())];
  const std::int64_t classes = graph_.input_shapes(graph_.nodes().back())[0].channels;
  at::Tensor all = at::zeros({micros * together, classes + 1}, at::kDouble);

  std::vector<MicroState> states(actions.size());
  const auto options = at::TensorOptions().dtype(options_.dtype);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    // The receives of the next action are posted before this one starts, so that its messages need not wait for it.
    if (i + 1 < actions.size()) executor_->expect_values(states[i + 1], actions[i + 1].micro, options);
    const Interval samples = samples_of(actions[i].micro);
    const at::Tensor mine =
        images.defined() ? images.narrow(0, actions[i].micro * samples.size(), samples.size()) : at::Tensor();
    executor_->forward(states[i], actions[i].micro, mine, pass_of(samples, first));
    const Executor::Answer answer = executor_->take_answer(states[i]);
    if (!answer.logits.defined()) continue;
    const at::Tensor rows = all.narrow(0, samples.begin, samples.size());
    rows.narrow(1, 0, classes).copy_(answer.logits.data.flatten(1));
    rows.narrow(1, classes, 1).copy_(answer.losses.data.flatten(1));
  }
  executor_->flush();
  // Each row is zero on all ranks but one. All ranks meet here, so none runs ahead by more than a batch.
  if (world_) world_->all_reduce(all).wait();

  Predictions out{first, all.narrow(0, 0, count).narrow(1, 0, classes).contiguous(), at::empty({count}, at::kLong),
                  all.narrow(0, 0, count).select(1, classes).contiguous()};
  for (std::int64_t i = 0; i < count; ++i) {
    out.labels.data_ptr<std::int64_t>()[i] = images_->label(first + i);
    if (images_->label(first + i) < 0) out.losses.data_ptr<double>()[i] = 0;
  }
  return out;
}

Interval Evaluator::samples_of(int micro) const {
  return plan_.samples_of(place_).shifted((micro * plan_.replicas + replica_) * plan_.micro_size());
}

PassInfo Evaluator::pass_of(Interval samples, std::int64_t first) {
  PassInfo pass{.labels = {},
                .first_sample = samples.begin,
                .options = at::TensorOptions().dtype(options_.dtype),
                .groups = {&meter_, nullptr, tile_group_.get()},
                .evaluating = true};
  if (!executor_->makes_loss()) return pass;
  // The loss wants a label of every image: one that is blank or not known gets a loss that nobody looks at.
  pass.labels = at::zeros({samples.size()}, at::kLong);
  std::int64_t* to = pass.labels.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < samples.size(); ++i)
    if (const std::int64_t image = first + samples.begin + i; image < images_->size())
      to[i] = std::max<std::int64_t>(0, images_->label(image));
  return pass;
}

}  // namespace tessera
