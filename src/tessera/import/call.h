// One call of an operator while a network is followed: its arguments by name, and what can be done with them.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/import/foreign.h"
#include "tessera/import/import.h"

namespace tessera {

/// Thrown by whoever cannot translate a call; the message says why.
class NotTranslated : public Error {
 public:
  using Error::Error;
};

/// The first value of a parameter or statistic of a file: with --init random it may be another one.
enum class Start { as_asked, as_in_the_file };

/// The graph that comes into being, and what is known of its nodes.
class Translation {
 public:
  Translation(const ForeignProgram& program, const ImportOptions& options);

  Graph graph;
  std::vector<Whereabouts> where;  ///< by node
  std::int64_t norms = 0, frozen_norms = 0, idle_dropouts = 0;
  std::vector<std::string> dropouts;  ///< names of the nodes, in the order in which they run

  /// Values of this many rows and columns at the export have these now.
  void note_size(Pair exported, Pair now);
  /// What rows and columns that are written into the code as numbers are for the images of this run. Throws where the
  /// code does not tell.
  Pair relative(Pair written) const;
  /// Whether they may be the size of a value, and values of that size have another one now.
  bool may_have_changed(Pair written) const;

  /// A name for a node that nobody else has, from the module it stands in.
  std::string name_for(const std::string& module, std::string_view what);
  /// The name of a node with parameters, from that of its first one in the file.
  std::string owner_of(const StoredRef& weight, const std::string& suffix, const std::string& module);
  /// Gives a parameter of the node its name and values from the file. What is not trained always has these.
  void adopt(Value node, const std::string& suffix, const StoredRef& from, Start start = Start::as_asked);
  const StoredTensor* find(const std::string& name) const { return program_.find(name); }
  const ForeignProgram& program() const { return program_; }

 private:
  const ForeignProgram& program_;
  const ImportOptions& options_;
  std::set<std::string> names_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::set<std::pair<std::int64_t, std::int64_t>>> sizes_;
  std::map<const StoredTensor*, std::string> used_;
};

class Call {
 public:
  Call(Translation& into, const ForeignNode& node, std::vector<Thing> arguments)
      : translation(into), node_(node), arguments_(std::move(arguments)) {}

  Translation& translation;
  Graph& graph() const { return translation.graph; }
  const std::string& module() const { return node_.where.module; }
  const std::string& op() const { return node_.op; }
  const Whereabouts& where() const { return node_.where; }
  std::size_t outputs() const { return node_.outputs.size(); }

  std::size_t size() const { return arguments_.size(); }
  const Thing& at(std::size_t i) const { return arguments_.at(i); }
  /// None if it is not given.
  const Thing& argument(std::string_view name) const;
  bool given(std::string_view name) const { return !argument(name).none(); }

  bool flag(std::string_view name, bool otherwise) const;
  std::int64_t integer(std::string_view name, std::int64_t otherwise) const;
  double number(std::string_view name, double otherwise) const;
  std::string word(std::string_view name, const std::string& otherwise) const;
  std::vector<std::int64_t> integers(std::string_view name) const;
  /// One number for both, or two; `otherwise` where it is not given or an empty list.
  Pair pair(std::string_view name, Pair otherwise) const;
  const ForeignTensor& tensor(std::string_view name) const;
  /// Null where it is None; throws if it is computed.
  const StoredRef* stored(std::string_view name) const;

  /// The tensor with its axes in the order [N, C, H, W].
  Value planes(const ForeignTensor& tensor) const;
  Value planes(std::string_view name) const { return planes(tensor(name)); }
  Thing result(Value value, Form form) const;
  /// In the order [N, C, H, W].
  Thing result(Value value) const { return result(value, Form::planes(graph().shape(value))); }
  /// In the order [N, C, H, W], or [N, C] where `like` has no more.
  Thing result_like(const ForeignTensor& like, Value value) const;
  /// A name for a node of this operator.
  std::string name(std::string_view what) const { return translation.name_for(module(), what); }
  /// Adds a node under a name of this operator's place.
  Value add(OperationPtr op, std::vector<Value> inputs) const;

 private:
  const ForeignNode& node_;
  std::vector<Thing> arguments_;
};

template <class... Parts>
[[noreturn]] void not_translated(const Parts&... parts) {
  throw NotTranslated(concat(parts...));
}

using Translator = std::function<Thing(const Call&)>;
/// The one table from PyTorch's operators to words of the graph, by name ("aten::conv2d").
const std::map<std::string, Translator, std::less<>>& operators();

// Its parts.
using OperatorTable = std::map<std::string, Translator, std::less<>>;
void add_layers(OperatorTable& table);     ///< with weights: convolutions, linear layers, norms
void add_pointwise(OperatorTable& table);  ///< activations, sums, products, what is dropped
void add_planes(OperatorTable& table);     ///< pools, padding, resizing
void add_movements(OperatorTable& table);  ///< views, permutations, joins and cuts of channels

/// A sum or product of tensors, weights and numbers.
Thing combined(const Call& call, Combine what, const Thing& a, const Thing& b);

}  // namespace tessera
