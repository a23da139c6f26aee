#include "tessera/oracle/verify.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tessera/oracle/reference_run.h"

namespace tessera {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// ‖ours - theirs‖ / ‖theirs‖, or over `floor` if that is larger.
double relative(const at::Tensor& ours, const at::Tensor& theirs, double floor) {
  const at::Tensor a = ours.cpu().to(at::kDouble), b = theirs.cpu().to(at::kDouble);
  const double difference = (a - b).norm().item<double>(), scale = b.norm().item<double>();
  if (!std::isfinite(difference) || !std::isfinite(scale)) return infinity;
  const double divisor = std::max(scale, floor);
  return divisor > 0 ? difference / divisor : difference;
}

at::Tensor one_number(double value) { return torch::full({1}, value, at::kDouble); }

/// What is compared after every step: the loss first, then each parameter's value and, if it is trained, gradient.
struct Item {
  enum class Kind { loss, value, gradient };
  Kind kind = Kind::loss;
  std::string name = {};
  ParameterSpec spec = {};

  std::string what() const {
    return kind == Kind::loss       ? "loss"
           : kind == Kind::gradient ? "gradient " + name
                                    : (spec.trainable ? "parameter " : "statistic ") + name;
  }
  at::Tensor of(const ReferenceRun& reference, double loss) const {
    return kind == Kind::loss       ? one_number(loss)
           : kind == Kind::gradient ? reference.gradient(name)
                                    : reference.value(name);
  }
  /// Undefined where this rank does not hold the parameter.
  at::Tensor of(const Trainer& trainer, double loss) const {
    if (kind == Kind::loss) return one_number(loss);
    const Parameter* mine = trainer.find(name);
    return !mine ? at::Tensor() : kind == Kind::gradient ? mine->sum : mine->value;
  }
};

std::vector<Item> items_of(const Graph& graph) {
  std::vector<Item> items(1);
  for (const auto& [name, spec] : graph.parameters()) {
    items.push_back({Item::Kind::value, name, spec});
    if (spec.trainable) items.push_back({Item::Kind::gradient, name, spec});
  }
  return items;
}

/// Of one item at one step.
struct Seen {
  double relative = 0;
  double rounding = 0;
  at::Tensor reference;  ///< rank 0: where the tolerance does not explain the difference
};

struct Step {
  std::vector<Seen> seen;      ///< by item
  std::vector<double> floors;  ///< by item: what a difference is measured against where the number itself is smaller
};

class Comparison {
 public:
  Comparison(const Graph& graph, at::ScalarType dtype, const VerifyOptions& rules, Communicator* world)
      : items_(items_of(graph)), dtype_(dtype), rules_(rules), world_(world) {}

  /// Every rank compares what it holds with what rank 0 has of the reference; the largest difference counts.
  void compare(const Trainer& trainer, const StepReport& report, const ReferenceRun* reference, double expected) {
    Step& step = steps_.emplace_back(Step{std::vector<Seen>(items_.size()), std::vector<double>(items_.size())});
    if (reference) step.floors = floors(*reference, report.learning_rate);
    at::Tensor least = torch::tensor(step.floors, at::kDouble);
    if (world_) world_->broadcast(least, Rank{0}).wait();
    std::vector<double> errors;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const Item& item = items_[i];
      step.floors[i] = least[static_cast<std::int64_t>(i)].item<double>();
      const at::Tensor theirs = shared(reference ? item.of(*reference, expected) : at::Tensor(), item);
      const at::Tensor ours = item.of(trainer, report.loss);
      errors.push_back(ours.defined() ? relative(ours, theirs, step.floors[i]) : 0);
    }
    at::Tensor all = torch::tensor(errors, at::kDouble);
    if (world_) world_->all_reduce(all, Reduce::max).wait();
    for (std::size_t i = 0; i < items_.size(); ++i) {
      Seen& seen = step.seen[i];
      seen.relative = all[static_cast<std::int64_t>(i)].item<double>();
      if (reference && beyond(seen)) seen.reference = items_[i].of(*reference, expected).cpu().clone();
    }
    compare_copies(trainer);
  }

  /// Whether a difference is left that nothing explains yet.
  bool wants_trial() const {
    return any_of([&](const Seen& seen) { return seen.relative > allowed(seen); }) &&
           !any_of([&](const Seen& seen) { return !std::isfinite(seen.relative); });
  }

  /// Measures how far another run of the reference, with other last bits, is from it. `trial` on rank 0 only.
  void measure_rounding(ReferenceRun* trial) {
    for (Step& step : steps_) {
      std::vector<double> moved;
      const double loss = trial ? trial->step() : 0;
      for (std::size_t i = 0; i < items_.size(); ++i) {
        if (!beyond(step.seen[i])) continue;
        moved.push_back(trial ? relative(items_[i].of(*trial, loss), step.seen[i].reference, step.floors[i]) : 0);
      }
      // Step by step, so that nobody waits for longer than a step takes.
      at::Tensor all = torch::tensor(moved, at::kDouble);
      if (world_) world_->broadcast(all, Rank{0}).wait();
      std::int64_t next = 0;
      for (Seen& seen : step.seen)
        if (beyond(seen)) seen.rounding = std::max(seen.rounding, all[next++].item<double>());
    }
  }

  Verification finish() const {
    Verification result;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      Difference worst;
      for (std::size_t s = 0; s < steps_.size(); ++s) {
        const Seen& seen = steps_[s].seen[i];
        const Difference here{items_[i].what(), static_cast<std::int64_t>(s), seen.relative, seen.rounding,
                              allowed(seen)};
        if (s == 0 || farther(here, worst)) worst = here;
      }
      result.worst.push_back(worst);
    }
    result.compared = static_cast<std::int64_t>(items_.size() * steps_.size());
    result.worst.insert(result.worst.end(), copies_.begin(), copies_.end());
    std::stable_sort(result.worst.begin(), result.worst.end(), farther);
    for (const Difference& d : result.worst) {
      result.beyond_tolerance += d.relative > rules_.tolerance ? 1 : 0;
      result.hidden += d.hidden() ? 1 : 0;
    }
    return result;
  }

 private:
  bool beyond(const Seen& seen) const { return seen.relative > rules_.tolerance; }
  // What is not finite cannot be put down to rounding.
  double allowed(const Seen& seen) const {
    return std::isfinite(seen.relative) ? std::max(rules_.tolerance, rules_.factor * seen.rounding) : rules_.tolerance;
  }
  static bool farther(const Difference& a, const Difference& b) {
    return a.relative / a.allowed > b.relative / b.allowed;
  }
  template <class Holds>
  bool any_of(const Holds& holds) const {
    return std::any_of(steps_.begin(), steps_.end(),
                       [&](const Step& step) { return std::any_of(step.seen.begin(), step.seen.end(), holds); });
  }

  // All ranks that hold a parameter must hold the same bits.
  void compare_copies(const Trainer& trainer) {
    if (!world_) return;
    constexpr std::int64_t nobody = std::numeric_limits<std::int64_t>::min();
    std::vector<std::int64_t> hashes;
    for (const Item& item : items_) {
      const Parameter* mine = item.kind == Item::Kind::value ? trainer.find(item.name) : nullptr;
      const std::int64_t hash = mine ? hash_of(mine->value) : 0;
      hashes.push_back(mine ? hash : nobody);
      hashes.push_back(mine ? -hash : nobody);
    }
    at::Tensor largest = torch::tensor(hashes, at::kLong);
    world_->all_reduce(largest, Reduce::max).wait();
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const auto at = static_cast<std::int64_t>(2 * i);
      if (items_[i].kind == Item::Kind::value &&
          largest[at].item<std::int64_t>() != -largest[at + 1].item<std::int64_t>())
        copies_.push_back({"copies of " + items_[i].name, static_cast<std::int64_t>(steps_.size()) - 1, infinity, 0,
                           rules_.tolerance});
    }
  }

  static std::int64_t hash_of(const at::Tensor& tensor) {
    const at::Tensor dense = tensor.cpu().contiguous();
    const std::string_view bytes(static_cast<const char*>(dense.data_ptr()), dense.nbytes());
    return static_cast<std::int64_t>(std::hash<std::string_view>{}(bytes) >> 2);
  }

  // Below the last bit of the largest gradient, and the step that it makes, a number is nothing but rounding. A running
  // mean is on the scale of the deviations around it, which divide whatever it is taken from.
  std::vector<double> floors(const ReferenceRun& reference, double learning_rate) const {
    const double gradient = last_bit(dtype_) * largest_gradient(reference);
    std::vector<double> floors;
    for (const Item& item : items_)
      floors.push_back(item.kind == Item::Kind::loss       ? 0
                       : item.kind == Item::Kind::gradient ? gradient
                       : item.spec.trainable               ? gradient * learning_rate
                                                           : deviation(reference, item.name));
    return floors;
  }

  // 0 of what is no running mean.
  double deviation(const ReferenceRun& reference, const std::string& name) const {
    constexpr std::string_view mean = "running_mean";
    if (!std::string_view(name).ends_with(mean)) return 0;
    const std::string variance = name.substr(0, name.size() - mean.size()) + "running_var";
    const bool known =
        std::any_of(items_.begin(), items_.end(), [&](const Item& item) { return item.name == variance; });
    return known ? reference.value(variance).to(at::kDouble).sqrt().norm().item<double>() : 0;
  }

  double largest_gradient(const ReferenceRun& reference) const {
    double largest = 0;
    for (const Item& item : items_)
      if (item.kind == Item::Kind::gradient)
        largest = std::max(largest, reference.gradient(item.name).norm().item<double>());
    return largest;
  }

  at::Tensor shared(const at::Tensor& mine, const Item& item) const {
    const bool counter = item.kind == Item::Kind::value && item.spec.sizes.empty();
    const at::ScalarType dtype = item.kind == Item::Kind::loss ? at::kDouble : counter ? at::kLong : dtype_;
    const std::vector<std::int64_t> sizes =
        item.kind == Item::Kind::loss ? std::vector<std::int64_t>{1} : item.spec.sizes;
    at::Tensor out = mine.defined() ? mine.cpu().to(dtype).contiguous() : torch::empty(sizes, dtype);
    if (world_) world_->broadcast(out, Rank{0}).wait();
    return out;
  }

  const std::vector<Item> items_;
  const at::ScalarType dtype_;
  const VerifyOptions rules_;
  Communicator* const world_;
  std::vector<Step> steps_;
  std::vector<Difference> copies_;  // that are not alike
};

}  // namespace

double verify_tolerance(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-10 : 1e-4; }

double Verification::largest() const {
  double largest = 0;
  for (const Difference& d : worst) largest = std::max(largest, d.relative);
  return largest;
}

Verification verify(const Graph& graph, const Plan& plan, const TrainOptions& options,
                    const std::shared_ptr<const ImageSource>& images, Communicator* world, VerifyOptions rules) {
  if (rules.tolerance <= 0) rules.tolerance = verify_tolerance(options.dtype);
  const bool has_reference = plan.ranks() == 1 || world->rank() == Rank{0};
  const auto reference = [&](int nudge) {
    return has_reference ? make_reference_run(graph, plan, options, images, nudge, rules.foreign.get()) : nullptr;
  };
  Comparison comparison(graph, options.dtype, rules, world);
  {
    Trainer trainer(graph, plan, options, images, world);
    const std::unique_ptr<ReferenceRun> right = reference(/*nudge=*/0);
    for (std::int64_t step = 0; step < options.steps; ++step) {
      const double expected = right ? right->step() : 0;
      const StepReport report = trainer.step();
      comparison.compare(trainer, report, right.get(), expected);
    }
  }
  for (int trial = 1; trial <= rules.trials && comparison.wants_trial(); ++trial)
    comparison.measure_rounding(reference(trial).get());
  return comparison.finish();
}

}  // namespace tessera
