// How long a rank waits for others, and what it says in the meantime.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace tessera {

/// Of one rank, shared by all of its communicators. For the rank's thread only.
///
/// A wait is as long as the work of whoever is waited for, so what is too long follows from how long a step takes:
///
///     the first step            later steps                     --timeout s
///     a line after   60 s       3 times the longest step, 10 s at least          the smaller of the two and s / 5
///     an end after   1800 s     20 times the longest step, 300 s at least        s
class Waiting {
 public:
  using Seconds = std::chrono::duration<double>;

  /// `limit` of 0: as above.
  explicit Waiting(Seconds limit = Seconds(0)) : fixed_(limit) {}

  void step_took(Seconds seconds) { longest_step_ = std::max(longest_step_, seconds); }
  /// What the rank is about, for the lines; empty: nothing to say.
  void set_doing(std::function<std::string()> doing) { doing_ = std::move(doing); }
  std::string doing() const { return doing_ ? doing_() : std::string(); }

  Seconds limit() const;
  /// When to say that a wait is long.
  Seconds notice() const;

 private:
  Seconds fixed_;
  Seconds longest_step_{0};
  std::function<std::string()> doing_;
};

/// Who waits for whom, and for what: "rank 2 on host b", "rank 0 on host a", "receive of 64 bytes, tag 7 of world".
struct WaitWords {
  std::string who, whom, what;
};

/// One wait, looked at again and again.
class WaitWatch {
 public:
  explicit WaitWatch(const Waiting& waiting) : waiting_(waiting), start_(Clock::now()), next_line_(waiting.notice()) {}

  /// How long one may sleep before look() has something to do.
  Waiting::Seconds until_next() const {
    return std::max(Waiting::Seconds(0), std::min(next_line_, waiting_.limit()) - waited());
  }

  /// Says on standard error that the wait is long, at times that double. Throws CommunicationTimeout when it is too
  /// long. words() is called only then.
  template <class Words>
  void look(const Words& words) {
    const auto now = waited();
    if (now >= waiting_.limit()) give_up(words());
    if (now < next_line_) return;
    say(words());
    next_line_ = 2 * now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Waiting::Seconds waited() const { return Clock::now() - start_; }
  void say(const WaitWords& words) const;
  [[noreturn]] void give_up(const WaitWords& words) const;

  const Waiting& waiting_;
  Clock::time_point start_;
  Waiting::Seconds next_line_;
};

}  // namespace tessera
