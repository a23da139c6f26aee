#include "tessera/io/training_checkpoint.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/io/report.h"

namespace tessera {
namespace {

// With all that decides which state it has.
std::string name_of(const OptimizerOptions& o) {
  return concat(o.name == "sgd" && o.momentum == 0 ? "sgd without momentum" : o.name,
                o.average > 0 ? " with averaged weights" : "");
}

std::vector<NamedTensor> named(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<NamedTensor> out;
  for (const auto& [name, tensor] : tensors) out.push_back({name, tensor});
  return out;
}

// Ranks that own a stage, each once, in order: shard i is of the i-th.
std::vector<int> shard_owners(const Plan& plan) {
  std::vector<int> owners = owners_of(plan);
  std::sort(owners.begin(), owners.end());
  owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
  return owners;
}

}  // namespace

RunState run_state_at(std::int64_t step, const RunFacts& facts, const Plan& plan, const Graph& graph) {
  const std::int64_t batch = plan.global_batch(), steps_per_epoch = facts.images / batch;
  const Shape& image = graph.nodes()[0].shape;
  return {.step = step,
          .epoch = step / steps_per_epoch,
          .position = step % steps_per_epoch * batch,
          .seed = facts.seed,
          .global_batch = batch,
          .model = facts.model,
          .dtype = facts.dtype,
          .optimizer = name_of(facts.optimizer),
          .version = build_info().version,
          .settings = {{"image_size", concat(image.height, "x", image.width)},
                       {"batch_norm", std::string(to_string(plan.batch_norm))},
                       {"images_normalised_together", concat(batch / plan.global_micros())},
                       {"ema", concat(facts.optimizer.average)}},
          .plan = plan_text(plan, graph),
          .description = facts.description};
}

void require_same_run(const CheckpointReader& checkpoint, const RunFacts& facts, const Plan& plan, const Graph& graph,
                      const Warn& warn) {
  const RunState& saved = checkpoint.state();
  const RunState now = run_state_at(saved.step, facts, plan, graph);
  checkpoint.require_model(tensor_specs(graph));
  const std::string whose = concat("the checkpoint ", checkpoint.folder());
  Problems problems;
  problems.check(saved.optimizer == now.optimizer, whose, " has the state of ", saved.optimizer, ", not of ",
                 now.optimizer,
                 "; use its --optimizer, --momentum and --ema, or start anew from its weights by --init-from");
  problems.check(saved.seed == now.seed, whose, " is of --seed ", saved.seed, ", not ", now.seed);
  problems.check(saved.global_batch == now.global_batch, whose, " is of ", saved.global_batch,
                 " images per step, and this run has ", now.global_batch,
                 "; change --batch-size, which replicas and --times multiply");
  problems.check(saved.global_batch != now.global_batch || (saved.epoch == now.epoch && saved.position == now.position),
                 whose, " is of a data set of another size: its step ", saved.step, " is image ", saved.position,
                 " of epoch ", saved.epoch + 1, ", and here image ", now.position, " of epoch ", now.epoch + 1,
                 "; use its --datapath or --synthetic-images");
  problems.throw_if_any();
  if (saved.dtype != now.dtype)
    warn(concat(whose, " is of --dtype ", saved.dtype, ", and this run of ", now.dtype,
                ": it will not train as the uninterrupted run would have"));
  for (const auto& [name, value] : now.settings)
    if (const auto old = saved.settings.find(name); old != saved.settings.end() && old->second != value)
      warn(concat(whose, " has ", name, " ", old->second, ", and this run ", value,
                  ": it will not train as the uninterrupted run would have"));
}

void restore(Trainer& trainer, const CheckpointReader& checkpoint) {
  const RunTensors tensors = trainer.tensors(Trainer::Which::held);
  for (const auto* kind : {&tensors.model, &tensors.optimizer})
    for (const auto& [name, tensor] : *kind) checkpoint.read(name, tensor);
  trainer.start_at(checkpoint.state().step);
}

void load_weights(Trainer& trainer, const TensorStore& store, const Import& import) {
  for (const auto& [name, tensor] : trainer.tensors(Trainer::Which::held).model)
    if (import.loaded.contains(name)) store.read(name, tensor);
  trainer.start_at(trainer.steps_done());
}

CheckpointSaver::CheckpointSaver(const Plan& plan, const Graph& graph, int rank, const SaverOptions& options)
    : rank_(rank), on_error_(options.on_error), warn_(options.warn) {
  const auto owners = shard_owners(plan);
  const auto mine = std::find(owners.begin(), owners.end(), rank);
  ensure(owners.front() == 0, "rank 0, which finishes checkpoints, owns nothing");
  if (mine == owners.end()) return;
  FinishOptions finish{.keep = options.keep};
  for (const auto& [name, spec] : graph.parameters()) finish.parameters.push_back(name);
  writer_ =
      std::make_unique<BackgroundWriter>(BackgroundWriter::Options{.dir = options.dir,
                                                                   .shard = static_cast<int>(mine - owners.begin()),
                                                                   .shards = static_cast<int>(owners.size()),
                                                                   .run = options.run,
                                                                   .finish = std::move(finish)});
}

// Rank 0 hears of all errors, so that the others can leave the warning to it.
template <class Action>
void CheckpointSaver::by_policy(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    if (on_error_ == OnSaveError::stop) throw;
    if (rank_ == 0) warn_(error.what());
  }
}

void CheckpointSaver::save(const Trainer& trainer, const RunState& state) {
  if (!writer_) return;
  by_policy([&] { writer_->wait(); });
  const RunTensors owned = trainer.tensors(Trainer::Which::owned);
  SaveRequest request{.step = state.step, .contents = {named(owned.model), named(owned.optimizer)}};
  if (rank_ == 0) request.state = state;
  writer_->save(request);
}

void CheckpointSaver::poll() {
  if (writer_) by_policy([&] { writer_->poll(); });
}

void CheckpointSaver::finish() {
  if (writer_) writer_->wait();
}

}  // namespace tessera
