// An operation that Tessera does not have, in a program of one's own:
//
//     own_operation verify --model contrast_net --image-size 45x37 --batch-size 4 --grid 2x2
//
// Local contrast: what a pixel has more than the mean of its 3x3 neighbourhood, times a gain for each channel that is
// trained. Outside of the image there are zeros.
#include <ATen/core/Tensor.h>
#include <ATen/ops/avg_pool2d.h>
#include <torch/types.h>

#include "tessera/app/program.h"
#include "tessera/graph/graph.h"
#include "tessera/ops/kernel.h"
#include "tessera/oracle/reference.h"

namespace {

using namespace tessera;

// ---- The rules: integers, no tensors ----

class LocalContrast final : public Operation {
 public:
  std::string_view kind() const override { return "local_contrast"; }
  Shape output_shape(Shapes inputs) const override { return inputs[0]; }
  std::vector<ParameterSpec> parameters(Shapes inputs) const override {
    return {{.suffix = "gain", .sizes = {inputs[0].channels}, .init = {Initializer::Kind::constant, 1}}};
  }
  // Which part of the input an output box needs, and whose an output is: both as of a 3x3 window.
  Box input_box(const Box& out, std::size_t, Shapes) const override { return window_.input_of(out); }
  Box owned_output(const Box& in, Shapes inputs) const override { return window_.owned_outputs(in, inputs[0]); }
  Cost cost(Shapes inputs, const Box& out) const override {
    const auto numbers = static_cast<double>(out.volume() * inputs[0].channels);
    return {.forward_flops = 11 * numbers,
            .input_gradient_flops = 11 * numbers,
            .weight_gradient_flops = 11 * numbers,
            .elements_moved = 2 * numbers};
  }
  Needs needs() const override { return {.inputs = true}; }  // for the gradient of the gain
  bool repeats() const override { return true; }

 private:
  const Windows window_{3, 1, 1, 1, 1};
};

// ---- The kernel: tensors, a box at a time ----

// The slab all over `box`: zeros where it has nothing.
at::Tensor all_over(const Slab& slab, const Box& box) {
  Slab out = zero_slab(box, slab.data.size(1), slab.data.options());
  const Box shared = intersect(slab.box, box);
  narrowed(out, shared).data.copy_(narrowed(slab, shared).data);
  return out.data;
}

Box grown(Box box, std::int64_t by) {
  for (const Axis axis : {Axis::height, Axis::width}) box[axis] = {box[axis].begin - by, box[axis].end + by};
  return box;
}

// One pixel less at each side.
at::Tensor means(const at::Tensor& t) { return at::avg_pool2d(t, {3, 3}, {1, 1}); }
at::Tensor inner(const at::Tensor& t) { return t.narrow(2, 1, t.size(2) - 2).narrow(3, 1, t.size(3) - 2); }

class LocalContrastKernel final : public Kernel {
 public:
  explicit LocalContrastKernel(const KernelRequest& request)
      : image_(request.input_shapes()[0]), parameters_(request.parameters_of_node()) {}

  Slab forward(const ForwardArgs& args) override {
    return {channels_last(contrast(args.inputs[0], args.out).mul_(gain())), args.out};
  }
  // The transpose: what each pixel gave to its own output, less a ninth of what its neighbours got from it.
  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    const Box box = grown(gradient.box, 1), inside = intersect(box, image_.box(box.batch()));
    const at::Tensor g = all_over(gradient, grown(box, 1)).mul_(gain());
    const Slab dx{channels_last(inner(g).sub(means(g))), box};
    return {narrowed(dx, inside)};
  }
  void weight_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    parameters_.gradients[0].add_(contrast(args.inputs[0], gradient.box).mul_(gradient.data).sum({0, 2, 3}));
  }
  bool has_weights() const override { return true; }

 private:
  at::Tensor contrast(const Slab& in, const Box& out) const {
    const at::Tensor x = all_over(in, grown(out, 1));
    return inner(x).sub(means(x));
  }
  at::Tensor gain() const { return parameters_.values[0].view({1, -1, 1, 1}); }

  const Shape image_;
  NodeParameters parameters_;
};

const RegisterKernel kernel("local_contrast", [](const KernelRequest& request) {
  return std::make_unique<LocalContrastKernel>(request);
});

// ---- The reference: the whole value, in torch's words ----

const RegisterReference reference("local_contrast", [](const ReferenceArgs& args) {
  const torch::Tensor& x = args.x();
  return (x - at::avg_pool2d(x, {3, 3}, {1, 1}, {1, 1})) * args.parameter("gain").view({1, -1, 1, 1});
});

// ---- A network with it ----

Graph contrast_net(const ModelOptions& options) {
  Graph g;
  g.cell("stem");
  Value x = g.input(options.image);
  x = g.relu(g.batch_norm(g.conv(x, {.out = 16, .kernel = 3, .stride = 2, .pad = 1}, "stem"), "stem.norm"));
  for (const std::string name : {"one", "two"}) {
    g.cell(name);
    const Value seen = g.add_node(std::make_shared<LocalContrast>(), {x}, name + ".contrast");
    x = g.relu(g.add(g.batch_norm(g.conv(seen, {.out = 16, .kernel = 3, .pad = 1}, name), name + ".norm"), x));
  }
  g.cell("head");
  g.cross_entropy(g.linear(g.global_avg_pool(x), {.out = options.classes}, "classes"));
  return g;
}

}  // namespace

int main(int argc, char** argv) {
  ModelRegistry models = builtin_models();
  models.add("contrast_net", {"a small network that looks at local contrast", {}, contrast_net});
  return run_program(argc, argv, models);
}
