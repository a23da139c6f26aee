#include "tessera/import/import.h"

#include <algorithm>
#include <set>

#include "tessera/base/text.h"
#include "tessera/import/cells.h"
#include "tessera/import/follow.h"
#include "tessera/import/language.h"

namespace tessera {
namespace {

struct Output {
  std::string name;
  Thing thing;
};

// A tensor, or those of a tuple, list or dictionary, by name or number.
void collect(const Thing& thing, const std::string& name, std::vector<Output>& out) {
  const std::string prefix = name.empty() ? "" : name + ".";
  if (const auto* list = thing.as<std::shared_ptr<ListOfThings>>()) {
    for (std::size_t i = 0; i < (*list)->items.size(); ++i)
      collect((*list)->items[i], prefix + (i < (*list)->names.size() ? (*list)->names[i] : std::to_string(i)), out);
  } else if (const auto* dict = thing.as<std::shared_ptr<DictOfThings>>()) {
    for (const auto& [key, value] : (*dict)->items) {
      const auto* word = key.as<std::string>();
      collect(value, prefix + (word ? *word : text_of(key)), out);
    }
  } else if (thing.tensor() || thing.as<Unknown>()) {
    out.push_back({name.empty() ? "0" : name, thing});
  }
}

// The graph again, with nothing in it that the logits of all heads do not depend on, cut into cells, and with its loss.
class Finisher {
 public:
  Finisher(const Translation& from, ImportedNetwork& to) : from_(from), graph_(from.graph), out_(to) {}

  void finish(const std::vector<Value>& heads) {
    std::vector<bool> needed(graph_.nodes().size());
    needed[0] = true;
    for (const Value head : heads) needed[static_cast<std::size_t>(head.id)] = true;
    for (std::size_t n = needed.size(); n-- > 1;)
      if (needed[n])
        for (const Value v : graph_.nodes()[n].inputs) needed[static_cast<std::size_t>(v.id)] = true;
    copy(needed, {});
    std::vector<std::string> modules;
    for (std::size_t n = 0; n < needed.size(); ++n)
      if (needed[n]) modules.push_back(from_.where[n].module);
    copy(needed, find_cells(out_.graph, modules));
    add_loss(heads);
  }

 private:
  void copy(const std::vector<bool>& needed, const std::vector<Cell>& cells) {
    Graph g;
    std::size_t cell = 0, added = 0;
    for (std::size_t n = 0; n < needed.size(); ++n) {
      if (!needed[n]) continue;
      if (cell < cells.size() && cells[cell].first_node == static_cast<int>(added)) g.cell(cells[cell++].name);
      const Node& node = graph_.nodes()[n];
      if (n == 0) {
        place_[n] = g.input(node.shape);
      } else {
        std::vector<Value> inputs;
        for (const Value v : node.inputs) inputs.push_back(place_[static_cast<std::size_t>(v.id)]);
        place_[n] = g.add_node(node.op, inputs, node.name);
        g.parameters_of(place_[n]) = node.parameters;
      }
      ++added;
    }
    out_.graph = std::move(g);
  }

  void add_loss(const std::vector<Value>& heads) {
    Graph& g = out_.graph;
    std::vector<Value> auxiliary;
    for (const Value head : heads) auxiliary.push_back(place_[static_cast<std::size_t>(head.id)]);
    const Value main = auxiliary.front();
    auxiliary.erase(auxiliary.begin());
    if (g.shape(main).positions() == 1)
      g.cross_entropy(main, auxiliary);
    else
      g.pixel_cross_entropy(main, auxiliary);
  }

  const Translation& from_;
  const Graph& graph_;
  ImportedNetwork& out_;
  std::map<std::size_t, Value> place_;
};

// What has a label for every pixel comes in the rows and columns of the images.
Value to_the_images(Translation& t, Value v) {
  const Shape image = t.graph.nodes().front().shape, shape = t.graph.shape(v);
  if (shape.positions() == 1 || (shape.height == image.height && shape.width == image.width)) return v;
  const ResizeOptions o{.mode = ResizeMode::bilinear, .size = Pair{image.height, image.width}};
  const Value out = t.graph.add_node(std::make_shared<Resize>(o), {v}, t.name_for("", "logits"));
  t.where.resize(t.graph.nodes().size());
  return out;
}

Value logits_of(Translation& t, const Output& output) {
  static const ForeignNode nowhere;
  const ForeignTensor& x = *output.thing.tensor();
  try {
    return to_the_images(t, Call(t, nowhere, {}).planes(x));
  } catch (const NotTranslated&) {
    throw UsageError(concat("the network's output '", output.name, "' is ", text_of(output.thing),
                            "; it must be N x classes, or N x classes x rows x columns"));
  }
}

}  // namespace

ImportedNetwork import_network(const ForeignProgram& program, const ImportOptions& options) {
  ImportedNetwork out;
  Translation t(program, options);
  const std::vector<Thing> results = Follower(program, t, out.unsupported).run();
  std::vector<Output> outputs;
  for (const auto& thing : results)
    if (results.size() == 1)
      collect(thing, "", outputs);
    else
      collect(thing, std::to_string(outputs.size()), outputs);
  if (program.output_names.size() == outputs.size())
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].name = program.output_names[i];
  for (const auto& output : outputs) out.outputs.push_back(output.name);
  out.norms = t.norms;
  out.frozen_norms = t.frozen_norms;
  out.dropouts = t.dropouts;
  out.idle_dropouts = t.idle_dropouts;
  auto main = outputs.begin();
  if (!options.output.empty()) {
    main = std::ranges::find(outputs, options.output, &Output::name);
    require(main != outputs.end() || !out.unsupported.empty(), "--model-output ", options.output,
            ": the network returns ", join(out.outputs, ", "));
  }
  // What only outputs depend on that are not trained is not needed.
  const auto known = [](const Output& output) { return output.thing.tensor() != nullptr; };
  if (main != outputs.end() && (options.auxiliary ? std::ranges::all_of(outputs, known) : known(*main)))
    std::erase_if(out.unsupported, [](const Unsupported& u) { return !u.everywhere; });
  if (!out.unsupported.empty()) return out;
  require(main != outputs.end(), "the network returns no tensor");
  out.trained = main->name;
  ensure(main->thing.tensor() != nullptr, "an output that is not known");
  std::vector<Value> heads{logits_of(t, *main)};
  if (options.auxiliary)
    for (auto other = outputs.begin(); other != outputs.end(); ++other) {
      if (other == main) continue;
      out.auxiliary.push_back(other->name);
      heads.push_back(logits_of(t, *other));
    }
  Finisher(t, out).finish(heads);
  std::set<std::string> used;
  for (const auto& [name, spec] : out.graph.parameters()) {
    used.insert(name);
    out.fixed += spec.fixed;
  }
  for (const auto& [name, tensor] : program.by_name)
    if (!used.contains(name)) out.unused.push_back(name);
  return out;
}

std::string text_of(const std::vector<Unsupported>& unsupported) {
  std::vector<std::string> lines;
  for (const auto& u : unsupported) {
    constexpr std::size_t most = 4;
    std::vector<std::string> places;
    for (const auto& w : u.where) {
      if (places.size() == most) {
        places.push_back(concat("and ", u.where.size() - most, " more"));
        break;
      }
      places.push_back(concat(w.module.empty() ? "the network itself" : concat("'", w.module, "'"),
                              w.source.empty() ? "" : concat(" (", w.source, ")")));
    }
    lines.push_back(concat(u.op, " in ", join(places, ", "), ": ", u.why));
  }
  return join(lines, "\n");
}

}  // namespace tessera
