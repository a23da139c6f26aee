#include "tessera/graph/operations/channels.h"

#include "tessera/base/error.h"

namespace tessera {

Shape Concat::output_shape(Shapes inputs) const {
  Shape out = inputs[0];
  out.channels = 0;
  for (const auto& shape : inputs) {
    require(shape.height == out.height && shape.width == out.width && shape.depth == out.depth,
            "only values of one size can be joined, not ", inputs[0], " and ", shape);
    out.channels += shape.channels;
  }
  return out;
}

Cost Concat::cost(Shapes inputs, const Box& out) const {
  return {0, 0, 0, 2 * static_cast<double>(out.volume() * output_shape(inputs).channels)};
}

Shape SliceChannels::output_shape(Shapes inputs) const {
  require(first >= 0 && count > 0 && first + count <= inputs[0].channels, "channels ", first, " to ", first + count,
          " of ", inputs[0].channels, ": there are not as many");
  Shape out = inputs[0];
  out.channels = count;
  return out;
}

Cost SliceChannels::cost(Shapes, const Box& out) const {
  return {0, 0, 0, 2 * static_cast<double>(out.volume() * count)};
}

Shape ChannelShuffle::output_shape(Shapes inputs) const {
  require(groups > 0 && inputs[0].channels % groups == 0, "a shuffle of ", inputs[0].channels, " channels in ", groups,
          " groups: the channels must be a multiple of the groups");
  return inputs[0];
}

Cost ChannelShuffle::cost(Shapes inputs, const Box& out) const {
  return {0, 0, 0, 2 * static_cast<double>(out.volume() * inputs[0].channels)};
}

}  // namespace tessera
