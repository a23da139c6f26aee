#include "tessera/comm/places/post_office.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {

struct PostOffice::Letter {
  Rank from, to;
  Tag tag;
  Region region;
  bool sent = true;  ///< false: a place for one
  bool done = false;
  Pending pending = {};  ///< of a message to another rank, once it has left
};

class PostOffice::LocalRequest final : public Request {
 public:
  LocalRequest(PostOffice& office, std::shared_ptr<Letter> letter) : office_(office), letter_(std::move(letter)) {}
  ~LocalRequest() override {
    if (!letter_->done) office_.waiting_.remove(letter_);
  }
  void wait() override {
    if (letter_->done) return;
    ensure(letter_->sent, "place ", letter_->to.value, " waits for ", words_of(letter_->tag), ", which place ",
           letter_->from.value, " of the same rank has not sent");
    // The sender wants its memory back before the receiver has a place for it.
    const Region& from = letter_->region;
    const Region copy = dense_region(office_.buffers_->take_beside(from), from.dtype, from.sizes);
    copy_region(copy, from);
    letter_->region = copy;
    letter_ = std::make_shared<Letter>(Letter{.done = true});  // the message stays behind
  }
  bool test() override { return letter_->done; }

 private:
  PostOffice& office_;
  std::shared_ptr<Letter> letter_;
};

class PostOffice::RemoteSend final : public Request {
 public:
  explicit RemoteSend(std::shared_ptr<Letter> letter) : letter_(std::move(letter)) {}
  void wait() override {
    ensure(letter_->done, words_of(letter_->tag), " was not dispatched");
    letter_->pending.wait();
  }
  bool test() override { return letter_->done && letter_->pending.test(); }

 private:
  std::shared_ptr<Letter> letter_;
};

/// A place's view of the office.
class Window final : public Communicator {
 public:
  Window(PostOffice& office, Rank place, CommunicatorOptions options)
      : Communicator(place, static_cast<int>(office.rank_of_.size()), "places", std::move(options), office.buffers_),
        office_(office) {}

  std::string title(Rank place) const override {
    return office_.ranks_ ? office_.ranks_->title(Rank{owner(place)}) : concat("place ", place.value);
  }
  Pending send(const Region& region, Rank to, Tag tag) override {
    check_peer(to, tag);
    auto letter = std::make_shared<PostOffice::Letter>(PostOffice::Letter{rank(), to, tag, region});
    if (office_.here(to)) return office_.post(std::move(letter));
    office_.outgoing_.push_back(letter);
    return Pending(std::make_unique<PostOffice::RemoteSend>(std::move(letter)));
  }
  Pending receive(const Region& into, Rank from, Tag tag) override {
    check_peer(from, tag);
    if (!office_.here(from)) return office_.ranks_->receive(into, Rank{owner(from)}, tag);
    return office_.post(
        std::make_shared<PostOffice::Letter>(PostOffice::Letter{from, rank(), tag, into, /*sent=*/false}));
  }
  void progress() override {
    if (office_.ranks_) office_.ranks_->progress();
  }
  void abort(const std::string& message, ExitCode code) override {
    if (office_.ranks_) office_.ranks_->abort(message, code);
    throw Error(message);
  }
  // Places agree through their ranks: see Executor::agree().
  Pending all_reduce(at::Tensor, Reduce) override { refuse(); }
  Pending broadcast(at::Tensor, Rank) override { refuse(); }
  Pending all_gather(const at::Tensor&, at::Tensor) override { refuse(); }
  void barrier() override { refuse(); }
  std::unique_ptr<Communicator> split(int, int) override { refuse(); }

 private:
  int owner(Rank place) const { return office_.rank_of_[static_cast<std::size_t>(place.value)]; }
  [[noreturn]] static void refuse() { throw Error("internal error: a collective of places"); }

  PostOffice& office_;
};

PostOffice::PostOffice(Communicator* ranks, std::vector<int> rank_of)
    : ranks_(ranks), rank_of_(std::move(rank_of)), me_(ranks ? ranks->rank().value : 0) {}
PostOffice::~PostOffice() = default;

bool PostOffice::here(Rank place) const { return rank_of_[static_cast<std::size_t>(place.value)] == me_; }

std::unique_ptr<Communicator> PostOffice::window(Rank place) {
  return std::make_unique<Window>(*this, place, ranks_ ? ranks_->options() : CommunicatorOptions{});
}

Pending PostOffice::post(std::shared_ptr<Letter> letter) {
  const auto other = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& w) {
    return w->sent != letter->sent && w->from == letter->from && w->to == letter->to && w->tag == letter->tag;
  });
  if (other == waiting_.end()) {
    waiting_.push_back(letter);
    return Pending(std::make_unique<LocalRequest>(*this, std::move(letter)));
  }
  const Region &to = letter->sent ? (*other)->region : letter->region,
               &from = letter->sent ? letter->region : (*other)->region;
  copy_region(to, from);
  (*other)->done = true;
  (*other)->region = {};
  waiting_.erase(other);
  return {};
}

void PostOffice::dispatch() {
  std::stable_sort(outgoing_.begin(), outgoing_.end(),
                   [](const auto& a, const auto& b) { return std::pair(a->to, a->from) < std::pair(b->to, b->from); });
  for (const auto& letter : outgoing_) {
    letter->pending =
        ranks_->send(letter->region, Rank{rank_of_[static_cast<std::size_t>(letter->to.value)]}, letter->tag);
    letter->done = true;
    letter->region = {};
  }
  outgoing_.clear();
}

}  // namespace tessera
