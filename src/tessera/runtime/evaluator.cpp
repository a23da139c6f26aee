#include "tessera/runtime/evaluator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/data/padded.h"
#include "tessera/runtime/groups.h"
#include "tessera/runtime/image_delivery.h"
#include "tessera/schedule/schedule.h"

namespace tessera {
namespace {

int rank_in(const Communicator* world) { return world ? world->rank().value : 0; }

Plan::Place place_down(const Plan& plan, int rank) { return plan.places_of(rank % plan.ranks_per_replica()).front(); }

// Adds predictions up, in the order of the data set: the same sums on every plan.
class Tally {
 public:
  Tally(int classes, LabelKind kind) {
    result_.labels = kind;
    result_.confusion = Confusion(kind == LabelKind::several ? 2 : classes);
    if (kind != LabelKind::several) return;
    result_.by_class.assign(static_cast<std::size_t>(classes), Confusion(2));
    class_scores_.resize(result_.by_class.size());
    class_labels_.resize(result_.by_class.size());
  }

  void add(const Predictions& p) {
    if (p.several()) return add_several(p);
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
    if (result_.labels == LabelKind::several)
      rate_classes();
    else if (result_.confusion.classes() == 2)
      result_.auc = area_under_curve(scores_, labels_);
    return std::move(result_);
  }

 private:
  void add_several(const Predictions& p) {
    const std::int64_t classes = p.logits.size(1);
    for (std::int64_t i = 0; i < p.labels.size(0); ++i) {
      ++result_.images;
      if (!p.known(i)) continue;
      ++result_.labelled;
      loss_ += p.losses.data_ptr<double>()[i];
      for (std::int64_t k = 0; k < classes; ++k) {
        const double logit = p.logits.data_ptr<double>()[i * classes + k];
        const std::int64_t label = p.labels.data_ptr<std::int64_t>()[i * classes + k];
        const auto c = static_cast<std::size_t>(k);
        result_.confusion.add(label, logit > 0);
        result_.by_class[c].add(label, logit > 0);
        class_scores_[c].push_back(logit);
        class_labels_[c].push_back(label);
      }
    }
  }

  void rate_classes() {
    double sum = 0;
    int rated = 0;
    for (std::size_t c = 0; c < result_.by_class.size(); ++c) {
      const auto auc = area_under_curve(class_scores_[c], class_labels_[c]);
      result_.class_auc.push_back(auc);
      if (auc) sum += *auc, ++rated;
    }
    if (rated > 0) result_.auc = sum / rated;
  }

  Evaluation result_;
  double loss_ = 0;
  std::vector<double> scores_;
  std::vector<std::int64_t> labels_;
  std::vector<std::vector<double>> class_scores_;
  std::vector<std::vector<std::int64_t>> class_labels_;
};

}  // namespace

int Evaluator::stage_of(const Plan& plan, int rank) { return place_down(plan, rank).stage; }

Evaluator::Evaluator(const Graph& graph, const Plan& plan, const Parameters& parameters,
                     const EvaluatorOptions& options, std::shared_ptr<const ImageSource> images, Communicator* world)
    : graph_(graph),
      plan_(plan),
      parameters_(parameters),
      options_(options),
      images_(std::move(images)),
      world_(world),
      layout_(make_layout(graph, plan)),
      rank_(rank_in(world)),
      replica_(rank_ / plan.ranks_per_replica()),
      place_(place_down(plan, rank_)),
      pipeline_(world ? world->split(replica_, rank_) : nullptr),
      tile_group_(tile_group(world, plan, place_, replica_)),
      store_(make_store(options.store, options.device, options.scratch, options.leaving)),
      executor_(std::make_unique<Executor>(graph, parameters,
                                           Wiring{plan_, layout_, place_, pipeline_.get(), nullptr, tile_group_.get(),
                                                  &meter_, store_.get(), options.room},
                                           Recompute::norm)) {
  if (pipeline_) pipeline_->connect(executor_->peers());
  if (options.maps && place_.stage + 1 == static_cast<int>(plan.stages.size()))
    executor_->keep_for_answer(*options.maps);
}

Evaluation Evaluator::run(const Take& take, const TakeMaps& take_maps) {
  if (label_kind() == LabelKind::pixel) return run_masks({});
  const double start = now_seconds();
  Tally tally(classes(), label_kind());
  for_each_batch([&](RankImages& images, std::int64_t first, std::int64_t count) {
    PlanesBySample maps;
    const Predictions predictions = predict(images, first, count, maps);
    tally.add(predictions);
    if (take) take(predictions);
    if (options_.maps)
      gather(*options_.maps, at::kFloat, maps, first, count, [&](std::int64_t image, const at::Tensor& planes) {
        if (take_maps) take_maps({image, planes});
      });
  });
  return finished(tally.result(), start);
}

Evaluation Evaluator::run_masks(const TakeMask& take, const Wanted& wanted) {
  ensure(label_kind() == LabelKind::pixel, "masks of a network that labels images");
  const double start = now_seconds();
  const std::int64_t k = classes();
  Evaluation result{.images = images_->size(), .labels = LabelKind::pixel, .confusion = Confusion(classes())};
  double loss = 0;
  for_each_batch([&](RankImages& images, std::int64_t first, std::int64_t count) {
    at::Tensor counts = at::zeros({k * k}, at::kLong), losses = at::zeros({1}, at::kDouble);
    PlanesBySample masks;
    run_micros(images, first, count, [&](Interval samples, const Executor::Answer& answer) {
      const at::Tensor predicted = answer.logits.data.argmax(1), known = answer.labels.ne(ignored_label);
      const at::Tensor pairs = answer.labels.to(at::kLong).mul_(k).add_(predicted).masked_select(known);
      counts.add_(pairs.bincount({}, k * k).cpu());
      losses.add_(answer.losses.data.sum(at::kDouble).cpu());
      bool shown = take != nullptr;
      if (shown && wanted) {
        shown = false;
        for (std::int64_t i = samples.begin; i < samples.end; ++i) shown = shown || wanted(first + i);
      }
      if (!shown) return;
      const Box all = executor_->loss_box();
      at::Tensor& mask = masks[samples.begin];
      if (!mask.defined()) mask = at::empty({samples.size(), 1, all.height().size(), all.width().size()}, at::kByte);
      narrowed(Slab{mask, all}, answer.losses.box).data.copy_(predicted.unsqueeze(1));
    });
    // All ranks meet here, so none runs ahead by more than a batch.
    if (world_) {
      world_->all_reduce(counts).wait();
      world_->all_reduce(losses).wait();
    }
    for (std::int64_t i = 0; i < k * k; ++i)
      result.confusion.counts()[static_cast<std::size_t>(i)] += counts[i].item<std::int64_t>();
    loss += losses.item<double>();
    if (!take) return;
    const Value loss{static_cast<int>(graph_.nodes().size()) - 1};
    const auto take_plane = [&](std::int64_t image, const at::Tensor& mask) { take({image, mask.select(0, 0)}); };
    gather(loss, at::kByte, masks, first, count, take_plane, wanted);
  });
  result.labelled = result.confusion.total();
  if (result.labelled > 0) result.loss = loss / static_cast<double>(result.labelled);
  return finished(std::move(result), start);
}

Evaluation Evaluator::finished(Evaluation result, double start) {
  result.parts = meter_.take();
  result.seconds = now_seconds() - start;
  return result;
}

// Made anew for each run: between evaluations it would hold memory.
RankImages Evaluator::make_images() {
  LoaderOptions options = delivered_as(options_.activations(), options_.loader_workers);
  options.batch_size = batch();
  options.shuffle = false;
  if (label_kind() == LabelKind::pixel && images_->mask_classes() > 0) options.mask_dtype = at::kByte;
  std::vector<Interval> samples;
  for (int m = 0; m < plan_.micros(Direction::down); ++m) samples.push_back(samples_of(m));
  return {std::make_shared<Padded>(images_, batch()), options, *executor_, std::move(samples), meter_};
}

void Evaluator::for_each_batch(const RunBatch& run_batch) {
  // Kernels are called below autograd: it has nothing to record here.
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  parameters_.refresh();
  RankImages images = make_images();
  for (std::int64_t first = 0; first < images_->size(); first += batch()) {
    images.next_batch();
    run_batch(images, first, std::min(batch(), images_->size() - first));
  }
}

void Evaluator::run_micros(RankImages& images, std::int64_t first, std::int64_t count, const TakeAnswer& take) {
  const std::int64_t together = plan_.replicas * plan_.micro_size();  // images of a micro of all replicas
  const auto micros = static_cast<int>((count + together - 1) / together);
  const auto actions =
      make_forward_schedule(plan_, micros)[static_cast<std::size_t>(rank_ % plan_.ranks_per_replica())];
  std::vector<MicroState> states(actions.size());
  const at::TensorOptions options = options_.activations();
  for (std::size_t i = 0; i < actions.size(); ++i) {
    // The receives of the next action are posted before this one starts, so that its messages need not wait for it.
    if (i + 1 < actions.size()) executor_->expect_values(states[i + 1], actions[i + 1].micro, options);
    const Interval samples = samples_of(actions[i].micro);
    at::Tensor labels = images.of_micro(images.batch().masks, actions[i].micro);
    if (executor_->makes_loss() && !labels.defined()) labels = labels_of(samples, first);
    Executor::TakePart take_part;
    if (label_kind() == LabelKind::pixel) take_part = [&](const Executor::Answer& part) { take(samples, part); };
    executor_->forward(states[i], actions[i].micro, images.images_of(actions[i].micro), pass_of(samples, labels),
                       take_part);
    if (take_part && executor_->makes_loss()) continue;
    const Executor::Answer answer = executor_->take_answer(states[i]);
    if (answer.logits.defined() || answer.kept.defined()) take(samples, answer);
  }
  executor_->flush();
}

Predictions Evaluator::predict(RankImages& images, std::int64_t first, std::int64_t count, PlanesBySample& maps) {
  const std::int64_t k = classes();
  at::Tensor all = at::zeros({this->batch(), k + 1}, at::kDouble);
  run_micros(images, first, count, [&](Interval samples, const Executor::Answer& answer) {
    if (answer.kept.defined()) maps[samples.begin] = answer.kept.data.to(at::kFloat).cpu();
    if (!answer.logits.defined()) return;
    const at::Tensor rows = all.narrow(0, samples.begin, samples.size());
    rows.narrow(1, 0, k).copy_(answer.logits.data.flatten(1));
    rows.narrow(1, k, 1).copy_(answer.losses.data.flatten(1));
  });
  // Each row is zero on all ranks but one. All ranks meet here, so none runs ahead by more than a batch.
  if (world_) world_->all_reduce(all).wait();

  const bool several = label_kind() == LabelKind::several;
  Predictions out{first, all.narrow(0, 0, count).narrow(1, 0, k).contiguous(),
                  several ? at::full({count, k}, -1, at::kLong) : at::empty({count}, at::kLong),
                  all.narrow(0, 0, count).select(1, k).contiguous()};
  for (std::int64_t i = 0; i < count; ++i) {
    if (!several)
      out.labels.data_ptr<std::int64_t>()[i] = images_->label(first + i);
    else if (images_->label_set(first + i))
      fill_label_set(*images_, first + i, out.labels.select(0, i));
    if (!out.known(i)) out.losses.data_ptr<double>()[i] = 0;
  }
  return out;
}

void Evaluator::gather(Value value, at::ScalarType dtype, const PlanesBySample& mine, std::int64_t first,
                       std::int64_t count, const TakePlanes& take, const Wanted& wanted) {
  const int last = static_cast<int>(plan_.stages.size()) - 1;
  const Shape& shape = graph_.shape(value);
  const auto& owned = layout_.at(last, value.id).owned;
  for (std::int64_t i = 0; i < count; ++i) {
    if (wanted && !wanted(first + i)) continue;
    const std::int64_t micro = i / plan_.micro_size(), sample = i % plan_.micro_size();
    const int replica = static_cast<int>(micro % plan_.replicas);
    // Each rank that has a part of this one image; rank 0 needs all of it.
    Partition have{std::vector<Box>(static_cast<std::size_t>(plan_.ranks()))};
    std::vector<Box> need(have.boxes.size());
    need[0] = shape.box({0, 1});
    for (int m = 0; m < static_cast<int>(owned.size()); ++m) {
      Box box = owned[static_cast<std::size_t>(m)];
      if (!box.batch().contains(sample)) continue;
      box[Axis::batch] = {0, 1};
      const int rank = replica * plan_.ranks_per_replica() + plan_.rank_of(Direction::down, last, m);
      have.boxes[static_cast<std::size_t>(rank)] = hull(have.boxes[static_cast<std::size_t>(rank)], box);
    }
    at::Tensor part, whole;
    if (!have.boxes[static_cast<std::size_t>(rank_)].empty()) {
      const auto share = std::prev(mine.upper_bound(i));
      part = share->second.narrow(0, i - share->first, 1);
    }
    if (rank_ == 0) whole = at::empty({1, shape.channels, shape.height, shape.width}, dtype);
    if (world_)
      Exchange(have, need, Rank{rank_}).start(*world_, part, whole, make_tag({.movement = 0, .micro = 0})).finish();
    else
      whole = part;
    if (rank_ == 0) take(first + i, whole.select(0, 0).contiguous());
  }
}

Interval Evaluator::samples_of(int micro) const {
  return plan_.samples_of(place_).shifted((micro * plan_.replicas + replica_) * plan_.micro_size());
}

PassInfo Evaluator::pass_of(Interval samples, const at::Tensor& labels) {
  return {.labels = labels, .first_sample = samples.begin, .options = options_.activations(), .evaluating = true};
}

// The loss wants a label of every image: one that is blank or not known gets a loss that nobody looks at. Where there
// are no masks, no pixel has a label.
at::Tensor Evaluator::labels_of(Interval samples, std::int64_t first) const {
  if (label_kind() == LabelKind::pixel) {
    const Box box = executor_->loss_box();
    return at::full({samples.size(), box.height().size(), box.width().size()}, ignored_label,
                    options_.activations().dtype(at::kByte));
  }
  if (label_kind() == LabelKind::several) {
    const at::Tensor sets = at::zeros({samples.size(), classes()}, at::kLong);
    for (std::int64_t i = 0; i < samples.size(); ++i)
      if (const std::int64_t image = first + samples.begin + i; image < images_->size())
        fill_label_set(*images_, image, sets.select(0, i));
    return sets.to(options_.device);
  }
  at::Tensor labels = at::zeros({samples.size()}, at::kLong);
  std::int64_t* to = labels.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < samples.size(); ++i)
    if (const std::int64_t image = first + samples.begin + i; image < images_->size())
      to[i] = std::max<std::int64_t>(0, images_->label(image));
  return labels.to(options_.device);
}

}  // namespace tessera
