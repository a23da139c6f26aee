// Operations that move channels about and leave positions where they are.
#pragma once

#include "tessera/graph/operation.h"

namespace tessera {

/// Joins values along channels.
class Concat final : public Operation {
 public:
  std::string_view kind() const override { return "concat"; }
  Shape output_shape(Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
  Workspace workspace(Shapes inputs, const Box& out, std::int64_t element_bytes) const override {
    return {.writes_in_place = true};
  }
  Needs needs() const override { return {}; }
  bool repeats() const override { return true; }
};

/// Channels [first, first + count).
class SliceChannels final : public Operation {
 public:
  SliceChannels(std::int64_t first_channel, std::int64_t channels) : first(first_channel), count(channels) {}
  std::string_view kind() const override { return "slice_channels"; }
  Shape output_shape(Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
  Workspace workspace(Shapes inputs, const Box& out, std::int64_t element_bytes) const override {
    return {.writes_in_place = true};
  }
  Needs needs() const override { return {}; }
  bool repeats() const override { return true; }

  const std::int64_t first, count;
};

/// Deals the channels out: the first of each group, then the second of each, and so on.
class ChannelShuffle final : public Operation {
 public:
  explicit ChannelShuffle(std::int64_t of_channels) : groups(of_channels) {}
  std::string_view kind() const override { return "channel_shuffle"; }
  Shape output_shape(Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
  Needs needs() const override { return {}; }
  bool repeats() const override { return true; }

  const std::int64_t groups;
};

}  // namespace tessera
