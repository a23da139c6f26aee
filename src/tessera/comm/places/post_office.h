// Messages between places where a rank has several of them: within the rank they are copies, and all else travels
// between the ranks.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

/// Of one rank and one direction. Belongs to the rank's thread. A place sees it as a Communicator whose ranks are the
/// numbers of places; these communicators must not outlive it.
///
/// Nobody but this thread could bring a message from one place of the rank to another, so a place must not wait for one
/// before the other has sent it: that is an internal error, not a wait.
class PostOffice {
 public:
  /// `ranks`: the ranks of the replica; null where there is only this one. rank_of: by the number of a place.
  PostOffice(Communicator* ranks, std::vector<int> rank_of);
  ~PostOffice();

  std::unique_ptr<Communicator> window(Rank place);
  /// Who has a place.
  Rank rank_of(Rank place) const { return Rank{rank_of_[static_cast<std::size_t>(place.value)]}; }

  /// Messages to other ranks leave here, ordered by receiver and then sender: their tags do not say which of a rank's
  /// places they are for, and the other side posts its receives in this order.
  void dispatch();

 private:
  friend class Window;
  /// A message, or the place for one, until it meets its other half.
  struct Letter;
  class LocalRequest;
  class RemoteSend;

  bool here(Rank place) const;
  Pending post(std::shared_ptr<Letter> letter);

  Communicator* const ranks_;
  const std::vector<int> rank_of_;
  const int me_;
  const std::shared_ptr<BufferPool> buffers_ = std::make_shared<BufferPool>();
  std::list<std::shared_ptr<Letter>> waiting_;  ///< within the rank
  std::vector<std::shared_ptr<Letter>> outgoing_;
};

}  // namespace tessera
