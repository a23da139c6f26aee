// The words of point-wise arithmetic. Operations that say theirs are fused: one step computes
//
//     act( a + b )   or   act( a · b )   or   act( a )
//
// where a and b are values as they are, or normalised on the way, and act is any activation or none.
#pragma once

#include <cstdint>
#include <variant>

#include "tessera/graph/activations.h"

namespace tessera {

/// Whose mean and variance a norm takes.
enum class StatisticsOf {
  nothing,  ///< no statistics at all: a scale for each channel
  micro,    ///< each channel's, over all samples and positions of a micro
  sample,   ///< each sample's, over all positions and the channels of a group
  running,  ///< those that another training has gathered; they stay as they are
};

/// weight·(x - mean)/√(variance + epsilon) + bias.
struct NormFormula {
  StatisticsOf statistics = StatisticsOf::micro;
  std::int64_t groups = 0;  ///< of channels that are normalised together; 0: each channel by itself
  double epsilon = 1e-5;
  double momentum = 0.1;  ///< weight of the new statistics in the running ones
  bool affine = true;     ///< weight and bias are parameters; otherwise 1 and 0

  /// Whether running statistics are gathered, or used.
  bool has_running() const { return statistics == StatisticsOf::micro || statistics == StatisticsOf::running; }
  /// Whether every sample has its own numbers.
  bool by_sample() const { return statistics == StatisticsOf::sample; }
  /// Whether they are taken of the values that are normalised.
  bool live() const { return statistics == StatisticsOf::micro || statistics == StatisticsOf::sample; }
};

enum class Combine { sum, product };

/// One operation's part: an activation, a norm, or what it does with two values.
using PointwiseFormula = std::variant<Activation, NormFormula, Combine>;

}  // namespace tessera
