// Operators that compute nothing: views, permutations, joins and cuts.
#include <algorithm>
#include <numeric>

#include "tessera/import/call.h"
#include "tessera/import/language.h"

namespace tessera {
namespace {

using Of = Piece::Of;

// The same numbers in the same memory, seen otherwise.
Thing seen_as(const ForeignTensor& x, Form form) {
  return std::make_shared<ForeignTensor>(ForeignTensor{x.storage, std::move(form)});
}

std::size_t dim_of(const Form& form, std::int64_t d) {
  const auto place = form.dim(d);
  if (!place) not_translated("dimension ", d, " of a tensor of ", form.rank());
  return *place;
}

// Sizes with -1 made out. A number in the first place stands for the batch, whatever it is: networks do not depend on
// how many samples there are, but files may hold the number that they were exported with.
std::vector<std::int64_t> full_sizes(const Call& call, const Form& form, const char* argument) {
  std::vector<std::int64_t> sizes = call.integers(argument);
  const auto* items = call.argument(argument).items();
  if (sizes.empty()) not_translated("a view without sizes");
  const bool of_batch = items && (*items)[0].as<Integer>() && (*items)[0].as<Integer>()->of_batch;
  if (sizes[0] > 0 && !of_batch && form.holds(0, {Of::batch})) sizes[0] = followed_batch;
  const auto own = form.sizes();
  const std::int64_t all = std::accumulate(own.begin(), own.end(), std::int64_t{1}, std::multiplies<>());
  std::int64_t known = 1;
  for (const auto s : sizes) known *= s < 0 ? 1 : s;
  for (auto& s : sizes)
    if (s < 0) s = known > 0 ? all / known : 0;
  return sizes;
}

std::string words(const std::vector<std::int64_t>& sizes) {
  std::string out = "[N";
  for (std::size_t i = 1; i < sizes.size(); ++i) out += concat(", ", sizes[i]);
  return out + "]";
}

Thing viewed(const Call& call, const char* argument) {
  if (const auto* weight = call.argument("self").as<StoredRef>()) {
    if (weight->transposed) not_translated("a view of '", weight->tensor->name, "' transposed");
    std::vector<std::int64_t> sizes = call.integers(argument);
    std::int64_t known = 1;
    for (const auto s : sizes) known *= s < 0 ? 1 : s;
    for (auto& s : sizes)
      if (s < 0) s = weight->tensor->elements() / std::max<std::int64_t>(1, known);
    return StoredRef{weight->tensor, sizes};
  }
  const ForeignTensor& x = call.tensor("self");
  auto sizes = full_sizes(call, x.form, argument);
  auto form = x.form.viewed(sizes);
  if (const std::size_t n = sizes.size(); !form && n >= 4 && !call.translation.program().exported_images.empty()) {
    const Pair now = call.translation.relative({sizes[n - 2], sizes[n - 1]});
    sizes[n - 2] = now.height;
    sizes[n - 1] = now.width;
    form = x.form.viewed(sizes);
  }
  if (!form)
    not_translated("a view of ", words(x.form.sizes()), " as ", words(sizes),
                   ": only channels can be divided, and sizes of the export's image may be written into the code");
  return seen_as(x, *form);
}

Thing permuted(const Call& call, std::vector<std::int64_t> dims) {
  if (const auto* weight = call.argument("self").as<StoredRef>()) {
    const std::vector<std::int64_t>& sizes = weight->tensor->sizes;
    const bool swap = dims.size() == 2 && (dims[0] + 2) % 2 == 1 && (dims[1] + 2) % 2 == 0;
    if (!swap || sizes.size() != 2 || weight->sizes != sizes || weight->transposed)
      not_translated("a permutation of the weight '", weight->tensor->name, "'");
    return StoredRef{weight->tensor, {sizes[1], sizes[0]}, true};
  }
  const ForeignTensor& x = call.tensor("self");
  std::vector<std::size_t> order;
  for (const auto d : dims) order.push_back(dim_of(x.form, d));
  if (order.size() != x.form.rank())
    not_translated("a permutation of ", order.size(), " dimensions of ", x.form.rank());
  return seen_as(x, x.form.permuted(order));
}

Thing transposed(const Call& call) {
  if (call.argument("self").as<StoredRef>()) return permuted(call, {1, 0});
  const ForeignTensor& x = call.tensor("self");
  std::vector<std::int64_t> order(x.form.rank());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[dim_of(x.form, call.integer("dim0", 0))], order[dim_of(x.form, call.integer("dim1", 1))]);
  return permuted(call, order);
}

Thing flattened(const Call& call) {
  const ForeignTensor& x = call.tensor("self");
  const std::size_t first = dim_of(x.form, call.integer("start_dim", 0)),
                    last = dim_of(x.form, call.integer("end_dim", -1));
  if (first > last) not_translated("dimensions ", first, " to ", last);
  return seen_as(x, x.form.flattened(first, last));
}

Thing unflattened(const Call& call) {
  const ForeignTensor& x = call.tensor("self");
  const std::size_t d = dim_of(x.form, call.integer("dim", 0));
  auto parts = call.integers("sizes");
  std::int64_t known = 1;
  for (const auto s : parts) known *= s < 0 ? 1 : s;
  for (auto& s : parts)
    if (s < 0) s = x.form.size(d) / std::max<std::int64_t>(1, known);
  auto sizes = x.form.sizes();
  sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(d));
  sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(d), parts.begin(), parts.end());
  const auto form = x.form.viewed(sizes);
  if (!form) not_translated("only channels can be divided");
  return seen_as(x, *form);
}

Thing unsqueezed(const Call& call) {
  if (const auto* weight = call.argument("self").as<StoredRef>()) {
    StoredRef out = *weight;
    const std::int64_t d = call.integer("dim", 0), n = static_cast<std::int64_t>(out.sizes.size());
    out.sizes.insert(out.sizes.begin() + std::clamp<std::int64_t>(d < 0 ? d + n + 1 : d, 0, n), 1);
    return out;
  }
  const ForeignTensor& x = call.tensor("self");
  const auto rank = static_cast<std::int64_t>(x.form.rank());
  std::int64_t d = call.integer("dim", 0);
  if (d < 0) d += rank + 1;
  if (d < 0 || d > rank) not_translated("dimension ", d, " of a tensor of ", rank);
  Form form = x.form;
  form.dims.insert(form.dims.begin() + d, Dimension{});
  return seen_as(x, form);
}

Thing squeezed(const Call& call) {
  const ForeignTensor& x = call.tensor("self");
  std::vector<std::size_t> wanted;
  for (const auto d : call.integers("dim")) wanted.push_back(dim_of(x.form, d));
  const bool any = wanted.empty();
  Form form;
  for (std::size_t d = 0; d < x.form.rank(); ++d)
    if (!x.form.dims[d].empty() || !(any || std::ranges::find(wanted, d) != wanted.end()))
      form.dims.push_back(x.form.dims[d]);
  return seen_as(x, form);
}

Thing cut_channels(const Call& call, const ForeignTensor& x, std::size_t d, std::int64_t first, std::int64_t count) {
  if (first == 0 && count == x.form.size(d)) return std::make_shared<ForeignTensor>(x);
  if (!x.form.holds(d, {Of::channels})) not_translated("a part of a dimension that is not the channels");
  const Value y = call.add(std::make_shared<SliceChannels>(first, count), {x.value()});
  Form form = x.form;
  form.dims[d] = count == 1 ? Dimension{} : Dimension{{Of::channels, count, 0}};
  return std::make_shared<ForeignTensor>(ForeignTensor{std::make_shared<Storage>(Storage{y, true}), form});
}

// A part of the rows or columns is padding by less than nothing.
Thing cropped(const Call& call, const ForeignTensor& x, std::size_t d, std::int64_t first, std::int64_t count) {
  const bool rows = x.form.axis_of(d) == Of::rows;
  const std::int64_t after = first + count - x.form.size(d);
  const PadOptions o{.before = rows ? Pair{-first, 0} : Pair{0, -first},
                     .after = rows ? Pair{after, 0} : Pair{0, after}};
  const Value y = call.add(std::make_shared<Pad>(o), {x.value()});
  return std::make_shared<ForeignTensor>(ForeignTensor{std::make_shared<Storage>(Storage{y, true}),
                                                       x.form.with_axis(rows ? Of::rows : Of::columns, count)});
}

Thing part(const Call& call, const ForeignTensor& x, std::size_t d, std::int64_t first, std::int64_t count) {
  if (first == 0 && count == x.form.size(d)) return std::make_shared<ForeignTensor>(x);
  if (count < 1) not_translated("a part of a tensor that is empty");
  if (x.form.holds(d, {Of::batch})) not_translated("a part of the batch");
  if (!x.form.whole(Of::channels)) {
    const Value v = call.planes(x);
    const ForeignTensor ordered{std::make_shared<Storage>(Storage{v}), Form::planes(call.graph().shape(v))};
    return part(call, ordered, d, first, count);
  }
  const auto axis = x.form.axis_of(d);
  if (axis && *axis != Of::channels && x.form.dims[d].size() == 1) return cropped(call, x, d, first, count);
  return cut_channels(call, x, d, first, count);
}

Thing slice_of_axis(const Call& call) {
  const ForeignTensor& x = call.tensor("self");
  const std::size_t d = dim_of(x.form, call.integer("dim", 0));
  const std::int64_t n = x.form.size(d);
  const auto bound = [&](const char* name, std::int64_t otherwise) {
    const std::int64_t b = call.integer(name, otherwise);
    return std::clamp<std::int64_t>(b < 0 ? b + n : b, 0, n);
  };
  const std::int64_t first = bound("start", 0), end = bound("end", n);
  if (call.integer("step", 1) != 1) not_translated("every ", call.integer("step", 1), "th of a dimension");
  return part(call, x, d, first, end - first);
}

Thing selected(const Call& call) {
  const ForeignTensor& x = call.tensor("self");
  const std::size_t d = dim_of(x.form, call.integer("dim", 0));
  std::int64_t index = call.integer("index", 0);
  if (index < 0) index += x.form.size(d);
  if (index < 0 || index >= x.form.size(d)) not_translated("element ", index, " of ", x.form.size(d));
  Thing one = part(call, x, d, index, 1);
  ForeignTensor out = *one.tensor();
  out.form.dims.erase(out.form.dims.begin() + static_cast<std::ptrdiff_t>(d));
  return std::make_shared<ForeignTensor>(out);
}

Thing parts(const Call& call, const ForeignTensor& x, std::size_t d, const std::vector<std::int64_t>& sizes) {
  std::vector<Thing> out;
  std::int64_t first = 0;
  for (const auto size : sizes) {
    out.push_back(part(call, x, d, first, size));
    first += size;
  }
  if (first != x.form.size(d)) not_translated("parts that do not add up");
  return Thing::list(std::move(out));
}

std::vector<std::int64_t> even_parts(std::int64_t n, std::int64_t size) {
  if (size < 1) not_translated("parts of ", size);
  std::vector<std::int64_t> sizes;
  for (std::int64_t begin = 0; begin < n; begin += size) sizes.push_back(std::min(size, n - begin));
  return sizes;
}

Thing chunked(const Call& call) {
  const ForeignTensor& x = call.tensor("self");
  const std::size_t d = dim_of(x.form, call.integer("dim", 0));
  const std::int64_t n = x.form.size(d), chunks = std::max<std::int64_t>(1, call.integer("chunks", 1));
  return parts(call, x, d, even_parts(n, (n + chunks - 1) / chunks));
}

Thing split(const Call& call) {
  const ForeignTensor& x = call.tensor("self");
  const std::size_t d = dim_of(x.form, call.integer("dim", 0));
  const char* name = call.given("split_sizes") ? "split_sizes" : "split_size";
  if (call.argument(name).items()) return parts(call, x, d, call.integers(name));
  return parts(call, x, d, even_parts(x.form.size(d), call.integer(name, 1)));
}

Thing joined(const Call& call) {
  const auto* items = call.argument("tensors").items();
  if (!items || items->empty()) not_translated("nothing to join");
  std::vector<Value> values;
  Form form;
  std::int64_t channels = 0;
  for (const auto& item : *items) {
    const ForeignTensor* t = item.tensor();
    if (!t) not_translated("a join with ", text_of(item));
    ForeignTensor x = *t;
    if (!x.form.whole(Of::channels)) {
      const Value v = call.planes(x);
      x = {std::make_shared<Storage>(Storage{v}), Form::planes(call.graph().shape(v))};
    }
    const std::size_t d = dim_of(x.form, call.integer("dim", 0));
    const auto axis = x.form.axis_of(d);
    if (axis ? *axis != Of::channels : call.graph().shape(x.value()).channels != 1)
      not_translated("a join along a dimension that is not the channels");
    x.form.dims[d] = {};
    if (values.empty())
      form = x.form;
    else if (form != x.form)
      not_translated("a join of tensors of other rows or columns");
    values.push_back(x.value());
    channels += call.graph().shape(x.value()).channels;
  }
  const std::size_t d = dim_of(form, call.integer("dim", 0));
  form.dims[d] = channels == 1 ? Dimension{} : Dimension{{Of::channels, channels, 0}};
  if (values.size() == 1) return (*items)[0];
  return call.result(call.add(std::make_shared<Concat>(), values), form);
}

// One position for all of them is a resize of it.
Thing expanded(const Call& call, const ForeignTensor& x, const std::vector<std::int64_t>& to) {
  if (to.size() != x.form.rank()) not_translated("an expansion to another number of dimensions");
  const Shape in = call.graph().shape(x.value());
  Form form = Form::planes(in);
  if (x.form != form) not_translated("an expansion of ", words(x.form.sizes()));
  Pair size{in.height, in.width};
  for (std::size_t d = 0; d < to.size(); ++d) {
    if (d == 0 || to[d] < 0 || to[d] == x.form.size(d)) continue;
    if (d == 1) not_translated("an expansion of one channel to ", to[d]);
    (d == 2 ? size.height : size.width) = to[d];
  }
  if (call.translation.may_have_changed(size)) size = call.translation.relative(size);
  if (size == Pair{in.height, in.width}) return std::make_shared<ForeignTensor>(x);
  return call.result(call.add(std::make_shared<Resize>(ResizeOptions{.size = size}), {x.value()}));
}

Thing shuffled(const Call& call) {
  const Value x = call.planes("self");
  return call.result(call.add(std::make_shared<ChannelShuffle>(call.integer("groups", 1)), {x}));
}

}  // namespace

void add_movements(OperatorTable& t) {
  t["aten::view"] = [](const Call& c) { return viewed(c, "size"); };
  t["aten::_unsafe_view"] = [](const Call& c) { return viewed(c, "size"); };
  t["aten::reshape"] = [](const Call& c) { return viewed(c, "shape"); };
  t["aten::permute"] = [](const Call& c) { return permuted(c, c.integers("dims")); };
  t["aten::transpose"] = transposed;
  t["aten::t"] = [](const Call& c) { return permuted(c, {1, 0}); };
  t["aten::flatten"] = flattened;
  t["aten::unflatten"] = unflattened;
  t["aten::unsqueeze"] = unsqueezed;
  t["aten::squeeze"] = squeezed;
  t["aten::slice"] = slice_of_axis;
  t["aten::select"] = selected;
  t["aten::narrow"] = [](const Call& c) {
    const ForeignTensor& x = c.tensor("self");
    return part(c, x, dim_of(x.form, c.integer("dim", 0)), c.integer("start", 0), c.integer("length", 1));
  };
  t["aten::chunk"] = chunked;
  t["aten::split"] = split;
  t["aten::split_with_sizes"] = split;
  t["aten::cat"] = joined;
  t["aten::expand"] = [](const Call& c) { return expanded(c, c.tensor("self"), c.integers("size")); };
  t["aten::expand_as"] = [](const Call& c) { return expanded(c, c.tensor("self"), c.tensor("other").form.sizes()); };
  t["aten::channel_shuffle"] = shuffled;
}

const std::map<std::string, Translator, std::less<>>& operators() {
  static const OperatorTable table = [] {
    OperatorTable t;
    add_layers(t);
    add_pointwise(t);
    add_planes(t);
    add_movements(t);
    return t;
  }();
  return table;
}

}  // namespace tessera
