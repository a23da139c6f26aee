// Images out of the numbers of their files: normalised, turned, coloured and rounded in one pass. Each step is rounded as
// on a CPU, so that no contraction changes a bit.
#include "tessera/ops/cuda/gpu_device.cuh"

namespace tessera::gpu {
namespace {

template <class T, class From>
__global__ void image_kernel(ByteImageJob job) {
  const double *middle = job.numbers, *scale = middle + job.channels, *offset = scale + job.channels,
               *matrix = offset + job.channels;
  const std::int64_t columns = job.columns, pixels = job.rows * columns, step = gridDim.x * blockDim.x;
  for (std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < pixels; i += step) {
    const std::int64_t y = i / columns, x = i - y * columns;
    const From* from = static_cast<const From*>(job.bytes) + job.origin + y * job.down + x * job.across;
    T* to = static_cast<T*>(job.out) + y * job.row_stride + x * job.column_stride;
    const auto value = [&](int c) {
      return static_cast<Accumulator<T>>(__dmul_rn(__dsub_rn(static_cast<double>(from[c]), middle[c]), scale[c]));
    };
    for (int c = 0; c < job.channels; ++c) {
      if (!job.colours) {
        to[c * job.channel_stride] = narrow<T>(value(c));
        continue;
      }
      double sum = offset[c];
      for (int k = 0; k < job.channels; ++k) sum = __dadd_rn(sum, __dmul_rn(matrix[c * job.channels + k], value(k)));
      to[c * job.channel_stride] = narrow<T>(static_cast<Accumulator<T>>(sum));
    }
  }
}

}  // namespace

void image_of_bytes(const ByteImageJob& job, void* stream) {
  const std::int64_t pixels = std::int64_t{job.rows} * job.columns;
  if (pixels == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((pixels + block_threads - 1) / block_threads, 1 << 16));
  dispatch(job.number, /*vector=*/false, [&](auto number, auto) {
    using T = decltype(number);
    const auto run = [&](auto* kernel) {
      launch("image_of_bytes", kernel, dim3(blocks), dim3(block_threads), stream, job);
    };
    if (job.of == FileNumber::uint8)
      run(image_kernel<T, std::uint8_t>);
    else if (job.of == FileNumber::uint16)
      run(image_kernel<T, std::uint16_t>);
    else
      run(image_kernel<T, float>);
  });
}

}  // namespace tessera::gpu
