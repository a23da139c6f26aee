#include "run.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <array>
#include <atomic>
#include <csignal>
#include <numeric>

#include "evaluation.h"
#include "progress.h"
#include "run_log.h"
#include "tessera/base/text.h"
#include "tessera/comm/nccl_communicator.h"
#include "tessera/runtime/device.h"
#include "tessera/runtime/threads.h"

namespace tessera {
namespace {

// What a rank tells of itself: peak bytes, seconds a step, and the parts of these.
constexpr std::size_t figures = 2 + static_cast<std::size_t>(Part::count);

at::Tensor figures_of(const std::vector<StepReport>& steps, std::int64_t peak_bytes) {
  at::Tensor out = at::zeros({static_cast<std::int64_t>(figures)}, at::kDouble);
  double* to = out.data_ptr<double>();
  to[0] = static_cast<double>(peak_bytes);
  // The first step also pays for memory and for the choice of kernels.
  const std::size_t first = steps.size() > 1 ? 1 : 0;
  const auto counted = static_cast<double>(steps.size() - first);
  for (std::size_t s = first; s < steps.size(); ++s) {
    to[1] += steps[s].seconds / counted;
    for (std::size_t p = 0; p < steps[s].parts.size(); ++p) to[2 + p] += steps[s].parts[p] / counted;
  }
  return out;
}

// All ranks' events, in order; on every rank.
std::vector<std::vector<TraceEvent>> gathered(const std::vector<TraceEvent>& mine, Communicator& world) {
  constexpr std::int64_t fields = 7;
  const at::Tensor count = at::full({1}, static_cast<std::int64_t>(mine.size()), at::kLong);
  at::Tensor counts = at::empty({world.size(), 1}, at::kLong);
  world.all_gather(count, counts).wait();
  const std::int64_t most = counts.max().item<std::int64_t>();
  at::Tensor local = at::zeros({most, fields}, at::kDouble), all = at::empty({world.size(), most, fields}, at::kDouble);
  double* to = local.data_ptr<double>();
  for (const auto& e : mine) {
    const auto number = [](auto value) { return static_cast<double>(value); };
    for (const double field : {number(e.action.kind), number(e.action.stage), number(e.action.micro),
                               number(e.action.direction), number(e.step), e.begin, e.end})
      *to++ = field;
  }
  world.all_gather(local, all).wait();
  std::vector<std::vector<TraceEvent>> out(static_cast<std::size_t>(world.size()));
  for (int r = 0; r < world.size(); ++r)
    for (std::int64_t i = 0; i < counts[r][0].item<std::int64_t>(); ++i) {
      const double* from = all.data_ptr<double>() + (r * most + i) * fields;
      const auto whole = [&](int f) { return static_cast<int>(from[f]); };
      out[static_cast<std::size_t>(r)].push_back(
          {{static_cast<Action::Kind>(whole(0)), whole(1), whole(2), static_cast<Direction>(whole(3))},
           static_cast<std::int64_t>(from[4]),
           from[5],
           from[6]});
    }
  return out;
}

// The signal that asked for an end; 0: none has.
std::atomic<int> asked_to_stop = 0;

// While training: the first SIGINT or SIGTERM is taken note of, the second ends the process as if this were not here.
class StopSignals {
 public:
  StopSignals() {
    asked_to_stop = 0;
    for (std::size_t i = 0; i < signals.size(); ++i) {
      before_[i] = std::signal(signals[i], take);
      if (before_[i] == SIG_IGN) std::signal(signals[i], SIG_IGN);  // as whoever started us wants it
    }
  }
  ~StopSignals() {
    for (std::size_t i = 0; i < signals.size(); ++i) std::signal(signals[i], before_[i]);
  }

  /// Whether any rank was asked. Ranks find out at the same step.
  static bool agreed(Communicator& world) {
    if (world.size() == 1) return asked_to_stop != 0;
    at::Tensor asked = at::full({1}, asked_to_stop != 0 ? 1 : 0, at::kLong);
    world.all_reduce(asked, Reduce::max).wait();
    return asked.item<std::int64_t>() != 0;
  }

 private:
  static constexpr std::array signals{SIGINT, SIGTERM};
  static void take(int signal) {
    asked_to_stop = signal;
    std::signal(signal, SIG_DFL);
  }
  std::array<void (*)(int), signals.size()> before_{};
};

void train_rank(const Options& options, const Job& job, const RunOptions& run, const Start& start, Communicator& world,
                RunReport& report) {
  const auto account = std::make_shared<MemoryAccount>();
  const MemoryScope scope(account, options.train.device);
  const bool speaks = world.rank() == Rank{0};
  Trainer trainer(job.graph, job.plan, options.train, job.images, &world);
  std::vector<TraceEvent> events;
  if (run.record) trainer.record(&events);
  Progress progress({job.steps, job.plan.global_batch(), run.quiet || !speaks, run.every_step});
  std::optional<Evaluator> evaluator;
  if (job.validation)
    evaluator.emplace(job.graph, job.plan, trainer.parameters_of(Evaluator::stage_of(job.plan, world.rank().value)),
                      evaluator_options(options), job.validation, &world);
  const Warn warn = [&](const std::string& message) { progress.warn(message); };
  RunCheckpoints checkpoints(options, job, start, world.rank().value, trainer, warn);
  RunLog log({.dir = speaks ? options.log_dir : "",
              .start = start.step,
              .resumed = !options.checkpoints.resume.empty(),
              .batch_size = job.plan.global_batch(),
              .warn = warn});
  std::vector<StepReport> steps;
  std::vector<RunReport::EvaluationAt> evaluations;
  std::optional<std::int64_t> stopped;  // after so many steps
  try {
    while (trainer.steps_done() < job.steps) {
      steps.push_back(trainer.step());
      // On a GPU the first step also holds what cuDNN tries its algorithms with.
      const bool more = trainer.steps_done() < job.steps;
      if (steps.size() == 1 && more && options.train.device != at::kCPU) account->reset_peak();
      progress.step(steps.back(), account->peak_bytes());
      log.step(steps.back(), account->peak_bytes());
      const std::int64_t done = trainer.steps_done();
      if (evaluator && (done % *options.evaluation.every == 0 || done == job.steps)) {
        evaluations.push_back({done, evaluator->run()});
        const Evaluation& result = evaluations.back().result;
        progress.say(fmt::format("step {}/{}  validation  {}", done, job.steps, evaluation_line(result)));
        log.write(done, evaluation_metrics(result));
      }
      const bool stop = done < job.steps && StopSignals::agreed(world);
      checkpoints.after_step(stop);
      if (!stop) continue;
      stopped = done;
      break;
    }
    checkpoints.finish();
  } catch (...) {
    progress.finish();  // the message starts on a line of its own
    throw;
  }
  progress.finish();
  const at::Tensor mine = figures_of(steps, account->peak_bytes());
  at::Tensor all = at::empty({world.size(), static_cast<std::int64_t>(figures)}, at::kDouble);
  world.all_gather(mine, all).wait();
  auto traces = run.record ? gathered(events, world) : std::vector<std::vector<TraceEvent>>{};
  if (!speaks) return;
  report.stopped = stopped;
  report.steps = std::move(steps);
  report.evaluations = std::move(evaluations);
  report.events = std::move(traces);
  for (int r = 0; r < world.size(); ++r) {
    const double* from = all.data_ptr<double>() + r * static_cast<std::int64_t>(figures);
    report.peak_bytes.push_back(static_cast<std::int64_t>(from[0]));
    report.rank_seconds.push_back(from[1]);
    std::copy(from + 2, from + figures, report.rank_parts.emplace_back().begin());
  }
}

}  // namespace

void prepare_gpus(const Options& options, const Job& job, std::int64_t passes) {
  if (options.train.device == at::kCPU) return;
  constexpr std::int64_t long_run = 100;
  const bool wanted = options.cudnn_search == "on" || (options.cudnn_search == "auto" && passes >= long_run);
  const bool search = wanted && job.may_wait_for_gpus();
  configure_gpus({options.tf32, search});
  count_gpu_memory();
}

void run_ranks(const Options& options, const Job& job, const Launch& launch,
               const std::function<void(Communicator&)>& body) {
  const int ranks_in_process = launch.ranks_are_threads() ? job.plan.ranks() : 1;
  const auto on_rank = [&](Communicator& world) {
    use_device(options.train.device, launch.rank_on_machine(world));
    use_threads(job.threads[static_cast<std::size_t>(world.rank().value)], ranks_in_process);
    if (job.transport == Transport::mpi) return body(world);
    const auto by_nccl = with_nccl(world);
    body(*by_nccl);
  };
  launch.run(job.plan.ranks(), on_rank, {.timeout = Waiting::Seconds(options.timeout.value_or(0))});
}

RunReport run_training(const Options& options, const Job& job, const Launch& launch, const RunOptions& run,
                       const Start& start) {
  RunReport report;
  report.model = options.model.name;
  report.dtype = options.dtype;
  report.threads = job.threads;
  prepare_gpus(options, job, job.steps - start.step);
  const StopSignals signals;
  run_ranks(options, job, launch, [&](Communicator& world) { train_rank(options, job, run, start, world, report); });
  return report;
}

std::string breakdown_table(const RunReport& report, const Plan& plan) {
  std::vector<std::string> head{"rank", "stage", "ms/step", "compute"};
  std::array<bool, static_cast<std::size_t>(Part::count)> shown{};
  for (std::size_t p = 0; p < shown.size(); ++p) {
    for (const auto& parts : report.rank_parts) shown[p] = shown[p] || parts[p] > 0;
    if (shown[p]) head.emplace_back(part_names[p]);
  }
  head.emplace_back("peak");
  Table table(head);
  const auto ms = [](double seconds) { return fmt::format("{:.1f}", 1e3 * seconds); };
  for (std::size_t r = 0; r < report.rank_parts.size(); ++r) {
    const auto& parts = report.rank_parts[r];
    std::vector<std::string> stages;
    for (const auto& place : plan.places_of(static_cast<int>(r) % plan.ranks_per_replica()))
      stages.push_back(fmt::format("{}{}", place.stage, place.direction == Direction::up ? "'" : ""));
    const double other = std::accumulate(parts.begin(), parts.end(), 0.0);
    std::vector<std::string> row{std::to_string(r), join(stages, " "), ms(report.rank_seconds[r]),
                                 ms(report.rank_seconds[r] - other)};
    for (std::size_t p = 0; p < shown.size(); ++p)
      if (shown[p]) row.push_back(ms(parts[p]));
    row.push_back(human_bytes(report.peak_bytes[r]));
    table.row(row);
  }
  return table.str();
}

double idle_share(const RunReport& report) {
  double idle = 0, all = 0;
  for (std::size_t r = 0; r < report.rank_parts.size(); ++r) {
    for (const Part part : {Part::waiting, Part::transfers, Part::sync})
      idle += report.rank_parts[r][static_cast<std::size_t>(part)];
    all += report.rank_seconds[r];
  }
  return all > 0 ? idle / all : 0;
}

std::string human_speed(double speed) {
  return fmt::format("{:.{}f} images/s", speed, speed < 1 ? 3 : speed < 10 ? 2 : 1);
}

}  // namespace tessera
