// What the network's cells and stages take on this machine, each measured once: for --auto.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "job.h"
#include "tessera/planner/plan_search.h"
#include "tessera/trials/rehearsal.h"

namespace tessera {

/// Job and options must outlive it.
class MeasuredCosts {
 public:
  /// `cores`: of this machine.
  MeasuredCosts(const Job& job, const Options& options, int cores);

  /// With every number of threads that a rank may get. Throws UsageError where there is no memory for it.
  void try_cells(const std::vector<int>& threads);
  /// The stages of a candidate as they are. Those that many candidates have are tried once.
  void try_stages(Candidate& candidate);

  const CellCosts& costs() const { return costs_; }
  double seconds() const { return seconds_; }  ///< that all of this took

 private:
  int players_with_memory(std::int64_t samples) const;
  Rehearsal rehearsal(int threads, Recompute recompute, int ranks = 0, std::int64_t samples = 1) const;

  const Job& job_;
  const Options& o_;
  const int cores_;
  CellCosts costs_;
  std::map<std::string, Work> stages_;
  double seconds_ = 0;
};

}  // namespace tessera
