#include "tessera/runtime/groups.h"

#include "tessera/base/error.h"

namespace tessera {

std::unique_ptr<Communicator> group_of(Communicator* world, int color, int key) {
  auto group = world ? world->split(color, key) : nullptr;
  if (group && group->size() == 1) group.reset();
  return group;
}

std::unique_ptr<Communicator> tile_group(Communicator* world, const Plan& plan, const Plan::Place& place, int replica) {
  const Stage& stage = plan.stages[static_cast<std::size_t>(place.stage)];
  const int stages = static_cast<int>(plan.stages.size()), tiles = static_cast<int>(stage.grid.tiles());
  const int ways = static_cast<int>(stage.batch_ways), way = place.member / tiles;
  const int widest = static_cast<int>(plan.micro_size());
  ensure(ways <= widest, ways, " ways for ", widest, " samples");
  return group_of(world, (replica * stages + place.stage) * widest + way, place.member % tiles);
}

}  // namespace tessera
