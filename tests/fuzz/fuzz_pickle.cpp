// Weights of torch.save: an archive, and the pickle in it.
#include "fuzz/fuzz.h"
#include "tessera/archive/pickled_tensors.h"
#include "tessera/archive/stored_zip.h"

void tessera::fuzz(std::string_view file) {
  // Most changes break the archive, so the bytes are also taken for a pickle.
  const bool archive = file.starts_with("PK");
  for (const auto& [name, tensor] : read_pickled_tensors(archive ? StoredZip(file).ending("/data.pkl") : file))
    must(!tensor.type.empty() || tensor.sizes.size() < file.size());
}
