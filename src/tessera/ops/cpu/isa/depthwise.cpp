#include "tessera/ops/cpu/isa/depthwise.h"

#include "tessera/ops/cpu/isa/vectors.h"

namespace tessera::TESSERA_ISA {
namespace {

// sums[b] += Σ_j g[j]·x[j·step + b·apart] for `taps` taps side by side, `width` channels at a time; the sums stay in
// registers along the row.
template <class X, int taps>
TESSERA_INLINE void along_row(const float* g, const float* x, std::int64_t pixels, std::int64_t channels,
                              std::int64_t step, std::int64_t apart, float* sums, std::int64_t between) {
  X sum[taps];
#pragma GCC unroll 8
  for (int b = 0; b < taps; ++b) sum[b] = load<X>(sums + b * between);
  for (std::int64_t j = 0; j < pixels; ++j) {
    const X v = load<X>(g + j * channels);
#pragma GCC unroll 8
    for (int b = 0; b < taps; ++b) sum[b] += v * load<X>(x + j * step + b * apart);
  }
#pragma GCC unroll 8
  for (int b = 0; b < taps; ++b) store(sums + b * between, sum[b]);
}

template <int taps>
void all_channels(const float* g, const float* x, std::int64_t pixels, std::int64_t channels, std::int64_t step,
                  std::int64_t apart, float* sums) {
  using V = Vector<float>;
  std::int64_t c = 0;
  for (; c + vector_length<float> <= channels; c += vector_length<float>)
    along_row<V, taps>(g + c, x + c, pixels, channels, step, apart, sums + c, channels);
  for (; c < channels; ++c) along_row<float, taps>(g + c, x + c, pixels, channels, step, apart, sums + c, channels);
}

void add_taps(std::int64_t taps, const float* g, const float* x, std::int64_t pixels, std::int64_t channels,
              std::int64_t step, std::int64_t apart, float* sums) {
  while (taps > 0) {
    const std::int64_t now = taps >= 8 ? 8 : taps;
    switch (now) {
      case 8:
        all_channels<8>(g, x, pixels, channels, step, apart, sums);
        break;
      case 7:
        all_channels<7>(g, x, pixels, channels, step, apart, sums);
        break;
      case 6:
        all_channels<6>(g, x, pixels, channels, step, apart, sums);
        break;
      case 5:
        all_channels<5>(g, x, pixels, channels, step, apart, sums);
        break;
      case 4:
        all_channels<4>(g, x, pixels, channels, step, apart, sums);
        break;
      case 3:
        all_channels<3>(g, x, pixels, channels, step, apart, sums);
        break;
      case 2:
        all_channels<2>(g, x, pixels, channels, step, apart, sums);
        break;
      default:
        all_channels<1>(g, x, pixels, channels, step, apart, sums);
        break;
    }
    taps -= now;
    x += now * apart;
    sums += now * channels;
  }
}

}  // namespace

const DepthwiseKernels depthwise_kernels{add_taps};

}  // namespace tessera::TESSERA_ISA
