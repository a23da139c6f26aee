#include "tessera/comm/staging.h"

#include <ATen/ops/from_blob.h>

#include <deque>
#include <functional>
#include <optional>

#include "tessera/comm/gpu_regions.h"
#include "tessera/comm/patience.h"

namespace tessera {
namespace {

/// Bytes on a GPU or the host that are in one piece, as a tensor that does not own them.
at::Tensor bytes_of(const Region& region) {
  const at::Device device = region.on_host() ? at::Device(at::kCPU) : region.owner.device();
  return at::from_blob(region.data, {region.bytes()}, at::TensorOptions().dtype(at::kByte).device(device));
}

/// One row of them, which shares ownership.
at::Tensor elements_of(const Region& host) {
  return at::from_blob(
      host.data, {host.count()}, [owner = host.owner](void*) {}, at::TensorOptions().dtype(host.dtype));
}

/// An operation whose tensor is on its way to where the host's library can read it. Owns that memory.
struct Departure {
  std::optional<c10::Event> event;  ///< none: there is nothing to wait for
  std::function<Pending()> begin;
  Region source, copy;  ///< on the GPU, and where the library reads it
  bool begun = false;
  Pending pending;
};

/// What the communicators of a rank share: the stream for copies, and what has been queued on it. Used by the rank's
/// thread alone.
class Lane {
 public:
  Region pinned(const Region& like) { return dense_region(pinned_.take(like.bytes(), true), like.dtype, like.sizes); }

  /// Memory on the region's GPU that nothing queued on the caller's stream still uses.
  Region beside(const Region& like) { return dense_like(like, stream(like.owner.device())); }

  static Region packed(const Region& region) { return region.dense() ? region : packed_copy(region); }

  /// Queues the copy of `region` to `departure.copy`.
  void download(const Region& region, Departure& departure) {
    departure.source = packed(region);
    const c10::Stream copies = stream(region.owner.device());
    event_on(current_stream(region.owner.device())).block(copies);
    const c10::StreamGuard guard(copies);
    bytes_of(departure.copy).copy_(bytes_of(departure.source), /*non_blocking=*/true);
    departure.event = event_on(copies);
  }

  /// Queues the copy of what has come to the host; the caller's stream goes on when it is there.
  void upload(const Region& to, const Region& from) {
    if (to.count() == 0) return;
    forget_uploaded();
    const Region there = beside(to);
    const c10::Stream copies = stream(to.owner.device());
    {
      const c10::StreamGuard guard(copies);
      bytes_of(there).copy_(bytes_of(from), /*non_blocking=*/true);
    }
    uploads_.push_back({event_on(copies), from.owner});
    uploads_.back().event.block(current_stream(to.owner.device()));
    deliver(to, there);
  }

  void add(std::shared_ptr<Departure> departure) {
    departures_.push_back(std::move(departure));
    begin_ready();
  }

  /// Hands over what has arrived. In the order in which it was queued: messages of one tag, and collectives, must not
  /// overtake each other.
  void begin_ready() {
    while (!departures_.empty()) {
      const std::shared_ptr<Departure> next = departures_.front();
      if (next->event && !next->event->query()) return;
      departures_.pop_front();
      next->source = {};
      next->begun = true;
      next->pending = next->begin();
    }
  }

  /// Hands over everything. That does wait for the GPU, and meanwhile lets the host's messages get on: another rank may
  /// need one of them before it does what this GPU waits for.
  void begin_all(Communicator& host) {
    begin_ready();
    if (departures_.empty()) return;
    Patience patience;
    for (WaitWatch watch(host.waiting()); !departures_.empty(); begin_ready()) {
      host.progress();
      if (patience.pause()) watch.look([&] { return WaitWords{concat(host.rank()), "its GPU", "what is to be sent"}; });
    }
  }

  /// For an operation that is given up.
  void drop(const std::shared_ptr<Departure>& departure) {
    std::erase(departures_, departure);
    if (!departure->begun && departure->event)
      uploads_.push_back({std::move(*departure->event), departure->copy.owner});
  }

 private:
  struct Upload {
    c10::Event event;
    at::Tensor memory;
  };
  void forget_uploaded() {
    while (!uploads_.empty() && uploads_.front().event.query()) uploads_.pop_front();
  }
  const c10::Stream& stream(c10::Device device) {
    if (!stream_) stream_ = another_stream(device);
    ensure(stream_->device() == device, "a rank with tensors on two GPUs");
    return *stream_;
  }

  std::optional<c10::Stream> stream_;
  BufferPool pinned_;
  std::deque<std::shared_ptr<Departure>> departures_;
  std::deque<Upload> uploads_;  ///< memory that the GPU may still be copying from
};

class StagedRequest final : public Request {
 public:
  using Finish = std::function<void()>;
  StagedRequest(Communicator& host, std::shared_ptr<Lane> lane, std::shared_ptr<Departure> departure, Finish finish)
      : host_(host), lane_(std::move(lane)), departure_(std::move(departure)), finish_(std::move(finish)) {}
  ~StagedRequest() override { lane_->drop(departure_); }

  void wait() override {
    lane_->begin_all(host_);  // others wait for what this rank has queued
    departure_->pending.wait();
    if (finish_) finish_();
  }
  bool test() override {
    lane_->begin_ready();
    if (!departure_->begun || !departure_->pending.test()) return false;
    if (finish_) finish_();
    return true;
  }

 private:
  Communicator& host_;
  std::shared_ptr<Lane> lane_;
  std::shared_ptr<Departure> departure_;
  Finish finish_;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> host, MessageMemory messages, std::shared_ptr<Lane> lane)
      : Communicator(host->rank(), host->size(), host->name(), host->options()),
        host_(std::move(host)),
        messages_(messages),
        lane_(std::move(lane)) {}

  using Communicator::receive;
  using Communicator::send;

  std::string title(Rank rank) const override { return host_->title(rank); }
  Pending send(const Region& region, Rank to, Tag tag) override {
    if (passes(region)) return host().send(region, to, tag);
    auto departure = std::make_shared<Departure>();
    if (messages_ == MessageMemory::gpu) {
      departure->copy = Lane::packed(region);
      departure->event = event_on(current_stream(region.owner.device()));
    } else {
      departure->copy = lane_->pinned(region);
      lane_->download(region, *departure);
    }
    departure->begin = [this, copy = departure->copy, to, tag] { return host_->send(copy, to, tag); };
    return queue(std::move(departure), {});
  }

  Pending receive(const Region& into, Rank from, Tag tag) override {
    if (passes(into)) return host().receive(into, from, tag);
    auto departure = std::make_shared<Departure>();
    const bool direct = messages_ == MessageMemory::gpu;
    departure->copy = direct ? lane_->beside(into) : lane_->pinned(into);
    departure->begun = true;
    departure->pending = host_->receive(departure->copy, from, tag);
    const auto finish = [this, direct, into, copy = departure->copy] {
      direct ? deliver(into, copy) : lane_->upload(into, copy);
    };
    return Pending(std::make_unique<StagedRequest>(*host_, lane_, std::move(departure), finish));
  }

  Pending all_reduce(at::Tensor in_place, Reduce op) override {
    const Region region = region_of(in_place);
    if (passes(region)) return host().all_reduce(in_place, op);
    auto departure = std::make_shared<Departure>();
    departure->copy = lane_->pinned(region);
    lane_->download(region, *departure);
    departure->begin = [this, copy = departure->copy, op] { return host_->all_reduce(elements_of(copy), op); };
    return queue(std::move(departure), region);
  }

  Pending broadcast(at::Tensor tensor, Rank root) override {
    const Region region = region_of(tensor);
    if (passes(region)) return host().broadcast(tensor, root);
    auto departure = std::make_shared<Departure>();
    departure->copy = lane_->pinned(region);
    if (root == rank()) lane_->download(region, *departure);
    departure->begin = [this, copy = departure->copy, root] { return host_->broadcast(elements_of(copy), root); };
    return queue(std::move(departure), root == rank() ? Region{} : region);
  }

  Pending all_gather(const at::Tensor& mine, at::Tensor into) override {
    const Region in = region_of(mine), out = region_of(into.flatten());
    if (passes(in)) return host().all_gather(mine, into);
    ensure(into.is_contiguous(), "all_gather into a tensor that is not contiguous");
    auto departure = std::make_shared<Departure>();
    departure->copy = lane_->pinned(in);
    lane_->download(in, *departure);
    const Region all = lane_->pinned(out);
    departure->begin = [this, copy = departure->copy, all] {
      return host_->all_gather(elements_of(copy), elements_of(all));
    };
    return Pending(request(std::move(departure), [this, out, all] { lane_->upload(out, all); }));
  }

  void barrier() override { host().barrier(); }
  void progress() override {
    lane_->begin_ready();
    host_->progress();
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    auto part = host().split(color, key);
    return part ? std::make_unique<StagedCommunicator>(std::move(part), messages_, lane_) : nullptr;
  }
  void abort(const std::string& message, ExitCode code) override { host_->abort(message, code); }

 private:
  static bool passes(const Region& region) { return region.on_host() || region.count() == 0; }
  /// For what is done at once: it comes after everything that was asked for before.
  Communicator& host() {
    lane_->begin_all(*host_);
    return *host_;
  }
  std::unique_ptr<StagedRequest> request(std::shared_ptr<Departure> departure, StagedRequest::Finish finish) {
    auto out = std::make_unique<StagedRequest>(*host_, lane_, departure, std::move(finish));
    lane_->add(std::move(departure));
    return out;
  }
  /// The result goes to `result`, where there is one.
  Pending queue(std::shared_ptr<Departure> departure, const Region& result) {
    StagedRequest::Finish finish;
    if (result.count() > 0) finish = [this, result, copy = departure->copy] { lane_->upload(result, copy); };
    return Pending(request(std::move(departure), std::move(finish)));
  }

  std::unique_ptr<Communicator> host_;
  MessageMemory messages_;
  std::shared_ptr<Lane> lane_;
};

}  // namespace

std::unique_ptr<Communicator> staged(std::unique_ptr<Communicator> host, MessageMemory messages) {
  return std::make_unique<StagedCommunicator>(std::move(host), messages, std::make_shared<Lane>());
}

}  // namespace tessera
