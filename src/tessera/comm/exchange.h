// The one movement of Tessera: a value owned as boxes by some ranks is needed as other boxes by some ranks.
#pragma once

#include <set>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/geometry/box.h"

namespace tessera {

/// An exchange under way. Owns its requests and shares ownership of its tensors; must end before the communicator.
/// Destroyed before finish(), it gives up what has not arrived.
class Movement {
 public:
  /// Waits for all messages. The gradients of a transpose are added here, in the order of the peers' ranks. Nothing to
  /// do the second time.
  void finish();
  /// The same after start_transpose_apart(): what came is added to the gradient.
  void finish_onto(const at::Tensor& gradient_of_have);
  /// True when finish() would not wait for a peer.
  bool test();

 private:
  friend class Exchange;
  struct Arrival {
    Pending pending;
    Region staged, target;  ///< to be added; both empty where the message goes straight to its place
    Box box = {};           ///< in place of a target: where it is, within `have_`
  };
  void wait_for_messages();

  std::vector<Arrival> arrivals_;
  Box have_;
  std::vector<Pending> sends_;
};

/// What start_transpose() finds where it puts the gradient.
enum class Into {
  sum,    ///< a gradient to add to, or zeros
  fresh,  ///< nothing yet: memory of any content
};

/// Margin exchange, join, split, change of grid and change of batch ways, by what have and need are:
///
///     margin: need[r] is have[r] and what lies around it      join:  have = tiles,       need = {whole image, -, -, -}
///     +------+------+                                         split: have = {whole, -},  need = tiles
///     |  0 ..|..    |   need[0] is tile 0 with                regrid: have = old tiles,  need = new tiles
///     |  :...|.:  1 |   a margin: 0 receives strips
///     +--::--+------+   from 1 and 2 and a corner
///     |  2 ::|::  3 |   from 3, one message each
///     +------+------+
///
/// A tensor of a box is batch × channels × height × width (depth is 1), of any strides; channels-last ones are fast.
/// It may be a view into a larger one, and undefined where the box is empty.
///
/// A linear map: what a needed box shares with the owned ones is copied; what nobody owns (outside the image) is left
/// as it is, so that padding stays the caller's. The transpose is exact. Immutable; any number of movements may be
/// under way at once, with tags of their own or started in the same order on all ranks.
class Exchange {
 public:
  /// have and need have one box for each rank of the communicator; a box may be empty.
  Exchange(const Partition& have, const std::vector<Box>& need, Rank me);

  /// destination = E source: source covers have[me], destination need[me]. Until finish(), source must not be written
  /// and destination not be used. Where destination already holds source (the same memory at the box that both share),
  /// only the strips move.
  [[nodiscard]] Movement start(Communicator& communicator, const at::Tensor& source, const at::Tensor& destination,
                               Tag tag) const;

  /// gradient_of_have += transpose(E) gradient_of_need: each rank's share of need[me] goes back to its owner and is
  /// added there, first what stays on this rank (in this call), then by peers in the order of their ranks (in
  /// finish()). Where gradient_of_need holds gradient_of_have, the part that stays on this rank is already in its place
  /// and is not added again.
  ///
  /// Into::fresh: gradient_of_have = transpose(E) gradient_of_need. What stays, and the messages that are the first in
  /// their places (the larger before the smaller), are not added but put there; only what none of them covers is
  /// zeroed.
  [[nodiscard]] Movement start_transpose(Communicator& communicator, const at::Tensor& gradient_of_need,
                                         const at::Tensor& gradient_of_have, Tag tag, Into into = Into::sum) const;

  /// As start() and start_transpose() of a value's margins, for tensors that do not stay where they are until the
  /// messages are through: what is sent is copied first. What start_apart() receives goes into one tensor for each of
  /// received_boxes(); what start_transpose_apart() receives waits for finish_onto().
  [[nodiscard]] Movement start_apart(Communicator& communicator, const at::Tensor& source,
                                     const std::vector<at::Tensor>& strips, Tag tag) const;
  [[nodiscard]] Movement start_transpose_apart(Communicator& communicator, const at::Tensor& gradient_of_need,
                                               Tag tag) const;
  std::vector<Box> received_boxes() const;

  /// What start() sends from this rank; start_transpose() receives as much.
  std::int64_t bytes_sent(std::int64_t channels, std::int64_t element_bytes) const;
  int messages() const { return static_cast<int>(sends_.size()); }
  /// Whom this rank sends to or receives from.
  std::set<Rank> peers() const;

 private:
  struct Strip {
    Rank peer;
    Box box;
    bool first = false;  ///< of sends_: overlaps neither stays_ nor another first one
  };
  void find_first_strips();

  Box have_, need_;
  Box stays_;                            ///< what this rank both owns and needs
  std::vector<Strip> sends_, receives_;  ///< by rank of the peer
  std::vector<Box> unseen_;              ///< the rest of have_: in neither stays_ nor a first strip
};

}  // namespace tessera
