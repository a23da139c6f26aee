#include "tessera/comm/nccl/nccl_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "tessera/comm/gpu_regions.h"
#include "tessera/comm/nccl/nccl_common.h"
#include "tessera/comm/nccl/nccl_messages.h"

namespace tessera {
namespace {

ncclDataType_t type_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kLong:
      return ncclInt64;
    case at::kByte:
      return ncclUint8;
    default:
      throw Error(concat("all_reduce cannot combine elements of dtype ", dtype));
  }
}

/// By the driver's files: asking CUDA would set it up.
int gpus_of_machine() {
  const auto is_gpu = [](const std::filesystem::directory_entry& entry) {
    const std::string name = entry.path().filename().string(), start = "nvidia";
    return name.size() > start.size() && name.starts_with(start) &&
           std::all_of(name.begin() + static_cast<std::ptrdiff_t>(start.size()), name.end(),
                       [](unsigned char c) { return std::isdigit(c) != 0; });
  };
  std::error_code ignored;
  const std::filesystem::directory_iterator devices("/dev", ignored);
  return static_cast<int>(std::count_if(begin(devices), end(devices), is_gpu));
}

/// Queued on the group's stream. Once the caller's stream is behind it, that stream's order is enough for the tensors.
class NcclRequest final : public Request {
 public:
  /// `work` is what NCCL reads and writes, `tensor` where the result belongs.
  NcclRequest(c10::Event done, at::Tensor source, at::Tensor work, at::Tensor tensor)
      : done_(std::move(done)), source_(std::move(source)), work_(std::move(work)), tensor_(std::move(tensor)) {}
  ~NcclRequest() override {
    if (!finished_) done_.block(current_stream(work_.device()));
  }
  void wait() override {
    finished_ = true;
    done_.block(current_stream(work_.device()));
    if (!work_.is_same(tensor_)) tensor_.copy_(work_.view_as(tensor_));
  }
  bool test() override {
    if (!done_.query()) return false;
    wait();
    return true;
  }

 private:
  c10::Event done_;
  at::Tensor source_, work_, tensor_;
  bool finished_ = false;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Communicator& below, std::unique_ptr<Communicator> owned, std::shared_ptr<NcclMessages> messages)
      : Communicator(below.rank(), below.size(), below.name(), below.options()),
        below_(below),
        owned_(std::move(owned)),
        messages_(std::move(messages)),
        stream_(another_stream({c10::DeviceType::CUDA, c10::cuda::current_device()})) {
    Birth birth;
    if (rank() == Rank{0}) {
      check_nccl(ncclGetUniqueId(&birth.id), "ncclGetUniqueId");
      birth.number = messages_->new_group();
    }
    const at::Tensor told = as_bytes(birth);
    below_.broadcast(told, Rank{0}).wait();
    birth = from_bytes<Birth>(told);
    number_ = birth.number;
    at::Tensor ranks = at::empty({size(), 1}, at::kLong);
    below_.all_gather(at::full({1}, messages_->rank().value, at::kLong), ranks).wait();
    for (int r = 0; r < size(); ++r) ranks_.push_back(Rank{static_cast<int>(ranks.data_ptr<std::int64_t>()[r])});
    check_nccl(ncclCommInitRank(&group_, size(), birth.id, rank().value), "ncclCommInitRank");
  }
  ~NcclCommunicator() override { close_nccl(group_); }

  using Communicator::receive;
  using Communicator::send;
  std::string title(Rank rank) const override { return below_.title(rank); }
  Pending send(const Region& region, Rank to, Tag tag) override {
    check_peer(to, tag);
    if (!by_nccl(region, to)) return below_.send(region, to, tag);
    return messages_->send(region, {in_world(to), number_, tag});
  }
  Pending receive(const Region& into, Rank from, Tag tag) override {
    check_peer(from, tag);
    if (!by_nccl(into, from)) return below_.receive(into, from, tag);
    return messages_->receive(into, {in_world(from), number_, tag});
  }
  void connect(const std::set<Rank>& peers) override {
    const at::Tensor mine = at::zeros({size()}, at::kLong);
    for (const Rank peer : peers) mine.data_ptr<std::int64_t>()[peer.value] = 1;
    at::Tensor all = at::empty({size(), size()}, at::kLong);
    below_.all_gather(mine, all).wait();
    ensure(all.equal(all.t()), "in ", name(), " one rank wants to talk to another that does not");
    if (all.sum(1).max().item<std::int64_t>() > most_peers) return;
    std::set<Rank> of_world;
    for (const Rank peer : peers) of_world.insert(in_world(peer));
    messages_->connect(std::move(of_world));
    peers_ = peers;
  }

  Pending all_reduce(at::Tensor in_place, Reduce op) override {
    if (!in_place.is_cuda()) return below_.all_reduce(in_place, op);
    // Sums of bfloat16 are float.
    const auto dtype = in_place.scalar_type() == at::kBFloat16 ? at::kFloat : in_place.scalar_type();
    const at::Tensor work = in_place.to(dtype).contiguous();
    return queue(work, work, in_place, [&](cudaStream_t stream) {
      check_nccl(ncclAllReduce(work.data_ptr(), work.data_ptr(), count_of(work), type_of(dtype),
                               op == Reduce::sum ? ncclSum : ncclMax, group_, stream),
                 "ncclAllReduce");
    });
  }
  Pending broadcast(at::Tensor tensor, Rank root) override {
    if (!tensor.is_cuda()) return below_.broadcast(tensor, root);
    const at::Tensor work = tensor.contiguous();
    return queue(work, work, tensor, [&](cudaStream_t stream) {
      check_nccl(ncclBroadcast(work.data_ptr(), work.data_ptr(), bytes_of(work), ncclUint8, root.value, group_, stream),
                 "ncclBroadcast");
    });
  }
  Pending all_gather(const at::Tensor& mine, at::Tensor into) override {
    if (!mine.is_cuda()) return below_.all_gather(mine, into);
    const at::Tensor source = mine.contiguous();
    ensure(into.is_contiguous() && bytes_of(into) == bytes_of(source) * static_cast<std::size_t>(size()),
           "all_gather of ", bytes_of(source), " bytes per rank from ", size(), " ranks into ", bytes_of(into),
           " bytes, or into a tensor that is not contiguous");
    return queue(source, into, into, [&](cudaStream_t stream) {
      check_nccl(ncclAllGather(source.data_ptr(), into.data_ptr(), bytes_of(source), ncclUint8, group_, stream),
                 "ncclAllGather");
    });
  }
  void barrier() override { below_.barrier(); }
  void progress() override {
    messages_->progress();
    below_.progress();
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    auto part = below_.split(color, key);
    if (!part || part->size() == 1) return part;
    Communicator& group = *part;
    return std::make_unique<NcclCommunicator>(group, std::move(part), messages_);
  }
  void abort(const std::string& message, ExitCode code) override { below_.abort(message, code); }

 private:
  /// Where a rank has more, the group leaves its messages to MPI. Each peer takes two streams, each group one, and
  /// torch has 32 of them before two share one.
  static constexpr std::int64_t most_peers = 10;

  /// What the first rank of a group tells the others.
  struct Birth {
    ncclUniqueId id{};
    std::int64_t number = 0;
  };

  bool by_nccl(const Region& region, Rank peer) const {
    return !region.on_host() && region.count() > 0 && peers_.contains(peer);
  }
  Rank in_world(Rank of_group) const { return ranks_[static_cast<std::size_t>(of_group.value)]; }

  static std::size_t count_of(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }
  static std::size_t bytes_of(const at::Tensor& tensor) { return tensor.nbytes(); }

  template <class Call>
  Pending queue(const at::Tensor& source, const at::Tensor& work, const at::Tensor& tensor, const Call& call) const {
    event_on(current_stream(work.device())).block(stream_);
    call(c10::cuda::CUDAStream(stream_).stream());
    return Pending(std::make_unique<NcclRequest>(event_on(stream_), source, work, tensor));
  }

  Communicator& below_;
  std::unique_ptr<Communicator> owned_;     ///< below_, where nobody else owns it
  std::shared_ptr<NcclMessages> messages_;  ///< of all groups of this rank
  c10::Stream stream_;
  ncclComm_t group_ = nullptr;
  std::int64_t number_ = 0;  ///< of the group, for its messages
  std::vector<Rank> ranks_;  ///< of its members in the world
  std::set<Rank> peers_;     ///< whom messages by NCCL go to and come from
};

}  // namespace

bool nccl_built() { return true; }

std::string nccl_version() {
  int number = 0;
  check_nccl(ncclGetVersion(&number), "ncclGetVersion");
  return concat(number / 10000, '.', number / 100 % 100, '.', number % 100);
}

void prepare_for_nccl(int ranks_on_machine) {
  if (ranks_on_machine > gpus_of_machine()) return;
  // Connections are made with a group, not by its first collective: that would make the host wait for its peers.
  setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/0);
  // Each stream gets a queue of its own: with fewer queues, a sum that waits for its peers would hold up other streams.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
}

std::unique_ptr<Communicator> with_nccl(Communicator& world) {
  return std::make_unique<NcclCommunicator>(world, nullptr, std::make_shared<NcclMessages>(world));
}

}  // namespace tessera
