// The nodes of a stage as a list of steps: what is fused, what backward finds of every value, and when each is freed.
// The executor runs this list, and whoever wants to know what a stage takes (balance, memory, simulator) reads it.
// Nothing here knows tensors or ranks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/graph/graph.h"

namespace tessera {

/// What may be thrown away in forward and made again in backward.
struct Recompute {
  enum What {
    none,
    norm,   ///< the outputs of point-wise steps (norms, sums, activations) whose inputs are kept anyway
    block,  ///< whatever only its own block of cells reads, convolutions too; outputs of blocks are kept
  };
  What what = norm;
  int cells = 1;  ///< of a block

  Recompute(What w, int cells_of_block = 1) : what(w), cells(cells_of_block) {}
  friend bool operator==(const Recompute& a, What b) { return a.what == b; }
};
/// "none", "norm", "block", or "block:3" for blocks of three cells. Throws UsageError.
Recompute parse_recompute(const std::string& text);
/// The same text.
std::string words_of(const Recompute& recompute);

/// What becomes of a value after its last use in forward.
enum class Keep { dropped, stored, recomputed };

/// A value that a point-wise step reads.
struct Term {
  int norm = -1;  ///< the node that normalises it on the way; -1: as it is
};

/// Point-wise nodes in one: act(a ∘ b), as graph/pointwise.h says. One term for each input of the step.
struct Pointwise {
  std::vector<Term> terms;
  Combine combine = Combine::sum;
  std::optional<Activation> activation;
  bool spread = false;  ///< the second term has one channel, or one position, and stands for all
  /// Where backward reads the activation's derivative: from the output, or from the inputs.
  bool by_output = false;

  /// Whether backward has to see what the terms were, beside those that are normalised.
  bool reads_all_terms() const {
    return spread || (combine == Combine::product && terms.size() > 1) || (activation && !by_output);
  }
};

struct Step {
  std::string name;                    ///< of its last node
  int node = -1;                       ///< the last one, whose value is the output
  std::optional<Pointwise> pointwise;  ///< set: all of its nodes are in here
  int complete_from = 0;               ///< all nodes from this one on have gone back once this step has
  std::vector<int> inputs;             ///< values
  int output = -1;                     ///< value
  bool reduces = false;                ///< its output is a sum over positions: see Operation::reduces_positions()
  Agreement agreement = Agreement::none;
  bool moments = false;  ///< a later step takes the moments of the output: whoever writes it may do so on the way

  /// What backward looks at.
  std::vector<bool> needs_input;
  bool needs_output = false;
  /// Values whose last use in forward, or in backward, is this step.
  std::vector<int> release_after_forward, release_after_backward;
  /// The former, and those that only backward still wants: what is released where no backward follows.
  std::vector<int> release_in_evaluation;
  /// Values that no earlier step reads: after this step's backward their gradient is complete, but for other stages.
  std::vector<int> completes;
};

/// Nodes [first, end) of a graph.
struct NodeRange {
  int first = 0, end = 0;
  bool contains(int n) const { return first <= n && n < end; }
};

/// Whether two values are made in the same boxes on every member of a stage; otherwise their nodes are not fused.
using SameBoxes = std::function<bool(int a, int b)>;

struct Program {
  /// Point-wise nodes are fused as far as their inner values have no other reader.
  Program(const Graph& graph, NodeRange nodes, Recompute recompute, const SameBoxes& same_boxes = {});

  NodeRange nodes;
  std::vector<Step> steps;
  std::vector<Keep> keep;  ///< by value
  /// By value: it is made again at the cost of little more than the memory that it takes.
  std::vector<bool> light;
  /// By value: light, and made from what is there until backward, so that forward may make it again, too.
  std::vector<bool> light_in_forward;
  std::vector<int> producer;  ///< by value: the step that makes it, -1 for what enters and for values inside a step
};

/// Which part of a step's i-th input an output box needs.
Box input_box(const Graph& graph, const Step& step, const Box& out, std::size_t i);

/// Weight gradients that backward puts off at a time, so that it has something to do while it waits. More would hold
/// much memory; these outlast the messages of a block of layers.
constexpr std::size_t most_put_off = 3;

/// By step: whether its weight gradient is put off for the sake of the stage before, which has nothing to do until the
/// gradient of its value arrives: the last ones that backward would compute before that gradient leaves, at most
/// `most` of them. `weighs(s)`: step s has a weight gradient. `came(v)`: value v is another stage's.
std::vector<bool> put_off_for_others(const std::vector<Step>& steps, std::size_t most,
                                     const std::function<bool(std::size_t)>& weighs,
                                     const std::function<bool(int)>& came);

/// Elements that one sample keeps from forward to backward.
double kept_elements(const Graph& graph, const Program& program);

}  // namespace tessera
