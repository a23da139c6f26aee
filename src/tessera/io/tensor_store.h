// Named tensors on the disk, whichever way they are spread over files: one safetensors file, or shards with an index
// (the Hugging Face convention). And the comparison of what is there with what a network needs.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tessera/graph/graph.h"
#include "tessera/io/safetensors.h"
#include "tessera/io/shard_index.h"

namespace tessera {

/// Belongs to one thread. Files are opened when they are first needed.
class TensorStore {
 public:
  /// `path` is a safetensors file, an index (*.index.json), or a folder that holds model.safetensors.index.json or
  /// model.safetensors: a checkpoint is such a folder. Throws Error.
  static TensorStore open(const std::string& path);
  static TensorStore of_file(const std::string& path);
  static TensorStore of_index(const std::string& path);

  /// The file, the index or the folder, for messages.
  const std::string& path() const { return path_; }
  /// Sorted.
  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return file_of_.contains(name); }
  /// Files that hold the tensors, by name without the folder.
  std::set<std::string> files() const;
  const TensorEntry& entry(const std::string& name) const;
  /// Throws Error if its data type cannot be read.
  TensorSpec spec(const std::string& name) const;

  at::Tensor read(const std::string& name) const;
  /// As SafetensorsFile::read().
  void read(const std::string& name, const at::Tensor& into) const;

 private:
  const SafetensorsFile& file(const std::string& name) const;

  std::string path_, folder_;
  std::map<std::string, std::string> file_of_;  // tensor -> name of its file
  mutable std::map<std::string, std::shared_ptr<SafetensorsFile>> opened_;
};

/// Every parameter and running statistic of the network, in the order of the graph.
std::vector<TensorSpec> tensor_specs(const Graph& graph);
/// The last node with parameters before each row of logits: what another number of classes changes.
std::vector<std::string> heads_of(const Graph& graph);

/// How what is stored differs from what a network needs. Each list in the order of the network; extra ones sorted.
struct Differences {
  struct OtherShape {
    std::string name;
    std::vector<std::int64_t> stored, needed;
  };
  std::vector<std::string> missing, extra;
  std::vector<OtherShape> other_shape;

  bool none() const { return missing.empty() && extra.empty() && other_shape.empty(); }
  /// A line for each kind, with at most `most` names.
  std::string str(std::size_t most = 8) const;
};
Differences compare(const TensorStore& store, const std::vector<TensorSpec>& needed);

/// What --init-from will do: the same on every rank, so each can then read what it holds.
struct Import {
  std::set<std::string> loaded;   ///< to be read
  std::vector<std::string> head;  ///< not read: the head is of another size, or not there; it keeps its first values
  std::vector<std::string> counters;  ///< batch counters that old files lack; they stay 0
  std::vector<std::string> extra;     ///< in the file, and not in the network
  /// For the user: "122 tensors from FILE; ..."
  std::string summary;
};
/// Throws UsageError, which lists the names, if anything but the head differs or is missing.
Import plan_import(const TensorStore& store, const std::vector<TensorSpec>& needed,
                   const std::vector<std::string>& heads);

/// Writes all tensors, and those that are given beside them, to one file, one after the other: whole or not there.
void export_tensors(const TensorStore& store, const std::string& path, const Metadata& metadata = {},
                    const std::vector<NamedTensor>& more = {});

}  // namespace tessera
