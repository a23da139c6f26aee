// How a thread waits for other threads: briefly awake, then asleep.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "tessera/comm/wakefulness.h"

namespace tessera {

/// One thread waits here, others ring. What the waiting thread looks at must be sequentially consistent atomics (their
/// default) that are changed before ring(): then either the waiter sees the change, or the ringer sees the waiter.
class Bell {
 public:
  void ring() {
    if (!asleep_.load()) return;
    { const std::lock_guard lock(mutex_); }  // the waiter is now in wait_for(), or awake
    woken_.notify_one();
  }

  /// Returns when done() or when the time is up; whether done().
  template <class Done>
  bool wait_for(std::chrono::duration<double> timeout, const Done& done) {
    if (awake_.wait(done)) return true;
    std::unique_lock lock(mutex_);
    asleep_.store(true);
    const bool in_time = woken_.wait_for(lock, timeout, done);
    asleep_.store(false);
    return in_time;
  }

 private:
  Wakefulness awake_;  ///< of the waiting thread
  std::mutex mutex_;
  std::condition_variable woken_;
  std::atomic<bool> asleep_ = false;
};

}  // namespace tessera
