#include "tessera/comm/waiting.h"

#include <cstdio>

#include "tessera/comm/communicator.h"

namespace tessera {
namespace {

// 0.1 s, 12 s, 300 s.
std::string seconds(Waiting::Seconds time) {
  char text[64];
  std::snprintf(text, sizeof text, time.count() < 10 ? "%.1f s" : "%.0f s", time.count());
  return text;
}

std::string while_doing(const Waiting& waiting) {
  const std::string doing = waiting.doing();
  return doing.empty() ? doing : ", in " + doing;
}

}  // namespace

Waiting::Seconds Waiting::limit() const {
  if (fixed_ > Seconds(0)) return fixed_;
  return longest_step_ > Seconds(0) ? std::max(Seconds(300), 20 * longest_step_) : Seconds(1800);
}

Waiting::Seconds Waiting::notice() const {
  const Seconds by_step = longest_step_ > Seconds(0) ? std::max(Seconds(10), 3 * longest_step_) : Seconds(60);
  return fixed_ > Seconds(0) ? std::min(by_step, fixed_ / 5) : by_step;
}

void WaitWatch::say(const WaitWords& words) const {
  const std::string line =
      concat("tessera: ", words.who, " has waited ", seconds(waited()), " for ", words.whom, ": ", words.what,
             while_doing(waiting_), "; it gives up after ", seconds(waiting_.limit()), " (--timeout)\n");
  std::fputs(line.c_str(), stderr);  // one call, so that lines of several ranks do not mix
  std::fflush(stderr);
}

void WaitWatch::give_up(const WaitWords& words) const {
  throw CommunicationTimeout(
      concat(words.who, " waited ", seconds(waited()), " for ", words.whom, ": ", words.what, while_doing(waiting_),
             "; a peer is stuck, has ended, cannot be reached or never called its part, or --timeout is too short"));
}

}  // namespace tessera
