#include "tessera/io/weights.h"

#include "tessera/base/error.h"
#include "tessera/io/checkpoint.h"
#include "tessera/io/checkpoint_files.h"
#include "tessera/io/file.h"

namespace tessera {

void check_weights(const std::string& flag, const std::string& path, const Graph& graph) {
  try {
    const TensorStore store = TensorStore::open(path);
    Differences differences = compare(store, tensor_specs(graph));
    std::erase_if(differences.missing, [](const std::string& name) { return name.ends_with(".num_batches_tracked"); });
    require(differences.none(), flag, " ", path,
            " is not of this network; use the --model and --num-classes that it was made with\n", differences.str());
    if (is_file(join_path(path, run_state_file))) verify_checkpoint(path);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    throw UsageError(concat(flag, ": ", error.what()));
  }
}

void load_weights(const std::string& path, const Parameters& into) {
  const TensorStore store = TensorStore::open(path);
  for (const Parameter& parameter : into.all())
    if (store.has(parameter.name)) store.read(parameter.name, parameter.stored(parameter.value));
}

}  // namespace tessera
