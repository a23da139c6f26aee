// Stands in for gpu.cpp and the kernels behind it where CUDA was not found.
#include "tessera/base/error.h"
#include "tessera/graph/operations/windowed.h"
#include "tessera/ops/cuda/gpu.h"

namespace tessera::gpu {
namespace {

[[noreturn]] void refuse() { throw Error("this program was built without CUDA"); }

}  // namespace

bool built() { return false; }
bool has_bfloat16() { return false; }
std::array<std::uint8_t, 16> identity() { return {}; }
at::Tensor moments(const at::Tensor&) { refuse(); }
Normed finish_norm(const at::Tensor&, const Norm&) { refuse(); }
void evaluate(const std::vector<Affine>&, const loops::Formula&, const at::Tensor&) { refuse(); }
at::Tensor evaluate_with_moments(const std::vector<Affine>&, const loops::Formula&, const at::Tensor&) { refuse(); }
at::Tensor gradient_sums(const std::vector<at::Tensor>&, const Derivative&, const std::vector<const Affine*>&,
                         const std::array<at::Tensor, 2>&) {
  refuse();
}
at::Tensor finish_norm_gradient(const at::Tensor&, const at::Tensor&, const Normed&, const at::Tensor&,
                                const at::Tensor&) {
  refuse();
}
void affine_gradient(const at::Tensor&, const Affine&, const at::Tensor&, const GradientOptions&, const at::Tensor&) {
  refuse();
}
bool conv_pays(const ConvSizes&, bool) { return false; }
void conv(const at::Tensor&, Origin, const at::Tensor&, std::int64_t, const at::Tensor&) { refuse(); }
void conv_input_gradient(const at::Tensor&, Origin, const at::Tensor&, const at::Tensor&) { refuse(); }
void conv_weight_gradient(const at::Tensor&, Origin, const at::Tensor&, std::int64_t, const at::Tensor&) { refuse(); }
void image_of_bytes(const at::Tensor&, const ByteImage&, const at::Tensor&) { refuse(); }
bool depthwise_can(std::int64_t, std::int64_t) { return false; }
void depthwise(const at::Tensor&, Origin, const at::Tensor&, const at::Tensor&, std::int64_t, const at::Tensor&) {
  refuse();
}
void depthwise_input_gradient(const at::Tensor&, Origin, const at::Tensor&, std::int64_t, const at::Tensor&) {
  refuse();
}
void depthwise_weight_gradient(const at::Tensor&, Origin, const at::Tensor&, std::int64_t, const at::Tensor&) {
  refuse();
}
void max_pool(const Windows&, const Shape&, const PoolSide&, const PoolSide&, const at::Tensor&) { refuse(); }
void max_pool_gradient(const Windows&, const Shape&, const PoolSide&, const PoolSide&, const at::Tensor&) { refuse(); }
void avg_pool(const Windows&, const Shape&, bool, const PoolSide&, const PoolSide&) { refuse(); }
void avg_pool_gradient(const Windows&, const Shape&, bool, const PoolSide&, const PoolSide&) { refuse(); }
void dropout(const at::Tensor&, const Shape&, const DropoutPlace&, const at::Tensor&) { refuse(); }

}  // namespace tessera::gpu
