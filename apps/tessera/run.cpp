#include "run.h"

#include <ATen/ops/full.h>
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <numeric>
#include <string_view>

#include "data_sets.h"
#include "evaluation.h"
#include "memory_fit.h"
#include "progress.h"
#include "rank_figures.h"
#include "run_log.h"
#include "sample_images.h"
#include "tessera/base/text.h"
#include "tessera/comm/nccl/nccl_communicator.h"
#include "tessera/io/trace.h"
#include "tessera/oracle/verify.h"
#include "tessera/runtime/device.h"
#include "tessera/runtime/threads.h"

namespace tessera {
namespace {

// The signal that asked for an end; 0: none has.
std::atomic<int> asked_to_stop = 0;

// Of the process that talks to the user; a signal's handler can ask for no more than that.
std::atomic<bool> speaks_of_signals = true;

// While training: the first SIGINT, SIGTERM or SIGUSR1 is taken note of, the second ends the process as if this were
// not here. SIGUSR1 is what mpirun passes on and does nothing else about.
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
  static constexpr std::array signals{SIGINT, SIGTERM, SIGUSR1};
  static void take(int signal) {
    asked_to_stop = signal;
    std::signal(signal, SIG_DFL);
    // At once: the step may take long, and Open MPI's mpirun kills its processes a second after it passes on a SIGTERM.
    static constexpr std::string_view words =
        "tessera: asked to stop: finishing this step, then saving if there is a --checkpoint-dir. Ask again to end at "
        "once. (mpirun, asked by SIGTERM or Ctrl-C, kills its processes a second later; send it SIGUSR1 instead)\n";
    if (speaks_of_signals) [[maybe_unused]]
      const auto written = ::write(STDERR_FILENO, words.data(), words.size());
  }
  std::array<void (*)(int), signals.size()> before_{};
};

// One rank's run, from its first step here to its last.
class RankRun {
 public:
  RankRun(const Options& options, const Job& job, const RunOptions& run, const Start& start, Communicator& world,
          const RunReport& begun, RunReport& result)
      : options_(options),
        job_(job),
        run_(run),
        world_(world),
        speaks_(world.rank() == Rank{0}),
        result_(result),
        report_(begun),
        scope_(account_, options.train.device),
        trainer_(job.graph, job.plan, options.train, job.images, &world),
        progress_({job.steps, job.plan.global_batch(), run.quiet || !speaks_, run.every_step}),
        warn_([this](const std::string& message) { progress_.warn(message); }),
        checkpoints_(options, job, start, world.rank().value, trainer_, warn_),
        log_({.dir = speaks_ ? options.log_dir : "",
              .start = start.step,
              .resumed = !options.checkpoints.resume.empty(),
              .batch_size = job.plan.global_batch(),
              .warn = warn_}),
        best_(start.best) {
    if (records()) trainer_.record(&events_, &spans_);
    if (!job.validation) return;
    evaluator_.emplace(job.graph, job.plan, trainer_.parameters_of(Evaluator::stage_of(job.plan, world.rank().value)),
                       evaluator_options(options), job.validation, &world);
    if (!options.log_dir.empty() && SampleImages::can_show(job.graph))
      samples_.emplace(job.validation, job.class_names);
  }

  void train() {
    report_.state = "running";
    log_run();
    try {
      while (trainer_.steps_done() < job_.steps && !report_.stopped && !stopped_early_) step();
      checkpoints_.finish();
    } catch (...) {
      progress_.finish();  // the message starts on a line of its own
      throw;
    }
    progress_.finish();
    if (app_name(options_.app) == "medical") progress_.advise(options_.train.loader_workers);
    report_.state = report_.stopped ? "stopped" : "finished";
    publish();
    if (speaks_) result_ = std::move(report_);
  }

 private:
  bool records() const { return run_.record || !options_.log_dir.empty(); }

  void step() {
    auto& steps = report_.steps;
    if (records() && !run_.record) {  // the log shows one step: the last, or one of before steps are played
      constexpr std::size_t settled = 3;
      if (options_.train.device != at::kCPU && job_.plan.repeats_itself() && steps.size() >= settled) {
        trainer_.record(nullptr);
      } else {
        events_.clear();
        spans_.clear();
      }
    }
    steps.push_back(trainer_.step());
    const std::int64_t done = trainer_.steps_done();
    // On a GPU the first step also holds what cuDNN tries its algorithms with.
    if (steps.size() == 1 && done < job_.steps && options_.train.device != at::kCPU) account_->reset_peak();
    progress_.step(steps.back(), account_->peak_bytes());
    log_.step(steps.back(), account_->peak_bytes());
    constexpr std::size_t settled = 3;  // soon enough for whoever watches
    if (steps.size() == settled && done < job_.steps && !options_.log_dir.empty()) publish();
    if (evaluator_ && (done % *options_.evaluation.every == 0 || done == job_.steps)) evaluate(done);
    const bool stop = done < job_.steps && StopSignals::agreed(world_);
    checkpoints_.after_step(stop || stopped_early_);
    if (stop) report_.stopped = done;
  }

  void look_for_the_best(const Evaluation& evaluation, std::int64_t done) {
    const auto& o = options_.evaluation;
    if (o.best.empty() && !o.patience) return;
    if (best_.take(evaluation, done)) return checkpoints_.save_best(best_);
    if (!o.patience || best_.evaluations_since < *o.patience || done == job_.steps) return;
    stopped_early_ = true;
    progress_.say(fmt::format("stopped early: {} without a better {} than {:.4g} after step {} (--early-stop {})",
                              counted(best_.evaluations_since, "evaluation"), best_.metric, *best_.value, best_.at_step,
                              *o.patience));
  }

  // With what the log shows of some images.
  Evaluation evaluation() {
    if (!samples_) return evaluator_->run();
    if (job_.graph.label_kind() != LabelKind::pixel)
      return evaluator_->run([&](const Predictions& p) { samples_->take(p); });
    return evaluator_->run_masks([&](const PredictedMask& mask) { samples_->take(mask); },
                                 [&](std::int64_t image) { return samples_->has(image); });
  }

  void evaluate(std::int64_t done) {
    trainer_.swap_averages();
    report_.evaluations.push_back({done, evaluation()});
    trainer_.swap_averages();
    const RunReport::EvaluationAt& latest = report_.evaluations.back();
    progress_.say(fmt::format("step {}/{}  validation  {}", done, job_.steps, evaluation_line(latest.result)));
    log_.write(done, evaluation_metrics(latest.result));
    log_.document("evaluation.json",
                  [&](const std::string& path) { write_evaluation_at(path, latest, job_.class_names); });
    if (samples_ && speaks_)
      log_.document("samples.json", [&](const std::string&) { samples_->write(options_.log_dir); });
    look_for_the_best(latest.result, done);
  }

  // What all ranks know, to the report and the log. Collective.
  void publish() {
    gather_figures({report_.steps, account_->peak_bytes(), events_, spans_}, world_, report_);
    log_run();
    log_.document("timeline.json",
                  [&](const std::string& path) { write_timeline(path, report_, job_.plan, job_.graph); });
  }

  void log_run() {
    log_.document("run.json", [&](const std::string& path) { write_run(path, report_, job_.plan, job_.graph); });
  }

  const Options& options_;
  const Job& job_;
  const RunOptions& run_;
  Communicator& world_;
  const bool speaks_;
  RunReport& result_;  // of the process; the rank that speaks writes it at the end
  RunReport report_;
  const std::shared_ptr<MemoryAccount> account_ = std::make_shared<MemoryAccount>();
  const MemoryScope scope_;
  Trainer trainer_;
  Progress progress_;
  const Warn warn_;
  RunCheckpoints checkpoints_;
  RunLog log_;
  Best best_;
  bool stopped_early_ = false;
  std::optional<Evaluator> evaluator_;
  std::optional<SampleImages> samples_;
  std::vector<TraceEvent> events_;
  std::vector<PartSpan> spans_;
};

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
    const int here = launch.rank_on_machine(world);
    if (!job.cores.empty() && !keep_to(job.cores[static_cast<std::size_t>(here)]) && here == 0)
      print_warning("the system does not allow ranks to be bound to cores, so they run where it puts them");
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
  report.command = options.command;
  report.images = job.images->describe();
  report.class_names = job.class_names;
  report.flags = flags_of_run(options);
  report.expected = job.expected;
  report.expected_speed = job.expected_speed;
  for (const Footprint& footprint : memory_needs(job, options)) report.predicted_bytes.push_back(footprint.peak());
  prepare_gpus(options, job, job.steps - start.step);
  speaks_of_signals = launch.speaks();
  const StopSignals signals;
  const RunReport begun = report;  // every rank begins with it, and one of them writes to the other
  run_ranks(options, job, launch, [&](Communicator& world) {
    RankRun rank(options, job, run, start, world, begun, report);
    rank.train();
  });
  return report;
}

std::string breakdown_table(const RunReport& report, const Plan& plan) {
  constexpr auto count = static_cast<std::size_t>(Part::count);
  const std::size_t one = report.expected.size();  // ranks of a replica
  std::vector<std::string> head{"rank", "stage", "ms/step", "compute"};
  std::array<bool, count> shown{};
  for (std::size_t p = 0; p < count; ++p) {
    for (const auto& parts : report.rank_parts) shown[p] = shown[p] || parts[p] > 0;
    for (const auto& e : report.expected) shown[p] = shown[p] || e.parts[p] > 0;
    if (shown[p]) head.emplace_back(part_names[p]);
  }
  head.emplace_back("peak");
  Table table(head);
  const auto ms = [](double seconds) { return fmt::format("{:.1f}", 1e3 * seconds); };
  const auto row = [&](std::string rank, std::string stages, double all, const PartSeconds& parts, std::string peak) {
    const double other = std::accumulate(parts.begin(), parts.end(), 0.0);
    std::vector<std::string> cells{std::move(rank), std::move(stages), ms(all), ms(all - other)};
    for (std::size_t p = 0; p < count; ++p)
      if (shown[p]) cells.push_back(ms(parts[p]));
    cells.push_back(std::move(peak));
    table.row(cells);
  };
  for (std::size_t r = 0; r < report.rank_parts.size(); ++r) {
    std::vector<std::string> stages;
    for (const auto& place : plan.first_places_of(static_cast<int>(r) % plan.ranks_per_replica()))
      stages.push_back(fmt::format("{}{}", place.stage, place.direction == Direction::up ? "'" : ""));
    row(std::to_string(r), join(stages, " "), report.rank_seconds[r], report.rank_parts[r],
        human_bytes(report.peak_bytes[r]));
    if (one > 0) row("", "expected", report.expected[r % one].seconds, report.expected[r % one].parts, "");
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
