// Schedules of one direction: each stage's list by a formula.
#pragma once

#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera {

/// The actions of a stage of a pipeline of `stages`, in order, without the step. With one stage there is nobody to wait
/// for, and each of them takes every micro forward and back before the next one: the least memory.
std::vector<Action> gpipe(int stages, int micros, int stage);
std::vector<Action> one_f_one_b(int stages, int micros, int stage);
std::vector<Action> zero_bubble(int stages, int micros, int stage);

}  // namespace tessera
