#include <ATen/Parallel.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/ops/bands.h"
#include "tessera/ops/conv_way.h"
#include "tessera/ops/families.h"
#include "tessera/ops/reach.h"
#include "tessera/ops/torch_compat.h"
#include "tessera/ops/torch_conv.h"
#include "tessera/ops/way_choices.h"

namespace tessera {
namespace {

class ConvKernel final : public Kernel {
 public:
  /// `own`: asked before torch, in this order.
  ConvKernel(const KernelRequest& request, std::vector<std::unique_ptr<ConvWay>> own)
      : op_(request.op<Conv>()),
        input_(request.input_shapes()[0]),
        parameters_(request.parameters_of_node()),
        own_(std::move(own)),
        has_choice_(!request.on_gpu() && request.activations.dtype().toScalarType() == at::kFloat),
        torch_(op_, input_, parameters_, request.on_gpu(), request.activations.dtype().toScalarType() == at::kFloat) {}

  Slab forward(const ForwardArgs& args) override {
    return forward_by(choose(args.inputs[0], args.out, ConvPass::forward), args);
  }

  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    return {input_gradient_by(choose(args.inputs[0], args.gradients[0].box, ConvPass::input_gradient), args)};
  }

  void weight_gradients(BackwardArgs& args) override {
    add_weight_gradient_by(choose(args.inputs[0], args.gradients[0].box, ConvPass::weight_gradient), args,
                           parameters_.gradients[0]);
    if (op_.options.bias) parameters_.gradients[1].add_(at::sum(args.gradients[0].data, at::IntArrayRef({0, 2, 3})));
  }

  bool has_weights() const override { return true; }

  void try_ways(const Trial& trial) override {
    WayChoices& ways = WayChoices::of_process();
    if (!has_choice_ || !ways.measured() || trial.out.empty()) return;
    const Box out = trial_box(trial.out);
    const Box whole = op_.windows.input_of(out);
    Box in = intersect(whole, input_.box(out.batch()));
    if (in.empty()) return;
    // At the corner of an image, what is done by hand would count as torch's: a slab may hold the padding.
    if (torch_.pads_by_hand(out, in)) in = whole;
    // Not zeros: memory of nothing but these may not be there at all.
    const auto filled = [&](const Box& box, std::int64_t channels) {
      Slab slab = empty_slab(box, channels, parameters_.values[0].options());
      slab.data.fill_(0.5);
      return slab;
    };
    const std::vector<Slab> inputs{filled(in, input_.channels)};
    const PassInfo pass;
    Saved saved;
    const ForwardArgs forward{inputs, out, out, pass, saved};
    settle(inputs[0], out, ConvPass::forward, trial, [&](const Choice& c) { return forward_by(c, forward); });
    if (!trial.gradients) return;
    const BackwardArgs backward{inputs, {}, {filled(out, op_.options.out)}, {true}, {}, out, pass, saved};
    const at::Tensor sum = at::zeros_like(parameters_.values[0]);
    if (trial.of_input)
      settle(inputs[0], out, ConvPass::input_gradient, trial,
             [&](const Choice& c) { return input_gradient_by(c, backward); });
    settle(inputs[0], out, ConvPass::weight_gradient, trial, [&](const Choice& c) {
      add_weight_gradient_by(c, backward, sum);
      return Slab{};
    });
  }

  std::optional<Workspace> workspace(const Box& out, const Box& in) const override {
    const Box wanted = gradient_box(in, out);
    const auto scratch = [&](ConvPass pass) {
      const Choice choice = choose({{}, in}, out, pass);
      if (choice.own) return choice.own->scratch(pass == ConvPass::input_gradient ? wanted : out, pass);
      const double torchs = choice.scratch.value_or(torch_.scratch(choice.torch, out, in, pass));
      return torch_.preparation(out, in, pass) + std::max(torchs, torch_.afterwards(out, in, pass));
    };
    Workspace work;
    work.forward = scratch(ConvPass::forward);
    work.input_gradient = scratch(ConvPass::input_gradient);
    work.weight_gradient = scratch(ConvPass::weight_gradient);
    work.writes_in_place = choose({{}, in}, out, ConvPass::forward).own != nullptr;
    work.input_gradient_box = wanted;
    return work;
  }

 private:
  // A way of our own, or one of torch's.
  struct Choice {
    const ConvWay* own = nullptr;
    TorchWay torch = TorchWay::convolution;
    std::optional<double> scratch = {};  // bytes, where a trial has found out
    std::string_view name() const { return own ? own->name() : to_string(torch); }
  };

  Choice fixed_choice(const Slab& slab, const Box& out, ConvPass pass) const {
    const auto own = std::find_if(own_.begin(), own_.end(), [&](const auto& w) { return w->pays(out, pass); });
    if (own != own_.end() && seen_by(slab, out)) return {.own = own->get()};
    return {.torch = torch_.way(out)};
  }

  std::vector<Choice> choices(const Slab& slab, const Box& out, ConvPass pass) const {
    std::vector<Choice> all{fixed_choice(slab, out, pass)};
    const auto add = [&](const Choice& c) {
      if (std::none_of(all.begin(), all.end(), [&](const Choice& o) { return o.name() == c.name(); })) all.push_back(c);
    };
    if (seen_by(slab, out))
      for (const auto& w : own_)
        if (w->may_pay(out, pass)) add({.own = w.get()});
    for (const TorchWay w : {TorchWay::convolution, TorchWay::blocked, TorchWay::rows_as_samples, TorchWay::product}) {
      // The copies of blocked are of all that is read and made: not of large planes.
      const bool large = trial_box(out) != out;
      if (torch_.may_pay(w, out) && !(large && w == TorchWay::blocked)) add({.torch = w});
    }
    return all;
  }

  // By the rules, or as was found out.
  Choice choose(const Slab& slab, const Box& out, ConvPass pass) const {
    const Choice rule = fixed_choice(slab, out, pass);
    WayChoices& ways = WayChoices::of_process();
    if (!has_choice_ || out.empty() || ways.fixed()) return rule;
    const Box tried = trial_box(out);
    const auto known = ways.find(shape_words(tried, pass));
    if (!known) return rule;
    for (Choice& c : choices(slab, out, pass))
      if (c.name() == known->name) {
        if (known->scratch_bytes) c.scratch = torch_.scratch_of_larger(*known->scratch_bytes, tried, out, pass);
        return c;
      }
    return rule;
  }

  // Finds out what choose() is to say; run(choice) does what the pass does, and returns what it makes.
  template <class Run>
  void settle(const Slab& slab, const Box& out, ConvPass pass, const Trial& trial, const Run& run) const {
    WayChoices& ways = WayChoices::of_process();
    const auto all = choices(slab, out, pass);
    const std::string shape = shape_words(out, pass);
    const auto known = ways.find(shape);
    if (known && std::any_of(all.begin(), all.end(), [&](const Choice& c) { return c.name() == known->name; })) return;
    std::vector<std::function<void()>> trials;
    for (const Choice& c : all) trials.emplace_back([&run, &c] { run(c); });
    const Choice& best = all[ways.pick(shape, trials, at::get_num_threads())];
    Slab made;
    const double taken = trial.peak_bytes([&] { made = run(best); });
    // Boxes of one size differ in what has to be done beforehand, so that does not count.
    const double before = best.own ? 0 : torch_.preparation(out, slab.box, pass);
    const double result = made.defined() ? static_cast<double>(made.data.nbytes()) : 0;
    ways.remember(shape, {std::string(best.name()), std::max(0.0, taken - result - before)});
  }

  // A part of a large output that stands for all of it, so that trials are short and take little memory.
  Box trial_box(Box out) const {
    constexpr std::int64_t most_products = std::int64_t{1} << 28, most_pixels = std::int64_t{1} << 16,
                           fewest_pixels = std::int64_t{1} << 11, shortest = 32;
    const std::int64_t products =
        op_.windows.height.kernel * op_.windows.width.kernel * input_.channels * op_.options.out / op_.options.groups;
    const std::int64_t pixels =
        std::clamp(most_products / std::max<std::int64_t>(1, products), fewest_pixels, most_pixels);
    const auto halve = [&](Axis axis) { out[axis].end = out[axis].begin + (out[axis].size() + 1) / 2; };
    while (out.volume() > pixels) {
      if (out.height().size() > shortest)
        halve(Axis::height);
      else if (out.width().size() > shortest)
        halve(Axis::width);
      else if (out.batch().size() > 1)
        halve(Axis::batch);
      else
        break;
    }
    return out;
  }

  std::string shape_words(const Box& out, ConvPass pass) const {
    constexpr std::array<std::string_view, 3> passes{"forward", "input gradient", "weight gradient"};
    const auto &rows = op_.windows.height, &columns = op_.windows.width;
    return concat("conv ", rows.kernel, "x", columns.kernel, "/", rows.stride, "x", columns.stride, "/", rows.dilation,
                  "x", columns.dilation, " ", input_.channels, ">", op_.options.out, "/", op_.options.groups, ", ",
                  out.batch().size(), "x", out.height().size(), "x", out.width().size(), ", ",
                  passes[static_cast<std::size_t>(pass)], ", ", at::get_num_threads(), " threads");
  }

  Slab forward_by(const Choice& choice, const ForwardArgs& args) const {
    if (!choice.own) return torch_.forward(choice.torch, args.inputs[0], args.out);
    const Seen seen = *seen_by(args.inputs[0], args.out);
    Slab out = args.place(op_.options.out, seen.input.data.options());
    choice.own->forward(seen.input.data, seen.origin, parameters_, out.data);
    return out;
  }

  Slab input_gradient_by(const Choice& choice, const BackwardArgs& args) const {
    const Slab& gradient = args.gradients[0];
    if (!choice.own) return torch_.input_gradient(choice.torch, args.inputs[0], gradient);
    const Seen seen = *seen_by(args.inputs[0], gradient.box);
    const Box& box = seen.input.box;
    const Slab dx =
        empty_slab(gradient_box(args.inputs[0].box, gradient.box), input_.channels, gradient.data.options());
    const Origin origin{seen.origin.row - (dx.box.height().begin - box.height().begin),
                        seen.origin.column - (dx.box.width().begin - box.width().begin)};
    choice.own->input_gradient(gradient.data, origin, parameters_.values[0], dx.data);
    return dx;
  }

  void add_weight_gradient_by(const Choice& choice, const BackwardArgs& args, const at::Tensor& sum) const {
    const Slab& gradient = args.gradients[0];
    if (!choice.own) return torch_.weight_gradient(choice.torch, args.inputs[0], gradient, sum);
    const Seen seen = *seen_by(args.inputs[0], gradient.box);
    choice.own->weight_gradient(seen.input.data, seen.origin, gradient.data, sum);
  }

  struct Seen {
    Slab input;  // what the window sees of the slab
    Origin origin;
  };

  // What the gradient of a slab covers: also the rows that a stride leaves over at the end, so that it can be added to
  // gradients of all of the slab. Padding that the slab holds wants none: often that saves a row and a column of
  // patches.
  Box gradient_box(Box slab, const Box& out) const {
    const Reach rows = reach(op_.windows.height, out.height(), slab.height(), input_.height);
    const Reach columns = reach(op_.windows.width, out.width(), slab.width(), input_.width);
    slab[Axis::batch] = out.batch();
    slab[Axis::height] = rows.view;
    slab[Axis::width] = columns.view;
    return intersect(slab, input_.box(out.batch()));
  }

  // Unset where it sees nothing but padding.
  std::optional<Seen> seen_by(const Slab& slab, const Box& out) const {
    const Reach rows = reach(op_.windows.height, out.height(), slab.box.height(), input_.height);
    const Reach columns = reach(op_.windows.width, out.width(), slab.box.width(), input_.width);
    if (rows.seen.empty() || columns.seen.empty()) return std::nullopt;
    Box box = slab.box;
    box[Axis::batch] = out.batch();
    box[Axis::height] = rows.seen;
    box[Axis::width] = columns.seen;
    Slab seen{{}, box};
    if (slab.defined()) seen = narrowed(slab, box);
    return Seen{seen, {-rows.before, -columns.before}};
  }

  const Conv& op_;
  const Shape input_;
  NodeParameters parameters_;
  const std::vector<std::unique_ptr<ConvWay>> own_;
  const bool has_choice_;
  const TorchConv torch_;
};

ConvFacts facts_of(const KernelRequest& r) {
  const auto& op = r.op<Conv>();
  return {.windows = op.windows,
          .in_channels = r.input_shapes()[0].channels,
          .out_channels = op.options.out,
          .groups = op.options.groups,
          .bias = op.options.bias,
          .dtype = r.activations.dtype().toScalarType()};
}

std::unique_ptr<Kernel> make_gpu_conv(const KernelRequest& r) {
  auto ways = gpu_conv_ways(facts_of(r));
  // Own kernels count in 64 bits. Where they are too small to pay, nothing is large.
  const bool small = std::any_of(ways.begin(), ways.end(), [&](const auto& way) {
    return way->pays(r.node().shape.box({0, 1}), ConvPass::input_gradient);
  });
  auto kernel = std::make_unique<ConvKernel>(r, std::move(ways));
  if (small) return kernel;
  // What cuDNN counts in 32 bits, less something for the padding.
  constexpr std::int64_t most = (std::int64_t{1} << 31) - (std::int64_t{1} << 27);
  return in_bands(std::move(kernel), r.op<Conv>().options.out, most);
}

}  // namespace

void add_conv_kernels(Kernels& kernels) {
  kernels.add("conv", {"cuda", [](const KernelRequest& r) { return r.on_gpu(); }, make_gpu_conv});
  kernels.add("conv",
              [](const KernelRequest& r) { return std::make_unique<ConvKernel>(r, cpu_conv_ways(facts_of(r))); });
}

}  // namespace tessera
