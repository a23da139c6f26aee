#include <fmt/core.h>

#include "commands.h"
#include "network.h"
#include "progress.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/io/checkpoint.h"
#include "tessera/io/report.h"

namespace tessera {
namespace {

// What the file of a network holds beside what was trained, so that the module itself can load all of it: heads that
// were not used, buffers that are no statistics.
std::vector<NamedTensor> unused_tensors(const RunState& state, const TensorStore& weights,
                                        const std::string& checkpoint) {
  if (!state.description || !names_network_file(state.description->use.model)) return {};
  const std::string& file = state.description->use.model;
  const std::string copy = find_network_copy(checkpoint, file);
  std::vector<NamedTensor> out;
  const auto network = open_network(copy.empty() ? file : copy);
  for (const auto& [name, tensor] : network->program().by_name)
    if (!weights.has(name)) out.push_back({name, network->tensor(name)});
  return out;
}

}  // namespace

void run_export(const ExportOptions& options, const Launch& launch) {
  const std::string checkpoint = launch.told([&] {
    check_writable("--output", options.output);
    return whole_checkpoint(options.checkpoint, print_warning);
  });
  if (!launch.speaks()) return;
  const RunState state = CheckpointReader(checkpoint).state();
  const TensorStore weights = TensorStore::open(checkpoint);
  Metadata metadata{{"format", "pt"}, {"model", state.model}, {"step", std::to_string(state.step)}};
  if (state.description) metadata[description_key] = to_json(*state.description, /*with_run=*/false);
  const std::vector<NamedTensor> unused = unused_tensors(state, weights, checkpoint);
  export_tensors(weights, options.output, metadata, unused);
  if (!options.quiet)
    fmt::print("{}: {} tensors, {}, of {} after {}\n", options.output, weights.names().size() + unused.size(),
               human_bytes(InputFile(options.output).size()), state.model, counted(state.step, "step"));
}

}  // namespace tessera
