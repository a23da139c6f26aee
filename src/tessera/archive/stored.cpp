#include "tessera/archive/stored.h"

#include <ATen/ops/empty.h>

namespace tessera {

StoredTensor stored_tensor(const std::string& name, const at::Tensor& tensor, bool trained) {
  StoredTensor out{
      .name = name, .sizes = tensor.sizes().vec(), .trained = trained, .real = tensor.is_floating_point(), .value = {}};
  const at::Tensor flat = tensor.detach().cpu().contiguous();
  if (flat.scalar_type() == at::kFloat)
    out.value = [flat](std::int64_t i) { return static_cast<double>(flat.data_ptr<float>()[i]); };
  else if (flat.scalar_type() == at::kDouble)
    out.value = [flat](std::int64_t i) { return flat.data_ptr<double>()[i]; };
  else if (flat.scalar_type() == at::kLong)
    out.value = [flat](std::int64_t i) { return static_cast<double>(flat.data_ptr<std::int64_t>()[i]); };
  else
    out.value = [wide = flat.to(at::kDouble)](std::int64_t i) { return wide.data_ptr<double>()[i]; };
  return out;
}

}  // namespace tessera
