// Tensors by name out of what torch.save() wrote: a pickle that says what the tensors are, beside their storages. Only
// what such files need is followed: nothing in a file is ever run. No torch in here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct PickledTensor {
  std::string type;     ///< of the storage: "FloatStorage", ...
  std::string storage;  ///< its number: record data/<number> of the archive
  std::int64_t offset = 0;
  std::vector<std::int64_t> sizes, strides;
  std::optional<bool> requires_grad = {};  ///< of a parameter
};

/// Whether all numbers of such a tensor lie among `elements` of its storage.
bool fits(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides, std::int64_t offset,
          std::int64_t elements);

/// `pickle`: the record data.pkl. Throws Error where that is not a dictionary of tensors.
std::map<std::string, PickledTensor> read_pickled_tensors(std::string_view pickle);

}  // namespace tessera
