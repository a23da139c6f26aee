#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "tessera/base/random.h"
#include "tessera/ops/gpu.h"
#include "tessera/ops/kernel.h"

namespace tessera {
namespace {

class DropoutKernel final : public Kernel {
 public:
  DropoutKernel(const Dropout& op, const Shape& input, const std::string& name)
      : op_(op), input_(input), stream_(stream_of(name)) {}
  Slab forward(const ForwardArgs& args) override {
    const Slab in = narrowed(args.inputs[0], args.out);
    return args.pass.evaluating ? in : masked(in, args.pass);
  }
  Slab recompute(const ForwardArgs& args) override { return forward_again(*this, args); }
  // The mask is made again, not kept.
  std::vector<Slab> input_gradients(BackwardArgs& args) override { return {masked(args.gradients[0], args.pass)}; }
  BackwardNeeds needs() const override { return {{false}}; }

 private:
  Slab masked(const Slab& in, const PassInfo& pass) const {
    Slab out = empty_slab(in.box, input_.channels, in.data.options());
    const RandomStream random(pass.seed ^ stream_, static_cast<std::uint64_t>(pass.step));
    const double keep = 1.0 - op_.probability;
    if (in.data.is_cuda()) {
      gpu::dropout(in.data, input_,
                   {.key = pass.seed ^ stream_,
                    .stream = static_cast<std::uint64_t>(pass.step),
                    .keep = keep,
                    .first_sample = pass.first_sample + in.box.batch().begin,
                    .first_row = in.box.height().begin,
                    .first_column = in.box.width().begin},
                   out.data);
      return out;
    }
    AT_DISPATCH_FLOATING_TYPES(in.data.scalar_type(), "dropout", [&] {
      const auto from = rows_of<const scalar_t>(in.data);
      const auto to = rows_of<scalar_t>(out.data);
      const auto scale = static_cast<scalar_t>(1.0 / keep);
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
            y[i] = random.uniform(static_cast<std::uint64_t>(first + i)) < keep ? x[i] * scale : scalar_t(0);
        }
      });
    });
    return out;
  }

  const Dropout& op_;
  const Shape input_;
  const std::uint64_t stream_;
};

}  // namespace

std::unique_ptr<Kernel> make_dropout_kernel(const Dropout& op, const Shape& input, const std::string& name) {
  return std::make_unique<DropoutKernel>(op, input, name);
}

}  // namespace tessera
