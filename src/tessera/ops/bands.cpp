#include "tessera/ops/bands.h"

#include <algorithm>

namespace tessera {
namespace {

class BandedKernel final : public Kernel {
 public:
  BandedKernel(std::unique_ptr<Kernel> kernel, std::int64_t channels, std::int64_t most)
      : kernel_(std::move(kernel)), channels_(channels), most_(most) {}

  Slab forward(const ForwardArgs& args) override {
    return joined(args, [&](const ForwardArgs& band) { return kernel_->forward(band); });
  }
  Slab recompute(const ForwardArgs& args) override {
    return joined(args, [&](const ForwardArgs& band) { return kernel_->recompute(band); });
  }

  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const auto bands = bands_of(args.gradients[0].box, args.inputs[0]);
    if (bands.size() == 1) return kernel_->input_gradients(args);
    Slab sum;
    for (const Box& box : bands) {
      const Slab input = samples_of(args.inputs[0], box);
      BackwardArgs band = narrowed_to(box, input, args);
      const Slab term = kernel_->input_gradients(band)[0];
      if (!term.defined()) continue;
      if (!sum.defined()) sum = zero_slab(args.inputs[0].box, term.data.size(1), term.data.options());
      narrowed(sum, term.box).data.add_(term.data);
    }
    return {sum};
  }
  void weight_gradients(BackwardArgs& args) override {
    const auto bands = bands_of(args.gradients[0].box, args.inputs[0]);
    if (bands.size() == 1) return kernel_->weight_gradients(args);
    for (const Box& box : bands) {
      const Slab input = samples_of(args.inputs[0], box);
      BackwardArgs band = narrowed_to(box, input, args);
      kernel_->weight_gradients(band);
    }
  }

  bool has_weights() const override { return kernel_->has_weights(); }

 private:
  /// About as many numbers each, and each of one sample.
  std::vector<Box> bands_of(const Box& out, const Slab& input) const {
    const std::int64_t numbers = std::max(out.volume() * channels_, input.data.numel());
    if (numbers <= most_ || out.empty()) return {out};
    const std::int64_t samples = out.batch().size(), rows = out.height().size();
    constexpr std::int64_t bands_of_most = 8;
    const std::int64_t wanted = (bands_of_most * numbers + most_ - 1) / most_;
    const std::int64_t each = std::min(rows, (wanted + samples - 1) / samples);
    std::vector<Box> bands;
    for (std::int64_t s = 0; s < samples; ++s)
      for (std::int64_t b = 0; b < each; ++b) {
        Box band = out;
        band[Axis::batch] = {out.batch().begin + s, out.batch().begin + s + 1};
        band[Axis::height] = {out.height().begin + b * rows / each, out.height().begin + (b + 1) * rows / each};
        bands.push_back(band);
      }
    return bands;
  }

  template <class Make>
  Slab joined(const ForwardArgs& args, const Make& make) const {
    const auto bands = bands_of(args.out, args.inputs[0]);
    if (bands.size() == 1) return make(args);
    const Slab out = args.into.defined() ? args.into : empty_slab(args.out, channels_, args.inputs[0].data.options());
    for (const Box& box : bands) {
      const Slab input = samples_of(args.inputs[0], box), into = narrowed(out, box);
      const Slab made = make({{&input, 1}, box, intersect(args.owned, box), args.pass, args.saved, into});
      if (made.data.data_ptr() != into.data.data_ptr()) into.data.copy_(made.data);
    }
    return out;
  }

  static Slab samples_of(const Slab& input, const Box& band) {
    Box box = input.box;
    box[Axis::batch] = band.batch();
    return narrowed(input, box);
  }

  /// `input` must outlive what is returned.
  static BackwardArgs narrowed_to(const Box& box, const Slab& input, const BackwardArgs& args) {
    return {.inputs = {&input, 1},
            .output = {},
            .gradients = {narrowed(args.gradients[0], box)},
            .wanted = args.wanted,
            .addends = {},
            .owned = intersect(args.owned, box),
            .pass = args.pass,
            .saved = args.saved};
  }

  std::unique_ptr<Kernel> kernel_;
  std::int64_t channels_, most_;
};

}  // namespace

std::unique_ptr<Kernel> in_bands(std::unique_ptr<Kernel> kernel, std::int64_t channels, std::int64_t most) {
  return std::make_unique<BandedKernel>(std::move(kernel), channels, most);
}

}  // namespace tessera
