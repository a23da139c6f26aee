// Waiting for something that only looking at it gets on with.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace tessera {

/// Ranks may outnumber cores. A test that finds nothing yields inside MPI where mpirun saw that, so yielding here as
/// well is for the other libraries, and seldom. A wait of milliseconds is a wait for computation: sleeping leaves it
/// the core.
class Patience {
 public:
  /// To be called after a look that found nothing. Whether so much time has gone by that the wait itself may be looked
  /// at.
  bool pause() {
    if (++tests_ % tests_between_yields != 0) return false;
    if (Clock::now() - start_ < std::chrono::milliseconds(2)) {
      std::this_thread::yield();
      return false;
    }
    std::this_thread::sleep_for(nap_);
    nap_ = std::min(nap_ * 5 / 4, Nap(500));
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Nap = std::chrono::microseconds;
  Clock::time_point start_ = Clock::now();
  Nap nap_{20};
  static constexpr int tests_between_yields = 16;
  int tests_ = 0;
};

}  // namespace tessera
