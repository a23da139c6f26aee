// Networks that are read from files of PyTorch: --model net.pt.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "tessera/archive/network_file.h"
#include "tessera/import/import.h"
#include "tessera/models/registry.h"
#include "tessera/oracle/foreign_module.h"

namespace tessera {

/// A network of a file, and the file that it is from.
struct ForeignModel {
  std::shared_ptr<const NetworkFile> file;
  ImportedNetwork network;

  /// What one rank is compared with.
  std::shared_ptr<const ForeignModule> reference() const;
};

/// Every file is read once. Belongs to one thread.
class NetworkFiles {
 public:
  /// Throws UsageError, for whatever is unsupported too, with the whole list.
  ForeignModel import(const ModelOptions& options);
  /// As it is, unsupported or not.
  ForeignModel look(const ModelOptions& options);

 private:
  std::map<std::string, std::shared_ptr<const NetworkFile>> opened_;
};

/// Whether --model is a file, not a name of the registry.
bool is_network_file(const ModelRegistry& models, const std::string& model);
/// The registry, and files as well.
ModelRegistry with_files(const ModelRegistry& models, const std::shared_ptr<NetworkFiles>& files);

/// Where a run keeps its copy of the file: in `dir`.
std::string network_copy(const std::string& dir, const std::string& file);
/// The copy that belongs to `weights` (a run's folder, a checkpoint of it); empty if there is none.
std::string find_network_copy(const std::string& weights, const std::string& file);
/// Puts a copy there, unless there is one.
void keep_network(const std::string& dir, const std::string& file);

}  // namespace tessera
