// How a rank waits before it goes to sleep.
#pragma once

#include <chrono>
#include <thread>

namespace tessera {

/// To be woken costs a few microseconds where the core has other work, and twenty where it went idle; so what comes
/// soon is waited for awake.
///
/// Ranks may outnumber cores, so that a peer comes to its part only when it gets this core: looking alternates with
/// yielding. But a yield to somebody who computes for long lasts a time slice of milliseconds (Linux takes it as leave
/// to do so), where a rank that sleeps is back as soon as it is woken. After such a yield it sleeps at once for a
/// while.
class Wakefulness {
 public:
  /// Looks for a short while; whether done().
  template <class Done>
  bool wait(const Done& done) {
    constexpr int looks_at_once = 16;
    const auto start = Clock::now();
    auto now = start;
    do {
      for (int look = 0; look < looks_at_once; ++look) {
        if (done()) return true;
        pause();
      }
      if (waits_without_yield_ > 0) {
        --waits_without_yield_;
        break;
      }
      const auto before = Clock::now();
      std::this_thread::yield();
      now = Clock::now();
      if (now - before > long_yield) waits_without_yield_ = waits_after_long_yield;
    } while (now - start < patience);
    return done();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  static constexpr std::chrono::microseconds patience{50}, long_yield{1000};
  static constexpr int waits_after_long_yield = 100;
  int waits_without_yield_ = 0;
};

}  // namespace tessera
