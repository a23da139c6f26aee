#include "tessera/graph/operations/windowed.h"

#include "tessera/base/error.h"

namespace tessera {

Windows::Windows(Pair kernel, Pair stride, Pair pad, Pair pad_end, Pair dilation)
    : height{kernel.height, stride.height, pad.height, pad_end.height, dilation.height},
      width{kernel.width, stride.width, pad.width, pad_end.width, dilation.width} {
  require(kernel.height > 0 && kernel.width > 0, "kernel ", kernel.height, "x", kernel.width, " must be positive");
  require(stride.height > 0 && stride.width > 0, "stride ", stride.height, "x", stride.width, " must be positive");
  require(dilation.height > 0 && dilation.width > 0, "dilation ", dilation.height, "x", dilation.width,
          " must be positive");
}

Shape Windows::apply(const Shape& in, std::int64_t out_channels) const {
  const Shape out{out_channels, height.output_size(in.height), width.output_size(in.width), in.depth};
  require(out.height > 0 && out.width > 0, "a ", height.extent(), "x", width.extent(),
          " window does not fit into its input of ", in.height, "x", in.width, "; use a larger --image-size");
  return out;
}

Box Windows::input_of(const Box& out) const {
  Box in = out;
  in[Axis::height] = height.input_of(out.height());
  in[Axis::width] = width.input_of(out.width());
  return in;
}

Box Windows::owned_outputs(const Box& in, const Shape& input) const {
  Box out = in;
  out[Axis::height] = height.owned_outputs(in.height(), input.height);
  out[Axis::width] = width.owned_outputs(in.width(), input.width);
  return out;
}

}  // namespace tessera
