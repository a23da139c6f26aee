#include "tessera/import/language.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "tessera/base/text.h"
#include "tessera/import/call.h"

namespace tessera {
namespace {

using Things = std::vector<Thing>;
using Answer = std::optional<Things>;
using Compute = std::function<Answer(const ForeignNode&, const Things&)>;

Answer one(Thing thing) { return Things{std::move(thing)}; }

bool is_real(const Thing& t) { return t.as<double>() != nullptr; }
bool is_numeric(const Thing& t) { return t.as<double>() || t.as<Integer>() || t.as<bool>(); }

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  if (b == 0) not_translated("a division by zero");
  const std::int64_t q = a / b;
  return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
}

// Whole numbers stay whole.
Compute arithmetic(std::function<std::int64_t(std::int64_t, std::int64_t)> whole,
                   std::function<double(double, double)> real) {
  return [=](const ForeignNode&, const Things& a) -> Answer {
    if (a.size() < 2 || !is_numeric(a[0]) || !is_numeric(a[1])) return std::nullopt;
    if (!is_real(a[0]) && !is_real(a[1])) {
      const Integer x = *integer_of(a[0]), y = *integer_of(a[1]);
      return one(Integer{whole(x.value, y.value), x.of_batch || y.of_batch});
    }
    return one(real(*number_of(a[0]), *number_of(a[1])));
  };
}

Compute comparison(std::function<bool(double, double)> compare) {
  return [=](const ForeignNode&, const Things& a) -> Answer {
    if (a.size() < 2 || !is_numeric(a[0]) || !is_numeric(a[1])) return std::nullopt;
    return one(compare(*number_of(a[0]), *number_of(a[1])));
  };
}

bool is_plain(const Thing& t) { return !t.tensor() && !t.as<StoredRef>() && !t.as<std::shared_ptr<RandomNumbers>>(); }

Compute equality(bool wanted) {
  return [=](const ForeignNode&, const Things& a) -> Answer {
    if (a.size() < 2 || !is_plain(a[0]) || !is_plain(a[1])) return std::nullopt;
    return one(same(a[0], a[1]) == wanted);
  };
}

// None or not; anything else is the same only if it is the very same thing.
Compute identity(bool wanted) {
  return [=](const ForeignNode&, const Things& a) -> Answer {
    const bool none = a[0].none() && a[1].none();
    return one((none || (!a[0].none() && !a[1].none() && same(a[0], a[1]))) == wanted);
  };
}

Compute of_number(std::function<Thing(double)> f) {
  return [=](const ForeignNode&, const Things& a) -> Answer {
    if (a.empty() || !is_numeric(a[0])) return std::nullopt;
    return one(f(*number_of(a[0])));
  };
}

Answer to_integer(const ForeignNode&, const Things& a) {
  if (a.empty()) return std::nullopt;
  if (const auto* s = a[0].as<std::string>()) return one(Thing::integer(std::stoll(*s)));
  if (const auto i = integer_of(a[0])) return one(*i);
  if (const auto* d = a[0].as<double>()) return one(Thing::integer(static_cast<std::int64_t>(*d)));
  return std::nullopt;
}

// Sums of a flag on a number of a tensor: what the code reads of a tensor's numbers is data.
Answer unchanged(const ForeignNode&, const Things& a) { return one(a.at(0)); }

Answer unchanged_number(const ForeignNode&, const Things& a) {
  return !a.empty() && is_numeric(a[0]) ? one(a[0]) : Answer();
}

Answer converted(const ForeignNode&, const Things& a) {
  if (a.size() < 2 || !is_numeric(a[0])) return std::nullopt;
  const auto dtype = integer_of(a[1]);
  constexpr std::int64_t half = 5, real = 7;  // torch's numbers of its data types: 5 to 7 are floating point
  if (dtype && dtype->value >= half && dtype->value <= real) return one(*number_of(a[0]));
  return one(a[0]);
}

std::size_t place(std::int64_t index, std::size_t size) {
  const auto n = static_cast<std::int64_t>(size);
  if (index < 0) index += n;
  if (index < 0 || index >= n) not_translated("element ", index, " of a list of ", n);
  return static_cast<std::size_t>(index);
}

DictOfThings* dict_of(const Thing& t) {
  const auto* d = t.as<std::shared_ptr<DictOfThings>>();
  return d ? d->get() : nullptr;
}
ListOfThings* list_of(const Thing& t) {
  const auto* l = t.as<std::shared_ptr<ListOfThings>>();
  return l ? l->get() : nullptr;
}

const Thing* found(const DictOfThings& dict, const Thing& key) {
  for (const auto& [k, v] : dict.items)
    if (same(k, key)) return &v;
  return nullptr;
}

Answer item(const ForeignNode&, const Things& a) {
  if (const auto* dict = dict_of(a.at(0))) {
    const Thing* value = found(*dict, a.at(1));
    if (!value) not_translated("a dictionary has no ", text_of(a[1]));
    return one(*value);
  }
  const auto* list = list_of(a.at(0));
  const auto index = a.size() > 1 ? integer_of(a[1]) : std::nullopt;
  if (!list || !index) return std::nullopt;
  return one(list->items[place(index->value, list->items.size())]);
}

Answer set_item(const ForeignNode&, const Things& a) {
  if (auto* dict = dict_of(a.at(0))) {
    for (auto& [k, v] : dict->items)
      if (same(k, a.at(1))) {
        v = a.at(2);
        return one(a[0]);
      }
    dict->items.emplace_back(a.at(1), a.at(2));
    return one(a[0]);
  }
  auto* list = list_of(a.at(0));
  const auto index = integer_of(a.at(1));
  if (!list || !index) return std::nullopt;
  list->items[place(index->value, list->items.size())] = a.at(2);
  return one(a[0]);
}

Answer contains(const ForeignNode&, const Things& a) {
  if (const auto* dict = dict_of(a.at(0))) return one(found(*dict, a.at(1)) != nullptr);
  if (const auto* list = list_of(a.at(0)))
    return one(std::ranges::any_of(list->items, [&](const Thing& t) { return same(t, a.at(1)); }));
  const auto *text = a.at(0).as<std::string>(), *part = a.at(1).as<std::string>();
  if (text && part) return one(text->find(*part) != std::string::npos);
  return std::nullopt;
}

Answer length(const ForeignNode&, const Things& a) {
  const auto count = [](std::size_t n) { return one(Thing::integer(static_cast<std::int64_t>(n))); };
  if (const auto* list = list_of(a.at(0))) return count(list->items.size());
  if (const auto* dict = dict_of(a.at(0))) return count(dict->items.size());
  if (const auto* text = a.at(0).as<std::string>()) return count(text->size());
  if (const auto* tensor = a.at(0).tensor()) return one(Integer{tensor->form.size(0), true});
  return std::nullopt;
}

Answer append(const ForeignNode&, const Things& a) {
  auto* list = list_of(a.at(0));
  if (!list) return std::nullopt;
  list->items.push_back(a.at(1));
  return one(a[0]);
}

Answer extend(const ForeignNode&, const Things& a) {
  auto* list = list_of(a.at(0));
  const auto* more = list_of(a.at(1));
  if (!list || !more) return std::nullopt;
  const Things copy = more->items;
  list->items.insert(list->items.end(), copy.begin(), copy.end());
  return one(a[0]);
}

Answer insert(const ForeignNode&, const Things& a) {
  auto* list = list_of(a.at(0));
  const auto index = integer_of(a.at(1));
  if (!list || !index) return std::nullopt;
  const auto n = static_cast<std::int64_t>(list->items.size());
  const std::int64_t at = std::clamp(index->value < 0 ? index->value + n : index->value, std::int64_t{0}, n);
  list->items.insert(list->items.begin() + at, a.at(2));
  return one(a[0]);
}

Answer pop(const ForeignNode&, const Things& a) {
  auto* list = list_of(a.at(0));
  if (!list) return std::nullopt;
  const auto index = a.size() > 1 ? integer_of(a[1]) : Integer{-1};
  const std::size_t at = place(index ? index->value : -1, list->items.size());
  Thing out = list->items[at];
  list->items.erase(list->items.begin() + static_cast<std::ptrdiff_t>(at));
  return one(std::move(out));
}

Answer sliced(const ForeignNode&, const Things& a) {
  const auto* list = list_of(a.at(0));
  if (!list) return std::nullopt;
  const auto n = static_cast<std::int64_t>(list->items.size());
  const auto bound = [&](std::size_t i, std::int64_t otherwise) {
    const auto given = a.size() > i ? integer_of(a[i]) : std::nullopt;
    if (!given) return otherwise;
    return std::clamp(given->value < 0 ? given->value + n : given->value, std::int64_t{0}, n);
  };
  const std::int64_t step = a.size() > 3 && integer_of(a[3]) ? integer_of(a[3])->value : 1;
  if (step < 1) return std::nullopt;
  Things out;
  for (std::int64_t i = bound(1, 0); i < bound(2, n); i += step)
    out.push_back(list->items[static_cast<std::size_t>(i)]);
  return one(Thing::list(std::move(out)));
}

Answer sum(const ForeignNode& node, const Things& a) {
  const auto *x = list_of(a.at(0)), *y = a.size() > 1 ? list_of(a[1]) : nullptr;
  if (x && y) {
    Things joined = x->items;
    joined.insert(joined.end(), y->items.begin(), y->items.end());
    return one(Thing::list(std::move(joined)));
  }
  const auto *s = a.at(0).as<std::string>(), *t = a.size() > 1 ? a[1].as<std::string>() : nullptr;
  if (s && t) return one(*s + *t);
  static const Compute numbers = arithmetic(std::plus<>(), std::plus<>());
  return numbers(node, a);
}

Answer product(const ForeignNode& node, const Things& a) {
  const auto* list = list_of(a.at(0));
  const auto times = a.size() > 1 ? integer_of(a[1]) : std::nullopt;
  if (list && times) {
    Things out;
    for (std::int64_t i = 0; i < times->value; ++i) out.insert(out.end(), list->items.begin(), list->items.end());
    return one(Thing::list(std::move(out)));
  }
  static const Compute numbers = arithmetic(std::multiplies<>(), std::multiplies<>());
  return numbers(node, a);
}

Answer quotient(const ForeignNode&, const Things& a) {
  if (a.size() < 2 || !is_numeric(a[0]) || !is_numeric(a[1])) return std::nullopt;
  if (a.size() > 2 && a[2].as<std::string>()) {
    const double q = *number_of(a[0]) / *number_of(a[1]);
    const double whole = *a[2].as<std::string>() == "floor" ? std::floor(q) : std::trunc(q);
    if (is_real(a[0]) || is_real(a[1])) return one(whole);
    return one(Integer{static_cast<std::int64_t>(whole), integer_of(a[0])->of_batch || integer_of(a[1])->of_batch});
  }
  return one(*number_of(a[0]) / *number_of(a[1]));
}

// "sizes(x)", or one of them.
Answer sizes(const ForeignNode&, const Things& a) {
  Things all;
  if (const auto* tensor = a.at(0).tensor()) {
    for (std::size_t d = 0; d < tensor->form.rank(); ++d) {
      const auto& pieces = tensor->form.dims[d];
      const bool batch = std::ranges::any_of(pieces, [](const Piece& p) { return p.of == Piece::Of::batch; });
      all.emplace_back(Integer{tensor->form.size(d), batch});
    }
  } else if (const auto* stored = a[0].as<StoredRef>()) {
    for (const auto s : stored->sizes) all.push_back(Thing::integer(s));
  } else {
    return std::nullopt;
  }
  if (a.size() < 2 || a[1].none()) return one(Thing::list(std::move(all)));
  const auto index = integer_of(a[1]);
  if (!index) return std::nullopt;
  return one(all[place(index->value, all.size())]);
}

Answer dimensions(const ForeignNode&, const Things& a) {
  if (const auto* tensor = a.at(0).tensor()) return one(Thing::integer(static_cast<std::int64_t>(tensor->form.rank())));
  if (const auto* stored = a[0].as<StoredRef>())
    return one(Thing::integer(static_cast<std::int64_t>(stored->sizes.size())));
  return std::nullopt;
}

Answer made_list(const ForeignNode& node, const Things& a) {
  auto list = std::make_shared<ListOfThings>(ListOfThings{a, node.names});
  return one(list);
}

Answer made_dict(const ForeignNode&, const Things& a) {
  auto dict = std::make_shared<DictOfThings>();
  for (std::size_t i = 0; i + 1 < a.size(); i += 2) dict->items.emplace_back(a[i], a[i + 1]);
  return one(dict);
}

// dict(), or dict() of a list of pairs, or a copy.
Answer dictionary(const ForeignNode&, const Things& a) {
  auto dict = std::make_shared<DictOfThings>();
  if (!a.empty()) {
    if (const auto* other = dict_of(a[0]))
      dict->items = other->items;
    else if (const auto* list = list_of(a[0]))
      for (const auto& pair : list->items)
        if (const auto* both = list_of(pair); both && both->items.size() == 2)
          dict->items.emplace_back(both->items[0], both->items[1]);
  }
  return one(dict);
}

Answer unpacked(const ForeignNode& node, const Things& a) {
  const auto* list = list_of(a.at(0));
  if (!list) return std::nullopt;
  if (list->items.size() != node.outputs.size())
    not_translated(list->items.size(), " values are taken for ", node.outputs.size());
  return list->items;
}

Answer listed(const ForeignNode&, const Things& a) {
  const auto* list = list_of(a.at(0));
  if (!list) return std::nullopt;
  return one(Thing::list(list->items));
}

template <class Take>
Compute of_dict(const Take& take) {
  return [take](const ForeignNode&, const Things& a) -> Answer {
    const auto* dict = dict_of(a.at(0));
    if (!dict) return std::nullopt;
    Things out;
    for (const auto& entry : dict->items) out.push_back(take(entry));
    return one(Thing::list(std::move(out)));
  };
}

Answer raised(const ForeignNode&, const Things& a) {
  const auto* words = a.empty() ? nullptr : a[0].as<std::string>();
  not_translated("the network's own code ends with an error here", words ? concat(": ", *words) : std::string());
}

// for i in range(lo, hi, step)
Answer range_length(const ForeignNode&, const Things& a) {
  const auto lo = integer_of(a.at(0)), hi = integer_of(a.at(1)), step = integer_of(a.at(2));
  if (!lo || !hi || !step || step->value == 0) return std::nullopt;
  const std::int64_t span = step->value > 0 ? hi->value - lo->value : lo->value - hi->value;
  const std::int64_t width = std::abs(step->value);
  return one(Integer{span <= 0 ? 0 : (span + width - 1) / width, lo->of_batch || hi->of_batch});
}

Answer derived_index(const ForeignNode&, const Things& a) {
  const auto i = integer_of(a.at(0)), start = integer_of(a.at(1)), step = integer_of(a.at(2));
  if (!i || !start || !step) return std::nullopt;
  return one(Thing::integer(start->value + i->value * step->value));
}

const std::map<std::string, Compute, std::less<>>& language() {
  static const auto nothing = [](const ForeignNode& node, const Things&) -> Answer {
    return Things(node.outputs.size());
  };
  static const auto words = [](const ForeignNode&, const Things&) -> Answer { return one(std::string("...")); };
  static const std::map<std::string, Compute, std::less<>> table{
      {"aten::add", sum},
      {"aten::mul", product},
      {"aten::sub", arithmetic(std::minus<>(), std::minus<>())},
      {"aten::div", quotient},
      {"aten::floordiv", arithmetic(floor_div, [](double x, double y) { return std::floor(x / y); })},
      {"aten::floor_divide", arithmetic(floor_div, [](double x, double y) { return std::floor(x / y); })},
      {"aten::remainder", arithmetic([](std::int64_t x, std::int64_t y) { return x - y * floor_div(x, y); },
                                     [](double x, double y) { return x - y * std::floor(x / y); })},
      {"aten::pow", arithmetic([](std::int64_t x, std::int64_t y) { return static_cast<std::int64_t>(std::pow(x, y)); },
                               [](double x, double y) { return std::pow(x, y); })},
      {"prim::min",
       arithmetic([](auto x, auto y) { return std::min(x, y); }, [](auto x, auto y) { return std::min(x, y); })},
      {"prim::max",
       arithmetic([](auto x, auto y) { return std::max(x, y); }, [](auto x, auto y) { return std::max(x, y); })},
      {"aten::neg",
       [](const ForeignNode&, const Things& a) -> Answer {
         if (const auto* d = a.at(0).as<double>()) return one(-*d);
         if (const auto i = integer_of(a[0])) return one(Integer{-i->value, i->of_batch});
         return std::nullopt;
       }},
      {"aten::floor", of_number([](double x) { return Thing::integer(static_cast<std::int64_t>(std::floor(x))); })},
      {"aten::ceil", of_number([](double x) { return Thing::integer(static_cast<std::int64_t>(std::ceil(x))); })},
      {"aten::round", of_number([](double x) { return Thing(std::nearbyint(x)); })},
      {"aten::sqrt", of_number([](double x) { return Thing(std::sqrt(x)); })},
      {"aten::Float", of_number([](double x) { return Thing(x); })},
      {"aten::FloatImplicit", of_number([](double x) { return Thing(x); })},
      {"aten::Bool", of_number([](double x) { return Thing(x != 0); })},
      {"aten::Int", to_integer},
      {"aten::IntImplicit", to_integer},
      {"aten::ScalarImplicit", unchanged_number},
      {"aten::item", unchanged_number},
      {"prim::NumToTensor", unchanged_number},
      {"aten::scalar_tensor", unchanged_number},
      {"aten::sym_size", sizes},
      {"aten::to", converted},
      {"aten::eq", equality(true)},
      {"aten::ne", equality(false)},
      {"aten::lt", comparison(std::less<>())},
      {"aten::le", comparison(std::less_equal<>())},
      {"aten::gt", comparison(std::greater<>())},
      {"aten::ge", comparison(std::greater_equal<>())},
      {"aten::__is__", identity(true)},
      {"aten::__isnot__", identity(false)},
      {"aten::__not__",
       [](const ForeignNode&, const Things& a) -> Answer {
         const auto t = truth_of(a.at(0));
         return t ? one(!*t) : Answer();
       }},
      {"aten::__and__",
       [](const ForeignNode&, const Things& a) -> Answer {
         const auto x = truth_of(a.at(0)), y = truth_of(a.at(1));
         return x && y ? one(*x && *y) : Answer();
       }},
      {"aten::__or__",
       [](const ForeignNode&, const Things& a) -> Answer {
         const auto x = truth_of(a.at(0)), y = truth_of(a.at(1));
         return x && y ? one(*x || *y) : Answer();
       }},
      {"aten::__getitem__", item},
      {"prim::TupleIndex", item},
      {"aten::_set_item", set_item},
      {"aten::__contains__", contains},
      {"aten::len", length},
      {"aten::append", append},
      {"aten::extend", extend},
      {"aten::insert", insert},
      {"aten::pop", pop},
      {"aten::slice", sliced},
      {"aten::list", listed},
      {"aten::copy", listed},
      {"aten::dict", dictionary},
      {"aten::keys", of_dict([](const auto& e) { return e.first; })},
      {"aten::values", of_dict([](const auto& e) { return e.second; })},
      {"aten::items", of_dict([](const auto& e) {
         return Thing::list({e.first, e.second});
       })},
      {"aten::size", sizes},
      {"aten::dim", dimensions},
      {"prim::ListConstruct", made_list},
      {"prim::TupleConstruct", made_list},
      {"prim::DictConstruct", made_dict},
      {"prim::ListUnpack", unpacked},
      {"prim::TupleUnpack", unpacked},
      {"prim::unchecked_cast", unchanged},
      {"prim::unchecked_unwrap_optional", unchanged},
      {"aten::_unwrap_optional", unchanged},
      {"prim::Uninitialized", nothing},
      {"prim::Print", nothing},
      {"aten::warn", nothing},
      {"prim::device", nothing},
      {"prim::layout", nothing},
      {"prim::dtype", nothing},
      {"prim::RaiseException", raised},
      {"aten::format", words},
      {"aten::percentFormat", words},
      {"aten::str", words},
      {"aten::__range_length", range_length},
      {"aten::__derive_index", derived_index},
  };
  return table;
}

}  // namespace

std::optional<bool> truth_of(const Thing& thing) {
  if (const auto* b = thing.as<bool>()) return *b;
  if (const auto* i = thing.as<Integer>()) return i->value != 0;
  if (const auto* d = thing.as<double>()) return *d != 0;
  return std::nullopt;
}

std::optional<Integer> integer_of(const Thing& thing) {
  if (const auto* i = thing.as<Integer>()) return *i;
  if (const auto* b = thing.as<bool>()) return Integer{*b};
  return std::nullopt;
}

std::optional<double> number_of(const Thing& thing) {
  if (const auto* d = thing.as<double>()) return *d;
  if (const auto i = integer_of(thing)) return static_cast<double>(i->value);
  return std::nullopt;
}

bool same(const Thing& a, const Thing& b) {
  if (const auto x = number_of(a), y = number_of(b); x && y) return *x == *y;
  if (a.none() || b.none()) return a.none() && b.none();
  const auto *s = a.as<std::string>(), *t = b.as<std::string>();
  if (s && t) return *s == *t;
  const auto *x = a.items(), *y = b.items();
  if (x && y) return std::ranges::equal(*x, *y, [](const Thing& p, const Thing& q) { return same(p, q); });
  return a.tensor() != nullptr && a.tensor() == b.tensor();
}

bool Thing::unknown() const {
  if (as<Unknown>()) return true;
  const auto* list = items();
  return list && std::ranges::any_of(*list, [](const Thing& t) { return t.unknown(); });
}

std::string text_of(const Thing& thing) {
  const auto sizes = [](const std::vector<std::int64_t>& of, bool batch) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < of.size(); ++i) parts.push_back(batch && i == 0 ? "N" : std::to_string(of[i]));
    return join(parts, "x");
  };
  if (const auto* b = thing.as<bool>()) return *b ? "True" : "False";
  if (const auto* i = thing.as<Integer>()) return i->of_batch ? "N" : std::to_string(i->value);
  if (const auto* d = thing.as<double>()) return concat(*d);
  if (const auto* s = thing.as<std::string>()) return concat("'", *s, "'");
  if (const auto* t = thing.tensor()) return concat("a tensor of ", sizes(t->form.sizes(), true));
  if (const auto* t = thing.as<StoredRef>()) return concat("a weight of ", sizes(t->sizes, false));
  if (const auto* list = thing.items()) {
    std::vector<std::string> parts;
    for (const auto& item : *list) parts.push_back(text_of(item));
    return concat("[", join(parts, ", "), "]");
  }
  return thing.none() ? "None" : "something";
}

std::optional<std::vector<Thing>> compute(const ForeignNode& node, const std::vector<Thing>& arguments) {
  const auto found = language().find(node.op);
  if (found == language().end()) return std::nullopt;
  // Lists may hold unknown things, and still be lists.
  const bool container = node.op.starts_with("prim::") || node.op == "aten::append" || node.op == "aten::__getitem__" ||
                         node.op == "aten::_set_item" || node.op == "aten::len";
  for (const auto& a : arguments)
    if (a.as<Unknown>() || (!container && a.unknown())) {
      if (container && !arguments.empty() && &a != &arguments[0]) continue;
      if (node.op == "prim::ListConstruct" || node.op == "prim::TupleConstruct" || node.op == "prim::DictConstruct")
        continue;
      if (node.op == "aten::__is__" || node.op == "aten::__isnot__") continue;
      return std::vector<Thing>(node.outputs.size(), Thing(Unknown{}));
    }
  return found->second(node, arguments);
}

}  // namespace tessera
