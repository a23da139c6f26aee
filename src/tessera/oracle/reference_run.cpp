#include "tessera/oracle/reference_run.h"

#include <torch/types.h>

#include <cmath>
#include <limits>

#include "tessera/base/random.h"
#include "tessera/oracle/autograd.h"

namespace tessera {
namespace {

// Which coins: of which trial, for what, and which one of these.
struct Throw {
  int trial;
  std::uint64_t what, number;
};

// +1 or -1. Torch's generator looks at 32 bits of its seed: so they are drawn from all of `by`.
at::Tensor coins(const at::Tensor& like, const Throw& by) {
  const auto generator =
      at::make_generator<at::CPUGeneratorImpl>(philox(static_cast<std::uint64_t>(by.trial), by.what, by.number)[0]);
  const auto options = at::TensorOptions().dtype(like.scalar_type());
  return at::randint(0, 2, like.sizes(), generator, options).mul_(2).sub_(1).to(like.device());
}

// Adds or takes away the last bit of every number.
void change_last_bits(const at::Tensor& numbers, const Throw& by) {
  const torch::NoGradGuard no_gradients;
  numbers.add_(numbers.mul(coins(numbers, by)), last_bit(numbers.scalar_type()));
}

// Adds or takes away the last bit of the largest of the tensors from each.
void change_last_bits_of_largest(const std::vector<at::Tensor>& tensors, Throw by) {
  const torch::NoGradGuard no_gradients;
  double largest = 0;
  for (const at::Tensor& t : tensors) largest = std::max(largest, t.norm().item<double>());
  for (const at::Tensor& t : tensors) {
    if (t.numel() == 0) continue;
    ++by.number;
    t.add_(coins(t, by), last_bit(t.scalar_type()) * largest / std::sqrt(static_cast<double>(t.numel())));
  }
}

// What coins are thrown for; gradients have one of their own in each step.
enum : std::uint64_t { of_images, of_values, of_gradients };

class NudgedImages final : public ImageSource {
 public:
  NudgedImages(std::shared_ptr<const ImageSource> source, int trial) : source_(std::move(source)), trial_(trial) {}

  std::int64_t size() const override { return source_->size(); }
  int classes() const override { return source_->classes(); }
  std::array<std::int64_t, 3> image_shape() const override { return source_->image_shape(); }
  std::int64_t label(std::int64_t index) const override { return source_->label(index); }
  std::optional<std::vector<std::int64_t>> label_set(std::int64_t index) const override {
    return source_->label_set(index);
  }
  int mask_classes() const override { return source_->mask_classes(); }
  void read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override {
    source_->read(key, rows, columns, out);
    change_last_bits(out, {trial_, of_images, static_cast<std::uint64_t>(key.index)});
  }
  void read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override {
    source_->read_mask(key, rows, columns, out);
  }
  std::string describe() const override { return source_->describe(); }

 private:
  std::shared_ptr<const ImageSource> source_;
  int trial_;
};

class AutogradReference final : public ReferenceRun {
 public:
  AutogradReference(const Graph& graph, const Plan& plan, const TrainOptions& options,
                    const std::shared_ptr<const ImageSource>& images, const ForeignModule* foreign)
      : plan_(plan),
        oracle_(graph,
                Parameters(graph, 0, static_cast<int>(graph.nodes().size()), options.activations(), options.seed),
                options, foreign),
        batches_(images,
                 {.batch_size = plan.batch_size,
                  .seed = options.seed,
                  .dtype = options.dtype,
                  .deliver = options.activations(),
                  .label_sets_of = graph.label_kind() == LabelKind::several ? graph.shape(graph.logits()).channels : 0,
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

class SequentialReference final : public ReferenceRun {
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

std::unique_ptr<ReferenceRun> plain_reference(const Graph& graph, const Plan& plan, const TrainOptions& options,
                                              const std::shared_ptr<const ImageSource>& images,
                                              const ForeignModule* foreign) {
  if (plan.ranks() == 1) return std::make_unique<AutogradReference>(graph, plan, options, images, foreign);
  return std::make_unique<SequentialReference>(graph, plan, options, images);
}

}  // namespace

double last_bit(at::ScalarType dtype) {
  return dtype == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

std::unique_ptr<ReferenceRun> make_reference_run(const Graph& graph, const Plan& plan, const TrainOptions& options,
                                                 std::shared_ptr<const ImageSource> images, int nudge,
                                                 const ForeignModule* foreign) {
  if (nudge == 0) return plain_reference(graph, plan, options, images, foreign);
  TrainOptions nudged = options;
  nudged.on_gradients = [nudge, step = std::uint64_t{0}](const std::vector<at::Tensor>& gradients) mutable {
    change_last_bits_of_largest(gradients, {nudge, of_gradients + step++, 0});
  };
  auto reference =
      plain_reference(graph, plan, nudged, std::make_shared<NudgedImages>(std::move(images), nudge), foreign);
  std::uint64_t number = 0;
  for (const auto& [name, spec] : graph.parameters())
    if (spec.trainable) change_last_bits(reference->value(name), {nudge, of_values, number++});
  return reference;
}

}  // namespace tessera
