#include "tessera/comm/mpi/launcher_watch.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tessera/base/error.h"

namespace tessera {

LauncherWatch::LauncherWatch() : launcher_(getppid()), thread_([this] { watch(); }) {}

LauncherWatch::~LauncherWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  over_changed_.notify_one();
  thread_.join();
}

void LauncherWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!over_changed_.wait_for(lock, std::chrono::seconds(1), [&] { return over_; })) {
    // An orphan has a new parent.
    if (getppid() == launcher_) continue;
    std::fprintf(stderr, "tessera: process %d ends: its launcher, process %d, is gone\n", static_cast<int>(getpid()),
                 static_cast<int>(launcher_));
    std::_Exit(static_cast<int>(ExitCode::failure));
  }
}

}  // namespace tessera
