// Files of PyTorch that hold a network: TorchScript (torch.jit.save) and torch.export (.pt2).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/import/foreign.h"

namespace tessera {

/// The network itself, run by libtorch: what verify compares with. It shares nothing with graphs and kernels.
class ForeignNetwork {
 public:
  virtual ~ForeignNetwork() = default;
  /// From now on this is the parameter or buffer of that name.
  virtual void bind(const std::string& name, const at::Tensor& tensor) = 0;
  /// All outputs, in the order in which import_network() names them.
  virtual std::vector<at::Tensor> forward(const at::Tensor& images) = 0;
};

class NetworkFile {
 public:
  virtual ~NetworkFile() = default;
  /// Lives as long as this does.
  virtual const ForeignProgram& program() const = 0;
  /// A copy of the network of its own, with weights of this type on this device.
  virtual std::unique_ptr<ForeignNetwork> network(const at::TensorOptions& options) const = 0;
  /// A stored tensor by name; undefined if there is none.
  virtual at::Tensor tensor(const std::string& name) const = 0;
  /// "TorchScript", ...
  virtual std::string kind() const = 0;
};

/// Throws UsageError, which names the file and says what it is if it is something else.
std::shared_ptr<const NetworkFile> open_network(const std::string& path);

/// Whether a --model is meant as a file: by its ending, or because there is such a file.
bool names_network_file(const std::string& model);

}  // namespace tessera
