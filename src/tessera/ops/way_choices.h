// Which of several ways a kernel takes that compute the same up to rounding: by fixed rules, or by measurement.
//
// The environment variable TESSERA_WAYS says which: `fixed` (the default), `measured`, or, for tests and measurements,
// the name of a way, which is then taken wherever it can be. Measured means that a shape which is met for the first
// time is run in every way, and the fastest is remembered, in the process and in a file: $XDG_CACHE_HOME/tessera/ways
// (or ~/.cache/tessera/ways), one line per shape, number of threads and machine. Another way rounds differently, so
// only fixed rules give the same bits on a machine that has not met the shapes before.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace tessera {

/// Thread-safe.
class WayChoices {
 public:
  /// `how`: as TESSERA_WAYS. An empty path: nothing is read or written. What cannot be read or written is as if it were
  /// not there. Throws UsageError if `how` means nothing.
  WayChoices(std::string how, std::string path);
  /// As the environment says.
  static WayChoices& of_process();

  bool fixed() const { return how_ == "fixed"; }
  bool measured() const { return how_ == "measured"; }
  /// Otherwise, the way that is asked for.
  const std::string& how() const { return how_; }
  /// The way remembered for such a shape; empty: none is.
  std::string find(const std::string& shape) const;
  void remember(const std::string& shape, const std::string& way);

 private:
  void read();
  void write() const;

  const std::string how_, path_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> ways_;  // by machine and shape
};

/// The index of the fastest, each tried a few times in turn. The first is taken unless another is clearly faster. One
/// thread is timed by what it computes, not by the clock on the wall, which counts what other ranks do on its core.
std::size_t fastest(const std::vector<std::function<void()>>& ways, int threads);

}  // namespace tessera
