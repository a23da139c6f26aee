#include "tessera/import/follow.h"

#include <algorithm>

#include "tessera/import/language.h"

namespace tessera {
namespace {

// Loops of a network run over its layers; more turns are a mistake, or data.
constexpr int most_turns = 10'000;

bool is_in_place(const std::string& op) { return op.ends_with('_') && !op.ends_with("__"); }

// Counters of batches are the engine's own.
bool counts_batches(const ForeignNode& node, const std::vector<Thing>& arguments) {
  const auto* stored = arguments.empty() ? nullptr : arguments[0].as<StoredRef>();
  return (node.op == "aten::add_" || node.op == "aten::add") && stored && !stored->tensor->real;
}

}  // namespace

Follower::Follower(const ForeignProgram& program, Translation& translation, std::vector<Unsupported>& unsupported)
    : program_(program),
      translation_(translation),
      unsupported_(unsupported),
      things_(static_cast<std::size_t>(program.values)) {}

std::vector<Thing> Follower::run() {
  const Value images{0};
  at(program_.body.inputs.at(0)) = std::make_shared<ForeignTensor>(
      ForeignTensor{std::make_shared<Storage>(Storage{images}), Form::planes(translation_.graph.shape(images))});
  note_size(program_.body.inputs[0]);
  std::vector<Thing> out;
  try {
    run(program_.body);
    for (const int v : program_.body.outputs) out.push_back(at(v));
  } catch (const Stopped&) {
    out.assign(program_.body.outputs.size(), Thing(Unknown{}));
  }
  return out;
}

void Follower::run(const ForeignBlock& block) {
  for (const auto& node : block.nodes) run(node);
}

// What sizes that are numbers in the code may be the sizes of.
void Follower::note_size(int value) {
  const auto exported = program_.exported_sizes.find(value);
  const ForeignTensor* now = at(value).tensor();
  if (exported == program_.exported_sizes.end() || exported->second.size() != 4 || !now) return;
  const Form planes = Form::planes(translation_.graph.shape(now->value()));
  if (now->form == planes)
    translation_.note_size({exported->second[2], exported->second[3]}, {planes.size(2), planes.size(3)});
}

void Follower::set(const std::vector<int>& values, const std::vector<Thing>& things) {
  for (std::size_t i = 0; i < values.size(); ++i) at(values[i]) = i < things.size() ? things[i] : Thing(Unknown{});
}

void Follower::refuse(const ForeignNode& node, const std::string& why) {
  for (auto& known : unsupported_)
    if (known.op == node.op && known.why == why) {
      if (std::ranges::none_of(known.where, [&](const auto& w) { return w.module == node.where.module; }))
        known.where.push_back(node.where);
      return;
    }
  unsupported_.push_back({node.op, why, is_in_place(node.op) || node.outputs.empty(), {node.where}});
}

void Follower::run(const ForeignNode& node) {
  if (node.op == "prim::If") return branch(node);
  if (node.op == "prim::Loop") return loop(node);
  if (node.constant) return set(node.outputs, {*node.constant});
  std::vector<Thing> arguments;
  for (const auto& input : node.inputs) arguments.push_back(at(input.value));
  set(node.outputs, call(node, arguments));
  for (const int v : node.outputs) note_size(v);
  translation_.where.resize(translation_.graph.nodes().size(), node.where);
}

std::vector<Thing> Follower::call(const ForeignNode& node, const std::vector<Thing>& arguments) {
  const std::vector<Thing> unknown(node.outputs.size(), Thing(Unknown{}));
  try {
    if (counts_batches(node, arguments)) return {arguments[0]};
    if (auto computed = compute(node, arguments)) return *computed;
    const bool changes = is_in_place(node.op);
    const std::string op = changes ? node.op.substr(0, node.op.size() - 1) : node.op;
    const auto found = operators().find(op);
    if (found == operators().end()) {
      refuse(node, "there is no operation for it");
      return unknown;
    }
    if (std::ranges::any_of(arguments, [](const Thing& t) { return t.unknown(); })) return unknown;
    Thing result = found->second(Call(translation_, node, arguments));
    if (changes) result = in_place(node, arguments.at(0), result);
    const auto* list = result.items();
    // An operator of several outputs gives a list of them; one that returns a list has one output.
    if (list && node.outputs.size() > 1) return *list;
    return {result};
  } catch (const NotTranslated& error) {
    refuse(node, error.what());
  } catch (const UsageError& error) {
    refuse(node, error.what());
  }
  if (node.op == "prim::RaiseException") throw Stopped{};
  return unknown;
}

Thing Follower::in_place(const ForeignNode& node, const Thing& self, const Thing& result) const {
  if (const auto* random = self.as<std::shared_ptr<RandomNumbers>>()) {
    if (const auto* drawn = result.as<std::shared_ptr<RandomNumbers>>()) **random = **drawn;
    return self;
  }
  const ForeignTensor *before = self.tensor(), *after = result.tensor();
  if (!before || !after) return result;
  if (before->form.sizes() != after->form.sizes() || before->form != after->form)
    not_translated("it changes a tensor in place, and its dimensions with it");
  if (before->storage->part)
    not_translated("it changes a part of a tensor in place; write it without the underscore, or inplace=False");
  before->storage->value = after->value();
  return self;
}

void Follower::branch(const ForeignNode& node) {
  const Thing& condition = at(node.inputs.at(0).value);
  const auto truth = truth_of(condition);
  if (!truth) {
    if (!condition.as<Unknown>())
      refuse(node, "a branch that depends on the images' numbers; only branches on shapes and options can be followed");
    throw Stopped{};
  }
  const ForeignBlock& taken = node.blocks.at(*truth ? 0 : 1);
  run(taken);
  std::vector<Thing> out;
  for (const int v : taken.outputs) out.push_back(at(v));
  set(node.outputs, out);
}

// inputs: how often at most, whether at all, and what is carried from turn to turn
void Follower::loop(const ForeignNode& node) {
  const auto most = integer_of(at(node.inputs.at(0).value));
  auto go_on = truth_of(at(node.inputs.at(1).value));
  const ForeignBlock& body = node.blocks.at(0);
  std::vector<Thing> carried;
  for (std::size_t i = 2; i < node.inputs.size(); ++i) carried.push_back(at(node.inputs[i].value));
  for (std::int64_t turn = 0; most && go_on && *go_on && turn < most->value; ++turn) {
    if (turn >= most_turns) {
      refuse(node, concat("a loop of more than ", most_turns, " turns"));
      throw Stopped{};
    }
    std::vector<Thing> inputs{Thing::integer(turn)};
    inputs.insert(inputs.end(), carried.begin(), carried.end());
    set(body.inputs, inputs);
    run(body);
    go_on = truth_of(at(body.outputs.at(0)));
    for (std::size_t i = 0; i < carried.size(); ++i) carried[i] = at(body.outputs.at(i + 1));
  }
  if (!most || !go_on) {
    refuse(node, "a loop that depends on the images' numbers; only loops over shapes and layers can be followed");
    throw Stopped{};
  }
  set(node.outputs, carried);
}

}  // namespace tessera
