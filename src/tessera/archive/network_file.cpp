#include "tessera/archive/network_file.h"

#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <fstream>

#include "tessera/archive/pt2.h"
#include "tessera/archive/torchscript.h"
#include "tessera/base/error.h"
#include "tessera/base/paths.h"

namespace tessera {
namespace {

constexpr const char* how_to_export =
    "save the network in Python with torch.jit.script(network.train()).save(\"network.pt\")";

std::vector<std::string> records_of(const std::string& path) {
  try {
    caffe2::serialize::PyTorchStreamReader reader(path);
    return reader.getAllRecords();
  } catch (const std::exception&) {
    std::ifstream file(path, std::ios::binary);
    char magic[2] = {};
    file.read(magic, 2);
    const bool zip = magic[0] == 'P' && magic[1] == 'K';
    throw UsageError(concat("--model ", path,
                            zip ? " is an archive that cannot be read: it is cut off, damaged, or not "
                                  "one of PyTorch's; "
                                : " is not a file of PyTorch that holds a network; ",
                            how_to_export));
  }
}

}  // namespace

bool names_network_file(const std::string& model) {
  return model.ends_with(".pt") || model.ends_with(".pt2") || model.ends_with(".pth") ||
         (model.find('/') != std::string::npos) || is_file(model);
}

std::shared_ptr<const NetworkFile> open_network(const std::string& path) {
  require(!is_folder(path), "--model ", path, " is a folder, not a file");
  require(is_file(path), "--model ", path, ": there is no such file");
  if (is_old_pt2(path)) return open_pt2(path);
  const auto records = records_of(path);
  const auto has = [&](const std::string& name) { return std::ranges::find(records, name) != records.end(); };
  if (has("constants.pkl")) return open_torchscript(path);
  if (has("models/model.json")) return open_pt2(path);
  require(!has("data.pkl"), "--model ", path,
          " was written by torch.save: it holds weights or Python objects, but not the network's code; ",
          how_to_export);
  throw UsageError(
      concat("--model ", path, " is an archive, but not one that PyTorch keeps networks in; ", how_to_export));
}

}  // namespace tessera
