// Flatten, linear and the loss.
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <numeric>

#include "tessera/base/error.h"
#include "tessera/ops/families.h"
#include "tessera/ops/kernel.h"

namespace tessera {
namespace {

// [n, c, 1, 1] <-> [n, c], sharing the data.
at::Tensor as_matrix(const Slab& slab) { return slab.data.flatten(1); }
Slab as_slab(const at::Tensor& matrix, const Interval& batch) {
  const auto c = matrix.size(1);
  const at::Tensor dense = matrix.contiguous();
  return {dense.as_strided({matrix.size(0), c, 1, 1}, {c, 1, c, c}), Shape{c}.box(batch)};
}

class FlattenKernel final : public Kernel {
 public:
  explicit FlattenKernel(const Shape& input) : input_(input) {}
  Slab forward(const ForwardArgs& args) override {
    // Torch's order is channels, rows, columns; for one position a sample this shares the data.
    return as_slab(args.inputs[0].data.flatten(1), args.out.batch());
  }
  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    const at::Tensor dx = gradient.data.reshape({gradient.data.size(0), input_.channels, input_.height, input_.width});
    return {{channels_last(dx), input_.box(gradient.box.batch())}};
  }

 private:
  const Shape input_;
};

class LinearKernel final : public Kernel {
 public:
  LinearKernel(const Linear& op, NodeParameters parameters) : op_(op), parameters_(std::move(parameters)) {}
  Slab forward(const ForwardArgs& args) override {
    const at::Tensor x = as_matrix(args.inputs[0]), weight = parameters_.values[0].t();
    return as_slab(op_.options.bias ? at::addmm(parameters_.values[1], x, weight) : at::mm(x, weight),
                   args.out.batch());
  }
  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    return {as_slab(at::mm(as_matrix(gradient), parameters_.values[0]), gradient.box.batch())};
  }
  void weight_gradients(BackwardArgs& args) override {
    const at::Tensor gradient = as_matrix(args.gradients[0]);
    // In bfloat16 the product is, and the sum of gradients is not.
    if (gradient.scalar_type() == parameters_.gradients[0].scalar_type())
      parameters_.gradients[0].addmm_(gradient.t(), as_matrix(args.inputs[0]));
    else
      parameters_.gradients[0].add_(at::mm(gradient.t(), as_matrix(args.inputs[0])));
    if (op_.options.bias) parameters_.gradients[1].add_(gradient.sum(0));
  }
  bool has_weights() const override { return true; }

 private:
  const Linear& op_;
  NodeParameters parameters_;
};

// Rows of logits, one for each sample or pixel; for each head one.
class CrossEntropyKernel final : public Kernel {
 public:
  CrossEntropyKernel(const CrossEntropy& op, std::int64_t classes, const at::TensorOptions& activations)
      : op_(op), classes_(classes) {
    const std::vector<double>& given = op.options.class_weights;
    if (op.options.smoothing == 0 && given.empty()) return;
    const auto options = activations.dtype(wide_dtype(activations.dtype().toScalarType()));
    weights_ = given.empty() ? at::ones({classes}, options) : at::tensor(given, at::kDouble).to(options);
    total_ = given.empty() ? static_cast<double>(classes) : std::accumulate(given.begin(), given.end(), 0.0);
  }

  Offer offer(const ForwardArgs& args) override {
    if (args.pass.evaluating) return {};
    const auto heads = std::ssize(args.inputs);
    const Interval samples = args.out.empty() ? args.inputs[0].box.batch() : args.out.batch();
    const at::TensorOptions options = args.pass.options.dtype(wide_dtype(args.pass.options.dtype().toScalarType()));
    at::Tensor all = at::zeros({heads, samples.size(), 3, classes_}, options);
    if (args.out.empty()) return {all};
    save_probabilities(args);
    const at::Tensor labels = labels_of(args.pass), counts = ignored(args.pass).logical_not().to(all.scalar_type());
    for (std::int64_t head = 0; head < heads; ++head)
      add_dice_sums(args.saved[static_cast<std::size_t>(head)], labels, counts, all[head]);
    return {all};
  }

  Slab forward(const ForwardArgs& args) override {
    if (args.out.empty()) return {};
    const bool dice = op_.options.dice > 0 && !args.pass.evaluating;
    if (!dice) save_probabilities(args);
    at::Tensor losses;
    for (std::size_t head = 0; head < args.saved.size(); ++head) {
      const at::Tensor of_head = losses_of(args, head);
      losses = head == 0 ? of_head : losses.add_(of_head, op_.options.auxiliary);
    }
    if (by_pixel()) losses.masked_fill_(ignored(args.pass), 0);
    Slab out = as_plane(losses, args.out);
    if (dice) {
      // A sample's own loss stands at its first pixel, in the losses of pixels.
      if (args.out.height().contains(0) && args.out.width().contains(0))
        out.data.select(3, 0).select(2, 0).select(1, 0).add_(by_terms(dice_losses(args.agreed), args.pass));
      args.saved.push_back(args.agreed);
    }
    return out;
  }

  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    // The incoming gradient is one per sample or pixel and already holds the mean's 1/terms.
    at::Tensor gradient = as_rows(args.gradients[0]);
    if (by_pixel()) gradient = gradient.masked_fill(ignored(args.pass), 0);
    const at::Tensor labels = labels_of(args.pass);
    const bool dice = op_.options.dice > 0;
    std::vector<Slab> out;
    for (std::size_t head = 0; head + (dice ? 1 : 0) < args.saved.size(); ++head) {
      if (head == 1) gradient = gradient.mul(op_.options.auxiliary);
      at::Tensor dx = gradient_of(args.saved[head], gradient, labels);
      if (dice)
        add_dice_gradient(args.saved[head], args.saved.back()[static_cast<std::int64_t>(head)],
                          by_terms(gradient.mul(op_.options.dice), args.pass), labels, dx);
      if (args.pass.options.dtype() == at::kBFloat16) dx = dx.to(at::kBFloat16);
      out.push_back(as_plane(dx, args.gradients[0].box));
    }
    return out;
  }

 private:
  // Their logarithms, one tensor for each head. Losses of other networks are compared with: evaluations have the plain
  // one, of the network's own head.
  static void save_probabilities(const ForwardArgs& args) {
    args.saved.clear();
    for (std::size_t head = 0; head < (args.pass.evaluating ? 1 : args.inputs.size()); ++head) {
      const at::Tensor logits = as_rows(narrowed(args.inputs[head], args.out));
      args.saved.push_back(at::_log_softmax(logits.to(wide_dtype(logits.scalar_type())), 1, false));
    }
  }

  static at::Tensor by_terms(const at::Tensor& x, const PassInfo& pass) {
    const at::Tensor& there = pass.there.terms_per_sample;
    return there.defined() ? x.mul(there.to(x.scalar_type())) : x.mul(pass.terms_per_sample);
  }

  // By sample: of each class the sums P, L and I of CrossEntropy's comment.
  void add_dice_sums(const at::Tensor& log_probability, const at::Tensor& labels, const at::Tensor& counts,
                     const at::Tensor& sums) const {
    const std::int64_t samples = sums.size(0);
    const auto by_sample = [&](const at::Tensor& rows) { return rows.reshape({samples, -1}); };
    const at::Tensor probability = log_probability.exp();
    sums.select(1, 0).copy_(probability.mul(counts).reshape({samples, -1, classes_}).sum(1));
    sums.select(1, 1).scatter_add_(1, by_sample(labels), by_sample(counts));
    sums.select(1, 2).scatter_add_(1, by_sample(labels), by_sample(probability.gather(1, labels).mul_(counts)));
  }
  static constexpr double dice_smooth = 1e-5;
  // All heads together, each counted as it is; by sample.
  at::Tensor dice_losses(const at::Tensor& sums) const {
    const at::Tensor below = sums.select(2, 0).add(sums.select(2, 1)).add_(dice_smooth);
    const at::Tensor of_heads = sums.select(2, 2).mul(2).add_(dice_smooth).div_(below).neg_().add_(1).mean(2);
    at::Tensor all = of_heads[0];
    for (std::int64_t head = 1; head < of_heads.size(0); ++head) all = all.add(of_heads[head], op_.options.auxiliary);
    return all.mul(op_.options.dice);
  }
  // Each row's gradient is that of its sample's loss.
  void add_dice_gradient(const at::Tensor& log_probability, const at::Tensor& sums, const at::Tensor& gradient,
                         const at::Tensor& labels, const at::Tensor& dx) const {
    const std::int64_t samples = sums.size(0), rows = log_probability.size(0) / samples;
    const at::Tensor below = sums.select(1, 0).add(sums.select(1, 1)).add_(dice_smooth);
    // Of the loss by a class's probability at a pixel: so much, and so much more where the pixel is of the class.
    const at::Tensor anywhere =
        sums.select(1, 2).mul(2).add_(dice_smooth).div_(below.square()).div_(static_cast<double>(classes_));
    const at::Tensor of_class = below.reciprocal().mul_(-2.0 / static_cast<double>(classes_));
    const at::Tensor probability = log_probability.exp();
    // A copy: of one sample, expand() and reshape() would be a view of a single row.
    const at::Tensor slope = anywhere.unsqueeze(1).expand({samples, rows, classes_}).contiguous().view({-1, classes_});
    slope.scatter_add_(1, labels, of_class.gather(1, labels.reshape({samples, rows})).reshape({-1, 1}));
    const at::Tensor mean = slope.mul(probability).sum(1, /*keepdim=*/true);
    dx.add_(slope.sub_(mean).mul_(probability).mul_(gradient));
  }

  at::Tensor losses_of(const ForwardArgs& args, std::size_t head) const {
    const at::Tensor log_probability = args.saved[head], labels = labels_of(args.pass);
    ensure(labels.size(0) == log_probability.size(0), "the loss has ", log_probability.size(0), " rows of logits but ",
           labels.size(0), " labels");
    at::Tensor losses = log_probability.gather(1, labels).neg_();
    if (weights_.defined() && !args.pass.evaluating) {
      losses.mul_(weights_.take(labels)).mul_(1 - op_.options.smoothing);
      if (spread() > 0) losses.flatten().addmv_(log_probability, weights_, 1, -spread());
    }
    return losses;
  }

  at::Tensor gradient_of(const at::Tensor& log_probability, const at::Tensor& gradient,
                         const at::Tensor& labels) const {
    // What is taken from the label's own class, and from all of them.
    at::Tensor own = gradient, all = gradient;
    if (weights_.defined()) {
      own = weights_.take(labels).mul_(gradient).mul_(1 - op_.options.smoothing);
      all = at::add(own, gradient, spread() * total_);
    }
    at::Tensor dx = log_probability.exp().mul_(all);
    dx.scatter_add_(1, labels, own.neg());
    if (weights_.defined() && spread() > 0) dx.addr_(gradient.flatten(), weights_, 1, -spread());
    return dx;
  }

  bool by_pixel() const { return op_.labels == LabelKind::pixel; }
  /// What each class gets of a label.
  double spread() const { return op_.options.smoothing / static_cast<double>(weights_.numel()); }
  static at::Tensor as_rows(const Slab& slab) {
    return slab.data.permute({0, 2, 3, 1}).reshape({-1, slab.data.size(1)});
  }
  static Slab as_plane(const at::Tensor& rows, const Box& box) {
    const auto n = box.batch().size(), h = box.height().size(), w = box.width().size(), c = rows.size(1);
    return {rows.as_strided({n, c, h, w}, {h * w * c, 1, w * c, c}), box};
  }
  static at::Tensor ignored(const PassInfo& pass) {
    return pass.labels.flatten().unsqueeze(1).eq(CrossEntropy::ignored_label);
  }
  // As an index into the rows; any class will do for what is ignored.
  at::Tensor labels_of(const PassInfo& pass) const {
    ensure(pass.labels.defined(), "the loss has no labels");
    const at::Tensor labels = pass.labels.flatten().unsqueeze(1).to(at::kLong);
    return by_pixel() ? labels.masked_fill(ignored(pass), 0) : labels;
  }

  const CrossEntropy& op_;
  const std::int64_t classes_;
  at::Tensor weights_;  ///< by class; undefined: the plain loss
  double total_ = 0;    ///< of them
};

// Each class a question of its own. By logit x and answer t (yes 1, no 0; nearer to each other with smoothing), with
// the weight w of a yes: w·t·log(1 + e^-x) + (1 - t)·log(1 + e^x).
class BinaryCrossEntropyKernel final : public Kernel {
 public:
  BinaryCrossEntropyKernel(const CrossEntropy& op, const at::TensorOptions& activations) : op_(op) {
    if (op.options.class_weights.empty()) return;
    weights_ = at::tensor(op.options.class_weights, at::kDouble)
                   .to(activations.dtype(wide_dtype(activations.dtype().toScalarType())));
  }

  Slab forward(const ForwardArgs& args) override {
    if (args.out.empty()) return {};
    args.saved.clear();
    at::Tensor losses;
    for (std::size_t head = 0; head < (args.pass.evaluating ? 1 : args.inputs.size()); ++head) {
      const at::Tensor logits = narrowed(args.inputs[head], args.out).data.flatten(1);
      args.saved.push_back(logits.to(wide_dtype(logits.scalar_type())));
      const at::Tensor of_head = losses_of(args.saved.back(), args.pass);
      losses = head == 0 ? of_head : losses.add_(of_head, op_.options.auxiliary);
    }
    return {losses.view({-1, 1, 1, 1}), args.out};
  }

  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    at::Tensor gradient = args.gradients[0].data.flatten(1);
    std::vector<Slab> out;
    for (std::size_t head = 0; head < args.saved.size(); ++head) {
      if (head == 1) gradient = gradient.mul(op_.options.auxiliary);
      const at::Tensor& x = args.saved[head];
      const at::Tensor yes = answers(args.pass, x);
      // σ(x) − 1 of a yes, σ(x) of a no.
      at::Tensor dx = x.sigmoid();
      dx = weights_.defined() ? dx.sub(1).mul_(yes).mul_(weights_).add_(dx.mul_(no(yes))) : dx.sub_(yes);
      dx.mul_(gradient).div_(static_cast<double>(x.size(1)));
      if (args.pass.options.dtype() == at::kBFloat16) dx = dx.to(at::kBFloat16);
      out.push_back({dx.unsqueeze(2).unsqueeze(3), args.gradients[0].box});
    }
    return out;
  }

 private:
  at::Tensor losses_of(const at::Tensor& x, const PassInfo& pass) const {
    const at::Tensor yes = answers(pass, x);
    at::Tensor of_yes = log_of_sum(x.neg()).mul_(yes);
    if (weights_.defined() && !pass.evaluating) of_yes.mul_(weights_);
    return log_of_sum(x).mul_(no(yes)).add_(of_yes).mean(1, /*keepdim=*/true);
  }
  static at::Tensor no(const at::Tensor& yes) { return yes.neg().add_(1); }
  // log(1 + e^x), to the last digits for any x; torch's softplus has x itself from 20 on.
  static at::Tensor log_of_sum(const at::Tensor& x) { return x.abs().neg_().exp_().log1p_().add_(x.clamp_min(0)); }

  at::Tensor answers(const PassInfo& pass, const at::Tensor& like) const {
    ensure(pass.labels.defined() && pass.labels.sizes() == like.sizes(), "the loss of several labels has labels of ",
           pass.labels.defined() ? concat(pass.labels.sizes()) : "no sizes", " for logits of ", like.sizes());
    at::Tensor yes = pass.labels.to(like.options());
    const double smoothing = pass.evaluating ? 0 : op_.options.smoothing;
    return smoothing > 0 ? yes.mul_(1 - smoothing).add_(smoothing / 2) : yes;
  }

  const CrossEntropy& op_;
  at::Tensor weights_;  ///< by class; undefined: 1
};

}  // namespace

void add_head_kernels(Kernels& kernels) {
  kernels.add("flatten", [](const KernelRequest& r) { return std::make_unique<FlattenKernel>(r.input_shapes()[0]); });
  kernels.add("linear", [](const KernelRequest& r) {
    return std::make_unique<LinearKernel>(r.op<Linear>(), r.parameters_of_node());
  });
  kernels.add("cross_entropy", [](const KernelRequest& r) -> std::unique_ptr<Kernel> {
    if (r.op<CrossEntropy>().labels == LabelKind::several)
      return std::make_unique<BinaryCrossEntropyKernel>(r.op<CrossEntropy>(), r.activations);
    return std::make_unique<CrossEntropyKernel>(r.op<CrossEntropy>(), r.input_shapes()[0].channels, r.activations);
  });
}

}  // namespace tessera
