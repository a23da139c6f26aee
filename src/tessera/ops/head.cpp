// Flatten, linear and the loss.
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

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

// A row of logits for each sample or pixel.
class CrossEntropyKernel final : public Kernel {
 public:
  explicit CrossEntropyKernel(const CrossEntropy& op) : op_(op) {}
  Slab forward(const ForwardArgs& args) override {
    const at::Tensor logits = as_rows(narrowed(args.inputs[0], args.out)), labels = labels_of(args.pass);
    ensure(labels.size(0) == logits.size(0), "the loss has ", logits.size(0), " rows of logits but ", labels.size(0),
           " labels");
    const at::Tensor log_probability = at::_log_softmax(logits.to(wide_dtype(logits.scalar_type())), 1, false);
    args.saved = {log_probability};
    at::Tensor losses = log_probability.gather(1, labels).neg_();
    if (by_pixel()) losses.masked_fill_(ignored(args.pass), 0);
    return as_plane(losses, args.out);
  }
  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    // The incoming gradient is one per sample or pixel and already holds the mean's 1/terms.
    at::Tensor gradient = as_rows(args.gradients[0]);
    if (by_pixel()) gradient = gradient.masked_fill(ignored(args.pass), 0);
    at::Tensor dx = args.saved[0].exp().mul_(gradient);
    dx.scatter_add_(1, labels_of(args.pass), gradient.neg());
    if (args.pass.options.dtype() == at::kBFloat16) dx = dx.to(at::kBFloat16);
    return {as_plane(dx, args.gradients[0].box)};
  }

 private:
  bool by_pixel() const { return op_.labels == LabelKind::pixel; }
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
};

}  // namespace

void add_head_kernels(Kernels& kernels) {
  kernels.add("flatten", [](const KernelRequest& r) { return std::make_unique<FlattenKernel>(r.input_shapes()[0]); });
  kernels.add("linear", [](const KernelRequest& r) {
    return std::make_unique<LinearKernel>(r.op<Linear>(), r.parameters_of_node());
  });
  kernels.add("cross_entropy",
              [](const KernelRequest& r) { return std::make_unique<CrossEntropyKernel>(r.op<CrossEntropy>()); });
}

}  // namespace tessera
