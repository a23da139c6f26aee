// The requests of MpiCommunicator. For its source only.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/comm/node/node_post.h"
#include "tessera/comm/patience.h"
#include "tessera/comm/reduce.h"

namespace tessera::mpi {

inline void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(concat(call, ": ", std::string(text, static_cast<std::size_t>(length))));
}

/// What this process knows of the others on its machine. Shared by its communicators.
struct Node {
  std::unique_ptr<NodePost> post;  ///< null where memory cannot be shared
  std::vector<int> numbers;        ///< by rank of the world: the number on this machine, or -1
  std::vector<std::string> hosts;  ///< by rank of the world
  std::int64_t groups_made = 0;
  int under_way_in_mpi = 0;  ///< operations that MPI must be called for
};

/// What a request is for, and says when it takes too long.
struct Operation {
  const char* name;
  bool sends = false, receives = false;  ///< neither: a collective
  Rank peer{};
  Tag tag{};
  std::int64_t bytes = 0;
};

class MpiRequest : public Request {
 public:
  MpiRequest(const Communicator& communicator, Node& node, const Operation& operation)
      : communicator_(communicator), node_(node), operation_(operation) {}

 protected:
  const Communicator& communicator() const { return communicator_; }
  Node& node() const { return node_; }
  const Operation& operation() const { return operation_; }
  /// For messages to people.
  virtual WaitWords words() const {
    const bool message = operation_.sends || operation_.receives;
    return {communicator_.title(communicator_.rank()), message ? communicator_.title(operation_.peer) : others(),
            concat(operation_.name, " of ", operation_.bytes, " bytes, ",
                   message ? words_of(operation_.tag) + ", " : "", "in ", communicator_.name())};
  }
  std::string describe() const {
    const WaitWords w = words();
    return concat(w.who, ", ", operation_.receives ? "from " : "with ", w.whom, ": ", w.what);
  }

 private:
  /// MPI does not say who is missing from a collective.
  std::string others() const {
    constexpr int most = 8;
    std::string list;
    for (int r = 0; r < std::min(communicator_.size(), most); ++r)
      if (r != communicator_.rank().value) list += (list.empty() ? "" : " or ") + communicator_.title(Rank{r});
    return communicator_.size() > most ? list + " or others" : list;
  }

  const Communicator& communicator_;
  Node& node_;
  Operation operation_;
};

/// An operation that MPI does on memory in one piece, or in several where it is too long for MPI.
class WireRequest final : public MpiRequest {
 public:
  WireRequest(const Communicator& communicator, Node& node, const Operation& operation, Wire wire,
              std::vector<MPI_Request> pieces)
      : MpiRequest(communicator, node, operation), wire_(std::move(wire)), pieces_(std::move(pieces)) {
    ++node.under_way_in_mpi;
  }

  ~WireRequest() override {
    --node().under_way_in_mpi;
    bool idle = true;
    for (MPI_Request& piece : pieces_) {
      if (piece == MPI_REQUEST_NULL) continue;
      int complete = 0;
      if (operation().receives) MPI_Cancel(&piece);
      MPI_Test(&piece, &complete, MPI_STATUS_IGNORE);
      idle = idle && complete;
    }
    // What MPI may still read or write must stay where it is; a leak is the lesser evil.
    if (!idle) new Wire(std::move(wire_));
  }

  void wait() override {
    if (test()) return;
    Patience patience;
    for (WaitWatch watch(communicator().waiting()); !test();) {
      if (node().post) node().post->all_sent();
      if (patience.pause()) watch.look([&] { return words(); });
    }
  }
  bool test() override {
    for (; pieces_done_ < pieces_.size(); ++pieces_done_) {
      int complete = 0, bytes = 0;
      MPI_Status status;
      check(MPI_Test(&pieces_[pieces_done_], &complete, &status), "MPI_Test");
      if (!complete) return false;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      bytes_received_ += bytes;
    }
    if (operation().receives && bytes_received_ != wire_.region().bytes())
      throw Error(concat(describe(), " got ", bytes_received_, " bytes"));
    if (!operation().sends) wire_.unpack();
    return true;
  }

 private:
  Wire wire_;
  std::vector<MPI_Request> pieces_;
  std::size_t pieces_done_ = 0;
  std::int64_t bytes_received_ = 0;
};

/// An operation that the post does.
class PostRequest : public MpiRequest {
 public:
  PostRequest(const Communicator& communicator, Node& node, const Operation& operation, MPI_Comm handle)
      : MpiRequest(communicator, node, operation), handle_(handle) {}

  void wait() override {
    using namespace std::chrono_literals;
    if (test()) return;
    WaitWatch watch(communicator().waiting());
    bool done = false;
    while (!post().wait_for(node().under_way_in_mpi > 0 ? 200us : 20ms, [&] { return done || (done = test()); })) {
      post().all_sent();
      int found = 0;  // MPI gets on with its own only when it is called
      if (node().under_way_in_mpi > 0) MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, handle_, &found, MPI_STATUS_IGNORE);
      watch.look([&] { return words(); });
    }
  }

 protected:
  NodePost& post() const { return *node().post; }

 private:
  MPI_Comm handle_;
};

/// A send whose receiver's box is full: its data are packed, its letter is on the way.
class LetterSend final : public PostRequest {
 public:
  LetterSend(const Communicator& communicator, Node& node, const Operation& operation, MPI_Comm handle, int to)
      : PostRequest(communicator, node, operation, handle), to_(to) {}
  bool test() override { return post().sent(to_); }

 private:
  int to_;
};

class LetterReceive final : public PostRequest {
 public:
  LetterReceive(const Communicator& communicator, Node& node, const Operation& operation, MPI_Comm handle, int from,
                const Address& address, const Region& into)
      : PostRequest(communicator, node, operation, handle), from_(from), slip_{address}, into_(into) {
    post().expect(slip_);
  }
  ~LetterReceive() override {
    if (!slip_.arrived) post().withdraw(slip_);
    if (slip_.arrived && !taken_) post().release(from_, slip_.letter.block);
  }
  bool test() override {
    if (!slip_.arrived) post().collect();
    if (!slip_.arrived) return false;
    if (slip_.letter.bytes != into_.bytes()) throw Error(concat(describe(), " got ", slip_.letter.bytes, " bytes"));
    if (slip_.letter.block >= 0)
      copy_region(into_, dense_region(post().data(from_, slip_.letter.block), into_.dtype, into_.sizes));
    post().release(from_, slip_.letter.block);
    taken_ = true;
    return true;
  }

 private:
  int from_;
  Slip slip_;
  Region into_;
  bool taken_ = false;
};

/// A small collective: every rank writes to every other, and each puts the letters together in the order of the ranks.
class LetterCollective final : public PostRequest {
 public:
  /// How the letters are put together into `out`, of which `mine` is this rank's share or term.
  enum class Kind { gather, sum, max };

  /// `numbers`: of the group's ranks on this machine. `address` is that of this rank's letters.
  LetterCollective(const Communicator& communicator, Node& node, const Operation& operation, MPI_Comm handle,
                   const std::vector<int>& numbers, Address address, Kind kind, const Region& mine, Wire out)
      : PostRequest(communicator, node, operation, handle),
        numbers_(numbers),
        kind_(kind),
        mine_(mine),
        out_(std::move(out)),
        slips_(numbers.size()) {
    const auto me = static_cast<std::size_t>(communicator.rank().value);
    Letter letter{address, -1, mine.bytes()};
    if (mine.bytes() > 0 && numbers_.size() > 1) {
      letter.block = post().take_block(mine.bytes(), static_cast<int>(numbers_.size()) - 1);
      copy_region(dense_region(post().data(numbers_[me], letter.block), mine.dtype, mine.sizes), mine);
    }
    slips_[me].arrived = true;
    // The next rank first, so that not all write to the same one.
    for (std::size_t i = 1; i < numbers_.size(); ++i) post().send(numbers_[(me + i) % numbers_.size()], letter);
    for (std::size_t r = 0; r < numbers_.size(); ++r) {
      if (r == me) continue;
      slips_[r].address = address;
      slips_[r].address.source = static_cast<std::int32_t>(r);
      post().expect(slips_[r]);
    }
  }
  ~LetterCollective() override {
    for (std::size_t r = 0; r < slips_.size(); ++r)
      if (!slips_[r].arrived)
        post().withdraw(slips_[r]);
      else if (!taken_)
        post().release(numbers_[r], slips_[r].letter.block);
  }
  bool test() override {
    const auto all_here = [&] {
      return std::all_of(slips_.begin(), slips_.end(), [](const Slip& slip) { return slip.arrived; });
    };
    if (!all_here()) post().collect();
    if (!all_here() || !post().all_sent()) return false;
    put_together();
    for (std::size_t r = 0; r < slips_.size(); ++r) post().release(numbers_[r], slips_[r].letter.block);
    taken_ = true;
    out_.unpack();
    return true;
  }

 protected:
  WaitWords words() const override {
    WaitWords words = PostRequest::words();
    std::string missing;
    for (std::size_t r = 0; r < slips_.size(); ++r)
      if (!slips_[r].arrived)
        missing += (missing.empty() ? "" : ", ") + communicator().title(Rank{static_cast<int>(r)});
    if (!missing.empty()) words.whom = missing;
    return words;
  }

 private:
  void put_together() const {
    const Region& out = out_.region();
    std::vector<const std::byte*> terms;
    for (std::size_t r = 0; r < slips_.size(); ++r) {
      const Letter& letter = slips_[r].letter;
      const bool my_own = r == static_cast<std::size_t>(communicator().rank().value);
      if (!my_own && letter.bytes != mine_.bytes())
        throw Error(concat(describe(), " got ", letter.bytes, " bytes from ", Rank{static_cast<int>(r)}));
      terms.push_back(my_own ? mine_.data : letter.block < 0 ? nullptr : post().data(numbers_[r], letter.block));
    }
    if (mine_.count() == 0) return;
    if (kind_ != Kind::gather)
      return reduce_elements(out.dtype, kind_ == Kind::sum ? Reduce::sum : Reduce::max, terms, {out.data}, 0,
                             out.count());
    for (std::size_t r = 0; r < terms.size(); ++r) {
      Region share = mine_;
      if (r != static_cast<std::size_t>(communicator().rank().value))
        share = dense_region(post().data(numbers_[r], slips_[r].letter.block), mine_.dtype, mine_.sizes);
      copy_region(out.slice(static_cast<std::int64_t>(r) * mine_.count(), mine_.count()), share);
    }
  }

  std::vector<int> numbers_;
  Kind kind_;
  Region mine_;
  Wire out_;
  std::vector<Slip> slips_;  ///< by rank; this rank's own has no letter
  bool taken_ = false;
};

}  // namespace tessera::mpi
