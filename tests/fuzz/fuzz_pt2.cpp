// The graph of a .pt2 file: parsed, then followed to a graph of ours.
#include "fuzz/fuzz.h"
#include "tessera/archive/pt2_graph.h"
#include "tessera/import/import.h"

void tessera::fuzz(std::string_view file) {
  Pt2Graph graph = parse_pt2_graph(file);
  ForeignProgram& program = graph.program;
  for (const auto& [name, index] : graph.weights) {
    ForeignNode& node = program.body.nodes.at(index);
    const auto sizes = program.exported_sizes.find(node.outputs.at(0));
    if (sizes == program.exported_sizes.end()) throw Error("a weight of unknown sizes");
    // A tensor that the archive could hold.
    std::int64_t elements = 1;
    for (const std::int64_t size : sizes->second) {
      if (size < 0 || size > 1'000'000 || elements * size > 1'000'000) throw Error("a weight larger than its file");
      elements *= size;
    }
    const StoredTensor& stored =
        program.add({.name = name, .sizes = sizes->second, .trained = true, .value = [](auto) { return 0.5; }});
    node.constant = StoredRef{&stored, stored.sizes};
  }
  const ImportedNetwork network = import_network(program, {.image = {3, 32, 40}});
  must(!network.graph.nodes().empty() || !network.unsupported.empty());
}
