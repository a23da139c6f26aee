#include "tessera/comm/threads/thread_communicator.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include <ATen/ops/empty.h>

#include "tessera/comm/threads/bell.h"
#include "tessera/comm/threads/thread_collective.h"

namespace tessera {
namespace {

/// All ranks of one run. A thread waits for one thing at a time, so each has one bell; whoever changes what it waits
/// for rings it. One mutex is enough: it is held to find the other end of a message or collective, and never to copy,
/// to wait or to wake.
struct World {
  explicit World(int ranks) : bells(static_cast<std::size_t>(ranks)) {}

  std::mutex mutex;
  std::deque<Bell> bells;      ///< by rank
  std::exception_ptr failure;  ///< guarded by the mutex
  std::atomic<bool> failed = false;

  void fail(const std::exception_ptr& why) {
    {
      const std::lock_guard lock(mutex);
      if (!failure) failure = why;
    }
    failed.store(true);
    for (Bell& bell : bells) bell.ring();
  }
  void throw_if_failed() const {
    if (failed.load()) throw Aborted();
  }
};

/// One end of a message.
struct Message {
  enum class State { posted, copying, done };
  explicit Message(Region of) : region(std::move(of)) {}
  Region region;
  std::atomic<State> state = State::posted;
};

/// Messages of one sender, receiver and tag that wait for their other end: sends or receives, never both.
struct Unmatched {
  std::deque<std::shared_ptr<Message>> sends, receives;
};

/// The ranks of one communicator.
struct Group {
  Group(std::shared_ptr<World> in, std::vector<int> ranks, std::string named)
      : world(std::move(in)), world_ranks(std::move(ranks)), name(std::move(named)) {}

  using LaneKey = std::tuple<Rank, Rank, Tag>;
  std::shared_ptr<World> world;
  std::vector<int> world_ranks;
  std::string name;
  std::map<LaneKey, Unmatched> lanes;
  std::map<std::int64_t, std::shared_ptr<Collective>> collectives;          ///< by number of the call
  std::map<std::pair<std::int64_t, int>, std::shared_ptr<Group>> children;  ///< by number of the split and color
  int joined = 0;

  Bell& bell(Rank rank) {
    return world->bells[static_cast<std::size_t>(world_ranks[static_cast<std::size_t>(rank.value)])];
  }
  std::string title(Rank rank) const { return concat(Rank{world_ranks[static_cast<std::size_t>(rank.value)]}); }
  void ring_all() {
    for (const int rank : world_ranks) world->bells[static_cast<std::size_t>(rank)].ring();
  }
};

/// What a rank needs in order to wait, and to say for what.
struct Waiter {
  Group* group;
  Rank rank;
  const CommunicatorOptions* options;

  template <class Done, class Words>
  void wait(const Done& done, const Words& words) const {
    if (done()) return;
    const World& world = *group->world;
    WaitWatch watch(*options->waiting);
    while (!group->bell(rank).wait_for(watch.until_next(), [&] { return done() || world.failed.load(); }))
      watch.look(words);
    if (!done()) world.throw_if_failed();
  }
};

class MessageRequest final : public Request {
 public:
  MessageRequest(Waiter waiter, bool sends, Rank peer, Tag tag, std::shared_ptr<Message> message)
      : waiter_(waiter), sends_(sends), peer_(peer), tag_(tag), message_(std::move(message)) {}

  ~MessageRequest() override {
    {
      const std::lock_guard lock(waiter_.group->world->mutex);
      if (message_->state == Message::State::posted) {
        withdraw();
        return;
      }
    }
    // The other end may be using the memory; that takes as long as a copy takes.
    while (!waiter_.group->bell(waiter_.rank).wait_for(std::chrono::hours(1), [&] { return done(); })) continue;
  }
  void wait() override {
    waiter_.wait([&] { return done(); }, [&] { return words(); });
  }
  bool test() override {
    if (done()) return true;
    waiter_.group->world->throw_if_failed();
    return false;
  }

 private:
  bool done() const { return message_->state == Message::State::done; }
  void withdraw() {
    const Rank from = sends_ ? waiter_.rank : peer_, to = sends_ ? peer_ : waiter_.rank;
    Unmatched& lane = waiter_.group->lanes.at({from, to, tag_});
    std::erase(sends_ ? lane.sends : lane.receives, message_);
  }
  WaitWords words() const {
    return {waiter_.group->title(waiter_.rank), waiter_.group->title(peer_),
            concat(sends_ ? "send of " : "receive of ", message_->region.bytes(), " bytes, ", words_of(tag_), ", in ",
                   waiter_.group->name)};
  }

  Waiter waiter_;
  bool sends_;
  Rank peer_;
  Tag tag_;
  std::shared_ptr<Message> message_;
};

class CollectiveRequest final : public Request {
 public:
  CollectiveRequest(Waiter waiter, std::int64_t number, std::shared_ptr<Collective> collective, Wire wire)
      : waiter_(waiter), number_(number), collective_(std::move(collective)), wire_(std::move(wire)) {}

  ~CollectiveRequest() override {
    const std::lock_guard lock(waiter_.group->world->mutex);
    // A rank lets go of its own tensors, unless others may still be at work on them.
    if (collective_->done()) collective_->posts[static_cast<std::size_t>(waiter_.rank.value)] = {};
    if (++collective_->left == static_cast<int>(collective_->posts.size())) waiter_.group->collectives.erase(number_);
  }
  void wait() override {
    const auto words = [&] { return this->words(); };
    waiter_.wait([&] { return collective_->all_here(); }, words);
    help();
    waiter_.wait([&] { return collective_->done(); }, words);
    wire_.unpack();
  }
  bool test() override {
    waiter_.group->world->throw_if_failed();
    if (!collective_->all_here()) return false;
    help();
    if (!collective_->done()) return false;
    wire_.unpack();
    return true;
  }

 private:
  void help() {
    if (collective_->help()) waiter_.group->ring_all();
  }
  WaitWords words() const {
    const std::lock_guard lock(waiter_.group->world->mutex);
    std::string missing;
    for (std::size_t i = 0; i < collective_->posts.size(); ++i)
      if (!collective_->posts[i].here)
        missing += (missing.empty() ? "" : ", ") + waiter_.group->title(Rank{static_cast<int>(i)});
    return {waiter_.group->title(waiter_.rank), missing.empty() ? "others to do their share" : missing,
            concat(collective_->call.name(), " of ", collective_->call.bytes, " bytes, in ", waiter_.group->name)};
  }

  Waiter waiter_;
  std::int64_t number_;
  std::shared_ptr<Collective> collective_;
  Wire wire_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, Rank rank, CommunicatorOptions options)
      : Communicator(rank, static_cast<int>(group->world_ranks.size()), group->name, options),
        group_(std::move(group)) {}

  std::string title(Rank rank) const override { return group_->title(rank); }
  Pending send(const Region& region, Rank to, Tag tag) override { return post(region, true, to, tag); }
  Pending receive(const Region& into, Rank from, Tag tag) override { return post(into, false, from, tag); }

  Pending all_reduce(at::Tensor in_place, Reduce op) override {
    const Region region = region_of(in_place);
    const CollectiveCall call{CollectiveCall::Kind::all_reduce, op, {}, region.bytes()};
    if (!region.on_host()) return join(call, region, {}, {});
    Wire wire(buffers(), region);
    wire.pack();
    return join(call, wire.region(), {}, wire);
  }
  Pending broadcast(at::Tensor tensor, Rank root) override {
    const Region region = region_of(tensor);
    return join({CollectiveCall::Kind::broadcast, {}, root, region.bytes()}, region, region, {});
  }
  Pending all_gather(const at::Tensor& mine, at::Tensor into) override {
    const Region in = region_of(mine), out = region_of(into.flatten());
    ensure(into.is_contiguous() && out.bytes() == in.bytes() * size(), "all_gather of ", in.bytes(),
           " bytes per rank from ", size(), " ranks into ", out.bytes(),
           " bytes, or into a tensor that is not contiguous");
    return join({CollectiveCall::Kind::all_gather, {}, {}, in.bytes()}, in, out, {});
  }
  void barrier() override { join({}, {}, {}, {}).wait(); }

  bool shares_memory() const override { return true; }
  at::Tensor share(const at::Tensor& tensor, Rank root) override {
    const at::Tensor address = at::empty({1}, at::kLong);
    *address.data_ptr<std::int64_t>() = reinterpret_cast<std::int64_t>(&tensor);
    broadcast(address, root).wait();
    at::Tensor shared = reinterpret_cast<const at::Tensor*>(*address.data_ptr<std::int64_t>())->alias();
    barrier();  // until then the root's has to stay
    return shared;
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    const at::Tensor mine = at::empty({2}, at::kLong), all = at::empty({size(), 2}, at::kLong);
    mine.data_ptr<std::int64_t>()[0] = color;
    mine.data_ptr<std::int64_t>()[1] = key;
    all_gather(mine, all).wait();
    const std::int64_t number = splits_++;
    if (color < 0) return nullptr;

    std::vector<std::pair<std::int64_t, int>> members;  // key, rank
    for (int r = 0; r < size(); ++r)
      if (all.data_ptr<std::int64_t>()[2 * r] == color)
        members.emplace_back(all.data_ptr<std::int64_t>()[2 * r + 1], r);
    std::sort(members.begin(), members.end());
    const auto me = std::find_if(members.begin(), members.end(), [&](auto& m) { return m.second == rank().value; });

    const std::lock_guard lock(group_->world->mutex);
    auto& child = group_->children[{number, color}];
    if (!child) {
      std::vector<int> world_ranks;
      for (const auto& [member_key, r] : members)
        world_ranks.push_back(group_->world_ranks[static_cast<std::size_t>(r)]);
      child = std::make_shared<Group>(group_->world, std::move(world_ranks), concat(name(), '/', color));
    }
    const std::shared_ptr<Group> joined = child;
    if (++joined->joined == static_cast<int>(members.size())) group_->children.erase({number, color});
    return std::make_unique<ThreadCommunicator>(joined, Rank{static_cast<int>(me - members.begin())}, options());
  }

  void abort(const std::string& message, ExitCode code) override {
    group_->world->fail(std::make_exception_ptr(Error(message, code)));
    throw Aborted();
  }

 private:
  Waiter waiter() const { return {group_.get(), rank(), &options()}; }

  Pending post(const Region& region, bool sends, Rank peer, Tag tag) {
    check_peer(peer, tag);
    auto mine = std::make_shared<Message>(region);
    std::shared_ptr<Message> other;
    {
      const std::lock_guard lock(group_->world->mutex);
      group_->world->throw_if_failed();
      Unmatched& lane = sends ? group_->lanes[{rank(), peer, tag}] : group_->lanes[{peer, rank(), tag}];
      auto& waiting = sends ? lane.receives : lane.sends;
      if (waiting.empty()) {
        (sends ? lane.sends : lane.receives).push_back(mine);
        return Pending(std::make_unique<MessageRequest>(waiter(), sends, peer, tag, mine));
      }
      other = std::move(waiting.front());
      waiting.pop_front();
      other->state = Message::State::copying;
    }
    const auto finish = [&] {
      Message& end = *other;
      other.reset();  // the peer still holds it, and lets go of its tensor itself
      end.state = Message::State::done;
      group_->bell(peer).ring();
    };
    try {
      const Region &to = sends ? other->region : region, &from = sends ? region : other->region;
      ensure(to.bytes() == from.bytes() && (to.dtype == from.dtype || to.bytes() == 0), "rank ",
             (sends ? rank() : peer).value, " of ", name(), " sends ", from.bytes(), " bytes of ", from.dtype,
             " to rank ", (sends ? peer : rank()).value, ", which expects ", to.bytes(), " bytes of ", to.dtype, ", ",
             tag);
      copy_region(to, from);
    } catch (...) {
      group_->world->fail(std::current_exception());
      finish();
      throw;
    }
    finish();
    return {};
  }

  Pending join(const CollectiveCall& call, Region in, Region out, Wire wire) {
    const std::int64_t number = calls_++;
    std::shared_ptr<Collective> collective;
    bool last = false;
    {
      const std::lock_guard lock(group_->world->mutex);
      group_->world->throw_if_failed();
      auto& found = group_->collectives[number];
      if (!found) found = std::make_shared<Collective>(call, size());
      ensure(found->call == call, rank(), " of ", name(), " calls ", call.name(), " of ", call.bytes,
             " bytes where another rank calls ", found->call.name(), " of ", found->call.bytes,
             " bytes, or with another operation or root");
      last = found->arrive(rank(), std::move(in), std::move(out));
      collective = found;
    }
    auto request = std::make_unique<CollectiveRequest>(waiter(), number, collective, std::move(wire));
    if (last) {
      if (collective->little_work()) collective->help();
      group_->ring_all();
    }
    return Pending(std::move(request));
  }

  std::shared_ptr<Group> group_;
  std::int64_t calls_ = 0, splits_ = 0;
};

}  // namespace

void run_thread_ranks(int ranks, const std::function<void(Communicator&)>& body, CommunicatorOptions options) {
  require(ranks > 0, "cannot run ", ranks, " ranks");
  const auto world = std::make_shared<World>(ranks);
  std::vector<int> numbers;
  for (int r = 0; r < ranks; ++r) numbers.push_back(r);
  const auto group = std::make_shared<Group>(world, numbers, "world");

  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        CommunicatorOptions own = options;
        own.waiting = nullptr;  // each rank waits for itself
        ThreadCommunicator communicator(group, Rank{r}, own);
        body(communicator);
      } catch (...) {
        world->fail(std::current_exception());
      }
    });
  threads.clear();  // joins
  if (world->failure) std::rethrow_exception(world->failure);
}

}  // namespace tessera
