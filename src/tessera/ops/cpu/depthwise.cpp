// The gradient of the weights of depthwise convolutions, float32 on CPUs. oneDNN's is slow for windows other than 3×3
// of stride 1 (20 times and more); its other passes are as fast as memory.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "tessera/base/error.h"
#include "tessera/ops/conv_way.h"
#include "tessera/ops/cpu/isa/depthwise.h"

namespace tessera {
namespace {

class DepthwiseWay final : public ConvWay {
 public:
  explicit DepthwiseWay(const ConvFacts& facts) : facts_(facts) {}
  std::string_view name() const override { return "depthwise"; }
  bool may_pay(const Box&, ConvPass pass) const override { return pass == ConvPass::weight_gradient; }
  bool pays(const Box&, ConvPass pass) const override {
    const auto plain = [](const Window& w) { return w.kernel == 3 && w.stride == 1 && w.dilation == 1; };
    return pass == ConvPass::weight_gradient && !(plain(rows()) && plain(columns()));
  }
  void forward(const at::Tensor&, Origin, const NodeParameters&, const at::Tensor&) const override { no_such_pass(); }
  void input_gradient(const at::Tensor&, Origin, const at::Tensor&, const at::Tensor&) const override {
    no_such_pass();
  }

  void weight_gradient(const at::Tensor& in, Origin origin, const at::Tensor& gradient,
                       const at::Tensor& sum) const override {
    const auto x = rows_of<const float>(in), g = rows_of<const float>(gradient);
    const std::int64_t channels = facts_.in_channels, taps = rows().kernel * columns().kernel;
    const int threads = at::get_num_threads();
    // Sums of a row are floats, those of all rows doubles: [threads, taps, channels], added up in the order of threads.
    at::Tensor totals = at::empty({threads, taps, channels}, at::kDouble).zero_();
    at::parallel_for(0, g.count(), 1, [&](std::int64_t begin, std::int64_t end) {
      double* const mine = totals.data_ptr<double>() + at::get_thread_num() * taps * channels;
      std::vector<float> of_row(static_cast<std::size_t>(columns().kernel * channels));
      for (std::int64_t r = begin; r < end; ++r)
        for (std::int64_t a = 0; a < rows().kernel; ++a) {
          const std::int64_t y = r % g.rows * rows().stride + origin.row + a * rows().dilation;
          if (y < 0 || y >= x.rows) continue;
          std::fill(of_row.begin(), of_row.end(), 0.0F);
          add_row(g.row(r), g.width, x.row(r / g.rows, y), x.width, origin.column, of_row.data());
          double* const to = mine + a * columns().kernel * channels;
          for (std::size_t i = 0; i < of_row.size(); ++i) to[i] += static_cast<double>(of_row[i]);
        }
    });
    const at::Tensor all = totals.sum(0).view({rows().kernel, columns().kernel, channels}).permute({2, 0, 1});
    sum.add_(all.unsqueeze(1));
  }

 private:
  static void no_such_pass() { ensure(false, "depthwise convolutions have a gradient of the weights only"); }
  const Window& rows() const { return facts_.windows.height; }
  const Window& columns() const { return facts_.windows.width; }

  // The pixels whose windows lie inside take all taps at once; at the ends each tap has pixels of its own.
  void add_row(const float* g, std::int64_t pixels, const float* x, std::int64_t width, std::int64_t left,
               float* sums) const {
    const std::int64_t channels = facts_.in_channels, stride = columns().stride, dilation = columns().dilation;
    const std::int64_t kernel = columns().kernel, step = stride * channels, apart = dilation * channels;
    const auto inside_of = [&](std::int64_t tap) {  // pixels for which this tap falls on the image
      const std::int64_t at = left + tap * dilation;
      const std::int64_t first = at >= 0 ? 0 : (-at + stride - 1) / stride;
      const std::int64_t end = at >= width ? 0 : (width - 1 - at) / stride + 1;
      return intersect(Interval{first, end}, Interval{0, pixels});
    };
    const Interval whole = intersect(inside_of(0), inside_of(kernel - 1));
    if (!whole.empty())
      depthwise_kernels().add_taps(kernel, g + whole.begin * channels, x + (whole.begin * stride + left) * channels,
                                   whole.size(), channels, step, apart, sums);
    for (std::int64_t b = 0; b < kernel; ++b) {
      const Interval all = inside_of(b);
      const auto end = [&](const Interval& part) {
        if (part.empty()) return;
        depthwise_kernels().add_taps(1, g + part.begin * channels,
                                     x + (part.begin * stride + left + b * dilation) * channels, part.size(), channels,
                                     step, apart, sums + b * channels);
      };
      if (whole.empty()) {
        end(all);
      } else {
        end({all.begin, whole.begin});
        end({whole.end, all.end});
      }
    }
  }

  const ConvFacts facts_;
};

}  // namespace

std::unique_ptr<ConvWay> depthwise_way(const ConvFacts& facts) {
  if (facts.dtype != at::kFloat) return nullptr;
  return std::make_unique<DepthwiseWay>(facts);
}

}  // namespace tessera
