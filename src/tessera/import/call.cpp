#include "tessera/import/call.h"

#include "tessera/base/text.h"
#include "tessera/import/language.h"

namespace tessera {
namespace {

std::string sizes_text(const std::vector<std::int64_t>& sizes) {
  std::vector<std::string> parts;
  for (auto s : sizes) parts.push_back(std::to_string(s));
  return join(parts, "x");
}

}  // namespace

Translation::Translation(const ForeignProgram& program, const ImportOptions& options)
    : program_(program), options_(options) {
  graph.cell("network");
  graph.input(options.image);
  where.emplace_back();
  names_ = {"input", "loss"};
}

void Translation::note_size(Pair exported, Pair now) {
  sizes_[{exported.height, exported.width}].insert({now.height, now.width});
}

Pair Translation::relative(Pair written) const {
  const auto& images = program_.exported_images;
  if (images.size() != 4 || (images[2] == options_.image.height && images[3] == options_.image.width)) return written;
  const auto found = sizes_.find({written.height, written.width});
  if (found != sizes_.end() && found->second.size() == 1)
    return {found->second.begin()->first, found->second.begin()->second};
  not_translated("the size ", written.height, "x", written.width,
                 " was written into the code at its export with images of ", images[2], "x", images[3],
                 ", and what it is for others is not known; use --image-size ", images[2], "x", images[3],
                 ", or export it with dynamic shapes or by torch.jit.script");
}

bool Translation::may_have_changed(Pair written) const {
  if (written == Pair(1)) return false;  // one of everything is meant, whatever else has come to that
  const auto found = sizes_.find({written.height, written.width});
  return found != sizes_.end() && *found->second.rbegin() != found->first;
}

std::string Translation::name_for(const std::string& module, std::string_view what) {
  std::string base(what);
  if (!module.empty())
    base = module.ends_with(concat(".", what)) || module == what ? module : concat(module, ".", what);
  std::string name = base;
  for (int i = 2; !names_.insert(name).second; ++i) name = concat(base, "_", i);
  return name;
}

std::string Translation::owner_of(const StoredRef& weight, const std::string& suffix, const std::string& module) {
  const std::string& name = weight.tensor->name;
  if (!name.ends_with("." + suffix)) return name_for(module, name.substr(name.rfind('.') + 1));
  const std::string owner = name.substr(0, name.size() - suffix.size() - 1);
  return name_for(owner, owner.substr(owner.rfind('.') + 1));
}

void Translation::adopt(Value node, const std::string& suffix, const StoredRef& from, Start start) {
  const StoredTensor& stored = *from.tensor;
  const Node& owner = graph.node(node);
  if (stored.name.empty()) not_translated("its ", suffix, " is a constant of the code, not a parameter");
  const auto [used, first] = used_.emplace(&stored, owner.name);
  if (!first)
    not_translated("'", stored.name, "' has been used already; weights that two layers share are not supported");
  for (auto& spec : graph.parameters_of(node)) {
    if (spec.suffix != suffix) continue;
    std::vector<std::int64_t> matrix = spec.sizes;
    if (matrix.size() == 4 && matrix[2] == 1 && matrix[3] == 1) matrix.resize(2);
    spec.as_matrix = stored.sizes != spec.sizes && stored.sizes == matrix;
    const bool one_number = stored.elements() == 1 && spec.elements() == 1;
    if (stored.sizes != spec.sizes && !spec.as_matrix && !one_number)
      not_translated("'", stored.name, "' is ", sizes_text(stored.sizes), " where ", sizes_text(spec.sizes),
                     " is needed");
    if (stored.name != owner.name + "." + suffix) spec.name = stored.name;
    spec.fixed = spec.trainable && !stored.trained;  // running statistics are trained by nobody
    spec.trainable = spec.trainable && stored.trained;
    if (!options_.random_start || spec.fixed || start == Start::as_in_the_file)
      spec.init = {Initializer::Kind::given, 0, stored.value};
    return;
  }
  throw Error(concat("internal error: no parameter ", suffix, " of ", owner.name));
}

const Thing& Call::argument(std::string_view name) const {
  static const Thing nothing;
  for (std::size_t i = 0; i < node_.inputs.size(); ++i)
    if (node_.inputs[i].name == name) return arguments_[i];
  return nothing;
}

bool Call::flag(std::string_view name, bool otherwise) const {
  const Thing& t = argument(name);
  if (t.none()) return otherwise;
  const auto truth = truth_of(t);
  if (!truth) not_translated(name, " is ", text_of(t), ", not true or false");
  return *truth;
}

std::int64_t Call::integer(std::string_view name, std::int64_t otherwise) const {
  const Thing& t = argument(name);
  if (t.none()) return otherwise;
  const auto i = integer_of(t);
  if (!i) not_translated(name, " is ", text_of(t), ", not an integer");
  return i->value;
}

double Call::number(std::string_view name, double otherwise) const {
  const Thing& t = argument(name);
  if (t.none()) return otherwise;
  const auto x = number_of(t);
  if (!x) not_translated(name, " is ", text_of(t), ", not a number");
  return *x;
}

std::string Call::word(std::string_view name, const std::string& otherwise) const {
  const Thing& t = argument(name);
  if (t.none()) return otherwise;
  const auto* s = t.as<std::string>();
  if (!s) not_translated(name, " is ", text_of(t), ", not a word");
  return *s;
}

std::vector<std::int64_t> Call::integers(std::string_view name) const {
  const Thing& t = argument(name);
  if (const auto i = integer_of(t)) return {i->value};
  const auto* items = t.items();
  if (t.none()) return {};
  if (!items) not_translated(name, " is ", text_of(t), ", not a list");
  std::vector<std::int64_t> out;
  for (const auto& item : *items) {
    const auto i = integer_of(item);
    if (!i) not_translated(name, " is ", text_of(t), ", not a list of integers");
    out.push_back(i->value);
  }
  return out;
}

Pair Call::pair(std::string_view name, Pair otherwise) const {
  const auto list = integers(name);
  if (list.empty()) return otherwise;
  if (list.size() == 1) return list[0];
  if (list.size() != 2) not_translated(name, " has ", list.size(), " numbers, and images have two sides");
  return {list[0], list[1]};
}

const ForeignTensor& Call::tensor(std::string_view name) const {
  const ForeignTensor* t = argument(name).tensor();
  if (!t) not_translated("it is applied to ", text_of(argument(name)), ", not to what comes from the images");
  return *t;
}

const StoredRef* Call::stored(std::string_view name) const {
  const Thing& t = argument(name);
  if (t.none()) return nullptr;
  const auto* stored = t.as<StoredRef>();
  if (!stored) not_translated("its ", name, " is computed by the network (", text_of(t), ")");
  if (stored->sizes != stored->tensor->sizes || stored->transposed)
    not_translated("its ", name, " is '", stored->tensor->name, "' reshaped");
  return stored;
}

Value Call::planes(const ForeignTensor& t) const {
  using Of = Piece::Of;
  const Form& form = t.form;
  const Value value = t.value();
  if (form == Form::planes(graph().shape(value))) return value;
  const auto refuse = [&] {
    std::vector<std::int64_t> sizes = form.sizes();
    std::vector<std::string> words{"N"};
    for (std::size_t i = 1; i < sizes.size(); ++i) words.push_back(std::to_string(sizes[i]));
    not_translated("it is applied to a tensor of ", join(words, "x"),
                   ", whose dimensions are no longer batch, channels, rows and columns");
  };
  if (form.rank() < 2 || form.rank() > 4 || !form.holds(0, {Of::batch})) refuse();
  if (form.rank() == 4 && form.holds(2, {Of::rows}) && form.holds(3, {Of::columns})) {
    if (form.holds(1, {Of::channels})) return value;
    // Channels that were cut in two and put together the other way round.
    const Dimension& c = form.dims[1];
    const bool swapped = c.size() == 2 && c[0].of == Of::channels && c[1].of == Of::channels && c[0].number == 1;
    if (swapped) return add(std::make_shared<ChannelShuffle>(c[1].size), {value});
  }
  if (form.rank() == 2 && form.holds(1, {Of::channels})) return value;
  refuse();
  return value;
}

Thing Call::result(Value value, Form form) const {
  return std::make_shared<ForeignTensor>(
      ForeignTensor{std::make_shared<Storage>(Storage{value, false}), std::move(form)});
}

Thing Call::result_like(const ForeignTensor& like, Value value) const {
  Form form = Form::planes(graph().shape(value));
  form.dims.resize(std::min<std::size_t>(form.dims.size(), like.form.rank()));
  return result(value, std::move(form));
}

Value Call::add(OperationPtr op, std::vector<Value> inputs) const {
  const std::string name = translation.name_for(module(), op->kind());
  return graph().add_node(std::move(op), std::move(inputs), name);
}

}  // namespace tessera
