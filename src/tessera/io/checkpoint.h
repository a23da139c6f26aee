// Checkpoints: folders of whole tensors by the names of the graph. They do not know the plan, so any plan can go on
// from them. docs/checkpoint_format.md describes the files.
//
//   DIR/step-000120/                          one whole checkpoint
//   DIR/.step-000123-ATTEMPT.part/            one that is being written, or was when its run was killed
//
// How ranks save together, without talking to each other:
//
//   every rank that owns something:   write_shard(place, tensors)          in any order, at the same time
//   rank 0, besides:                  finish_checkpoint(place, state)      waits for the shards, then publishes
//
// A shard announces itself by a small file beside it, or says there why it failed, so finish_checkpoint() needs no
// barrier: it can run on a thread that may not use the communicator. Every parameter is owned by exactly one rank.
// BackgroundWriter does both calls on a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/io/description.h"
#include "tessera/io/tensor_store.h"

namespace tessera {

/// Where a run stands. Steps, epochs and images count from 0: these are the next ones.
struct RunState {
  std::int64_t step = 0;      ///< steps that are done
  std::int64_t epoch = 0;     ///< the one that goes on
  std::int64_t position = 0;  ///< images of this epoch that all replicas together have used
  std::uint64_t seed = 0;
  std::int64_t global_batch = 0;  ///< images per step

  // For information, and for the user to compare.
  std::string model, dtype, optimizer;
  std::string version;                          ///< of Tessera
  std::map<std::string, std::string> settings;  ///< flags, or whatever the program wants to find again
  std::string plan;                             ///< a JSON document, or empty
  std::optional<RunDescription> description;    ///< older checkpoints have none
};
/// Both are of run_state.json.
std::string to_json(const RunState& state);
/// Throws Error, which names `file`.
RunState parse_run_state(std::string_view json, const std::string& file);

/// Which checkpoint, and which part of it.
struct ShardPlace {
  std::string dir;  ///< --checkpoint-dir; made if it is not there
  std::int64_t step = 0;
  int shard = 0, shards = 1;  ///< counted from 0; numbers of those ranks that own something
  /// The same on all ranks, and another one for each attempt: what a killed run left must not be taken for a shard of
  /// this one. Letters, digits, '-' and '_'.
  std::string attempt = {};

  std::string folder() const;  ///< DIR/step-000120
  std::string part() const;    ///< DIR/.step-000120-ATTEMPT.part
};

/// What a rank owns.
struct ShardContents {
  std::vector<NamedTensor> model;
  std::vector<NamedTensor> optimizer;  ///< "<parameter>.momentum_buffer", "<parameter>.exp_avg", ...
};

/// Returns once the shard is on the disk. If it fails it cleans up after itself, tells finish_checkpoint(), and throws.
void write_shard(const ShardPlace& place, const ShardContents& contents);

/// Whether write_shard() has told finish_checkpoint() how it went: on a full disk it may have no room for that.
bool has_reported(const ShardPlace& place);

struct FinishOptions {
  double wait_seconds = 600;                            ///< for the shards of the other ranks
  std::vector<std::string> parameters = {};             ///< must all be there, if any are given
  int keep = 0;                                         ///< then prune() to this number; 0 keeps all
  std::shared_ptr<const std::atomic<bool>> hurry = {};  ///< once it is true, the wait is hurried_seconds at most
  double hurried_seconds = 5;
};
/// Waits for all shards, writes indices, run state and checksums, and publishes the checkpoint by one rename. If a
/// shard failed or does not come, or the disk is full, it throws Error and there is no checkpoint of this step; those
/// before it stay as they are.
void finish_checkpoint(const ShardPlace& place, const RunState& state, const FinishOptions& options = {});

/// Reads a whole checkpoint. Belongs to one thread; each rank has its own.
class CheckpointReader {
 public:
  /// Checks that all files are there, in full length. Throws Error. Bytes are checked by verify_checkpoint(), which one
  /// rank does for all.
  explicit CheckpointReader(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const RunState& state() const { return state_; }
  const TensorStore& model() const { return model_; }
  const TensorStore& optimizer() const { return optimizer_; }

  /// Throws UsageError, which lists the parameters that differ, unless the checkpoint is of this network.
  void require_model(const std::vector<TensorSpec>& needed) const;
  /// A parameter, or state of the optimizer, by its name. Float types are converted.
  void read(const std::string& name, const at::Tensor& into) const;

 private:
  std::string folder_;
  RunState state_;
  TensorStore model_, optimizer_;
};

/// Reads every byte and compares checksums. Throws Error, which names the damaged file.
void verify_checkpoint(const std::string& folder);

using Warn = std::function<void(const std::string&)>;
/// The newest whole checkpoint in the folder, verified; nothing if there is none. Damaged ones are passed over with a
/// warning. On one rank.
std::optional<std::string> find_latest(const std::string& dir, const Warn& warn);
/// A checkpoint, or a folder of them: the newest whole one there. Verified. Throws Error if there is none. On one rank.
std::string whole_checkpoint(const std::string& path, const Warn& warn);
/// Removes all but the newest `keep` whole checkpoints of steps up to `last_step` (whole by the sizes of their files;
/// damaged ones do not count, and go only if they are older). Each disappears whole. Later ones are left alone: they
/// were passed over as damaged when the run went on from an earlier one, and must not count in place of that. On one
/// rank.
void prune(const std::string& dir, int keep, std::int64_t last_step);
/// Removes what killed runs left half written or half removed. On one rank, before anything is saved: it would take
/// away what another rank or run is writing.
void remove_leftovers(const std::string& dir);

}  // namespace tessera
