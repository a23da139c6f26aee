// Ends a rank whose launcher is gone.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace tessera {

/// Whoever started this process ends it when the job ends. Where it cannot, because it was killed, the process would
/// compute or wait on for nobody; so while this lives, a thread looks once a second whether the parent is still there,
/// and ends the process with a message when it is not.
class LauncherWatch {
 public:
  LauncherWatch();
  ~LauncherWatch();
  LauncherWatch(const LauncherWatch&) = delete;
  LauncherWatch& operator=(const LauncherWatch&) = delete;

 private:
  void watch();

  const pid_t launcher_;
  std::mutex mutex_;
  std::condition_variable over_changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace tessera
