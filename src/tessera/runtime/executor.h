// Runs the steps of a program: forward, and Tessera's own reverse walk. It decides what is kept and when it is freed;
// the autograd engine has no part in it.
#pragma once

#include <vector>

#include "tessera/runtime/program.h"

namespace tessera {

/// What is alive of one micro between its forward and the end of its backward.
struct MicroState {
  PassInfo pass;
  std::vector<Slab> values;                  ///< by value; data undefined where it was freed, the box stays
  std::vector<std::vector<Slab>> gradients;  ///< by value: terms whose sum is the gradient, at most two
  std::vector<Saved> saved;                  ///< by step
};

/// Belongs to one thread. Several micros may be alive at once, each with its own state.
class Executor {
 public:
  /// The graph must outlive the executor.
  Executor(const Graph& graph, const Parameters& parameters, Recompute recompute = Recompute::norm);

  /// Runs the graph on the images of a micro; returns the sum of its samples' losses.
  /// images.box.batch() says which samples of the whole batch these are.
  double forward(MicroState& state, Slab images, PassInfo pass);
  /// Adds the gradient of (sum of the micro's losses)/pass.batch to the parameters' gradients; frees the state.
  void backward(MicroState& state);

  const Program& program() const { return program_; }

 private:
  Slab& value(MicroState& state, int v) const { return state.values[static_cast<std::size_t>(v)]; }
  /// Makes a value again that was thrown away in forward.
  void restore(MicroState& state, int v);
  std::vector<Slab> gather(const MicroState& state, const Step& step) const;
  /// The output's gradient in the form that the step's kernel takes, all over its box.
  std::vector<Slab> take_gradients(MicroState& state, const Step& step) const;
  /// What the step's kernel adds to its inputs' gradients while it writes them.
  std::vector<Slab> take_addends(MicroState& state, const Step& step) const;
  void accumulate(MicroState& state, int v, Slab term) const;
  void backward_step(MicroState& state, std::size_t s);

  const Graph& graph_;
  Program program_;
};

}  // namespace tessera
