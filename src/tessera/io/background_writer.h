// Saves checkpoints while training goes on.
#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "tessera/io/checkpoint.h"

namespace tessera {

struct SaveRequest {
  std::int64_t step = 0;
  ShardContents contents;         ///< copied: they may change as soon as save() has returned
  std::optional<RunState> state;  ///< on rank 0, which finishes the checkpoint; nowhere else
};

/// One a rank that owns something. Belongs to one thread, though it writes on another. At most one checkpoint is on its
/// way, so at most one copy of the tensors is in memory.
///
/// An error of the writing is thrown once, as Error, by the first of poll(), wait() and save() that comes after it.
/// Rank 0 hears of every rank's errors; the others of their own.
class BackgroundWriter {
 public:
  struct Options {
    std::string dir;            ///< --checkpoint-dir
    int shard = 0, shards = 1;  ///< as in ShardPlace
    std::string run;            ///< the same on all ranks, and another one for each run: see ShardPlace::attempt
    FinishOptions finish;       ///< matters on rank 0 only
  };
  explicit BackgroundWriter(Options options);
  /// Waits for what this rank writes; for other ranks, which may have ended, only finish.hurried_seconds. An error that
  /// nobody asked for is lost: call wait() at the end of a run.
  ~BackgroundWriter();

  /// Waits for the checkpoint before this one, copies the tensors and returns. If it throws, nothing was started, and
  /// it can be called again. Every rank calls it for the same steps.
  void save(const SaveRequest& request);
  /// Throws if a checkpoint has failed. Costs nothing, and does not wait.
  void poll();
  /// Until everything is on the disk.
  void wait();
  bool busy() const;

 private:
  Options options_;
  std::shared_ptr<std::atomic<bool>> hurry_;
  std::int64_t saves_ = 0;
  std::future<void> writing_;  // its destructor waits, as that of every future of std::async
};

/// A row-major copy in main memory.
std::vector<NamedTensor> copy_of(const std::vector<NamedTensor>& tensors);

}  // namespace tessera
