// Weights of torch.save: an archive, and the pickle in it.
#include "fuzz/fuzz.h"
#include "tessera/archive/pickled_tensors.h"
#include "tessera/archive/stored_zip.h"

void tessera::fuzz(std::string_view file) {
  // Most changes break the archive, so the bytes are also taken for a pickle.
  const bool archive = file.starts_with("PK");
  for (const auto& [name, tensor] : read_pickled_tensors(archive ? StoredZip(file).ending("/data.pkl") : file))
    for (const std::int64_t elements : {std::int64_t{0}, std::int64_t{7}, std::int64_t{1} << 40}) {
      if (!fits(tensor.sizes, tensor.strides, tensor.offset, elements)) continue;
      __int128 last = tensor.offset;
      bool empty = false;
      for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
        last += static_cast<__int128>(tensor.sizes[i] - 1) * tensor.strides[i];
        empty = empty || tensor.sizes[i] == 0;
      }
      must(empty || (last >= 0 && last < elements));
    }
}
