#include "tessera/comm/nccl/nccl_messages.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <utility>

#include "tessera/comm/gpu_regions.h"
#include "tessera/comm/nccl/nccl_common.h"
#include "tessera/comm/patience.h"

namespace tessera {
namespace {

constexpr Tag note_tag{0}, id_tag{1};

c10::Device this_gpu() { return {c10::DeviceType::CUDA, c10::cuda::current_device()}; }
cudaStream_t cuda(const c10::Stream& stream) { return c10::cuda::CUDAStream(stream).stream(); }

}  // namespace

class NcclMessages::SendRequest final : public Request {
 public:
  SendRequest(NcclMessages& messages, std::shared_ptr<Outgoing> outgoing, const Address& to)
      : messages_(messages), outgoing_(std::move(outgoing)), to_(to) {}
  ~SendRequest() override { std::erase(messages_.lines_.at(to_.peer).outgoing, outgoing_); }
  void wait() override {
    messages_.wait_until("send", to_, [&] { return outgoing_->gone; });
  }
  bool test() override {
    if (!outgoing_->gone) messages_.progress();
    return outgoing_->gone;
  }

 private:
  NcclMessages& messages_;
  std::shared_ptr<Outgoing> outgoing_;
  Address to_;
};

class NcclMessages::ReceiveRequest final : public Request {
 public:
  ReceiveRequest(NcclMessages& messages, Region into, const Address& from)
      : messages_(messages), into_(std::move(into)), from_(from), slot_(std::make_shared<Slot>()) {
    messages_.pigeonholes_[from_].slots.push_back(slot_);
    messages_.match(from_);
  }
  ~ReceiveRequest() override {
    std::erase(messages_.pigeonholes_[from_].slots, slot_);
    messages_.match(from_);  // tidies up
  }
  void wait() override {
    messages_.wait_until("receive", from_, [&] { return slot_->has_value(); });
    finish();
  }
  bool test() override {
    if (!*slot_) messages_.progress();
    if (!*slot_ || !(*slot_)->come.query()) return false;
    finish();
    return true;
  }

 private:
  void finish() const {
    const auto& [memory, come] = **slot_;
    ensure(memory.numel() == into_.bytes(), "a message of ", memory.numel(), " bytes from ", from_.peer, ", ",
           from_.tag, ", where ", into_.bytes(), " are expected");
    come.block(current_stream(into_.owner.device()));
    deliver(into_, dense_region(memory, into_.dtype, into_.sizes));
  }

  NcclMessages& messages_;
  Region into_;
  Address from_;
  std::shared_ptr<Slot> slot_;
};

NcclMessages::NcclMessages(Communicator& world) : notes_(world.split(0, world.rank().value)) {}

NcclMessages::~NcclMessages() {
  for (const ncclComm_t group : opened_) close_nccl(group);
}

void NcclMessages::connect(std::set<Rank> peers) {
  std::erase_if(peers, [&](Rank peer) { return peer == rank() || lines_.contains(peer); });
  // In one order over all ranks, so that they cannot wait for each other in a circle.
  std::vector<std::pair<Rank, Rank>> ways;
  for (const Rank peer : peers) {
    ways.emplace_back(rank(), peer);
    ways.emplace_back(peer, rank());
  }
  std::sort(ways.begin(), ways.end());
  for (const auto& [from, to] : ways) {
    const bool out = from == rank();
    Line& line = lines_[out ? to : from];
    (out ? line.out : line.in) = open(from, to);
  }
  for (const Rank peer : peers) expect_note(peer, lines_.at(peer));
}

NcclMessages::Connection NcclMessages::open(Rank from, Rank to) {
  const bool out = from == rank();
  ncclUniqueId id{};
  if (out) {
    check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    notes_->send(as_bytes(id), to, id_tag).wait();
  } else {
    const at::Tensor bytes = as_bytes(id);
    notes_->receive(bytes, from, id_tag).wait();
    id = from_bytes<ncclUniqueId>(bytes);
  }
  // A few blocks of threads carry a message. More would be faster alone, but sends to several ranks that wait for their
  // receivers must leave the GPU to others.
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.maxCTAs = 4;
  Connection made{nullptr, another_stream(this_gpu())};
  check_nccl(ncclCommInitRankConfig(&made.group, 2, id, out ? 0 : 1, &config), "ncclCommInitRankConfig");
  opened_.push_back(made.group);
  // The first message makes the host wait for its peer: here, and not later.
  const c10::StreamGuard guard(*made.stream);
  const at::Tensor byte = at::empty({1}, at::TensorOptions().dtype(at::kByte).device(this_gpu()));
  const cudaStream_t stream = cuda(*made.stream);
  check_nccl(out ? ncclSend(byte.data_ptr(), 1, ncclUint8, 1, made.group, stream)
                 : ncclRecv(byte.data_ptr(), 1, ncclUint8, 0, made.group, stream),
             "the first message by NCCL");
  return made;
}

Pending NcclMessages::send(const Region& region, const Address& to) {
  Line& line = lines_.at(to.peer);
  const Region copy = packed_copy(region);
  line.outgoing.push_back(std::make_shared<Outgoing>(
      Outgoing{{to.group, to.tag.value, copy.bytes()}, copy, event_on(current_stream(copy.owner.device())), {}}));
  auto request = std::make_unique<SendRequest>(*this, line.outgoing.back(), to);
  send_ready(to.peer, line);
  return Pending(std::move(request));
}

Pending NcclMessages::receive(const Region& into, const Address& from) {
  return Pending(std::make_unique<ReceiveRequest>(*this, into, from));
}

void NcclMessages::progress() {
  for (auto& [peer, line] : lines_) {
    send_ready(peer, line);
    while (line.note_comes.test()) take_note(peer, line);
  }
}

void NcclMessages::send_ready(Rank peer, Line& line) {
  for (; !line.outgoing.empty() && line.outgoing.front()->packed.query(); line.outgoing.pop_front()) {
    Outgoing& next = *line.leaving.emplace_back(line.outgoing.front());
    next.announced = notes_->send(as_bytes(next.note), peer, note_tag);
    check_nccl(ncclSend(next.copy.data, static_cast<std::size_t>(next.copy.bytes()), ncclUint8, 1, line.out.group,
                        cuda(*line.out.stream)),
               "ncclSend");
    next.copy.owner.record_stream(*line.out.stream);
    next.copy = {};
  }
  for (; !line.leaving.empty() && line.leaving.front()->announced.test(); line.leaving.pop_front())
    line.leaving.front()->gone = true;
}

void NcclMessages::expect_note(Rank peer, Line& line) {
  line.note = as_bytes(Note{});
  line.note_comes = notes_->receive(line.note, peer, note_tag);
}

// Its message is the next one from this peer.
void NcclMessages::take_note(Rank peer, Line& line) {
  const auto note = from_bytes<Note>(line.note);
  expect_note(peer, line);
  const c10::Stream& stream = *line.in.stream;
  const c10::StreamGuard guard(stream);
  const at::Tensor memory = at::empty({note.bytes}, at::TensorOptions().dtype(at::kByte).device(stream.device()));
  check_nccl(
      ncclRecv(memory.data_ptr(), static_cast<std::size_t>(note.bytes), ncclUint8, 0, line.in.group, cuda(stream)),
      "ncclRecv");
  const Address address{peer, note.group, Tag{static_cast<int>(note.tag)}};
  pigeonholes_[address].arrivals.push_back({memory, event_on(stream)});
  match(address);
}

void NcclMessages::match(const Address& address) {
  auto& [slots, arrivals] = pigeonholes_[address];
  for (; !slots.empty() && !arrivals.empty(); slots.pop_front(), arrivals.pop_front())
    *slots.front() = std::move(arrivals.front());
  if (slots.empty() && arrivals.empty()) pigeonholes_.erase(address);
}

template <class Done>
void NcclMessages::wait_until(const char* what, const Address& address, const Done& done) {
  if (done()) return;
  Patience patience;
  for (WaitWatch watch(notes_->waiting()); !done();) {
    progress();
    notes_->progress();
    if (!done() && patience.pause())
      watch.look([&] {
        return WaitWords{concat(rank()), concat(address.peer), concat("a ", what, " by NCCL, ", address.tag)};
      });
  }
}

}  // namespace tessera
