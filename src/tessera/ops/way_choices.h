// Which of several ways a kernel takes that compute the same up to rounding: by fixed rules, or by measurement.
//
// Measured means that every way is run once for a shape before training begins, and the fastest is remembered: in the
// process, and in a file, $XDG_CACHE_HOME/tessera/ways (or ~/.cache/tessera/ways), one line per shape, number of
// threads and kind of machine, together with the memory that it takes at work. A shape that nobody has measured goes by
// the fixed rules. Another way rounds differently, so only fixed rules give the same bits on a machine that has not met
// the shapes before.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// One of the ways. `scratch_bytes`: that it takes at work beside its arguments and result, if that was measured.
struct ChosenWay {
  std::string name;
  std::optional<double> scratch_bytes = {};
};

/// Thread-safe, except for choose_by() and learn(): they come before anybody computes.
class WayChoices {
 public:
  /// `how`: fixed (or empty) or measured. For tests and measurements also the name of a way, which is then taken wherever
  /// it can be, or drawn:SEED: as measured, but any way may be the fastest, and every time the same; nothing is read or
  /// written. An empty path: nothing is read or written. What cannot be read or written is as if it were not there.
  /// Throws UsageError if `how` means nothing.
  WayChoices(const std::string& how, std::string path);
  /// By what the environment variable TESSERA_WAYS says; fixed without it.
  static WayChoices& of_process();

  void choose_by(const std::string& how);
  bool fixed() const { return how_ == "fixed"; }
  /// Whether ways are tried before a run, and the chosen ones remembered.
  bool measured() const { return how_ == "measured" || seed_; }
  /// Otherwise, the way that is asked for.
  const std::string& how() const { return how_; }
  const std::string& path() const { return path_; }

  /// The way for such a shape: remembered, or asked for. Unset: the fixed rules know.
  std::optional<ChosenWay> find(const std::string& shape) const;
  void remember(const std::string& shape, const ChosenWay& way);
  /// The index of the way to remember for a shape: of the fastest (see below), unless ways are drawn.
  std::size_t pick(const std::string& shape, const std::vector<std::function<void()>>& ways, int threads) const;
  /// Writes the file. What other processes have found out since is kept.
  void save() const;

  /// All that is remembered, for another process, whose own memory it takes the place of: ranks should choose alike.
  std::string lines() const;
  void learn(const std::string& lines);

 private:
  std::string how_;
  std::optional<std::uint64_t> seed_;  // where ways are drawn
  const std::string path_;
  mutable std::mutex mutex_;
  std::map<std::string, ChosenWay> ways_;  // by machine and shape
};

/// The index of the fastest, tried in turn. The first is taken unless another is clearly faster. One thread is timed by
/// what it computes, not by the clock on the wall, which counts what others do on its core.
std::size_t fastest(const std::vector<std::function<void()>>& ways, int threads);

}  // namespace tessera
