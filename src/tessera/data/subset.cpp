#include "tessera/data/subset.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/data/shuffle.h"

namespace tessera {

Subset::Subset(std::shared_ptr<const ImageSource> source, std::vector<std::int64_t> indices)
    : source_(std::move(source)), indices_(std::move(indices)) {}

std::int64_t Subset::at(std::int64_t index) const {
  ensure(0 <= index && index < size(), "image ", index, " of a part of ", size(), " images");
  return indices_[static_cast<std::size_t>(index)];
}

at::Tensor Subset::thumbnail(std::int64_t index, ImageSize size) const { return source_->thumbnail(at(index), size); }

std::string Subset::describe() const {
  return concat(size(), size() > source_->size() ? ", with repeats, of " : " of ", source_->describe());
}

std::shared_ptr<const ImageSource> repeated(const std::shared_ptr<const ImageSource>& images) {
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < images->size(); ++i)
    indices.insert(indices.end(), static_cast<std::size_t>(images->repeats(i)), i);
  if (std::ssize(indices) == images->size() && std::ranges::adjacent_find(indices) == indices.end()) return images;
  return std::make_shared<Subset>(images, std::move(indices));
}

HeldOut held_out(std::int64_t images, double share, std::uint64_t seed) {
  // An order that no epoch of training has.
  constexpr std::int64_t far_away = 1 << 20;
  const Shuffle order(images, seed, far_away);
  const auto count = std::max<std::int64_t>(1, std::llround(share * static_cast<double>(images)));
  HeldOut out;
  for (std::int64_t i = 0; i < images; ++i) (i < count ? out.held_out : out.training).push_back(order(i));
  std::sort(out.held_out.begin(), out.held_out.end());
  std::sort(out.training.begin(), out.training.end());
  return out;
}

}  // namespace tessera
