#include "checkpoints.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <sstream>

#include "description.h"
#include "progress.h"
#include "tessera/base/error.h"
#include "tessera/io/checkpoint_files.h"

namespace tessera {
namespace {

void check_flags(const CheckpointOptions& o) {
  Problems problems;
  const auto needs_dir = [&](bool given, const char* flag) {
    problems.check(!given || !o.dir.empty(), flag, " needs --checkpoint-dir");
  };
  needs_dir(o.every.has_value(), "--checkpoint-every");
  needs_dir(o.keep.has_value(), "--keep");
  needs_dir(o.on_save_error.has_value(), "--on-save-error");
  needs_dir(o.resume == "auto", "--resume auto");
  problems.check(o.every.value_or(1) > 0, "--checkpoint-every ", o.every.value_or(1), " must be at least 1");
  problems.check(o.keep.value_or(0) >= 0, "--keep ", o.keep.value_or(0), " must not be negative (0 keeps all)");
  problems.check(o.init_from.empty() || o.resume.empty() || o.resume == "auto", "--resume ", o.resume,
                 " brings its own weights; leave out --init-from");
  problems.throw_if_any();
}

constexpr const char* best_setting = "best_";

std::string best_folder(const std::string& dir) { return join_path(dir, "best"); }

// 0: there is none.
std::int64_t newest_step(const std::string& dir) {
  std::int64_t newest = 0;
  if (is_folder(dir))
    for (const auto& name : list_folder(dir)) newest = std::max(newest, step_of(name).value_or(0));
  return newest;
}

// Now rather than after hours of training. Two runs would remove each other's files.
FileHandle prepare_folder(const std::string& dir) {
  make_folders(dir);
  std::optional<FileHandle> lock = lock_folder(dir);
  require(lock.has_value(), "--checkpoint-dir ", dir,
          ": another run is at work there; wait for it, or choose another folder");
  const std::string probe = join_path(dir, ".probe");
  write_text(probe, "");
  remove_file(probe);
  remove_leftovers(dir);
  remove_leftovers(best_folder(dir));
  return std::move(*lock);
}

// The checkpoint to go on from, every byte of it verified; empty if there is none. Locks --checkpoint-dir before that:
// a run that is still at work there may remove what this one has found.
std::string chosen_checkpoint(const CheckpointOptions& o, std::optional<FileHandle>& lock) {
  if (!o.dir.empty()) lock = prepare_folder(o.dir);
  require(o.resume.empty() || o.resume == "auto" || is_folder(o.resume), "--resume ", o.resume,
          ": there is no such checkpoint; name one, or a folder of them, or start anew without --resume");
  std::string found;
  if (o.resume == "auto" ? newest_step(o.dir) > 0 : !o.resume.empty())
    found = whole_checkpoint(o.resume == "auto" ? o.dir : o.resume, print_warning);
  if (o.dir.empty()) return found;
  // Another run's checkpoints of later steps would be taken for this run's newest ones. Those that --resume auto has
  // passed over are damaged; this run will write them anew.
  const std::int64_t start = found.empty() ? 0 : CheckpointReader(found).state().step, newest = newest_step(o.dir);
  require(o.resume == "auto" || newest <= start, "--checkpoint-dir ", o.dir, " holds ", checkpoint_name(newest),
          ", and this run starts at step ", start, "; go on from there with --resume auto, or choose another folder");
  return found;
}

// What the run had found before the step that it goes on from, in text; a later best one will be found again.
std::string best_before(const std::string& dir, const std::string& metric, std::int64_t step) {
  if (metric.empty() || step == 0 || !is_folder(best_folder(dir))) return "";
  const auto found = find_latest(best_folder(dir), print_warning);
  if (!found) return "";
  const RunState state = CheckpointReader(*found).state();
  const auto value = state.settings.find(best_setting + metric);
  return value == state.settings.end() || state.step > step ? "" : concat(state.step, " ", value->second);
}

std::string new_run_name() {
  return concat(std::chrono::system_clock::now().time_since_epoch().count(), "-", getpid());
}

RunFacts facts_of(const Options& o, const Job& job) {
  return {.model = network_name(o),
          .dtype = o.dtype,
          .optimizer = o.train.optimizer,
          .seed = o.train.seed,
          .images = job.images->size(),
          .description = describe_run(o, job)};
}

}  // namespace

void add_checkpoint_flags(CLI::App& command, CheckpointOptions& o) {
  const char* group = "Checkpoints";
  command.add_option("--checkpoint-dir", o.dir, "folder for checkpoints; a run on any plan can resume from them")
      ->group(group);
  command
      .add_option("--checkpoint-every", o.every,
                  "save every so many steps, and after the last step. Default: every epoch")
      ->group(group);
  command
      .add_option("--keep", o.keep, "how many of the newest checkpoints to keep. Default: 0, all of them (2 in runs/N)")
      ->group(group);
  command
      .add_option("--resume", o.resume,
                  "auto: resume from the newest whole checkpoint in --checkpoint-dir, if there is one; or a path")
      ->group(group);
  command
      .add_option("--on-save-error", o.on_save_error,
                  "if a checkpoint cannot be written (a full disk): warn (default) and train on, or stop")
      ->check(CLI::IsMember({"warn", "stop"}))
      ->group(group);
  command
      .add_option("--init-from", o.init_from,
                  "start from these weights: a safetensors file (names as in torchvision) or a checkpoint")
      ->group(group);
}

Start find_start(const Options& options, const Job& job, const Launch& launch) {
  const CheckpointOptions& o = options.checkpoints;
  check_flags(o);
  Start start;
  if (!options.evaluation.best.empty()) start.best.metric = options.evaluation.best;
  start.checkpoint = launch.told([&] { return chosen_checkpoint(o, start.folder); });
  start.run = launch.told(new_run_name);
  if (!start.checkpoint.empty()) {
    const CheckpointReader reader(start.checkpoint);
    require_same_run(reader, facts_of(options, job), job.plan, job.graph, [&](const std::string& warning) {
      if (launch.speaks()) print_warning(warning);
    });
    start.step = reader.state().step;
    std::istringstream best(launch.told([&] { return best_before(o.dir, options.evaluation.best, start.step); }));
    if (double value = 0; best >> start.best.at_step >> value) start.best.value = value;
    start.message = fmt::format("goes on from {}, in epoch {}\n", start.checkpoint, reader.state().epoch + 1);
  } else if (!o.init_from.empty()) {
    start.weights = o.init_from;
    launch.told([&] { return TensorStore::open(o.init_from).path(); });  // one process tells what is wrong with it
    start.import = plan_import(TensorStore::open(o.init_from), tensor_specs(job.graph), heads_of(job.graph));
    start.message = start.import.summary + "\n";
  } else if (o.resume == "auto") {
    start.message = fmt::format("no checkpoint in {} yet: starts at step 0\n", o.dir);
  }
  return start;
}

RunCheckpoints::RunCheckpoints(const Options& options, const Job& job, const Start& start, int rank, Trainer& trainer,
                               Warn warn)
    : job_(job),
      facts_(facts_of(options, job)),
      every_(options.checkpoints.every.value_or(job.images->size() / job.plan.global_batch())),
      trainer_(trainer) {
  const CheckpointOptions& o = options.checkpoints;
  if (!start.checkpoint.empty()) restore(trainer, CheckpointReader(start.checkpoint));
  if (!start.weights.empty()) load_weights(trainer, TensorStore::open(start.weights), start.import);
  if (o.dir.empty()) return;
  const auto saver = [&](const std::string& dir, std::int64_t keep) {
    return std::make_unique<CheckpointSaver>(
        job.plan, job.graph, rank,
        SaverOptions{.dir = dir,
                     .keep = static_cast<int>(keep),
                     .run = start.run,
                     .on_error = o.on_save_error == "stop" ? OnSaveError::stop : OnSaveError::warn,
                     .warn = warn});
  };
  saver_ = saver(o.dir, o.keep.value_or(0));
  if (job.foreign && rank == 0) keep_network(o.dir, options.model.name);
  if (!options.evaluation.best.empty()) best_saver_ = saver(best_folder(o.dir), 1);
}

void RunCheckpoints::save_best(const Best& best) {
  if (!best_saver_) return;
  RunState state = run_state_at(trainer_.steps_done(), facts_, job_.plan, job_.graph);
  state.settings[best_setting + best.metric] = fmt::format("{}", *best.value);
  best_saver_->save(trainer_, state);
}

void RunCheckpoints::after_step(bool last) {
  if (!saver_) return;
  saver_->poll();
  const std::int64_t step = trainer_.steps_done();
  if (last || step % every_ == 0 || step == job_.steps)
    saver_->save(trainer_, run_state_at(step, facts_, job_.plan, job_.graph));
}

void RunCheckpoints::finish() {
  if (saver_) saver_->finish();
  if (best_saver_) best_saver_->finish();
}

}  // namespace tessera
