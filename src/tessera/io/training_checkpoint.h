// A training run in checkpoints: what each rank saves of it, and how any plan goes on from there.
#pragma once

#include <memory>
#include <string>

#include "tessera/io/background_writer.h"
#include "tessera/runtime/trainer.h"

namespace tessera {

/// What a run is, whatever its plan.
struct RunFacts {
  std::string model, dtype;
  OptimizerOptions optimizer;
  std::uint64_t seed = 0;
  std::int64_t images = 0;  ///< of an epoch
  std::optional<RunDescription> description = {};
};

/// Where such a run stands after `step` steps.
RunState run_state_at(std::int64_t step, const RunFacts& facts, const Plan& plan, const Graph& graph);

/// Throws UsageError, which lists everything that would make the run another one than that of the checkpoint: its
/// network, optimizer, seed, images per step or per epoch. What changes its numbers and may be meant is a warning.
void require_same_run(const CheckpointReader& checkpoint, const RunFacts& facts, const Plan& plan, const Graph& graph,
                      const Warn& warn);

/// Sets what this rank holds to what is in the checkpoint, and goes on from its step. Every rank calls it.
void restore(Trainer& trainer, const CheckpointReader& checkpoint);
/// Sets the parameters and statistics that this rank holds to those of the file. Every rank calls it.
void load_weights(Trainer& trainer, const TensorStore& store, const Import& import);

enum class OnSaveError { warn, stop };

struct SaverOptions {
  std::string dir;  ///< --checkpoint-dir
  int keep = 0;     ///< newest ones that stay; 0 keeps all
  std::string run;  ///< the same on all ranks, and another one for each run: see ShardPlace::attempt
  OnSaveError on_error = OnSaveError::warn;
  Warn warn;  ///< called on rank 0, for every rank's errors, by the thread that calls save(), poll() or finish()
};

/// Saves what a rank owns while training goes on. One a rank, those that own nothing too; belongs to one thread. Every
/// rank calls save() and finish() at the same steps.
class CheckpointSaver {
 public:
  CheckpointSaver(const Plan& plan, const Graph& graph, int rank, const SaverOptions& options);

  /// Copies what this rank owns and returns; waits only for the checkpoint before this one.
  void save(const Trainer& trainer, const RunState& state);
  /// Tells of a checkpoint that has failed. Does not wait.
  void poll();
  /// Until the last checkpoint is on the disk. If that has failed this throws, whatever on_error says: there is no
  /// later one to make up for it.
  void finish();

 private:
  template <class Action>
  void by_policy(const Action& action);

  const int rank_;
  const OnSaveError on_error_;
  const Warn warn_;
  std::unique_ptr<BackgroundWriter> writer_;  // null: this rank owns nothing
};

}  // namespace tessera
