#include <fmt/core.h>

#include "commands.h"
#include "progress.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/io/checkpoint.h"
#include "tessera/io/report.h"

namespace tessera {

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
  export_tensors(weights, options.output, metadata);
  if (!options.quiet)
    fmt::print("{}: {} tensors, {}, of {} after {}\n", options.output, weights.names().size(),
               human_bytes(InputFile(options.output).size()), state.model, counted(state.step, "step"));
}

}  // namespace tessera
