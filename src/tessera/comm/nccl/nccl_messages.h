// Messages from GPU to GPU by NCCL, with tags.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <nccl.h>

#include <compare>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

/// NCCL pairs sends and receives by their order alone. So a message by NCCL is announced by one on the host, `Note`,
/// which says whose it is: the receiver then knows what comes next from this sender, and matches tags itself.
///
///     sender                                     receiver
///     send(): pack on the compute stream
///     its event has come: note, ncclSend  --->   note: ncclRecv into memory of its own, whoever wants it
///                                                receive(): match; copy on the compute stream, behind an event
///
/// One for each rank of the world, for all of its groups; used by the rank's thread.
///
/// Messages do not wait for each other in a circle. Each sender and receiver have a communicator of NCCL and streams to
/// themselves, on which messages follow each other in one order. A send is queued when its data is there, a receive
/// when its send is queued, and neither waits for a compute stream; so both end as soon as both hosts have looked, and
/// whoever waits for a message looks. A compute stream waits for receives only that are queued already, never for
/// sends: what is sent is a copy.
class NcclMessages {
 public:
  /// Where a message belongs. Ranks are the world's.
  struct Address {
    Rank peer;
    std::int64_t group = 0;  ///< see new_group()
    Tag tag;
    friend auto operator<=>(const Address&, const Address&) = default;
  };

  /// Collective.
  explicit NcclMessages(Communicator& world);
  ~NcclMessages();
  NcclMessages(const NcclMessages&) = delete;
  NcclMessages& operator=(const NcclMessages&) = delete;

  Rank rank() const { return notes_->rank(); }
  /// A number that no group has yet which this rank has numbered, nor any other rank.
  std::int64_t new_group() { return (std::int64_t{rank().value} << 32) + groups_made_++; }

  /// Makes connections where there are none yet. Called by both ends of each, with all that a rank wants at the time.
  void connect(std::set<Rank> peers);

  /// To and from connected ranks.
  Pending send(const Region& region, const Address& to);
  Pending receive(const Region& into, const Address& from);
  /// Sends what is ready, and takes what has come. Does not wait for messages.
  void progress();

 private:
  class SendRequest;
  class ReceiveRequest;

  struct Note {
    std::int64_t group = 0, tag = 0, bytes = 0;
  };
  struct Outgoing {
    Note note;
    Region copy;
    c10::Event packed;
    Pending announced;  ///< the note
    bool gone = false;  ///< queued by NCCL, and the note has left
  };
  struct Arrival {
    at::Tensor memory;
    c10::Event come;
  };
  using Slot = std::optional<Arrival>;  ///< what a receive waits for
  /// Of one address, both the oldest first; one of the two is empty.
  struct Pigeonhole {
    std::deque<std::shared_ptr<Slot>> slots;
    std::deque<Arrival> arrivals;
  };
  /// From one rank to another.
  struct Connection {
    ncclComm_t group = nullptr;
    std::optional<c10::Stream> stream;
  };
  /// What there is between this rank and another.
  struct Line {
    Connection out, in;
    std::deque<std::shared_ptr<Outgoing>> outgoing, leaving;  ///< before and after NCCL has queued them
    at::Tensor note;                                          ///< the next one from the peer
    Pending note_comes;
  };

  Connection open(Rank from, Rank to);
  void match(const Address& address);
  void expect_note(Rank peer, Line& line);
  void send_ready(Rank peer, Line& line);
  void take_note(Rank peer, Line& line);
  template <class Done>
  void wait_until(const char* what, const Address& address, const Done& done);

  std::unique_ptr<Communicator> notes_;  ///< the world's ranks
  std::map<Rank, Line> lines_;
  std::vector<ncclComm_t> opened_;  ///< in an order that both ends of each agree on
  std::map<Address, Pigeonhole> pigeonholes_;
  std::int64_t groups_made_ = 0;
};

}  // namespace tessera
