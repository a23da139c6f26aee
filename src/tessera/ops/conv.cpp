#include <ATen/Parallel.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/instruction_set.h"
#include "tessera/ops/bands.h"
#include "tessera/ops/conv_way.h"
#include "tessera/ops/cpu/few.h"
#include "tessera/ops/families.h"
#include "tessera/ops/torch_compat.h"
#include "tessera/ops/way_choices.h"

namespace tessera {
namespace {

// How the window meets the input's slab along one axis.
struct Reach {
  Interval view;                       // the part of the slab that the convolution is given
  Interval seen;                       // the part of that which it looks at
  std::int64_t before = 0, after = 0;  // padding around it
};

Reach reach(const Window& window, const Interval& out, const Interval& have, std::int64_t image) {
  const Interval need = window.input_of(out);
  // A slab that reaches outside the image holds the padding itself.
  const Interval inside = have.contains(need) ? need : intersect(need, Interval{0, image});
  // Outputs that see nothing but padding: no row of the slab is read.
  if (inside.empty()) {
    const std::int64_t nowhere = std::clamp(inside.begin, have.begin, have.end);
    return {{nowhere, nowhere}, {nowhere, nowhere}, need.size(), 0};
  }
  ensure(have.contains(inside), "a convolution needs ", inside, " but has ", have);
  const std::int64_t before = inside.begin - need.begin;
  const std::int64_t after = std::max<std::int64_t>(0, need.end - inside.end);
  // Rows that a stride leaves over at the end do not change the output: taking them in avoids a copy of the slab.
  Interval view = inside;
  view.end = std::min(have.end, inside.end + window.stride - 1 - after);
  view.end = std::max(view.end, inside.end);
  return {view, inside, before, after};
}

// A slab's pixels one below the other, and such a matrix as images again.
at::Tensor pixels_of(const at::Tensor& t) { return t.permute({0, 2, 3, 1}).reshape({-1, t.size(1)}); }
at::Tensor images_of(const at::Tensor& pixels, std::int64_t samples, std::int64_t height) {
  return pixels.reshape({samples, height, -1, pixels.size(1)}).permute({0, 3, 1, 2});
}

class ConvKernel final : public Kernel {
 public:
  /// `own`: asked before torch, in this order.
  ConvKernel(const KernelRequest& request, std::vector<std::unique_ptr<ConvWay>> own)
      : op_(request.op<Conv>()),
        input_(request.input_shapes()[0]),
        parameters_(request.parameters_of_node()),
        own_(std::move(own)),
        by_onednn_(!request.on_gpu()),
        float32_(request.activations.dtype().toScalarType() == at::kFloat) {}

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
    if (!has_choice() || !ways.measured() || trial.out.empty()) return;
    const Box out = trial_box(trial.out);
    const Box in = intersect(op_.windows.input_of(out), input_.box(out.batch()));
    if (in.empty()) return;
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
    settle(inputs[0], out, ConvPass::forward, [&](const Choice& c) { forward_by(c, forward); });
    if (!trial.gradients) return;
    const BackwardArgs backward{inputs, {}, {filled(out, op_.options.out)}, {true}, {}, out, pass, saved};
    const at::Tensor sum = at::zeros_like(parameters_.values[0]);
    if (trial.of_input)
      settle(inputs[0], out, ConvPass::input_gradient, [&](const Choice& c) { input_gradient_by(c, backward); });
    settle(inputs[0], out, ConvPass::weight_gradient,
           [&](const Choice& c) { add_weight_gradient_by(c, backward, sum); });
  }

  std::optional<Workspace> workspace(const Box& out, const Box& in) const override {
    const Box seen = intersect(op_.windows.input_of(out), input_.box(out.batch()));
    const auto scratch = [&](ConvPass pass) {
      const Choice choice = choose({{}, in}, out, pass);
      return choice.own ? choice.own->scratch(pass == ConvPass::input_gradient ? seen : out, pass)
                        : torch_scratch(choice.torch, out, in, pass);
    };
    Workspace work;
    work.forward = scratch(ConvPass::forward);
    work.input_gradient = scratch(ConvPass::input_gradient);
    work.weight_gradient = scratch(ConvPass::weight_gradient);
    work.writes_in_place = choose({{}, in}, out, ConvPass::forward).own != nullptr;
    return work;
  }

 private:
  // What torch does with few images on one thread. ATen leaves windows of one pixel to a matrix product unless the
  // batch is large; oneDNN beats that, by up to two where channels are few, so rows are taken for samples. With more
  // weights than pixels a product of all windows with the weights is fastest, larger windows included: it takes the
  // weights as they lie and adds to their gradient in place. Blocked is oneDNN in the layout of its choice, with copies
  // there and back; only a measurement finds out where that pays.
  enum class Way { convolution, rows_as_samples, product, blocked };

  // A way of our own, or one of torch's.
  struct Choice {
    const ConvWay* own = nullptr;
    Way torch = Way::convolution;
    std::string_view name() const {
      if (own) return own->name();
      constexpr std::array<std::string_view, 4> names{"convolution", "rows", "product", "blocked"};
      return names[static_cast<std::size_t>(torch)];
    }
  };

  Choice fixed_choice(const Slab& slab, const Box& out, ConvPass pass) const {
    const auto own = std::find_if(own_.begin(), own_.end(), [&](const auto& w) { return w->pays(out, pass); });
    if (own != own_.end() && seen_by(slab, out)) return {.own = own->get()};
    return {.torch = way(out)};
  }

  std::vector<Choice> choices(const Slab& slab, const Box& out, ConvPass pass) const {
    std::vector<Choice> all{fixed_choice(slab, out, pass)};
    const auto add = [&](const Choice& c) {
      if (std::none_of(all.begin(), all.end(), [&](const Choice& o) { return o.name() == c.name(); })) all.push_back(c);
    };
    if (seen_by(slab, out))
      for (const auto& w : own_)
        if (w->may_pay(out, pass)) add({.own = w.get()});
    add({.torch = Way::convolution});
    // Its copies are of all that is read and made: not of large planes.
    if (trial_box(out) == out) add({.torch = Way::blocked});
    if (of_single_pixels()) add({.torch = Way::rows_as_samples});
    // Windows of several pixels are copied, each pixel as often as it is seen.
    if (op_.options.groups == 1 && (of_single_pixels() || out.volume() <= 4096)) add({.torch = Way::product});
    return all;
  }

  bool has_choice() const { return by_onednn_ && float32_; }

  // By the rules, or as was found out.
  Choice choose(const Slab& slab, const Box& out, ConvPass pass) const {
    const Choice rule = fixed_choice(slab, out, pass);
    WayChoices& ways = WayChoices::of_process();
    if (!has_choice() || out.empty() || ways.fixed()) return rule;
    const std::string known = ways.find(shape_words(trial_box(out), pass));
    if (known.empty() || known == rule.name()) return rule;
    for (const Choice& c : choices(slab, out, pass))
      if (c.name() == known) return c;
    return rule;
  }

  // Finds out what choose() is to say; trial(choice) does what the pass does.
  template <class Trial>
  void settle(const Slab& slab, const Box& out, ConvPass pass, const Trial& trial) const {
    WayChoices& ways = WayChoices::of_process();
    const auto all = choices(slab, out, pass);
    const std::string shape = shape_words(out, pass), known = ways.find(shape);
    if (std::any_of(all.begin(), all.end(), [&](const Choice& c) { return c.name() == known; })) return;
    std::vector<std::function<void()>> trials;
    for (const Choice& c : all) trials.emplace_back([&trial, &c] { trial(c); });
    ways.remember(shape, std::string(all[fastest(trials, at::get_num_threads())].name()));
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
    if (!choice.own) return {channels_last(convolved(problem(args.inputs[0], args.out, choice.torch))), args.out};
    const Seen seen = *seen_by(args.inputs[0], args.out);
    Slab out = args.place(op_.options.out, seen.input.data.options());
    choice.own->forward(seen.input.data, seen.origin, parameters_, out.data);
    return out;
  }

  Slab input_gradient_by(const Choice& choice, const BackwardArgs& args) const {
    const Slab& gradient = args.gradients[0];
    if (choice.own) {
      const Seen seen = *seen_by(args.inputs[0], gradient.box);
      // Padding that the slab holds wants no gradient: often that saves a row and a column of patches.
      const Box& box = seen.input.box;
      const Slab dx = empty_slab(intersect(box, input_.box(box.batch())), input_.channels, gradient.data.options());
      const Origin origin{seen.origin.row - (dx.box.height().begin - box.height().begin),
                          seen.origin.column - (dx.box.width().begin - box.width().begin)};
      choice.own->input_gradient(gradient.data, origin, parameters_.values[0], dx.data);
      return dx;
    }
    const Problem p = problem(args.inputs[0], gradient.box, choice.torch);
    at::Tensor dx = input_gradient(p, gradient.data);
    if (!p.whole.empty()) {
      const at::Tensor picked = dx;
      dx = at::empty(p.whole, dx.options(), at::MemoryFormat::ChannelsLast).zero_();
      every_stride(dx).narrow(2, 0, picked.size(2)).narrow(3, 0, picked.size(3)).copy_(picked);
    }
    if (p.padded)
      dx = dx.narrow(2, p.extra_before[0], p.box.height().size()).narrow(3, p.extra_before[1], p.box.width().size());
    return {channels_last(dx), p.box};
  }

  void add_weight_gradient_by(const Choice& choice, const BackwardArgs& args, const at::Tensor& sum) const {
    const Slab& gradient = args.gradients[0];
    if (!choice.own)
      return add_weight_gradient(problem(args.inputs[0], gradient.box, choice.torch), gradient.data, sum);
    const Seen seen = *seen_by(args.inputs[0], gradient.box);
    choice.own->weight_gradient(seen.input.data, seen.origin, gradient.data, sum);
  }

  // Bytes that torch takes, and what is done to its arguments beforehand.
  double torch_scratch(Way way, const Box& out, const Box& in, ConvPass pass) const {
    const auto bytes = static_cast<double>(c10::elementSize(parameters_.values[0].scalar_type()));
    const double weights = bytes * static_cast<double>(parameters_.values[0].numel());
    const double pixels = bytes * static_cast<double>(out.volume() * input_.channels);
    const auto &rows = op_.windows.height, &columns = op_.windows.width;
    const bool single = rows.kernel == 1 && columns.kernel == 1;
    const bool picked = single && (rows.stride > 1 || columns.stride > 1) && by_onednn_;
    double sum = picked ? pixels : 0;
    // A part of the input that has gaps is copied first.
    const Box needed = op_.windows.input_of(out), view = in.contains(needed) ? needed : intersect(needed, in);
    const bool gaps = view.width().size() + columns.stride <= in.width().size() ||
                      (view.batch().size() > 1 && view.height().size() + rows.stride <= in.height().size());
    if (gaps && !picked && pass != ConvPass::input_gradient)
      sum += bytes * static_cast<double>(view.volume() * input_.channels);
    if (way == Way::product) {
      // A product: the windows are written out, of a padded copy, and our own products want them in panels.
      const double windows = pixels * static_cast<double>(rows.kernel * columns.kernel);
      if (!single) sum += windows + 2 * bytes * static_cast<double>(view.volume() * input_.channels);
      return sum + (few() && pass == ConvPass::forward ? windows : 0);
    }
    // oneDNN has the weights, and their gradient, in an order of its own; without AVX-512 so it has what larger windows
    // read and write. Blocked is a copy of all of that in torch's order, and one in oneDNN's.
    const double all = bytes * static_cast<double>(view.volume() * input_.channels + out.volume() * op_.options.out);
    if (way == Way::blocked)
      sum += 2 * all;
    else if (by_onednn_ && !single && instruction_set() != InstructionSet::avx512)
      sum += all;
    // And its gradient of larger windows in torch's order on the way.
    return sum + (pass != ConvPass::weight_gradient ? 1 : single ? 2 : 3) * weights;
  }

  // What ATen's convolution is asked: its padding is the same on both ends, so what is left is padded by hand.
  struct Problem {
    at::Tensor input;
    Box box;  // of the value, covered by `input` without the padding by hand
    std::array<std::int64_t, 2> pad{0, 0};
    std::array<std::int64_t, 2> extra_before{0, 0};
    bool padded = false;
    std::array<std::int64_t, 2> stride{1, 1};
    std::vector<std::int64_t> whole = {};  // sizes of the input before pixels were picked; empty: none were
    std::int64_t out_height = 0, out_width = 0;
    Way way = Way::convolution;
  };

  // Without padding: then the pixels are picked first, whatever the stride, and each is an output.
  bool of_single_pixels() const {
    const auto plain = [](const Window& w) { return w.kernel == 1 && w.pad_begin == 0 && w.pad_end == 0; };
    return plain(op_.windows.height) && plain(op_.windows.width) && op_.options.groups == 1;
  }

  // Whether our own products multiply few windows with the weights: they share the work out to all threads.
  bool few() const {
    return by_onednn_ && float32_ && few_can(op_.windows.height.kernel * op_.windows.width.kernel * input_.channels);
  }

  Way way(const Box& out) const {
    if (!by_onednn_ || op_.options.groups > 1 || (at::get_num_threads() > 1 && !few())) return Way::convolution;
    if (out.volume() < 4 * std::min(input_.channels, op_.options.out)) return Way::product;
    if (at::get_num_threads() > 1) return Way::convolution;
    const bool rows = float32_ && of_single_pixels() && out.batch().size() * out.height().size() >= 16;
    return rows ? Way::rows_as_samples : Way::convolution;
  }

  // The pixels that a window of one pixel looks at.
  at::Tensor every_stride(const at::Tensor& t) const {
    return t.slice(2, 0, c10::nullopt, op_.windows.height.stride).slice(3, 0, c10::nullopt, op_.windows.width.stride);
  }
  std::array<std::int64_t, 2> dilation() const { return {op_.windows.height.dilation, op_.windows.width.dilation}; }

  struct Seen {
    Slab input;  // what the window sees of the slab
    Origin origin;
  };

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

  Problem problem(const Slab& slab, const Box& out, Way way) const {
    const Reach rows = reach(op_.windows.height, out.height(), slab.box.height(), input_.height);
    const Reach columns = reach(op_.windows.width, out.width(), slab.box.width(), input_.width);
    Problem p;
    p.box = slab.box;
    p.box[Axis::batch] = out.batch();
    p.box[Axis::height] = rows.view;
    p.box[Axis::width] = columns.view;
    p.input = narrowed(slab, p.box).data;
    std::array<std::int64_t, 4> extra{};  // left, right, top, bottom, as constant_pad_nd wants it
    const auto settle = [&](const Reach& r, const Window& w, const Interval& wanted, std::size_t axis) {
      const std::int64_t pad = r.before;
      const std::int64_t room = r.view.size() + 2 * pad - w.extent();
      if (!r.view.empty() && room >= 0 && room / w.stride + 1 == wanted.size()) {
        p.pad[axis] = pad;
      } else {
        p.extra_before[axis] = r.before;
        extra[axis == 0 ? 2 : 0] = r.before;
        extra[axis == 0 ? 3 : 1] = r.after;
        p.padded = true;
      }
    };
    settle(rows, op_.windows.height, out.height(), 0);
    settle(columns, op_.windows.width, out.width(), 1);
    if (p.padded) p.input = channels_last(at::constant_pad_nd(p.input, extra, 0));
    p.stride = {op_.windows.height.stride, op_.windows.width.stride};
    // oneDNN 2.6 writes past its scratch memory in the weight gradient of these, and the result is wrong. Picking the
    // pixels beforehand is what it would do inside.
    if (by_onednn_ && op_.windows.height.kernel == 1 && op_.windows.width.kernel == 1 &&
        p.stride != std::array<std::int64_t, 2>{1, 1} && p.pad == std::array<std::int64_t, 2>{0, 0}) {
      p.whole = p.input.sizes().vec();
      p.input = channels_last(every_stride(p.input).narrow(2, 0, out.height().size()).narrow(3, 0, out.width().size()));
      p.stride = {1, 1};
    }
    p.out_height = out.height().size();
    p.out_width = out.width().size();
    p.way = way;
    return p;
  }

  // Weights as a matrix, one row an output channel; a view.
  static at::Tensor matrix(const at::Tensor& weights) {
    return weights.permute({0, 2, 3, 1}).view({weights.size(0), -1});
  }
  OptionalTensor bias() const { return op_.options.bias ? OptionalTensor(parameters_.values[1]) : OptionalTensor(); }

  // One row a window: its taps and their channels in the order of the weights. A view if windows are single pixels.
  at::Tensor windows_of(const Problem& p) const {
    const at::Tensor x = p.pad == std::array<std::int64_t, 2>{0, 0}
                             ? p.input
                             : at::constant_pad_nd(p.input, {p.pad[1], p.pad[1], p.pad[0], p.pad[0]}, 0)
                                   .contiguous(at::MemoryFormat::ChannelsLast);
    const auto &rows = op_.windows.height, &columns = op_.windows.width;
    return x
        .as_strided({x.size(0), p.out_height, p.out_width, rows.kernel, columns.kernel, x.size(1)},
                    {x.stride(0), x.stride(2) * p.stride[0], x.stride(3) * p.stride[1], x.stride(2) * rows.dilation,
                     x.stride(3) * columns.dilation, x.stride(1)})
        .reshape({x.size(0) * p.out_height * p.out_width, -1});
  }

  // The transpose: every pixel gets the sum of what the windows that see it have for it.
  at::Tensor sum_of_windows(const Problem& p, const at::Tensor& windows) const {
    const at::Tensor& x = p.input;
    const auto &rows = op_.windows.height, &columns = op_.windows.width;
    const at::Tensor taps =
        windows.view({x.size(0), p.out_height, p.out_width, rows.kernel, columns.kernel, x.size(1)});
    at::Tensor sum = at::zeros({x.size(0), x.size(2) + 2 * p.pad[0], x.size(3) + 2 * p.pad[1], x.size(1)}, x.options());
    for (std::int64_t i = 0; i < rows.kernel; ++i)
      for (std::int64_t j = 0; j < columns.kernel; ++j) {
        const std::int64_t top = i * rows.dilation, left = j * columns.dilation;
        sum.slice(1, top, top + (p.out_height - 1) * p.stride[0] + 1, p.stride[0])
            .slice(2, left, left + (p.out_width - 1) * p.stride[1] + 1, p.stride[1])
            .add_(taps.select(3, i).select(3, j));
      }
    return sum.narrow(1, p.pad[0], x.size(2)).narrow(2, p.pad[1], x.size(3)).permute({0, 3, 1, 2});
  }

  at::Tensor convolved(const Problem& p) const {
    const at::Tensor &x = p.input, &w = parameters_.values[0];
    const std::array<std::int64_t, 2> no_output_padding{0, 0};
    if (p.way == Way::product) {
      const at::Tensor windows = windows_of(p), weights = matrix(w);
      const at::Tensor y = few() ? few_forward(windows.contiguous(), weights) : at::mm(windows, weights.t());
      if (op_.options.bias) y.add_(*bias());
      return images_of(y, x.size(0), p.out_height);
    }
    return whole_again(p, at::convolution(prepared(p, x), w, bias(), p.stride, p.pad, dilation(), false,
                                          no_output_padding, op_.options.groups));
  }

  at::Tensor input_gradient(const Problem& p, const at::Tensor& gradient) const {
    const at::Tensor &x = p.input, &w = parameters_.values[0];
    if (p.way == Way::product) {
      const at::Tensor dy = pixels_of(gradient);
      const at::Tensor windows = few() ? few_input_gradient(dy.contiguous(), matrix(w)) : at::mm(dy, matrix(w));
      return of_single_pixels() ? images_of(windows, x.size(0), x.size(2)) : sum_of_windows(p, windows);
    }
    return whole_again(p, std::get<0>(backward(p, gradient, {true, false, false})));
  }

  void add_weight_gradient(const Problem& p, const at::Tensor& gradient, const at::Tensor& sum) const {
    if (p.way != Way::product) {
      sum.add_(std::get<1>(backward(p, gradient, {false, true, false})));
    } else if (few()) {
      few_weight_gradient(pixels_of(gradient).contiguous(), windows_of(p).contiguous(), matrix(sum));
    } else {
      matrix(sum).addmm_(pixels_of(gradient).t(), windows_of(p));
    }
  }

  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const Problem& p, const at::Tensor& gradient,
                                                          std::array<bool, 3> mask) const {
    const std::array<std::int64_t, 1> bias_sizes{op_.options.out};
    return at::convolution_backward(prepared(p, gradient), prepared(p, p.input), parameters_.values[0],
                                    at::OptionalIntArrayRef(bias_sizes), p.stride, p.pad, dilation(), false,
                                    std::array<std::int64_t, 2>{0, 0}, op_.options.groups, mask);
  }

  // As torch is given a slab for a way, and what it makes of it.
  static at::Tensor prepared(const Problem& p, const at::Tensor& t) {
    if (p.way == Way::rows_as_samples) return images_of(pixels_of(t), t.size(0) * t.size(2), 1);
    return p.way == Way::blocked ? t.contiguous() : t;
  }
  static at::Tensor whole_again(const Problem& p, const at::Tensor& t) {
    return p.way == Way::rows_as_samples ? images_of(pixels_of(t), p.input.size(0), p.input.size(2)) : t;
  }

  const Conv& op_;
  const Shape input_;
  NodeParameters parameters_;
  const std::vector<std::unique_ptr<ConvWay>> own_;
  const bool by_onednn_, float32_;
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
