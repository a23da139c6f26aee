#include "tessera/oracle/verify.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/oracle/autograd.h"

namespace tessera {
namespace {

// ‖ours - theirs‖ / ‖theirs‖, or over `floor` if that is larger.
double relative(const at::Tensor& ours, const at::Tensor& theirs, double floor = 0) {
  const at::Tensor a = ours.cpu().to(at::kDouble), b = theirs.cpu().to(at::kDouble);
  const double difference = (a - b).norm().item<double>(), scale = b.norm().item<double>();
  if (!std::isfinite(difference) || !std::isfinite(scale)) return std::numeric_limits<double>::infinity();
  const double divisor = std::max(scale, floor);
  return divisor > 0 ? difference / divisor : difference;
}

// The run that is known to be right.
class Reference {
 public:
  virtual ~Reference() = default;
  virtual double step() = 0;
  virtual at::Tensor gradient(const std::string& name) const = 0;
  virtual at::Tensor value(const std::string& name) const = 0;
};

class AutogradReference final : public Reference {
 public:
  AutogradReference(const Graph& graph, const Plan& plan, const TrainOptions& options,
                    const std::shared_ptr<const ImageSource>& images)
      : plan_(plan),
        oracle_(graph,
                Parameters(graph, 0, static_cast<int>(graph.nodes().size()), options.activations(), options.seed),
                options),
        batches_(images, {.batch_size = plan.batch_size,
                          .seed = options.seed,
                          .dtype = options.dtype,
                          .deliver = options.activations(),
                          .mask_dtype = mask_dtype(graph)}) {}
  double step() override {
    const Batch batch = batches_.next();
    return oracle_.step(batch.images, batch.masks.defined() ? batch.masks : batch.labels, plan_.parts);
  }
  at::Tensor gradient(const std::string& name) const override { return oracle_.gradient(name); }
  at::Tensor value(const std::string& name) const override { return oracle_.value(name); }

 private:
  static std::optional<at::ScalarType> mask_dtype(const Graph& graph) {
    return graph.label_kind() == LabelKind::pixel ? std::optional(at::kLong) : std::nullopt;
  }

  const Plan plan_;
  AutogradOracle oracle_;
  Loader batches_;
};

class SequentialReference final : public Reference {
 public:
  SequentialReference(const Graph& graph, const Plan& plan, const TrainOptions& options,
                      const std::shared_ptr<const ImageSource>& images)
      : trainer_(graph, sequential_plan(graph, plan), options, images) {}
  double step() override { return trainer_.step().loss; }
  at::Tensor gradient(const std::string& name) const override { return trainer_.find(name)->sum; }
  at::Tensor value(const std::string& name) const override { return trainer_.find(name)->value; }

 private:
  Trainer trainer_;
};

// Two numbers for each parameter (value and gradient) and one for the loss, of one step.
class Comparison {
 public:
  Comparison(const Graph& graph, at::ScalarType dtype, Communicator* world)
      : names_(graph.parameters()), dtype_(dtype), world_(world) {}

  // Every rank compares what it holds with what rank 0 has of the reference; the largest difference counts.
  void compare(const Trainer& trainer, const StepReport& report, const Reference* reference, double expected) {
    const double loss = report.loss;
    const double floor = shared(reference ? gradient_floor(*reference) : 0);
    expected = shared(expected);
    std::vector<double> errors{std::abs(loss - expected) / std::max(std::abs(expected), 1e-300)};
    for (const auto& [name, spec] : names_) {
      const Parameter* mine = trainer.find(name);
      const bool counter = spec.sizes.empty();
      const at::Tensor value =
          shared(reference ? reference->value(name) : at::Tensor(), spec.sizes, counter ? at::kLong : dtype_);
      errors.push_back(mine ? relative(mine->value, value, spec.trainable ? floor * report.learning_rate : 0) : 0);
      if (!spec.trainable) continue;
      const at::Tensor gradient = shared(reference ? reference->gradient(name) : at::Tensor(), spec.sizes, dtype_);
      errors.push_back(mine ? relative(mine->sum, gradient, floor) : 0);
    }
    at::Tensor all = torch::tensor(errors, at::kDouble);
    if (world_) world_->all_reduce(all, Reduce::max).wait();
    keep_worst(all);
    compare_copies(trainer);
    ++step_;
  }

  Verification finish() {
    result_.worst.insert(result_.worst.end(), copies_.begin(), copies_.end());
    std::stable_sort(result_.worst.begin(), result_.worst.end(),
                     [](const Difference& a, const Difference& b) { return a.relative > b.relative; });
    return std::move(result_);
  }

 private:
  // Some gradients are zero but for rounding (that of a bias before a norm, say), and so is a parameter that begins at
  // zero and only they move. What is far below the largest gradient is compared on this share of it, a parameter on the
  // step that this makes: still near the last digits of what it was summed from.
  double gradient_floor(const Reference& reference) const {
    double largest = 0;
    for (const auto& [name, spec] : names_)
      if (spec.trainable) largest = std::max(largest, reference.gradient(name).norm().item<double>());
    return largest * (dtype_ == at::kDouble ? 1e-4 : 1e-2);
  }

  // All ranks that hold a parameter must hold the same bits.
  void compare_copies(const Trainer& trainer) {
    if (!world_) return;
    constexpr std::int64_t nobody = std::numeric_limits<std::int64_t>::min();
    std::vector<std::int64_t> hashes;
    for (const auto& [name, spec] : names_) {
      const Parameter* mine = trainer.find(name);
      const std::int64_t hash = mine ? hash_of(mine->value) : 0;
      hashes.push_back(mine ? hash : nobody);
      hashes.push_back(mine ? -hash : nobody);
    }
    at::Tensor largest = torch::tensor(hashes, at::kLong);
    world_->all_reduce(largest, Reduce::max).wait();
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const auto at = static_cast<std::int64_t>(2 * i);
      if (largest[at].item<std::int64_t>() != -largest[at + 1].item<std::int64_t>())
        copies_.push_back({"copies of " + names_[i].first, step_, std::numeric_limits<double>::infinity()});
    }
  }

  static std::int64_t hash_of(const at::Tensor& tensor) {
    const at::Tensor dense = tensor.cpu().contiguous();
    const std::string_view bytes(static_cast<const char*>(dense.data_ptr()), dense.nbytes());
    return static_cast<std::int64_t>(std::hash<std::string_view>{}(bytes) >> 2);
  }

  at::Tensor shared(const at::Tensor& mine, const std::vector<std::int64_t>& sizes, at::ScalarType dtype) const {
    at::Tensor out = mine.defined() ? mine.cpu().to(dtype).contiguous() : torch::empty(sizes, dtype);
    if (world_) world_->broadcast(out, Rank{0}).wait();
    return out;
  }
  double shared(double mine) const {
    return shared(torch::full({1}, mine, at::kDouble), {1}, at::kDouble).item<double>();
  }

  void keep_worst(const at::Tensor& errors) {
    std::int64_t i = 0;
    const auto add = [&](const std::string& what) {
      const double error = errors[i].item<double>();
      const auto at = static_cast<std::size_t>(i++);
      ++result_.compared;
      if (at >= result_.worst.size())
        result_.worst.push_back({what, step_, error});
      else if (error > result_.worst[at].relative || std::isnan(error))
        result_.worst[at] = {what, step_, std::isnan(error) ? std::numeric_limits<double>::infinity() : error};
    };
    add("loss");
    for (const auto& [name, spec] : names_) {
      add((spec.trainable ? "parameter " : "statistic ") + name);
      if (spec.trainable) add("gradient " + name);
    }
  }

  const std::vector<std::pair<std::string, ParameterSpec>> names_;
  const at::ScalarType dtype_;
  Communicator* const world_;
  std::int64_t step_ = 0;
  Verification result_;
  std::vector<Difference> copies_;  // that are not alike
};

}  // namespace

double verify_tolerance(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-10 : 1e-4; }

Verification verify(const Graph& graph, const Plan& plan, const TrainOptions& options,
                    const std::shared_ptr<const ImageSource>& images, Communicator* world) {
  Trainer trainer(graph, plan, options, images, world);
  std::unique_ptr<Reference> reference;
  if (plan.ranks() == 1)
    reference = std::make_unique<AutogradReference>(graph, plan, options, images);
  else if (world->rank() == Rank{0})
    reference = std::make_unique<SequentialReference>(graph, plan, options, images);
  Comparison comparison(graph, options.dtype, world);
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const double expected = reference ? reference->step() : 0;
    const StepReport report = trainer.step();
    comparison.compare(trainer, report, reference.get(), expected);
  }
  return comparison.finish();
}

}  // namespace tessera
