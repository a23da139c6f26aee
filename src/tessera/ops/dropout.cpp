#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>

#include <cmath>

#include "tessera/base/random.h"
#include "tessera/ops/cuda/gpu.h"
#include "tessera/ops/families.h"
#include "tessera/ops/kernel.h"

namespace tessera {
namespace {

// What all have in common: forward and backward multiply by the same mask, which is made again, not kept.
class MaskKernel : public Kernel {
 public:
  explicit MaskKernel(const KernelRequest& r)
      : input_(r.input_shapes()[0]), keep_(1.0 - r.op<Dropout>().probability), stream_(stream_of(r.node().name)) {}
  Slab forward(const ForwardArgs& args) override {
    const Slab in = narrowed(args.inputs[0], args.out);
    return args.pass.evaluating ? in : masked(in, args.pass);
  }
  std::vector<Slab> input_gradients(BackwardArgs& args) override { return {masked(args.gradients[0], args.pass)}; }

 protected:
  virtual Slab masked(const Slab& in, const PassInfo& pass) const = 0;
  RandomStream random(const PassInfo& pass) const {
    return RandomStream(pass.seed ^ stream_, static_cast<std::uint64_t>(pass.step));
  }

  const Shape input_;
  const double keep_;
  const std::uint64_t stream_;
};

class ElementDropout final : public MaskKernel {
 public:
  using MaskKernel::MaskKernel;

 private:
  Slab masked(const Slab& in, const PassInfo& pass) const override {
    Slab out = empty_slab(in.box, input_.channels, in.data.options());
    const RandomStream random = this->random(pass);
    AT_DISPATCH_FLOATING_TYPES(in.data.scalar_type(), "dropout", [&] {
      const auto from = rows_of<const scalar_t>(in.data);
      const auto to = rows_of<scalar_t>(out.data);
      const auto scale = static_cast<scalar_t>(1.0 / keep_);
      at::parallel_for(0, from.count(), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
          const scalar_t* x = from.row(r);
          scalar_t* y = to.row(r);
          const std::int64_t sample = pass.first_sample + in.box.batch().begin + r / from.rows;
          const std::int64_t row = in.box.height().begin + r % from.rows;
          // The element's place in the whole batch: the same on every plan.
          const std::int64_t first =
              ((sample * input_.height + row) * input_.width + in.box.width().begin) * input_.channels;
          for (std::int64_t i = 0; i < from.row_elements(); ++i)
            y[i] = random.uniform(static_cast<std::uint64_t>(first + i)) < keep_ ? x[i] * scale : scalar_t(0);
        }
      });
    });
    return out;
  }
};

// The part of `image` that `in` covers.
void drop_on_gpu(const Slab& in, const Shape& image, std::uint64_t key, double keep, const PassInfo& pass,
                 const at::Tensor& out) {
  const at::Tensor step =
      pass.there.step.defined() ? pass.there.step : at::full({1}, pass.step, in.data.options().dtype(at::kLong));
  gpu::dropout(in.data, image,
               {.key = key,
                .step = step,
                .keep = keep,
                .first_sample = pass.first_sample + in.box.batch().begin,
                .first_row = in.box.height().begin,
                .first_column = in.box.width().begin},
               out);
}

class GpuElementDropout final : public MaskKernel {
 public:
  using MaskKernel::MaskKernel;

 private:
  Slab masked(const Slab& in, const PassInfo& pass) const override {
    Slab out = empty_slab(in.box, input_.channels, in.data.options());
    drop_on_gpu(in, input_, pass.seed ^ stream_, keep_, pass, out.data);
    return out;
  }
};

// One random number for each channel of a sample, or for each sample.
class WholeDropout final : public MaskKernel {
 public:
  explicit WholeDropout(const KernelRequest& r)
      : MaskKernel(r), numbers_(r.op<Dropout>().of == DropoutOf::channels ? input_.channels : 1) {}

 private:
  Slab masked(const Slab& in, const PassInfo& pass) const override {
    const std::int64_t samples = in.box.batch().size();
    if (in.data.is_cuda()) {
      const Slab ones{at::ones({samples, numbers_, 1, 1}, in.data.options()), Shape{numbers_}.box(in.box.batch())};
      drop_on_gpu(ones, Shape{numbers_}, pass.seed ^ stream_, keep_, pass, ones.data);
      return {channels_last(at::mul(in.data, ones.data)), in.box};
    }
    const RandomStream random = this->random(pass);
    at::Tensor mask = at::empty({samples, numbers_, 1, 1}, at::kDouble);
    const std::int64_t first = (pass.first_sample + in.box.batch().begin) * numbers_;
    for (std::int64_t i = 0; i < mask.numel(); ++i)
      mask.data_ptr<double>()[i] = random.uniform(static_cast<std::uint64_t>(first + i)) < keep_ ? 1.0 / keep_ : 0;
    return {channels_last(at::mul(in.data, mask.to(in.data.options()))), in.box};
  }

  const std::int64_t numbers_;
};

}  // namespace

void add_dropout_kernels(Kernels& kernels) {
  const auto elements = [](const KernelRequest& r) { return r.op<Dropout>().of == DropoutOf::elements; };
  kernels.add("dropout", {"cuda", [=](const KernelRequest& r) { return r.on_gpu() && elements(r); },
                          [](const KernelRequest& r) { return std::make_unique<GpuElementDropout>(r); }});
  kernels.add("dropout",
              {"loops", elements, [](const KernelRequest& r) { return std::make_unique<ElementDropout>(r); }});
  kernels.add("dropout", [](const KernelRequest& r) { return std::make_unique<WholeDropout>(r); });
}

}  // namespace tessera
