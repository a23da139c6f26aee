// Operators that change the rows and columns: pools, padding, resizing.
#include <cmath>

#include "tessera/import/call.h"
#include "tessera/import/language.h"

namespace tessera {
namespace {

using Of = Piece::Of;

PoolOptions pool_options(const Call& call) {
  PoolOptions o;
  o.kernel = call.pair("kernel_size", 1);
  o.stride = call.pair("stride", o.kernel);
  o.pad = call.pair("padding", 0);
  o.ceil_mode = call.flag("ceil_mode", false);
  return o;
}

Thing max_pool(const Call& call) {
  if (call.pair("dilation", 1) != Pair(1)) not_translated("a max pool with dilation");
  const Thing y = call.result(call.add(std::make_shared<MaxPool>(pool_options(call)), {call.planes("self")}));
  return call.outputs() == 1 ? y : Thing::list({y, Unknown{}});
}

Thing avg_pool(const Call& call) {
  if (call.given("divisor_override")) not_translated("an average pool with a divisor of its own");
  PoolOptions o = pool_options(call);
  o.count_include_pad = call.flag("count_include_pad", true);
  return call.result(call.add(std::make_shared<AvgPool>(o), {call.planes("self")}));
}

Value adaptive(const Call& call, Value x, Pair size, bool max) {
  if (size == Pair(1) && !max) return call.add(std::make_shared<GlobalAvgPool>(), {x});
  return call.add(std::make_shared<AdaptivePool>(AdaptivePoolOptions{.size = size, .max = max}), {x});
}

// A side that is None stays as it is.
Thing adaptive_pool(const Call& call, bool max) {
  const Value x = call.planes("self");
  const Shape& in = call.graph().shape(x);
  Pair size{in.height, in.width};
  if (const auto* items = call.argument("output_size").items()) {
    if (items->size() == 2 && !(*items)[0].none()) size.height = integer_of((*items)[0]).value_or(Integer{0}).value;
    if (items->size() == 2 && !(*items)[1].none()) size.width = integer_of((*items)[1]).value_or(Integer{0}).value;
    if (items->size() == 1) size = call.pair("output_size", 1);
  } else {
    size = call.pair("output_size", 1);
  }
  // A module has its size from whoever wrote it; a function may have been given that of another tensor.
  const bool of_a_module = call.where().kind.find("Adaptive") != std::string::npos;
  if (!of_a_module && call.translation.may_have_changed(size)) size = call.translation.relative(size);
  const Thing y = call.result(adaptive(call, x, size, max));
  return call.outputs() == 1 ? y : Thing::list({y, Unknown{}});
}

// The mean over rows and columns, wherever these lie.
Thing mean(const Call& call) {
  const ForeignTensor& x = call.tensor("self");
  std::vector<std::size_t> over;
  for (const auto d : call.integers("dim")) {
    const auto place = x.form.dim(d);
    if (!place) not_translated("the mean over dimension ", d, ", which is not there");
    over.push_back(*place);
  }
  const auto is_over = [&](std::size_t d) { return std::find(over.begin(), over.end(), d) != over.end(); };
  const bool keep = call.flag("keepdim", false);
  Form form;
  for (std::size_t d = 0; d < x.form.rank(); ++d) {
    for (const auto& piece : x.form.dims[d]) {
      const bool plane = piece.of == Of::rows || piece.of == Of::columns;
      if (plane != is_over(d))
        not_translated("a mean that is not the one over all rows and columns (dim ", text_of(call.argument("dim")),
                       ")");
    }
    if (!is_over(d))
      form.dims.push_back(x.form.dims[d]);
    else if (keep)
      form.dims.emplace_back();
  }
  const Value v = x.form.whole(Of::channels) ? x.value() : call.planes(x);
  if (call.graph().shape(v).positions() == 1) return call.result(v, form);
  return call.result(adaptive(call, v, 1, false), form);
}

// left, right, top, bottom
Thing padded(const Call& call, const std::vector<std::int64_t>& sides, const std::string& mode) {
  static const std::map<std::string, PadMode, std::less<>> modes{{"constant", PadMode::zeros},
                                                                 {"reflect", PadMode::reflect},
                                                                 {"replicate", PadMode::replicate},
                                                                 {"circular", PadMode::circular}};
  const ForeignTensor& x = call.tensor("self");
  std::vector<std::int64_t> all = sides;
  for (std::size_t i = 4; i < all.size(); ++i)
    if (all[i] != 0) not_translated("padding of channels");
  all.resize(4);
  const auto found = modes.find(mode);
  if (found == modes.end()) not_translated("padding of mode ", mode);
  if (mode == "constant" && call.number("value", 0) != 0) not_translated("padding with ", call.number("value", 0));
  if (all == std::vector<std::int64_t>(4)) return call.result(x.value(), x.form);
  const PadOptions o{.before = {all[2], all[0]}, .after = Pair{all[3], all[1]}, .mode = found->second};
  return call.result(call.add(std::make_shared<Pad>(o), {call.planes(x)}));
}

Thing resized(const Call& call, Value x, ResizeOptions o) {
  const Shape& in = call.graph().shape(x);
  if (o.size && *o.size == Pair{in.height, in.width}) return call.result(x);
  return call.result(call.add(std::make_shared<Resize>(o), {x}));
}

// Of a list or one number; nothing where it is None.
std::vector<double> factors(const Thing& thing) {
  std::vector<double> out;
  if (const auto x = number_of(thing)) return {*x, *x};
  if (const auto* items = thing.items())
    for (const auto& item : *items)
      if (const auto x = number_of(item)) out.push_back(*x);
  if (out.size() == 1) out.push_back(out[0]);
  return out;
}

// The rows and columns to come to: given, or by a factor; torch then steps by the factor, unless told to forget it.
Thing interpolated(const Call& call, const ForeignTensor& input, ResizeMode mode, bool align,
                   const std::vector<std::int64_t>& size, const std::vector<double>& factor, bool recompute) {
  const Value x = call.planes(input);
  const Shape& in = call.graph().shape(x);
  ResizeOptions o{.mode = mode, .align_corners = align};
  if (size.empty() && factor.size() != 2) not_translated("it is told neither a size nor a factor");
  const auto scaled = [](std::int64_t n, double f) {
    return static_cast<std::int64_t>(std::floor(static_cast<double>(n) * f));
  };
  Pair to = size.empty() ? Pair{scaled(in.height, factor[0]), scaled(in.width, factor[1])}
                         : call.translation.relative({size[0], size.size() > 1 ? size[1] : size[0]});
  // A ratio of the sizes that is the factor makes no difference.
  const auto exact = [](std::int64_t n, std::int64_t m, double f) {
    return 1.0 / f == static_cast<double>(n) / static_cast<double>(m);
  };
  const bool by_sizes = factor.size() != 2 || recompute || align ||
                        (exact(in.height, to.height, factor[0]) && exact(in.width, to.width, factor[1]));
  if (by_sizes)
    o.size = to;
  else if (factor[0] == factor[1] && to == Pair{scaled(in.height, factor[0]), scaled(in.width, factor[1])})
    o.factor = factor[0];
  else
    not_translated("factors of ", factor[0], " and ", factor[1], " that are not the ratio of the sizes");
  return resized(call, x, o);
}

ResizeMode mode_of(const std::string& word) {
  if (word == "nearest") return ResizeMode::nearest;
  if (word == "bilinear") return ResizeMode::bilinear;
  not_translated("interpolation of mode ", word);
}

Thing interpolate(const Call& call) {
  if (call.flag("antialias", false)) not_translated("interpolation with antialias");
  auto size = call.integers("size");
  return interpolated(call, call.tensor("input"), mode_of(call.word("mode", "nearest")),
                      call.flag("align_corners", false), size, factors(call.argument("scale_factor")),
                      call.flag("recompute_scale_factor", false));
}

Translator upsampled(ResizeMode mode) {
  return [mode](const Call& call) {
    std::vector<double> factor = factors(call.argument("scale_factors"));
    if (factor.empty() && call.given("scales_h") && call.given("scales_w"))
      factor = {call.number("scales_h", 1), call.number("scales_w", 1)};
    return interpolated(call, call.tensor(call.given("input") ? "input" : "self"), mode,
                        call.flag("align_corners", false), call.integers("output_size"), factor, false);
  };
}

}  // namespace

void add_planes(OperatorTable& t) {
  t["aten::max_pool2d"] = max_pool;
  t["aten::max_pool2d_with_indices"] = max_pool;
  t["aten::avg_pool2d"] = avg_pool;
  for (const char* name : {"adaptive_avg_pool2d", "_adaptive_avg_pool2d"})
    t[std::string("aten::") + name] = [](const Call& c) { return adaptive_pool(c, false); };
  t["aten::adaptive_max_pool2d"] = [](const Call& c) { return adaptive_pool(c, true); };
  t["aten::mean"] = mean;
  t["aten::pad"] = [](const Call& c) { return padded(c, c.integers("pad"), c.word("mode", "constant")); };
  t["aten::constant_pad_nd"] = [](const Call& c) { return padded(c, c.integers("pad"), "constant"); };
  t["aten::reflection_pad2d"] = [](const Call& c) { return padded(c, c.integers("padding"), "reflect"); };
  t["aten::replication_pad2d"] = [](const Call& c) { return padded(c, c.integers("padding"), "replicate"); };
  t["aten::__interpolate"] = interpolate;
  t["aten::upsample_nearest2d"] = upsampled(ResizeMode::nearest);
  t["aten::upsample_bilinear2d"] = upsampled(ResizeMode::bilinear);
}

}  // namespace tessera
