#include "tessera/import/form.h"

#include <algorithm>

namespace tessera {

Form Form::planes(const Shape& shape) {
  Form form;
  const auto add = [&](Piece::Of of, std::int64_t size) {
    form.dims.push_back(size == 1 ? Dimension{} : Dimension{{of, size, 0}});
  };
  add(Piece::Of::batch, followed_batch);
  add(Piece::Of::channels, shape.channels);
  add(Piece::Of::rows, shape.height);
  add(Piece::Of::columns, shape.width);
  return form;
}

std::int64_t Form::size(std::size_t d) const {
  std::int64_t n = 1;
  for (const auto& piece : dims[d]) n *= piece.size;
  return n;
}

std::vector<std::int64_t> Form::sizes() const {
  std::vector<std::int64_t> out;
  for (std::size_t d = 0; d < dims.size(); ++d) out.push_back(size(d));
  return out;
}

std::optional<std::size_t> Form::dim(std::int64_t d) const {
  const auto n = static_cast<std::int64_t>(dims.size());
  if (d < 0) d += n;
  if (d < 0 || d >= n) return std::nullopt;
  return static_cast<std::size_t>(d);
}

std::optional<Form> Form::viewed(const std::vector<std::int64_t>& sizes) const {
  std::vector<Piece> pieces;
  for (const auto& dimension : dims) pieces.insert(pieces.end(), dimension.begin(), dimension.end());
  std::reverse(pieces.begin(), pieces.end());  // the next one is at the back
  Form out;
  for (std::int64_t wanted : sizes) {
    Dimension dimension;
    while (wanted > 1) {
      if (pieces.empty()) return std::nullopt;
      Piece piece = pieces.back();
      pieces.pop_back();
      if (wanted % piece.size == 0) {
        wanted /= piece.size;
      } else if (piece.size % wanted == 0 && piece.of == Piece::Of::channels) {
        pieces.push_back({piece.of, piece.size / wanted, piece.number});
        piece.size = wanted;
        wanted = 1;
      } else {
        return std::nullopt;
      }
      dimension.push_back(piece);
    }
    out.dims.push_back(std::move(dimension));
  }
  if (!pieces.empty()) return std::nullopt;
  out.tidy();
  return out;
}

// Pieces that were cut get numbers of their own, in the order of the axis; neighbours that belong behind each other
// become one.
void Form::tidy() {
  const auto renumber = [&] {
    std::vector<Piece*> channels;
    for (auto& dimension : dims)
      for (auto& piece : dimension)
        if (piece.of == Piece::Of::channels) channels.push_back(&piece);
    std::ranges::stable_sort(channels, {}, [](const Piece* p) { return p->number; });
    for (std::size_t i = 0; i < channels.size(); ++i) channels[i]->number = static_cast<int>(i);
  };
  renumber();
  for (auto& dimension : dims)
    for (std::size_t i = 1; i < dimension.size();) {
      const Piece& next = dimension[i];
      Piece& piece = dimension[i - 1];
      if (piece.of != Piece::Of::channels || next.of != piece.of || next.number != piece.number + 1) {
        ++i;
        continue;
      }
      piece.size *= next.size;
      const int gone = next.number;
      dimension.erase(dimension.begin() + static_cast<std::ptrdiff_t>(i));
      for (auto& other : dims)
        for (auto& p : other)
          if (p.of == Piece::Of::channels && p.number > gone) --p.number;
    }
}

Form Form::permuted(const std::vector<std::size_t>& order) const {
  Form out;
  for (const std::size_t d : order) out.dims.push_back(dims[d]);
  return out;
}

Form Form::flattened(std::size_t first, std::size_t last) const {
  std::vector<std::int64_t> wanted;
  std::int64_t product = 1;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (d < first || d > last) {
      wanted.push_back(size(d));
    } else {
      product *= size(d);
      if (d == last) wanted.push_back(product);
    }
  }
  return *viewed(wanted);  // joining never cuts
}

Form Form::with_axis(Piece::Of axis, std::int64_t size) const {
  Form out = *this;
  bool done = false;
  for (auto& dimension : out.dims)
    for (std::size_t i = 0; i < dimension.size();) {
      if (dimension[i].of != axis) {
        ++i;
      } else if (!done && size > 1) {
        dimension[i++] = {axis, size, 0};
        done = true;
      } else {
        dimension.erase(dimension.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  return out;
}

std::optional<Piece::Of> Form::axis_of(std::size_t d) const {
  if (dims[d].empty()) return std::nullopt;
  for (const auto& piece : dims[d])
    if (piece.of != dims[d].front().of) return std::nullopt;
  return dims[d].front().of;
}

std::optional<std::size_t> Form::place_of(Piece::Of axis) const {
  std::optional<std::size_t> place;
  for (std::size_t d = 0; d < dims.size(); ++d)
    for (const auto& piece : dims[d]) {
      if (piece.of != axis) continue;
      if (place || dims[d].size() > 1) return std::nullopt;
      place = d;
    }
  return place;
}

bool Form::holds(std::size_t d, const std::vector<Piece::Of>& axes) const {
  const auto has = [&](Piece::Of axis) {
    for (const auto& dimension : dims)
      for (const auto& piece : dimension)
        if (piece.of == axis) return true;
    return false;
  };
  std::vector<Piece::Of> wanted, found;
  for (const auto axis : axes)
    if (has(axis)) wanted.push_back(axis);
  for (const auto& piece : dims[d]) found.push_back(piece.of);
  return wanted == found && std::ranges::all_of(axes, [&](auto axis) { return whole(axis); });
}

bool Form::whole(Piece::Of axis) const {
  int pieces = 0;
  for (const auto& dimension : dims)
    for (const auto& piece : dimension) pieces += piece.of == axis;
  return pieces <= 1;
}

}  // namespace tessera
