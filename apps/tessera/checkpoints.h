// Checkpoints of `tessera train` and `tessera export`: from where a run starts, and what it leaves behind.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "evaluation.h"
#include "job.h"
#include "launch.h"
#include "tessera/io/file.h"
#include "tessera/io/training_checkpoint.h"

namespace tessera {

void add_checkpoint_flags(CLI::App& command, CheckpointOptions& options);

/// From where a run starts: found once, the same on all ranks.
struct Start {
  std::string checkpoint;  ///< goes on from here; empty: it does not
  std::int64_t step = 0;
  std::string weights;  ///< --init-from; empty: parameters as they are initialised
  Import import;
  std::string run;                   ///< a name of its own for each run
  std::string message;               ///< for the user; may be empty
  Best best;                         ///< what an earlier start of the run has found
  std::optional<FileHandle> folder;  ///< the lock on --checkpoint-dir, in the process that speaks
};
/// Makes --checkpoint-dir and checks everything that the flags name. Collective. Throws UsageError.
Start find_start(const Options& options, const Job& job, const Launch& launch);

/// A rank's part in all this.
class RunCheckpoints {
 public:
  /// Sets the trainer to where the run starts. Collective.
  RunCheckpoints(const Options& options, const Job& job, const Start& start, int rank, Trainer& trainer, Warn warn);
  /// Saves if it is time to, and always after the last step of the run, which may be this one.
  void after_step(bool last);
  /// --keep-best: the present state, as the best one so far.
  void save_best(const Best& best);
  /// Returns when the last checkpoint is on the disk.
  void finish();

 private:
  const Job& job_;
  const RunFacts facts_;
  const std::int64_t every_;
  Trainer& trainer_;
  std::unique_ptr<CheckpointSaver> saver_;       // null without --checkpoint-dir
  std::unique_ptr<CheckpointSaver> best_saver_;  // null without --keep-best
};

}  // namespace tessera
