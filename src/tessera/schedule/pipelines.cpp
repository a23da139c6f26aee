#include "tessera/schedule/pipelines.h"

#include <algorithm>

namespace tessera {
namespace {

using Kind = Action::Kind;

}  // namespace

// Huang et al. 2019. The last micro comes back first, as published: its values are still warm.
//
//     stage 0  F0F1F2......B2--B1--B0--
//     stage 1  ..F0F1F2B2--B1--B0--....
std::vector<Action> gpipe(int stages, int micros, int stage) {
  if (stages == 1) return one_f_one_b(stages, micros, stage);
  std::vector<Action> actions;
  for (int m = 0; m < micros; ++m) actions.push_back({Kind::forward, stage, m});
  for (int m = micros - 1; m >= 0; --m) actions.push_back({Kind::backward, stage, m});
  return actions;
}

// Narayanan et al. 2019, Fan et al. 2021 (DAPPLE). A stage runs ahead by as many micros as there are stages behind it,
// so that the first gradient finds it busy no longer than need be, and no micro waits that is not needed for that.
//
//     stage 0  F0F1....B0--F2B1--..B2--
//     stage 1  ..F0B0--F1B1--F2B2--....
std::vector<Action> one_f_one_b(int stages, int micros, int stage) {
  const int ahead = std::min(stages - 1 - stage, micros);
  std::vector<Action> actions;
  for (int m = 0; m < ahead; ++m) actions.push_back({Kind::forward, stage, m});
  for (int m = 0; m < micros; ++m) {
    if (m + ahead < micros) actions.push_back({Kind::forward, stage, m + ahead});
    actions.push_back({Kind::backward, stage, m});
  }
  return actions;
}

// ZB-H1 of Qi et al. 2024. Input gradients leave at once; the weight gradients of stage s follow s micros later, in the
// time in which it would wait at the end. Stage s holds (stages - s) micros as in 1F1B and s that wait for their weight
// gradient: as many on every stage as 1F1B holds on the first.
//
//     stage 0  F0F1F2....B0--F3B1--B2--B3--
//     stage 1  ..F0F1..I0F2I1W0F3I2W1I3W2W3
//     stage 2  ....F0I0F1I1F2I2W0F3I3W1W2W3
std::vector<Action> zero_bubble(int stages, int micros, int stage) {
  // No stage waits for the input gradients of the first one: its weight gradients come with them.
  if (stage == 0) return one_f_one_b(stages, micros, stage);
  std::vector<Action> actions;
  int weights = 0;
  for (const Action& action : one_f_one_b(stages, micros, stage)) {
    if (action.kind == Kind::forward) {
      actions.push_back(action);
      continue;
    }
    actions.push_back({Kind::input_gradient, stage, action.micro});
    if (action.micro >= stage) actions.push_back({Kind::weight_gradient, stage, weights++});
  }
  while (weights < micros) actions.push_back({Kind::weight_gradient, stage, weights++});
  return actions;
}

}  // namespace tessera
