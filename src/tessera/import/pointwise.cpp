// Activations, sums, products, and what is dropped at random.
#include <algorithm>
#include <cmath>

#include "tessera/import/call.h"
#include "tessera/import/language.h"

namespace tessera {
namespace {

using Of = Piece::Of;

const ForeignTensor& input_of(const Call& call) { return call.tensor(call.argument("self").none() ? "input" : "self"); }

// Number by number, so the order of axes does not matter.
Thing activated(const Call& call, const Activation& which) {
  const ForeignTensor& x = input_of(call);
  return call.result(call.add(std::make_shared<Activate>(which), {x.value()}), x.form);
}

Translator plain(ActivationKind kind) {
  return [kind](const Call& call) { return activated(call, {kind}); };
}

Thing by_number(const Call& call, ActivationKind kind, const ForeignTensor& x, double number) {
  if (number == (kind == ActivationKind::times ? 1 : 0)) return call.result(x.value(), x.form);
  return call.result(call.add(std::make_shared<Activate>(Activation{kind, number}), {x.value()}), x.form);
}

// x · w, w a parameter of one number per channel.
Thing scaled(const Call& call, const ForeignTensor& x, const StoredRef& weight) {
  const std::size_t rank = x.form.rank(), behind = weight.sizes.size();
  const std::int64_t channels = call.graph().shape(x.value()).channels;
  const auto place = x.form.place_of(Of::channels);
  bool fits =
      !weight.transposed && behind <= rank && weight.tensor->elements() == channels && place && *place + behind >= rank;
  for (std::size_t i = 0; fits && i < behind; ++i)
    fits = weight.sizes[i] == (i + rank - behind == *place ? channels : 1);
  if (!fits)
    not_translated("a product of ", text_of(Thing(std::make_shared<ForeignTensor>(x))), " and the parameter '",
                   weight.tensor->name, "', which is not one number per channel");
  const std::string& name = weight.tensor->name;
  const std::string suffix = name.substr(name.rfind('.') + 1);
  const std::string owner = name.size() > suffix.size() ? name.substr(0, name.size() - suffix.size() - 1) : "";
  const Value y = call.graph().add_node(std::make_shared<Norm>(ScaleOptions{.suffix = suffix}), {x.value()},
                                        call.translation.name_for(owner, "scale"));
  if (weight.tensor->sizes != std::vector<std::int64_t>{channels, 1, 1})
    not_translated("the parameter '", name, "' is multiplied in; only parameters of ", channels, "x1x1 can be");
  // There is no rule of torch for such parameters: what they start from is what their module says.
  call.translation.adopt(y, suffix, {weight.tensor, weight.tensor->sizes}, Start::as_in_the_file);
  return call.result(y, x.form);
}

Thing drop(const Call& call, const ForeignTensor& x, double probability, DropoutOf what) {
  const Value y = call.add(std::make_shared<Dropout>(probability, what), {x.value()});
  call.translation.dropouts.push_back(call.graph().node(y).name);
  return call.result(y, x.form);
}

// Zeros and ones times x.
Thing dropped(const Call& call, const ForeignTensor& x, const RandomNumbers& random) {
  if (random.keep < 0) not_translated("a product with numbers that nobody has drawn");
  const std::vector<std::int64_t> sizes = x.form.sizes();
  DropoutOf what = DropoutOf::elements;
  if (random.sizes != sizes) {
    bool samples = random.sizes.size() == sizes.size() && x.form.holds(0, {Of::batch}), channels = samples;
    for (std::size_t d = 0; d < random.sizes.size() && samples + channels > 0; ++d) {
      const bool as_it_is = random.sizes[d] == sizes[d];
      samples = samples && (d == 0 ? as_it_is : random.sizes[d] == 1);
      channels = channels && (d <= 1 ? as_it_is : random.sizes[d] == 1);
    }
    if (!samples && !(channels && x.form.axis_of(1) == Of::channels))
      not_translated("what is dropped is neither elements, nor channels, nor samples");
    what = samples ? DropoutOf::samples : DropoutOf::channels;
  }
  const double usual = 1 / random.keep;
  Thing y = drop(call, x, 1 - random.keep, what);
  const double rest = random.scale / usual;
  return std::abs(rest - 1) < 1e-12 ? y : by_number(call, ActivationKind::times, *y.tensor(), rest);
}

// Dimension by dimension: of one size, or one of them has size 1 and stands for all.
Form broadcast(const Form& a, const Form& b) {
  const std::size_t rank = std::max(a.rank(), b.rank());
  Form out;
  for (std::size_t d = 0; d < rank; ++d) {
    static const Dimension one;
    const Dimension& x = d + a.rank() >= rank ? a.dims[d + a.rank() - rank] : one;
    const Dimension& y = d + b.rank() >= rank ? b.dims[d + b.rank() - rank] : one;
    if (!x.empty() && !y.empty() && x != y) not_translated("two tensors whose dimensions are not the same ones");
    out.dims.push_back(x.empty() ? y : x);
  }
  return out;
}

Thing both(const Call& call, Combine what, const ForeignTensor& a, const ForeignTensor& b) {
  // Channels that were dealt out anew are brought into order, unless both sides were.
  if (a.form != b.form && (!a.form.whole(Of::channels) || !b.form.whole(Of::channels))) {
    const Value x = call.planes(a), y = call.planes(b);
    const ForeignTensor p{std::make_shared<Storage>(Storage{x}), Form::planes(call.graph().shape(x))};
    const ForeignTensor q{std::make_shared<Storage>(Storage{y}), Form::planes(call.graph().shape(y))};
    return both(call, what, p, q);
  }
  const Form form = broadcast(a.form, b.form);
  Value x = a.value(), y = b.value();
  if (call.graph().shape(x).elements() < call.graph().shape(y).elements()) std::swap(x, y);
  return call.result(call.add(std::make_shared<Arithmetic>(what), {x, y}), form);
}

Thing minus(const Call& call, const Thing& a, const Thing& b, double factor) {
  if (const auto x = number_of(b))
    if (const auto* t = a.tensor()) return by_number(call, ActivationKind::plus, *t, -factor * *x);
  const auto* t = b.tensor();
  if (!t) not_translated("a difference of ", text_of(a), " and ", text_of(b));
  return combined(call, Combine::sum, a, by_number(call, ActivationKind::times, *t, -factor));
}

Thing sum_of_both(const Call& call) {
  const double factor = call.number("alpha", 1);
  const Thing& b = call.argument("other");
  if (factor == 1) return combined(call, Combine::sum, call.argument("self"), b);
  return minus(call, call.argument("self"), b, -factor);
}

Thing quotient_of_both(const Call& call) {
  const Thing &a = call.argument("self"), &b = call.argument("other");
  if (const auto* random = a.as<std::shared_ptr<RandomNumbers>>()) {
    const auto x = number_of(b);
    if (!x) not_translated("random numbers divided by ", text_of(b));
    auto copy = std::make_shared<RandomNumbers>(**random);
    copy->scale /= *x;
    return copy;
  }
  const auto x = number_of(b);
  if (!x || !a.tensor()) not_translated("a quotient of ", text_of(a), " and ", text_of(b));
  return by_number(call, ActivationKind::times, *a.tensor(), 1 / *x);
}

Thing clamped(const Call& call, const Thing& low, const Thing& high) {
  const auto a = number_of(low), b = number_of(high);
  if (a && *a == 0 && !b) return activated(call, {ActivationKind::relu});
  if (a && b && *a == 0 && *b == 6) return activated(call, {ActivationKind::relu6});
  if (a && b && *a == -*b) return activated(call, {ActivationKind::hard_tanh, *b});
  not_translated("limits of ", text_of(low), " and ", text_of(high), "; 0 and 6, 0 alone, or -x and x are supported");
}

Thing elu(const Call& call) {
  if (call.number("input_scale", 1) != 1) not_translated("elu with an input_scale");
  const double scale = call.number("scale", 1);
  Thing y = activated(call, {ActivationKind::elu, call.number("alpha", 1)});
  return by_number(call, ActivationKind::times, *y.tensor(), scale);
}

Thing selu(const Call& call) {
  Thing y = activated(call, {ActivationKind::elu, 1.6732632423543772848170429916717});
  return by_number(call, ActivationKind::times, *y.tensor(), 1.0507009873554804934193349852946);
}

Thing gelu(const Call& call) {
  const std::string way = call.word("approximate", "none");
  return activated(call, {way == "tanh" ? ActivationKind::gelu_tanh : ActivationKind::gelu});
}

Translator dropout(DropoutOf what) {
  return [what](const Call& call) -> Thing {
    const double p = call.number("p", 0.5);
    const ForeignTensor& x = input_of(call);
    if (!call.flag("train", true) || p == 0) {
      call.translation.idle_dropouts += p != 0;
      return std::make_shared<ForeignTensor>(x);
    }
    if (what == DropoutOf::channels && !(x.form.rank() >= 2 && x.form.holds(1, {Of::channels})))
      not_translated("channels are dropped of a tensor that has none in its second dimension");
    return drop(call, x, p, what);
  };
}

Thing made_random(const Call& call) {
  auto random = std::make_shared<RandomNumbers>();
  random->sizes = call.integers("size");
  // The number of samples may be that of the export.
  const auto& exported = call.translation.program().exported_images;
  if (!exported.empty() && !random->sizes.empty() && random->sizes[0] == exported[0]) random->sizes[0] = followed_batch;
  return random;
}

Thing bernoulli(const Call& call) {
  const auto* random = call.argument("self").as<std::shared_ptr<RandomNumbers>>();
  const auto p = number_of(call.argument("p"));
  if (!random || !p) not_translated("random numbers that are drawn by ", text_of(call.argument("p")));
  auto drawn = std::make_shared<RandomNumbers>(**random);
  drawn->keep = *p;
  return drawn;
}

Thing same_as(const Call& call) {
  const Thing& x = call.argument(call.argument("self").none() ? "input" : "self");
  if (!x.tensor()) not_translated("of ", text_of(x));
  return x;
}

Thing no_gradient(const Call&) { not_translated("it cuts the gradient off; such networks are not supported"); }

}  // namespace

Thing combined(const Call& call, Combine what, const Thing& a, const Thing& b) {
  const bool product = what == Combine::product;
  const auto *x = a.tensor(), *y = b.tensor();
  if (x && y) return both(call, what, *x, *y);
  if (!x && !y) not_translated("of ", text_of(a), " and ", text_of(b));
  const ForeignTensor& tensor = x ? *x : *y;
  const Thing& other = x ? b : a;
  if (const auto n = number_of(other))
    return by_number(call, product ? ActivationKind::times : ActivationKind::plus, tensor, *n);
  if (const auto* weight = other.as<StoredRef>(); weight && product) return scaled(call, tensor, *weight);
  if (const auto* weight = other.as<StoredRef>())
    not_translated("a sum with the parameter '", weight->tensor->name, "'; only a layer's bias can be added");
  if (const auto* random = other.as<std::shared_ptr<RandomNumbers>>(); random && product)
    return dropped(call, tensor, **random);
  not_translated("of ", text_of(a), " and ", text_of(b));
}

void add_pointwise(OperatorTable& t) {
  using Kind = ActivationKind;
  t["aten::relu"] = plain(Kind::relu);
  t["aten::relu6"] = plain(Kind::relu6);
  t["aten::silu"] = plain(Kind::silu);
  t["aten::sigmoid"] = plain(Kind::sigmoid);
  t["aten::tanh"] = plain(Kind::tanh);
  t["aten::hardsigmoid"] = plain(Kind::hard_sigmoid);
  t["aten::hardswish"] = plain(Kind::hard_swish);
  t["aten::mish"] = plain(Kind::mish);
  t["aten::softsign"] = plain(Kind::softsign);
  t["aten::leaky_relu"] = [](const Call& c) {
    return activated(c, {Kind::leaky_relu, c.number("negative_slope", 0.01)});
  };
  t["aten::elu"] = elu;
  t["aten::selu"] = selu;
  t["aten::gelu"] = gelu;
  t["aten::hardtanh"] = [](const Call& c) {
    return clamped(c, c.given("min_val") ? c.argument("min_val") : Thing(-1.0),
                   c.given("max_val") ? c.argument("max_val") : Thing(1.0));
  };
  t["aten::clamp"] = [](const Call& c) { return clamped(c, c.argument("min"), c.argument("max")); };
  t["aten::clamp_min"] = [](const Call& c) { return clamped(c, c.argument("min"), Thing()); };
  t["aten::neg"] = [](const Call& c) { return activated(c, {Kind::times, -1}); };
  t["aten::add"] = sum_of_both;
  t["aten::sub"] = [](const Call& c) {
    return minus(c, c.argument("self"), c.argument("other"), c.number("alpha", 1));
  };
  t["aten::rsub"] = [](const Call& c) {
    return minus(c, c.argument("other"), c.argument("self"), c.number("alpha", 1));
  };
  t["aten::mul"] = [](const Call& c) { return combined(c, Combine::product, c.argument("self"), c.argument("other")); };
  t["aten::div"] = quotient_of_both;
  t["aten::dropout"] = dropout(DropoutOf::elements);
  t["aten::feature_dropout"] = dropout(DropoutOf::channels);
  t["aten::empty"] = made_random;
  t["aten::bernoulli"] = bernoulli;
  for (const char* name : {"contiguous", "to", "type_as", "alias", "float", "double", "lift_fresh_copy", "identity"})
    t[std::string("aten::") + name] = same_as;
  t["aten::clone"] = [](const Call& c) { return c.result(input_of(c).value(), input_of(c).form); };
  t["aten::detach"] = no_gradient;
}

}  // namespace tessera
