// Exchange against a reference that sees the whole image, and against its own transpose; on threads and under mpirun.
#include "tessera/comm/exchange.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/ranks.h"
#include "tessera/base/random.h"

namespace tessera::test {
namespace {

constexpr std::int64_t channels = 3;

/// A value known everywhere: a function of the position and the channel, and of the seed.
at::Tensor field(const Box& box, int seed, at::ScalarType dtype = at::kDouble) {
  const RandomStream random(static_cast<std::uint64_t>(seed), "field");
  const at::Tensor out =
      at::empty({box.batch().size(), channels, box.height().size(), box.width().size()},
                at::TensorOptions().dtype(at::kDouble).memory_format(at::MemoryFormat::ChannelsLast));
  auto a = out.accessor<double, 4>();
  for (std::int64_t n = 0; n < out.size(0); ++n)
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t h = 0; h < out.size(2); ++h)
        for (std::int64_t w = 0; w < out.size(3); ++w) {
          const std::int64_t position = ((box.batch().begin + n + 100) * 1000 + box.height().begin + h + 100) * 1000 +
                                        box.width().begin + w + 100;
          a[n][c][h][w] = random.normal(static_cast<std::uint64_t>(position * channels + c));
        }
  return out.to(dtype);
}

at::Tensor view(const at::Tensor& tensor, const Box& whole, const Box& box) {
  return tensor.narrow(0, box.batch().begin - whole.batch().begin, box.batch().size())
      .narrow(2, box.height().begin - whole.height().begin, box.height().size())
      .narrow(3, box.width().begin - whole.width().begin, box.width().size());
}

double dot(const at::Tensor& a, const at::Tensor& b) { return a.mul(b).sum().item<double>(); }

/// A random case: who has what and who needs what, for one image of a few dozen pixels.
struct Case {
  Partition have;
  std::vector<Box> need;
  bool aliased = false;  ///< every need holds its have, and both are one buffer
};

class CaseMaker {
 public:
  explicit CaseMaker(int seed) : random_(static_cast<std::uint64_t>(seed), "cases") {}

  Case make(int ranks) {
    const Box whole = image_box({0, 1 + below(4)}, {0, 4 + below(20)}, {0, 4 + below(20)});
    Case out;
    out.have.boxes = partition(whole, ranks);
    switch (below(4)) {
      case 0:  // margins, also wider than a neighbour's tile and outside the image; not the same on all sides
        out.aliased = below(2) == 0;
        for (const Box& tile : out.have.boxes) out.need.push_back(with_margin(tile));
        break;
      case 1:
        out.need = partition(whole, ranks);
        break;  // another grid, other batch ways, one to many, many to one
      case 2:   // another grid with margins
        for (const Box& tile : partition(whole, ranks)) out.need.push_back(with_margin(tile));
        break;
      default:  // everything everywhere, and some ranks that need nothing
        for (int r = 0; r < ranks; ++r) out.need.push_back(below(3) == 0 ? Box{} : whole);
    }
    return out;
  }

 private:
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(random_.below(draws_++, static_cast<std::uint64_t>(count)));
  }
  /// Cuts at random places; pieces may be empty.
  std::vector<Interval> cut(const Interval& whole, std::int64_t parts) {
    std::vector<std::int64_t> cuts{whole.begin, whole.end};
    for (std::int64_t i = 1; i < parts; ++i) cuts.push_back(whole.begin + below(whole.size() + 1));
    std::sort(cuts.begin(), cuts.end());
    std::vector<Interval> out;
    for (std::size_t i = 1; i < cuts.size(); ++i) out.push_back({cuts[i - 1], cuts[i]});
    return out;
  }
  /// Batch ways × rows × columns, uneven, on some of the ranks, in any order.
  std::vector<Box> partition(const Box& whole, int ranks) {
    const std::int64_t ways = 1 + below(std::min(ranks, 3)), rows = 1 + below(ranks / ways),
                       columns = 1 + below(ranks / ways / rows);
    std::vector<Box> out;
    for (const Interval& batch : cut(whole.batch(), ways))
      for (const Interval& height : cut(whole.height(), rows))
        for (const Interval& width : cut(whole.width(), columns)) out.push_back(image_box(batch, height, width));
    out.resize(static_cast<std::size_t>(ranks));
    for (std::size_t i = out.size(); i > 1; --i)
      std::swap(out[i - 1], out[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
    return out;
  }
  Box with_margin(Box tile) {
    if (tile.empty()) return tile;
    const std::int64_t widest = 1 + below(8);
    for (const Axis axis : {Axis::height, Axis::width})
      tile[axis] = {tile[axis].begin - below(widest + 1), tile[axis].end + below(widest + 1)};
    return tile;
  }

  RandomStream random_;
  std::uint64_t draws_ = 0;
};

struct Tensors {
  at::Tensor have, need;
};
/// The two tensors of a rank, filled as told; where aliased, have is the inside of need.
Tensors tensors_of(const Case& the_case, Rank me, const at::Tensor& have, const at::Tensor& need) {
  const auto r = static_cast<std::size_t>(me.value);
  if (!the_case.aliased) return {have.clone(), need.clone()};
  Tensors out;
  out.need = need.clone();
  out.have = view(out.need, the_case.need[r], the_case.have.boxes[r]);
  out.have.copy_(have);
  return out;
}

/// What an exchange must leave at `me`: the field where somebody has it, and what was there before elsewhere.
at::Tensor expected_need(const Case& the_case, Rank me, int seed, double before) {
  const Box& need = the_case.need[static_cast<std::size_t>(me.value)];
  const at::Tensor out = at::full_like(field(need, seed), before);
  for (const Box& have : the_case.have.boxes)
    if (const Box shared = intersect(have, need); !shared.empty()) view(out, need, shared).copy_(field(shared, seed));
  return out;
}

void check_values_and_adjoint(Communicator& c, const Case& the_case, int seed) {
  const Rank me = c.rank();
  const auto r = static_cast<std::size_t>(me.value);
  const Exchange exchange(the_case.have, the_case.need, me);
  const at::Tensor x = field(the_case.have.boxes[r], seed), y = field(the_case.need[r], seed + 1);

  Tensors forward = tensors_of(the_case, me, x, at::full_like(y, -7));
  exchange.start(c, forward.have, forward.need, make_tag({.movement = 1})).finish();
  EXPECT_TRUE(at::equal(forward.need, expected_need(the_case, me, seed, -7)))
      << "values on " << me << ", seed " << seed;

  // <E x, y> with zero outside the image, against <x, E^T y>. Where both are one buffer, the inside of y is have's.
  Tensors zeroed = tensors_of(the_case, me, x, at::zeros_like(y));
  exchange.start(c, zeroed.have, zeroed.need, make_tag({.movement = 2})).finish();
  const double forward_dot = dot(zeroed.need, y);
  Tensors backward = the_case.aliased ? tensors_of(the_case, me, view(y, the_case.need[r], the_case.have.boxes[r]), y)
                                      : tensors_of(the_case, me, at::zeros_like(x), y);
  exchange.start_transpose(c, backward.need, backward.have, make_tag({.movement = 2, .backward = true})).finish();

  const at::Tensor sums = at::zeros({2}, at::kDouble);
  sums.data_ptr<double>()[0] = forward_dot;
  sums.data_ptr<double>()[1] = dot(backward.have, x);
  c.all_reduce(sums).wait();
  EXPECT_NEAR(sums[0].item<double>(), sums[1].item<double>(), 1e-11 * (1 + std::abs(sums[0].item<double>())))
      << "adjoint, seed " << seed << (the_case.aliased ? ", aliased" : "");
}

/// <E x, y> = <x, E^T y> where the gradient's memory may hold anything beforehand.
void check_fresh_adjoint(Communicator& c, const Case& the_case, int seed) {
  const Rank me = c.rank();
  const auto r = static_cast<std::size_t>(me.value);
  const Exchange exchange(the_case.have, the_case.need, me);
  const at::Tensor x = field(the_case.have.boxes[r], seed), y = field(the_case.need[r], seed + 1);
  const at::Tensor needed = at::zeros_like(y);
  exchange.start(c, x, needed, Tag{1}).finish();
  const double rubbish = std::numeric_limits<double>::quiet_NaN();
  Tensors backward = the_case.aliased ? tensors_of(the_case, me, view(y, the_case.need[r], the_case.have.boxes[r]), y)
                                      : tensors_of(the_case, me, at::full_like(x, rubbish), y);
  exchange.start_transpose(c, backward.need, backward.have, Tag{2}, Into::fresh).finish();
  const at::Tensor sums = at::zeros({2}, at::kDouble);
  sums.data_ptr<double>()[0] = dot(needed, y);
  sums.data_ptr<double>()[1] = dot(backward.have, x);
  c.all_reduce(sums).wait();
  EXPECT_NEAR(sums[0].item<double>(), sums[1].item<double>(), 1e-11 * (1 + std::abs(sums[0].item<double>())))
      << "fresh adjoint, seed " << seed << (the_case.aliased ? ", aliased" : "");
}

TEST(Exchange, IsRightAndAdjointToItsTransposeOnHundredsOfRandomCases) {
  const int most = most_ranks(9), cases = 80;
  for (int ranks = 1; ranks <= most; ++ranks)
    on_ranks(ranks, [&](Communicator& c) {
      for (int seed = 0; seed < cases; ++seed)
        check_values_and_adjoint(c, CaseMaker(seed * 10 + ranks).make(c.size()), seed);
    });
}

TEST(Exchange, IsRightWithoutSharedMemoryToo) {
  if (ranks_are_threads()) GTEST_SKIP() << "threads share all memory";
  const auto c = mpi_world({.timeout = short_timeout.timeout, .max_shared_bytes = 0});
  for (int seed = 0; seed < 40; ++seed)
    check_values_and_adjoint(*c, CaseMaker(seed * 10 + c->size()).make(c->size()), seed);
}

TEST(Exchange, AFreshGradientNeedsNoZeroesOnHundredsOfRandomCases) {
  const int most = most_ranks(9), cases = 80;
  for (int ranks = 1; ranks <= most; ++ranks)
    on_ranks(ranks, [&](Communicator& c) {
      for (int seed = 0; seed < cases; ++seed)
        check_fresh_adjoint(c, CaseMaker(seed * 10 + ranks).make(c.size()), seed);
    });
}

/// Three ranks, of which the first owns an image of 6 rows; what the others need of it, and it itself, as rows.
///
///     row      0 1 2 3 4 5
///     rank 0   . . . . . .   what stays on the owner
///     rank 1   x x x x x x
///     rank 2   . . x x . .
at::Tensor fresh_counts(Communicator& c, const std::vector<Interval>& needed_rows) {
  const auto rows = [](const Interval& i) { return i.empty() ? Box{} : image_box({0, 1}, i, {0, 5}); };
  const Partition have{{rows({0, 6}), {}, {}}};
  std::vector<Box> need;
  for (const Interval& i : needed_rows) need.push_back(rows(i));
  const auto r = static_cast<std::size_t>(c.rank().value);
  const Exchange exchange(have, need, c.rank());
  const at::Tensor counts = at::full_like(field(have.boxes[r], 0), std::numeric_limits<double>::quiet_NaN());
  exchange.start_transpose(c, at::full_like(field(need[r], 0), 1), counts, Tag{1}, Into::fresh).finish();
  return c.rank() == Rank{0} ? counts.slice(1, 0, 1).slice(3, 0, 1).flatten() : at::Tensor();
}

TEST(Exchange, AFreshGradientIsWholeWhateverCoversIt) {
  if (most_ranks(3) < 3) GTEST_SKIP() << "needs 3 ranks";
  struct Cover {
    const char* what;
    std::vector<Interval> needed_rows;
    std::vector<double> counts;
  };
  const std::vector<Cover> covers{
      {"one message covers all", {{}, {0, 6}, {}}, {1, 1, 1, 1, 1, 1}},
      {"two messages cover all", {{}, {0, 6}, {0, 6}}, {2, 2, 2, 2, 2, 2}},
      {"a small one, then one that covers all", {{}, {2, 4}, {0, 6}}, {1, 1, 2, 2, 1, 1}},
      {"side by side", {{}, {0, 2}, {2, 6}}, {1, 1, 1, 1, 1, 1}},
      {"overlapping, with a gap", {{}, {0, 3}, {2, 5}}, {1, 1, 2, 1, 1, 0}},
      {"apart", {{}, {1, 2}, {4, 5}}, {0, 1, 0, 0, 1, 0}},
      {"all stays, some is needed elsewhere too", {{0, 6}, {1, 3}, {}}, {1, 2, 2, 1, 1, 1}},
      {"some stays, the others take the rest", {{2, 4}, {0, 2}, {4, 6}}, {1, 1, 1, 1, 1, 1}},
      {"some stays, another needs all", {{2, 4}, {0, 6}, {}}, {1, 1, 2, 2, 1, 1}},
      {"nobody needs any", {{}, {}, {}}, {0, 0, 0, 0, 0, 0}},
  };
  on_ranks(3, [&](Communicator& c) {
    for (const Cover& cover : covers) {
      const at::Tensor counts = fresh_counts(c, cover.needed_rows);
      if (c.rank() != Rank{0}) continue;
      for (std::size_t i = 0; i < 6; ++i)
        EXPECT_EQ(counts[static_cast<std::int64_t>(i)].item<double>(), cover.counts[i]) << cover.what << ", row " << i;
    }
  });
}

/// 2×2 tiles of a 6×8 image, each needed with a margin of 1 inside the image.
struct TwoByTwo {
  Box whole = image_box({0, 1}, {0, 6}, {0, 8});
  Partition have = grid_partition(whole, {2, 2});
  std::vector<Box> need;
  TwoByTwo() {
    for (Box tile : have.boxes) {
      for (const Axis axis : {Axis::height, Axis::width}) tile[axis] = {tile[axis].begin - 1, tile[axis].end + 1};
      need.push_back(tile);
    }
  }
};

TEST(Exchange, GradientOfAStripGoesBackToItsOwner) {
  if (most_ranks(4) < 4) GTEST_SKIP() << "needs 4 ranks";
  on_ranks(4, [](Communicator& c) {
    const TwoByTwo tiles;
    const auto r = static_cast<std::size_t>(c.rank().value);
    const Exchange exchange(tiles.have, tiles.need, c.rank());
    // Ones over need count how many ranks look at a pixel: 1 inside, 2 beside a cut, 4 at the corner where all meet.
    const at::Tensor ones = at::full_like(field(tiles.need[r], 0), 1),
                     counts = at::zeros_like(field(tiles.have.boxes[r], 0));
    exchange.start_transpose(c, ones, counts, Tag{1}).finish();
    const Box& mine = tiles.have.boxes[r];
    for (std::int64_t h = mine.height().begin; h < mine.height().end; ++h)
      for (std::int64_t w = mine.width().begin; w < mine.width().end; ++w)
        EXPECT_EQ(counts[0][0][h - mine.height().begin][w - mine.width().begin].item<double>(),
                  (h == 2 || h == 3 ? 2 : 1) * (w == 3 || w == 4 ? 2 : 1))
            << h << ' ' << w;
  });
}

TEST(Exchange, SendsOneMessageToEachPeerAndOnlyTheStrips) {
  const TwoByTwo tiles;
  const Exchange exchange(tiles.have, tiles.need, Rank{0});
  EXPECT_EQ(exchange.messages(), 3);
  EXPECT_EQ(exchange.bytes_sent(16, 4), (3 + 4 + 1) * 16 * 4);
  const Exchange alone(tiles.have, tiles.have.boxes, Rank{0});
  EXPECT_EQ(alone.messages(), 0);
}

TEST(Exchange, WorkMayGoOnAndExchangesMayOverlap) {
  if (most_ranks(4) < 4) GTEST_SKIP() << "needs 4 ranks";
  on_ranks(4, [](Communicator& c) {
    const TwoByTwo tiles;
    const auto r = static_cast<std::size_t>(c.rank().value);
    const Exchange exchange(tiles.have, tiles.need, c.rank());
    const Case as_case{tiles.have, tiles.need};
    std::vector<at::Tensor> needed;
    std::vector<Movement> movements;
    for (int micro = 0; micro < 4; ++micro) {
      needed.push_back(at::zeros_like(field(tiles.need[r], 0)));
      movements.push_back(exchange.start(c, field(tiles.have.boxes[r], micro), needed.back(),
                                         make_tag({.movement = 1, .micro = micro})));
    }
    for (std::size_t micro = 4; micro-- > 0;) {
      movements[micro].finish();
      EXPECT_TRUE(at::equal(needed[micro], expected_need(as_case, c.rank(), static_cast<int>(micro), 0)));
    }
  });
}

TEST(Exchange, MovesEveryDtypeAndLayout) {
  if (most_ranks(4) < 4) GTEST_SKIP() << "needs 4 ranks";
  on_ranks(4, [](Communicator& c) {
    const TwoByTwo tiles;
    const auto r = static_cast<std::size_t>(c.rank().value);
    const Exchange exchange(tiles.have, tiles.need, c.rank());
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
        const at::Tensor source = field(tiles.have.boxes[r], 5, dtype).contiguous(format);
        const at::Tensor destination = at::zeros_like(field(tiles.need[r], 5, dtype));
        exchange.start(c, source, destination, Tag{1}).finish();
        const at::Tensor expected = expected_need({tiles.have, tiles.need}, c.rank(), 5, 0).to(dtype);
        EXPECT_TRUE(at::equal(destination, expected)) << dtype;
        const at::Tensor gradient = at::zeros_like(source);
        exchange.start_transpose(c, at::full_like(destination, 1), gradient, Tag{2}).finish();
        EXPECT_EQ(gradient.max().item<float>(), 4) << dtype;
      }
  });
}

// The same numbers, from memory that is gone, and into memory that was not there, when the messages were sent.
TEST(Exchange, ApartFromItsTensors) {
  if (most_ranks(4) < 4) GTEST_SKIP() << "needs 4 ranks";
  on_ranks(4, [](Communicator& c) {
    const TwoByTwo tiles;
    const auto r = static_cast<std::size_t>(c.rank().value);
    const Exchange exchange(tiles.have, tiles.need, c.rank());
    const at::Tensor expected = expected_need({tiles.have, tiles.need}, c.rank(), 5, 0);
    std::vector<at::Tensor> strips;
    for (const Box& box : exchange.received_boxes()) strips.push_back(at::zeros_like(field(box, 5)));
    at::Tensor source = field(tiles.have.boxes[r], 5);
    Movement there = exchange.start_apart(c, source, strips, Tag{1});
    source.fill_(-1);
    there.finish();
    const auto part = [](const at::Tensor& whole, const Box& box, const Box& of) {
      return whole.narrow(2, box.height().begin - of.height().begin, box.height().size())
          .narrow(3, box.width().begin - of.width().begin, box.width().size());
    };
    for (std::size_t i = 0; i < strips.size(); ++i)
      EXPECT_TRUE(at::equal(strips[i], part(expected, exchange.received_boxes()[i], tiles.need[r])));

    const at::Tensor gradient_of_need = at::full_like(expected, 1);
    at::Tensor kept = at::zeros_like(field(tiles.have.boxes[r], 5)), apart = kept.clone();
    exchange.start_transpose(c, gradient_of_need, kept, Tag{2}).finish();
    at::Tensor sent = gradient_of_need.clone();
    Movement back = exchange.start_transpose_apart(c, sent, Tag{3});
    apart.add_(part(sent, tiles.have.boxes[r], tiles.need[r]));
    sent.fill_(7);
    back.finish_onto(apart);
    EXPECT_TRUE(at::equal(apart, kept));
  });
}

TEST(Exchange, TheTransposeAddsToWhatIsThere) {
  on_ranks(1, [](Communicator& c) {
    const Box whole = image_box({0, 1}, {0, 4}, {0, 4});
    const Exchange exchange({{whole}}, {whole}, c.rank());
    const at::Tensor gradient = at::full_like(field(whole, 0), 5);
    exchange.start_transpose(c, at::full_like(gradient, 2), gradient, Tag{1}).finish();
    EXPECT_TRUE(gradient.eq(7).all().item<bool>());
  });
}

TEST(Exchange, ATensorThatDoesNotCoverItsBoxIsRefused) {
  on_ranks(1, [](Communicator& c) {
    const Box whole = image_box({0, 1}, {0, 4}, {0, 4});
    const Exchange exchange({{whole}}, {whole}, c.rank());
    const at::Tensor right = field(whole, 0), wrong = field(image_box({0, 1}, {0, 4}, {0, 5}), 0);
    EXPECT_THROW(exchange.start(c, right, wrong, Tag{1}).finish(), Error);
    EXPECT_THROW(exchange.start(c, at::Tensor(), right, Tag{1}).finish(), Error);
  });
}

}  // namespace
}  // namespace tessera::test
