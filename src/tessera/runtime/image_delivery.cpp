#include "tessera/runtime/image_delivery.h"

#include "tessera/ops/cuda/gpu.h"
#include "tessera/ops/slab.h"

namespace tessera {
namespace {

void finish_on_gpu(const RawImage& raw, const at::Tensor& bytes, const at::Tensor& out) {
  const auto channels = static_cast<std::size_t>(raw.normalisation.channels());
  gpu::ByteImage how{.number_bytes = static_cast<int>(bytes_of(raw.type)),
                     .transpose = raw.transpose,
                     .flip_rows = raw.flip_rows,
                     .flip_columns = raw.flip_columns,
                     .colours = raw.colours.has_value()};
  for (std::size_t c = 0; c < channels; ++c) how.numbers.push_back(raw.normalisation.middle(c, raw.type));
  for (std::size_t c = 0; c < channels; ++c) how.numbers.push_back(raw.normalisation.scale(c, raw.type));
  if (raw.colours) {
    how.numbers.insert(how.numbers.end(), raw.colours->offset.begin(), raw.colours->offset.end());
    for (const auto& row : raw.colours->matrix) how.numbers.insert(how.numbers.end(), row.begin(), row.end());
  }
  gpu::image_of_bytes(bytes, how, out);
}

}  // namespace

ReadAhead read_ahead(bool on_gpu) { return {.bytes = on_gpu ? std::int64_t{256} << 20 : 0}; }

LoaderOptions delivered_as(const at::TensorOptions& activations, int workers) {
  LoaderOptions options{.dtype = wide_dtype(activations.dtype().toScalarType()), .deliver = activations};
  options.workers = workers;
  options.ahead = read_ahead(activations.device().is_cuda());
  if (activations.device().is_cuda()) {
    options.finish_there = finish_on_gpu;
  }
  return options;
}

}  // namespace tessera
