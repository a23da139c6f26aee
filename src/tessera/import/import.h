// From a network of PyTorch to a graph.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/import/foreign.h"

namespace tessera {

struct ImportOptions {
  Shape image{3, 224, 224};
  std::string output;         ///< of a dictionary or tuple of outputs, the one to train; empty: the first
  bool auxiliary = false;     ///< the others are trained beside it, as auxiliary heads
  bool random_start = false;  ///< the operations' own first values, not those of the file
};

/// An operator that has no word in the graph, and every place where it stands.
struct Unsupported {
  std::string op, why;
  bool everywhere = false;  ///< it changes what others look at, so every output depends on it
  std::vector<Whereabouts> where;
};

struct ImportedNetwork {
  Graph graph;                           ///< with its loss and its cells; without nodes if anything is unsupported
  std::vector<Unsupported> unsupported;  ///< of what the trained output depends on
  std::vector<std::string> outputs;      ///< names of all of them; one without a name: "0"
  std::string trained;                   ///< of these: the one that is trained
  std::vector<std::string> auxiliary;    ///< and those that are trained beside it
  std::vector<std::string> unused;       ///< weights that the trained output does not depend on
  std::int64_t norms = 0, frozen_norms = 0, idle_dropouts = 0;
  std::vector<std::string> dropouts;  ///< nodes, in the order in which the network runs them; some may be unused
  std::int64_t fixed = 0;             ///< parameters that are not trained

  /// As exported in evaluation mode: all that differs in training is switched off.
  bool evaluating() const { return norms + idle_dropouts > 0 && frozen_norms == norms && dropouts.empty(); }
};

/// Throws UsageError for what the options cannot have, and where shapes do not fit.
ImportedNetwork import_network(const ForeignProgram& program, const ImportOptions& options);

/// All at once, for a message: one line per operator and place.
std::string text_of(const std::vector<Unsupported>& unsupported);

}  // namespace tessera
