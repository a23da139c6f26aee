// How ranks talk: tensors from one to another, and the few collectives that training needs.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/region.h"
#include "tessera/comm/types.h"
#include "tessera/comm/waiting.h"

namespace tessera {

struct CommunicatorOptions {
  /// How long wait() waits before it gives up with a CommunicationTimeout; 0: Waiting finds out.
  std::chrono::duration<double> timeout{0};
  /// Longer messages travel in pieces: MPI counts in 32 bits.
  std::int64_t max_piece_bytes = std::int64_t{1} << 30;
  /// Processes on one machine pass messages up to this length through memory that they share, and small collectives
  /// too; longer ones are left to MPI, which copies them once. 0 leaves all to MPI.
  std::int64_t max_shared_bytes = std::int64_t{8} << 20;
  /// Of the rank whose communicator it is; made where there is none.
  std::shared_ptr<Waiting> waiting = nullptr;
};

/// A rank waited too long; the message says for what and for whom.
class CommunicationTimeout : public Error {
 public:
  using Error::Error;
};

/// Another rank failed first, and its failure is the one to report. Thrown only to unwind.
class Aborted : public Error {
 public:
  Aborted() : Error("stopped because another rank failed") {}
};

/// One operation under way, as a communicator keeps it. The destructor of an unfinished one gives the operation up,
/// without waiting for a peer.
class Request {
 public:
  virtual ~Request() = default;
  virtual void wait() = 0;
  /// True when done. Never waits for a peer, but may do a share of the work.
  virtual bool test() = 0;
};

/// Owns an operation under way and shares ownership of its tensors. To be used by the thread of its rank, and to be
/// gone before the communicator.
class Pending {
 public:
  Pending() = default;
  explicit Pending(std::unique_ptr<Request> request) : request_(std::move(request)) {}

  /// Returns when the operation is done on this rank; then its tensor may be read and written again. Throws
  /// CommunicationTimeout, and Aborted when another rank has failed. Nothing to do the second time.
  void wait() {
    if (!request_) return;
    request_->wait();
    request_.reset();
  }
  bool test() {
    if (request_ && request_->test()) request_.reset();
    return !request_;
  }

 private:
  std::unique_ptr<Request> request_;
};

/// The ranks of a group. Each rank has its own Communicator object, used by one thread at a time.
///
/// Point to point: a message goes to the oldest receive of the same sender and tag; both ends must agree on dtype and
/// number of elements. Tensors may be strided and may be empty. From the call until wait() returns, the tensor of a
/// send must not be written, and that of a receive neither read nor written.
///
/// Collectives are called by all ranks of the group in the same order, with the same dtype and number of elements, and
/// every rank must come to wait() for its own.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const { return rank_; }
  int size() const { return size_; }
  /// "world", "world/3" for color 3 of a split of it, for messages.
  const std::string& name() const { return name_; }
  const CommunicatorOptions& options() const { return options_; }
  /// Shared with the communicators that were split off this one.
  Waiting& waiting() const { return *options_.waiting; }
  /// A rank of the group as the user knows it, by its number in the whole job: "rank 5", "rank 5 on host b".
  virtual std::string title(Rank rank) const = 0;
  /// Scratch memory of this rank, for what travels.
  BufferPool& buffers() { return *buffers_; }

  [[nodiscard]] Pending send(const at::Tensor& tensor, Rank to, Tag tag) { return send(region_of(tensor), to, tag); }
  [[nodiscard]] Pending receive(at::Tensor into, Rank from, Tag tag) { return receive(region_of(into), from, tag); }
  [[nodiscard]] virtual Pending send(const Region& region, Rank to, Tag tag) = 0;
  [[nodiscard]] virtual Pending receive(const Region& into, Rank from, Tag tag) = 0;

  /// Replaces the elements by their sum or maximum over the ranks: float, double, bfloat16 (summed in float), int64 and
  /// uint8. Every rank gets the same bits; ranks that are threads add in the order of their numbers.
  [[nodiscard]] virtual Pending all_reduce(at::Tensor in_place, Reduce op = Reduce::sum) = 0;
  [[nodiscard]] virtual Pending broadcast(at::Tensor tensor, Rank root) = 0;
  /// into[r] = what rank r gives; `into` is contiguous, with one first axis of size().
  [[nodiscard]] virtual Pending all_gather(const at::Tensor& mine, at::Tensor into) = 0;
  /// Returns when every rank has called it.
  virtual void barrier() = 0;
  /// Whether all ranks of the group, and of its parts, can share() tensors.
  virtual bool shares_memory() const { return false; }
  /// The root's tensor, in the same memory on every rank. Collective; what the others give does not count.
  virtual at::Tensor share(const at::Tensor& tensor, Rank root) {
    throw Error(concat("the ranks of ", name(), " cannot share ", tensor.nbytes(), " bytes of ", root));
  }
  /// Called by all ranks of the group, each with the ranks that it will exchange messages with a lot: a transport may
  /// make connections in advance. Messages to others stay possible. Both ends of a message have their tensors in memory
  /// of the same kind.
  virtual void connect(const std::set<Rank>& peers) { static_cast<void>(peers); }
  /// Lets messages under way get on, for who waits for something else. Never waits.
  virtual void progress() {}

  /// A new group of those ranks that gave the same color, numbered by key and then by rank. Null for a negative color.
  /// Called by all ranks; returns when all have called it.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Ends all ranks with this message, those of other groups too.
  [[noreturn]] virtual void abort(const std::string& message, ExitCode code = ExitCode::failure) = 0;

 protected:
  Communicator(Rank rank, int size, std::string name, CommunicatorOptions options,
               std::shared_ptr<BufferPool> buffers = std::make_shared<BufferPool>())
      : rank_(rank), size_(size), name_(std::move(name)), options_(std::move(options)), buffers_(std::move(buffers)) {
    if (!options_.waiting) options_.waiting = std::make_shared<Waiting>(options_.timeout);
  }

  void check_peer(Rank peer, Tag tag) const {
    ensure(0 <= peer.value && peer.value < size_, peer, " is not in ", name_, ", which has ", size_, " ranks");
    ensure(0 <= tag.value && tag.value < Tag::limit, tag, " is not below ", Tag::limit);
  }

 private:
  Rank rank_;
  int size_;
  std::string name_;
  CommunicatorOptions options_;
  const std::shared_ptr<BufferPool> buffers_;
};

}  // namespace tessera
