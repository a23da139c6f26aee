// A network as a file of PyTorch has it: its code, with all calls of modules and functions written out, and its
// weights. Readers of files make it (the room archive); import.h makes a graph of it.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/import/thing.h"

namespace tessera {

/// Where an operator stands.
struct Whereabouts {
  std::string module;  ///< "layer1.0.conv1"; empty: the network itself
  std::string kind;    ///< of the module, where the file has it: "torch.nn.modules.conv.Conv2d"
  std::string source;  ///< "resnet.py:92", where the file has it
};

struct ForeignArgument {
  std::string name;  ///< as in the operator's schema; empty where there is none
  int value = -1;    ///< number of a value of the program
};

struct ForeignBlock;

/// One operator, with the name that TorchScript has for it ("aten::conv2d"), or a constant.
struct ForeignNode {
  std::string op;
  std::vector<ForeignArgument> inputs;
  std::vector<int> outputs;
  std::optional<Thing> constant = {};
  std::vector<std::string> names = {};  ///< of a tuple's fields
  std::vector<ForeignBlock> blocks;     ///< of a branch or a loop
  Whereabouts where = {};
  std::string overload = {};  ///< where the file says which one
};

struct ForeignBlock {
  std::vector<int> inputs;
  std::vector<ForeignNode> nodes;
  std::vector<int> outputs;
};

struct ForeignProgram {
  ForeignBlock body;                 ///< one input: the images
  int values = 0;                    ///< how many there are
  std::deque<StoredTensor> tensors;  ///< at fixed addresses: things point to them
  std::map<std::string, const StoredTensor*> by_name;
  /// Where sizes are written into the code as numbers: those of the images that it was exported with (samples,
  /// channels, rows, columns), and those that every value had then.
  std::vector<std::int64_t> exported_images = {};
  std::map<int, std::vector<std::int64_t>> exported_sizes = {};
  /// Where the code changes nothing in place: buffers by name, and the values that these have after a run.
  std::map<std::string, int> renewed = {};
  std::vector<std::string> output_names = {};  ///< where the outputs are known by name only to the file

  StoredTensor& add(StoredTensor tensor) {
    tensors.push_back(std::move(tensor));
    if (!tensors.back().name.empty()) by_name[tensors.back().name] = &tensors.back();
    return tensors.back();
  }
  const StoredTensor* find(const std::string& name) const {
    const auto found = by_name.find(name);
    return found == by_name.end() ? nullptr : found->second;
  }
};

}  // namespace tessera
