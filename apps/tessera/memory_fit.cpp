#include "memory_fit.h"

#include <ATen/ops/full.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "launch.h"
#include "progress.h"
#include "tessera/base/text.h"
#include "tessera/planner/memory_ways.h"
#include "tessera/runtime/device.h"
#include "tessera/runtime/image_delivery.h"
#include "tessera/runtime/memory.h"
#include "tessera/runtime/trainer.h"
#include "tessera/runtime/workspaces.h"

namespace tessera {
namespace {

std::string store_name(const Options& o) { return o.on_gpus() ? "host" : "file"; }

// Of the memory that is free, what tensors may take: the rest is for libraries, and for gaps between tensors.
constexpr double usable_share = 0.9;
// What waits beside a GPU may be more than is predicted: 82 GiB instead of 66 were seen.
constexpr double pinned_share = 0.7;

// The same on all ranks: the least that any has.
double least(double bytes, const Launch& launch) {
  if (!launch.world()) return bytes;
  const at::Tensor all = at::full({1}, -bytes, at::kDouble);
  launch.world()->all_reduce(all, Reduce::max).wait();
  return -all.item<double>();
}

// For each rank, of what the machine has free.
double share_of_host(const Job& job, const Launch& launch) {
  const int ranks = launch.ranks_are_threads() ? job.plan.ranks() : launch.ranks_on_node();
  return usable_share * free_host_bytes() / std::max(1, ranks);
}

std::string bytes(double b) { return human_bytes(static_cast<std::int64_t>(b)); }

double memory_of_a_rank(const Job& job, const Options& o, const Launch& launch) {
  return o.memory ? static_cast<double>(*o.memory) : free_gpu_memory_of_a_rank(job.plan.ranks(), launch);
}

MemoryWish wish_of(const Job& job, const Options& o, const Launch& launch, double memory) {
  MemoryWish wish{.plan = o.plan, .ranks_started = launch.ranks_started()};
  wish.turns_given = o.has("turns");
  wish.halo_given = o.has("halo-D2") || o.has("fused-layers");
  if (o.has("recompute") || o.evaluation.only) wish.recompute = footprint_for(job, o).recompute;
  if (o.has("store")) wish.store = o.train.store != StoreKind::device;
  wish.store_possible = o.on_gpus() || !o.train.scratch.empty();
  wish.memory = memory;
  wish.store_memory = Waits::unlimited;
  if (o.on_gpus()) {
    if (o.host_memory)
      wish.store_memory = static_cast<double>(*o.host_memory);
    else if (!o.planning)
      wish.store_memory = least(pinned_share * share_of_host(job, launch), launch);
  }
  wish.footprint = footprint_for(job, o);
  wish.rates = usual_rates(o.on_gpus(), job.threads[0], element_bytes(o));
  return wish;
}

[[noreturn]] void refuse(const MemoryChoice& choice, const MemoryWish& wish, const Options& o) {
  const auto mib = [](double b) { return concat(static_cast<std::int64_t>(std::ceil(b / (1 << 20))), "MiB"); };
  const std::string others = "a smaller --batch-size or more --parts, or more ranks";
  if (choice.least_stored)
    throw UsageError(concat("what does not fit into the ", bytes(wish.memory), " of the device takes ",
                            bytes(*choice.least_stored), " of the host's memory at least, and there are ",
                            bytes(wish.store_memory), "; use --host-memory ", mib(*choice.least_stored),
                            " if the host has it, more --memory, ", others));
  const double needed = choice.smallest.least;
  throw UsageError(concat("nothing fits into --memory ", bytes(wish.memory), ": of ", choice.tried,
                          " ways the smallest takes ", bytes(needed), " (", flags_of(choice.smallest, store_name(o)),
                          "); use --memory ", mib(needed), " or more, ", others,
                          wish.store_possible ? "" : ", or --scratch DIR, so that values can wait on a disk"));
}

// Only the room differs, where a plan fits as it is.
std::string text_of(const MemoryWay& way) {
  return nlohmann::json{{"turns", way.turns.value_or("")},
                        {"halo-D2", way.halo_d2},
                        {"recompute", words_of(way.recompute)},
                        {"store", way.store},
                        {"room", way.room}}
      .dump();
}

void take(Job& job, Options& o, const std::string& text, std::optional<int> ranks_started) {
  const auto way = nlohmann::json::parse(text);
  const auto turns = way.at("turns").get<std::string>();
  o.plan.turns = turns.empty() ? std::nullopt : std::optional(turns);
  o.plan.halo_d2 = way.at("halo-D2").get<bool>();
  o.recompute = way.at("recompute").get<std::string>();
  o.train.recompute = parse_recompute(o.recompute);
  o.store = way.at("store").get<bool>() ? store_name(o) : "device";
  o.train.store = parse_store(o.store);
  o.train.room = way.at("room").get<double>();
  const std::int64_t per_node = job.plan.ranks_per_node;
  job.plan = make_plan(job.graph, o.plan, ranks_started);
  job.plan.ranks_per_node = per_node;
}

// What is evaluated does not depend on how many images are looked at together: half as many, until they fit.
void take_fewer_images(Job& job, Options& o, const Launch& launch, double memory) {
  const std::string batch = launch.told([&] {
    Job fewer = job;
    PlanOptions plan = o.plan;
    const std::int64_t shares = plan.parts * plan.local_dp.value_or(1);
    while (plan.batch_size > 1 && plan.batch_size / 2 % shares == 0 && needs_more_than(memory, fewer, o)) {
      plan.batch_size /= 2;
      fewer.plan = make_plan(fewer.graph, plan, launch.ranks_started());
      fewer.plan.ranks_per_node = job.plan.ranks_per_node;
    }
    return std::to_string(plan.batch_size);
  });
  o.plan.batch_size = std::stoll(batch);
  settle_plan(job, o, launch);
}

// On one process: the way to take, as text; none: as it is, with a warning.
std::string way_of(const Job& job, const Options& o, const MemoryWish& wish) {
  const double memory = wish.memory;
  if (!o.memory) {
    MemoryWay as_given{.turns = o.plan.turns,
                       .halo_d2 = o.plan.halo_d2,
                       .recompute = wish.footprint.recompute,
                       .store = wish.footprint.store,
                       .plan = job.plan};
    as_given = completed(job.graph, wish, std::move(as_given));
    // What nobody has limited is only a guess of what the host has.
    const bool host_has_room = !o.host_memory || as_given.stored() <= wish.store_memory;
    if (as_given.peak() <= memory && host_has_room) return text_of(as_given);
  }
  const MemoryChoice choice = choose_memory_way(job.graph, wish);
  if (!choice.best && !o.memory &&
      !(o.host_memory && choice.least_stored)) {  // predictions are a little above what GPUs take
    print_warning(concat("the run is predicted to take ", bytes(choice.smallest.least), " or more of a GPU that has ",
                         bytes(memory), " free"));
    return {};
  }
  if (!choice.best) refuse(choice, wish, o);
  const MemoryWay& best = *choice.best;
  const bool as_it_was = best.turns == o.plan.turns && best.halo_d2 == o.plan.halo_d2 &&
                         best.store == wish.footprint.store && words_of(best.recompute) == o.recompute;
  if (as_it_was || o.quiet) return text_of(best);
  fmt::print("memory: {} of {}{} with {}", bytes(best.peak()), bytes(memory), o.memory ? "" : " that are free",
             flags_of(best, store_name(o)));
  if (best.store) fmt::print(", {} {}", bytes(best.stored()), o.on_gpus() ? "in the host's memory" : "in --scratch");
  fmt::print("; about {:.1f} times as long as with memory without end ({} ways tried)\n",
             std::max(1.0, best.seconds / choice.fastest.seconds), choice.tried);
  std::fflush(stdout);
  return text_of(best);
}

}  // namespace

double free_gpu_memory_of_a_rank(int ranks, const Launch& launch) {
  const int here = launch.ranks_are_threads() ? ranks : launch.ranks_on_node(), gpus = std::max(1, gpu_count());
  return least(usable_share * free_gpu_bytes() / std::max(1, (here + gpus - 1) / gpus), launch);
}

FootprintOptions footprint_for(const Job& job, const Options& o) {
  const std::string& rule = o.train.optimizer.name;
  FootprintOptions options{.element_bytes = element_bytes(o),
                           .states = (rule != "sgd"                     ? 2
                                      : o.train.optimizer.momentum != 0 ? 1
                                                                        : 0) +
                                     (o.train.optimizer.average > 0 ? 1 : 0),
                           .common = job.common_copies,
                           .packed = job.plan.ranks() > job.plan.ranks_per_node,
                           .ahead = o.train.loader_workers > 0 ? std::optional(read_ahead(o.on_gpus())) : std::nullopt,
                           .recompute = o.evaluation.only ? Recompute::norm : o.train.recompute,
                           .workspace = nullptr,
                           .threads = job.threads,
                           .store = o.train.store != StoreKind::device,
                           .store_prefetches = o.on_gpus(),
                           .room = o.train.room,
                           .leaving = o.on_gpus() ? o.train.leaving : 0,
                           .evaluating = o.evaluation.only};
  if (o.on_gpus()) {
    constexpr double free_without_one = 80.0 * (1 << 30);
    options.recorded_below = small_enough_to_record * (gpu_count() > 0 ? free_gpu_bytes() : free_without_one);
    options.recording = 32 << 20;  // cuBLAS takes so much for a stream, and a recording has one of its own
  }
  if (!o.on_gpus()) options.workspace = kernel_workspaces(job.graph, o.train.activations());
  return options;
}

std::vector<Footprint> memory_needs(const Job& job, const Options& o) {
  return predicted_memory(job.plan, job.graph, footprint_for(job, o));
}

bool needs_more_than(double memory, const Job& job, const Options& o) {
  const auto needs = memory_needs(job, o);
  return std::any_of(needs.begin(), needs.end(), [&](const Footprint& f) { return f.peak() > memory; });
}

bool fits_into_memory(const Options& o) { return o.memory || (o.on_gpus() && !o.planning); }

std::optional<double> slowdown_to_fit(const Job& job, const Options& o, const Launch& launch) {
  const MemoryWish wish = wish_of(job, o, launch, memory_of_a_rank(job, o, launch));
  const std::string found = launch.told([&] {
    const MemoryChoice choice = choose_memory_way(job.graph, wish);
    return choice.best ? nlohmann::json(choice.best->seconds / choice.fastest.seconds).dump() : std::string();
  });
  if (found.empty()) return std::nullopt;
  return std::max(1.0, nlohmann::json::parse(found).get<double>());
}

void fit_into_memory(Job& job, Options& o, const Launch& launch) {
  if (!fits_into_memory(o)) return;
  const double memory = memory_of_a_rank(job, o, launch);
  if (o.evaluation.only && !o.has("batch-size")) take_fewer_images(job, o, launch, memory);
  // Copies out of a small device must not take what its kernels need.
  constexpr double gib = 1 << 30;
  o.train.leaving = std::clamp(memory / 16, gib / 4, 4 * gib);
  const MemoryWish wish = wish_of(job, o, launch, memory);
  // What kernels take is measured by every machine for itself, so one decides for all.
  const std::string way = launch.told([&] { return way_of(job, o, wish); });
  if (!way.empty()) take(job, o, way, launch.ranks_started());
}

void check_memory_limit(const Job& job, const Options& o) {
  const auto needs = memory_needs(job, o);
  const auto less = [](const Footprint& a, const Footprint& b) { return a.peak() < b.peak(); };
  const auto most = std::max_element(needs.begin(), needs.end(), less) - needs.begin();
  const auto peak = static_cast<std::int64_t>(needs[static_cast<std::size_t>(most)].peak());
  if (peak <= static_cast<std::int64_t>(*o.memory_limit)) return;
  std::vector<std::string> stages;
  for (const auto& place : job.plan.first_places_of(static_cast<int>(most)))
    stages.push_back(concat(place.stage, place.direction == Direction::up ? " of the direction up" : ""));
  throw UsageError(concat(
      "rank ", most, " needs ", human_bytes(peak), " for stage ", join(stages, " and stage "),
      ", more than --memory-limit ", human_bytes(static_cast<std::int64_t>(*o.memory_limit)), "; use ",
      o.train.recompute == Recompute::block ? "" : "--recompute block, ",
      "more tiles (--num-spatial-parts), more stages (--split-size), smaller micros (--parts)",
      job.plan.bidirectional() ? ", another --balance, or a --schedule of one direction" : ", or --balance-by memory"));
}

}  // namespace tessera
