#include "job.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "automatic_plan.h"
#include "data_defaults.h"
#include "data_sets.h"
#include "launch.h"
#include "limits.h"
#include "memory_fit.h"
#include "progress.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/comm/nccl/nccl_communicator.h"
#include "tessera/graph/class_maps.h"
#include "tessera/ops/way_choices.h"
#include "tessera/runtime/conv_trials.h"
#include "tessera/runtime/cores.h"
#include "tessera/runtime/device.h"

namespace tessera {
namespace {

DeviceWish device_wish(const Options& o) {
  return {.cuda = o.device == "cuda", .bfloat16 = o.dtype == "bfloat16", .tf32 = o.tf32, .transport = o.transport};
}

// "messages and sums by NCCL 2.28.9": how ranks on GPUs talk.
std::string transport_words(const DeviceFacts& facts, Transport transport) {
  if (!facts.ranks_are_processes) return "ranks are threads, and messages copies on the GPU";
  if (transport == Transport::nccl) return concat("messages and sums by NCCL ", nccl_version());
  return concat("messages and sums by ", mpi_library_version(),
                mpi_reads_gpu_memory() ? ", which reads GPU memory" : " through pinned memory");
}

void check_values(const Options& o, Problems& problems) {
  problems.check(o.cudnn_search != "on" || o.device == "cuda",
                 "--cudnn-search on is for GPUs; use --device cuda, or leave it out");
  const auto not_negative = [](double value) { return value >= 0 && std::isfinite(value); };
  problems.check(not_negative(o.train.optimizer.lr), "--lr ", o.train.optimizer.lr,
                 " must be a number that is not negative");
  problems.check(o.train.optimizer.momentum >= 0 && o.train.optimizer.momentum < 1, "--momentum ",
                 o.train.optimizer.momentum, " must be at least 0 and less than 1");
  problems.check(!o.has("momentum") || o.train.optimizer.name == "sgd", "--momentum is for --optimizer sgd, not ",
                 o.train.optimizer.name, "; leave it out");
  problems.check(not_negative(o.train.optimizer.weight_decay), "--weight-decay ", o.train.optimizer.weight_decay,
                 " must be a number that is not negative");
  problems.check(not_negative(o.train.optimizer.clip_norm), "--clip-norm ", o.train.optimizer.clip_norm,
                 " must not be negative (0 clips nothing)");
  problems.check(o.train.optimizer.average >= 0 && o.train.optimizer.average < 1, "--ema ", o.train.optimizer.average,
                 " must be at least 0 and less than 1 (0.999, say; 0 keeps no average)");
  problems.check(o.train.learning_rate.warmup_steps >= 0, "--warmup-steps ", o.train.learning_rate.warmup_steps,
                 " must not be negative");
  problems.check(o.train.learning_rate.step_every > 0, "--lr-step-every ", o.train.learning_rate.step_every,
                 " must be at least 1");
  const double factor = o.train.learning_rate.step_factor;
  problems.check(factor > 0 && std::isfinite(factor), "--lr-step-factor ", factor, " must be a number above 0");
  for (const char* flag : {"lr-step-every", "lr-step-factor"})
    problems.check(!o.has(flag) || o.train.learning_rate.schedule == "step", "--", flag,
                   " is for --lr-schedule step, not ", o.train.learning_rate.schedule);
  problems.check(!o.has("steps") || !o.has("num-epochs"), "--steps ", o.steps.value_or(0), " and --num-epochs ",
                 o.num_epochs, " both say how long to train; give one of them");
  problems.check(!o.has("seed") || o.given.at("seed").find('-') == std::string::npos, "--seed ",
                 o.has("seed") ? o.given.at("seed") : "", " must not be negative");
  problems.check(o.model.classes >= (o.model.loss.binary ? 1 : 2), "--num-classes ", o.model.classes,
                 ": with fewer than two classes there is nothing to tell apart");
  problems.check(o.steps.value_or(1) > 0, "--steps ", o.steps.value_or(1), " must be at least 1");
  problems.check(o.num_epochs > 0, "--num-epochs ", o.num_epochs, " must be at least 1");
  problems.check(o.threads.value_or(1) > 0, "--threads ", o.threads.value_or(1), " must be at least 1");
  problems.check(o.workers.value_or(1) >= 0, "--num-workers ", o.workers.value_or(1), " must not be negative");
  problems.check(o.evaluation.every.value_or(1) > 0, "--eval-every ", o.evaluation.every.value_or(1),
                 " must be at least 1");
  problems.check(o.evaluation.datapath.empty() ||
                     ((o.evaluation.every || o.evaluation.each_epoch) && app_name(o.app) == "medical"),
                 "--val-datapath is for --eval-every and --app medical");
  for (const char* flag : {"ranks", "batch-at-most", "machine"})
    problems.check(!o.has(flag) || o.automatic, "--", flag, " is for --auto; give that too, or leave it out");
  const auto& evaluation = o.evaluation;
  const double share = evaluation.share.value_or(0.5);
  problems.check(share > 0 && share < 1, "--val-share ", share, " must lie between 0 and 1");
  problems.check(!evaluation.share || evaluation.datapath.empty(),
                 "--val-share and --val-datapath both say what to evaluate on; give one of them");
  const bool evaluates = evaluation.every || evaluation.each_epoch || evaluation.share;
  problems.check(evaluates || (!o.has("keep-best") && !o.has("early-stop")),
                 "--keep-best and --early-stop look at evaluations; add --eval-every, --val-share or --run");
  problems.check(evaluation.best.empty() || !o.checkpoints.dir.empty(), "--keep-best needs --checkpoint-dir or --run");
  problems.check(evaluation.patience.value_or(1) > 0, "--early-stop ", evaluation.patience.value_or(1),
                 " must be at least 1");
  const auto names = static_cast<std::int64_t>(o.class_names.size());
  problems.check(!o.has("class-names") || app_name(o.app) == "medical", "--class-names is for --app medical");
  problems.check(!o.has("class-names") || names == o.model.classes, "--class-names has ", counted(names, "name"),
                 ", and --num-classes ", o.model.classes, " wants one for each class");
  problems.check(o.on_bad_image == "fail" || app_name(o.app) == "medical", "--on-bad-image is for --app medical");
  problems.check(!o.has("tolerance") || (o.tolerance > 0 && o.tolerance < 1), "--tolerance ", o.tolerance,
                 " must lie between 0 and 1 (1e-10, say)");
  constexpr double longest_wait = 30 * 86400.0;
  const double timeout = o.timeout.value_or(1);
  problems.check(timeout > 0 && timeout <= longest_wait, "--timeout ", timeout,
                 " must be a number of seconds above 0, and at most ", longest_wait, " (30 days)");
  problems.check(!o.host_memory || o.device == "cuda",
                 "--host-memory is for what waits beside a GPU; on CPUs, --memory is all there is");
  problems.check(o.synthetic_images > 0, "--synthetic-images ", o.synthetic_images, " must be at least 1");
}

// What the builder of somebody's own network may have forgotten.
void check_network(const Graph& graph, const Options& o) {
  const Node& last = graph.nodes().back();
  require(last.op && last.op->loss_labels(), "--model ", o.model.name, " ends with the node '", last.name,
          "', which is no loss, so there is nothing to train; end it with g.cross_entropy(logits) or "
          "g.pixel_cross_entropy(logits)");
  const std::int64_t answers = graph.shape(graph.logits()).channels;
  require(answers == o.model.classes, "--model ", o.model.name, " tells ", counted(answers, "class"),
          " apart, and --num-classes is ", o.model.classes,
          "; make its last layer as wide as ModelOptions::classes, or use --num-classes ", answers);
}

void warn_of_network(const ForeignModel& foreign, const Options& o) {
  const ImportedNetwork& network = foreign.network;
  if (network.evaluating())
    print_warning(concat(o.model.name, " was exported in evaluation mode: its ",
                         network.norms > 0 ? "norms keep the statistics of the file" : "dropouts are off",
                         "; to train all of it, call .train() before it is exported"));
  if (network.fixed > 0 && !network.evaluating())
    print_warning(concat(counted(network.fixed, "parameter"), " of ", o.model.name,
                         " do not require gradients, and are not trained"));
}

// The folder is one of each machine's own, so all ranks learn of one that cannot use it.
void try_scratch(const std::string& folder, const Launch& launch) {
  std::string problem;
  try {
    make_file_store(folder);
  } catch (const UsageError& error) {
    problem = error.what();
  }
  const at::Tensor failed = at::full({1}, problem.empty() ? 0 : 1, at::kLong);
  if (launch.world()) launch.world()->all_reduce(failed, Reduce::max).wait();
  require(failed.item<std::int64_t>() == 0,
          problem.empty() ? concat("--scratch ", folder, " cannot be used on every machine; name a folder that ",
                                   "exists on each of them and can be written to")
                          : problem);
}

bool takes_too_much(const Job& job, const Options& o) {
  if (!o.memory && !o.memory_limit) return false;
  constexpr auto endless = std::numeric_limits<std::uint64_t>::max();
  const auto limit = static_cast<double>(std::min(o.memory.value_or(endless), o.memory_limit.value_or(endless)));
  return needs_more_than(limit, job, o);
}

// The user's word, else the developer's (TESSERA_WAYS), else measured.
void settle_way_of_choosing(const Options& o) {
  if (!o.conv_choice.empty() || std::getenv("TESSERA_WAYS") == nullptr)
    WayChoices::of_process().choose_by(o.conv_choice.empty() ? "measured" : o.conv_choice);
}

// A GPU leaves the cores to those that read; on a CPU they share them with those that compute.
int reading_threads(const Options& o, int cores, int ranks) {
  const int share = cores / ranks;
  return o.device == "cpu" ? std::clamp(share / 4, 1, 8) : std::clamp(share - 1, 1, 16);
}

// Of the ranks on this machine. Those that compute on GPUs are bound to no node: which one a GPU is near is not known.
std::vector<Cores> cores_here(const Options& o, const Job& job, const Launch& launch) {
  const bool threads_are_ranks = launch.ranks_are_threads();
  const int ranks = threads_are_ranks ? job.plan.ranks() : launch.ranks_on_node();
  const std::vector<int> ours = processors_of_thread();
  // Threads of one process share what the user left to it.
  NumaNodes nodes = threads_are_ranks ? within(numa_nodes_here(), ours) : numa_nodes_here();
  int threads = *std::max_element(job.threads.begin(), job.threads.end());
  if (o.device != "cpu") {
    for (std::size_t n = 1; n < nodes.size(); ++n) nodes[0].insert(nodes[0].end(), nodes[n].begin(), nodes[n].end());
    nodes.resize(std::min<std::size_t>(nodes.size(), 1));
    threads = std::max(1, launch.cores() / ranks);
  }
  return cores_of_ranks(nodes, ranks, threads, threads_are_ranks ? threads : static_cast<int>(ours.size()));
}

}  // namespace

Cores cores_to_measure_on(const Options& o, const Launch& launch) {
  return launch.ranks_are_threads() || o.bind == "none" ? Cores{} : whole_machine();
}

PlanFlags flags_of_run(const Options& o) {
  PlanFlags flags = flags_of(o.plan);
  flags["batch-size"] = std::to_string(o.plan.batch_size);
  if (o.recompute != "norm") flags["recompute"] = o.recompute;
  if (o.store != "device") flags["store"] = o.store;
  return flags;
}

void choose_convolutions(const Job& job, const Options& o, const Launch& launch) {
  WayChoices& ways = WayChoices::of_process();
  if (!ways.measured() || o.planning || o.device != "cpu" || o.dtype != "float32") return;
  // By one process, while the others sleep: so they choose alike, and none of them disturbs the clock.
  const std::string found = launch.told([&] {
    const double start = now_seconds();
    apart(cores_to_measure_on(o, launch), [&] {
      try_convolutions({.graph = job.graph,
                        .plan = job.plan,
                        .threads = job.threads,
                        .activations = o.train.activations(),
                        .training = !o.evaluation.only});
    });
    const double seconds = now_seconds() - start;
    // What fits by the rules is not refused, and does not take more than it may, because something else is faster.
    if (takes_too_much(job, o)) ways.learn({});
    constexpr double slow = 5;
    if (seconds > slow && !o.quiet)
      std::fprintf(stderr, "tessera: tried out the convolutions for %.0f s (--conv-choice); found in %s from now on\n",
                   seconds, ways.path().c_str());
    return ways.lines();
  });
  if (!launch.speaks()) ways.learn(found);
}

void settle_plan(Job& job, Options& o, const Launch& launch) {
  const auto ranks_started = launch.ranks_started();
  job.plan = make_plan(job.graph, o.plan, ranks_started);
  const int ranks = job.plan.ranks(), cores = launch.cores();
  if (launch.ranks_are_threads() && !o.planning) check_thread_ranks(ranks);
  if (job.plan.ranks_per_node == 0) job.plan.ranks_per_node = ranks_started ? launch.ranks_on_node() : ranks;
  job.threads.clear();
  for (int rank = 0; rank < ranks; ++rank)
    job.threads.push_back(threads_of_rank(o, cores, job.plan.ranks_at_work_beside(rank)));
  if (o.bind != "none" && !o.planning) job.cores = cores_here(o, job, launch);
  o.train.loader_workers =
      o.workers.value_or(reading_threads(o, cores, launch.ranks_are_threads() ? ranks : launch.ranks_on_node()));
}

Job make_job(Options& o, const ModelRegistry& models, const Launch& launch) {
  check_limits(o, launch.cores());
  settle_kind(o);
  Problems problems;
  const DeviceWish wish = device_wish(o);
  // A plan for GPUs may be made where there are none: each rank is then taken to have one of its own.
  const DeviceFacts facts =
      o.planning ? DeviceFacts{.cuda_built = true,
                               .nccl_built = true,
                               .bfloat16 = true,
                               .ranks_are_processes = true,
                               .own_gpus = true}
                 : device_facts(wish, launch.world(), launch.world() ? launch.rank_on_machine(*launch.world()) : 0);
  for (const std::string& problem : device_problems(wish, facts)) problems.add(problem);
  check_values(o, problems);
  problems.absorb([&] { o.automatic ? check_plan_numbers(o.plan) : check_plan_options(o.plan); });
  o.train.dtype = o.dtype == "float64" ? at::kDouble : o.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  o.train.device = o.device == "cuda" ? at::kCUDA : at::kCPU;
  problems.absorb([&] { o.train.recompute = parse_recompute(o.recompute); });
  problems.absorb([&] {
    o.train.store = parse_store(o.store);
    // Without --store, a CPU's folder is there in case that memory does not suffice.
    const bool in_case = !o.has("store") && o.device == "cpu";
    check_store(o.train.store, o.train.device, in_case ? std::string() : o.train.scratch);
  });

  Job job;
  DataSets data(o);
  problems.absorb([&] {
    settle_shape(o, models, launch);
    o.model.image = parse_image_size(o.image_size);
    o.model.image.channels = *o.channels;
    problems.absorb([&] {
      Graph graph = models.build(o.model);
      if (is_network_file(models, o.model.name)) {
        job.foreign = o.files->import(o.model);
        if (!o.has("num-classes")) o.model.classes = graph.shape(graph.logits()).channels;
      }
      check_network(graph, o);
      job.graph = std::move(graph);
    });
    // Whether images need masks is for the network to say.
    if (!job.graph.nodes().empty() && o.synthetic_images > 0) data.open(job.graph.label_kind() == LabelKind::pixel);
  });
  problems.throw_if_any();
  const bool pixels = job.graph.label_kind() == LabelKind::pixel;
  require(o.evaluation.best != "auc" || (!pixels && (o.model.classes == 2 || o.model.loss.binary)),
          "--keep-best auc is for images of two classes, or with --loss binary; use --keep-best accuracy or loss");
  require(o.evaluation.best != "mean_iou" || pixels,
          "--keep-best mean_iou is for networks that label pixels; use --keep-best accuracy or loss");
  if (job.foreign && launch.speaks() && !o.evaluation.only) warn_of_network(*job.foreign, o);
  job.transport = chosen_transport(wish, facts);
  if (wish.cuda) job.transport_words = transport_words(facts, job.transport);

  if (!o.evaluation.heatmap.empty()) {
    ClassMaps maps = with_class_maps(job.graph);
    job.whole_network = std::move(job.graph);
    job.graph = std::move(maps.graph);
    job.maps = maps.maps;
  }
  const auto open_images = [&] {
    data.leave_out_bad_images(launch);
    data.divide();
    job.images = data.images();
    job.validation = data.validation();
  };
  job.common_copies = launch.ranks_are_threads() && !wish.cuda;
  settle_way_of_choosing(o);
  const auto check_batch = [&](std::int64_t batch) {
    require(o.evaluation.only || batch <= job.images->size(), "--batch-size ", o.plan.batch_size,
            batch == o.plan.batch_size ? std::string() : concat(" (", batch, " over all copies)"), " is more than the ",
            counted(job.images->size(), "image"), " there are; use a smaller one",
            app_name(o.app) == "synthetic" ? " or more --synthetic-images" : "");
  };
  if (o.automatic) {
    open_images();  // how long they take to read counts, too
    if (!o.planning) check_batch(o.plan.batch_size);
    if (!o.train.scratch.empty() && !o.planning) try_scratch(o.train.scratch, launch);
    o.train.loader_workers = o.workers.value_or(o.train.loader_workers);
    choose_plan(job, o, launch);
  }
  settle_plan(job, o, launch);
  require(o.cudnn_search != "on" || job.may_wait_for_gpus(), "--cudnn-search on does not go together with NCCL; use ",
          "--cudnn-search off, or --transport mpi");
  const std::int64_t batch = job.plan.global_batch();
  if (!o.automatic) open_images();
  // Folders of images name what an image is of, not what its pixels are.
  job.class_names = job.graph.label_kind() == LabelKind::pixel ? o.class_names : job.images->class_names();
  const auto named = static_cast<std::int64_t>(job.images->class_names().size());
  if (launch.speaks() && !o.evaluation.only && named != 0 && named != o.model.classes &&
      job.graph.label_kind() != LabelKind::pixel)
    print_warning(concat("'", o.datapath, "' has ", counted(named, "class"), ", and the network ", o.model.classes,
                         "; --num-classes ", named, " is as many"));
  check_batch(batch);
  job.steps = o.evaluation.only ? 0 : o.steps.value_or(o.num_epochs * (job.images->size() / batch));
  o.train.steps = job.steps;
  if (!o.evaluation.every && job.validation) o.evaluation.every = std::max<std::int64_t>(1, job.images->size() / batch);
  fit_into_memory(job, o, launch);
  choose_convolutions(job, o, launch);
  if (o.memory_limit) check_memory_limit(job, o);
  if (o.train.store == StoreKind::file && !o.planning) try_scratch(o.train.scratch, launch);
  return job;
}

}  // namespace tessera
