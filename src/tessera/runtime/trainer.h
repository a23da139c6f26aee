// Training of one rank: batches in, actions of the schedule, parameters out.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/meter.h"
#include "tessera/data/image_source.h"
#include "tessera/plan/plan.h"
#include "tessera/runtime/averages.h"
#include "tessera/runtime/executor.h"
#include "tessera/runtime/gradient_sync.h"
#include "tessera/runtime/memory.h"
#include "tessera/runtime/optimizer.h"
#include "tessera/runtime/rank_images.h"
#include "tessera/runtime/recording.h"
#include "tessera/schedule/schedule.h"

namespace tessera {

struct TrainOptions {
  // What is trained.
  std::int64_t steps = 1;  ///< of the whole run, for the learning-rate schedule
  OptimizerOptions optimizer;
  LearningRateOptions learning_rate;
  std::uint64_t seed = 0;
  at::ScalarType dtype = at::kFloat;  ///< of activations; parameters are float32 where this is bfloat16

  // How fast; none of this changes a result.
  Recompute recompute = Recompute::norm;
  StoreKind store = StoreKind::device;
  std::string scratch = {};  ///< the folder of StoreKind::file
  double room = 0;           ///< with a store: so many bytes may wait on the device all the same
  double leaving = 1 << 30;  ///< and so many may be on their way out of it
  int loader_workers = 1;
  /// Whether the kernels of a step are recorded and played from then on: when the host cannot keep up with the GPU.
  enum class Replay { never, when_slow, soon } replay = Replay::when_slow;
  at::DeviceType device = at::kCPU;  ///< a GPU: the one that is current on the rank's thread
  at::TensorOptions activations() const { return at::TensorOptions().dtype(dtype).device(device); }

  /// Sees the gradients of every step when they are summed, and may change them before they are clipped and used. For
  /// those who ask what an error in them would do; a plan of several stages has no rank that sees all.
  std::function<void(const std::vector<at::Tensor>& gradients)> on_gradients = nullptr;
};

/// A step that takes less of a GPU's free memory than this share is recorded, whoever waits for whom.
inline constexpr double small_enough_to_record = 0.1;

struct StepReport {
  std::int64_t step = 0;  ///< counted from 0
  std::int64_t epoch = 0;
  double loss = 0;  ///< mean over what labels count in the whole batch, of all heads, before the step
  double learning_rate = 0;
  double gradient_norm = 0;  ///< 0 unless gradients are clipped
  double seconds = 0;
  PartSeconds parts{};  ///< of these, what was not computing
  double part(Part p) const { return parts[static_cast<std::size_t>(p)]; }
};

/// One action of a step as it happened.
struct TraceEvent {
  Action action;
  std::int64_t step = 0;
  double begin = 0, end = 0;  ///< by now_seconds()
};

/// Tensors of a run by the names that they have in checkpoints. They are views: writing to them changes the run.
struct RunTensors {
  /// Parameters and running statistics; their averages, where the run has such.
  std::vector<std::pair<std::string, at::Tensor>> model;
  /// "<parameter>.momentum_buffer", ...; with averages "<parameter>.value", which is what is trained.
  std::vector<std::pair<std::string, at::Tensor>> optimizer;
};

/// By stage: of the ranks that hold its parameters (tiles, ways, replicas, both directions) the one that saves them.
std::vector<int> owners_of(const Plan& plan);

/// Belongs to one thread, the rank's. The graph must outlive it.
class Trainer {
 public:
  /// Collective over `world`, which has the plan's ranks; null for a plan of one rank.
  Trainer(const Graph& graph, const Plan& plan, const TrainOptions& options, std::shared_ptr<const ImageSource> images,
          Communicator* world = nullptr);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// One step of the optimizer. Throws NumericError, which names the step, when the loss is not a finite number; the
  /// parameters are then those before the step.
  StepReport step();

  /// Whether steps are played from a recording by now: see TrainOptions::replay.
  bool replays() const { return recording_ != nullptr; }
  /// Steps that are done.
  std::int64_t steps_done() const { return step_; }
  /// Goes on as after `step` steps, once tensors() have been set to what they were then. On every rank.
  void start_at(std::int64_t step);
  /// What this rank has to fill in to set the state of a run, before start_at(); or what it owns: each tensor of the
  /// run is owned by one rank. Copies that hold tensors in common leave them to one.
  enum class Which { held, owned };
  RunTensors tensors(Which which) const;

  /// The weights and their averages change places, if the run has averages: to look at the latter. Collective; to be
  /// called once more before the next step.
  void swap_averages();

  /// From now on every action is put down, and what of its time was not computing.
  void record(std::vector<TraceEvent>* events, std::vector<PartSpan>* parts = nullptr) {
    events_ = events;
    meter_.record(parts);
  }

  /// What this rank holds, stage by stage.
  std::vector<const Parameters*> parameters() const;
  /// Those of a stage that this rank has a place in.
  const Parameters& parameters_of(int stage) const;
  /// One of these by its full name; null if another rank holds it.
  const Parameter* find(const std::string& name) const;

 private:
  /// A stage's parameters on this rank. Both directions share them if both come here.
  struct Held {
    int stage;
    Copies copies;
    Parameters parameters;
    Optimizer optimizer;
    std::unique_ptr<GradientSync> sync;
    std::unique_ptr<Averages> averages = {};  ///< null: none
    std::size_t last_action = 0;              ///< after which its gradients are complete
  };
  /// What this rank does in a direction.
  struct Worker {
    Plan::Place place;  ///< the first one
    Held* held = nullptr;
    std::unique_ptr<Communicator> norm_group, tile_group;  ///< null: alone
    std::unique_ptr<Executor> executor;
    std::unique_ptr<RankImages> images;
    std::vector<MicroState> micros;
  };

  int rank() const { return world_ ? world_->rank().value : 0; }
  void add_worker(const Plan::Place& place, const std::shared_ptr<const ImageSource>& images);
  Worker& worker(const Action& action);
  bool waits_for_host(const StepReport& report) const;
  bool replay();
  void begin_step() const;
  void run(std::size_t index);
  void expect_next(std::size_t index);
  void forward(Worker& worker, int micro);
  double count_loss_terms();
  void update(StepReport& report);
  double reduced(double value) const;
  std::string doing() const;

  const Graph& graph_;
  const Plan plan_;
  const TrainOptions options_;
  Communicator* const world_;
  const Layout layout_;
  int replica_ = 0;
  std::unique_ptr<Communicator> pipeline_;
  std::vector<Action> actions_;
  std::unique_ptr<Store> store_;  ///< null: values wait where they are
  std::vector<std::unique_ptr<Held>> held_;
  std::vector<Worker> workers_;
  std::int64_t step_ = 0;
  std::size_t action_ = 0;  ///< which is under way
  double loss_terms_ = 0;   ///< of the present step: see PassInfo
  at::Tensor loss_sum_;     ///< of the step's micros here; undefined: none
  PassInfo::There there_;
  bool recordable_ = false;
  int slow_steps_ = 0;  ///< in a row, in which the GPU waited for the host
  std::unique_ptr<Recording> recording_;
  at::Tensor recorded_loss_sum_;
  Meter meter_;
  std::vector<TraceEvent>* events_ = nullptr;
};

}  // namespace tessera
