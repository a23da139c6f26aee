#include "tessera/ops/kernel.h"

#include "tessera/base/error.h"

namespace tessera {

Slab Kernel::recompute(const ForwardArgs&) {
  ensure(false, "this operation's output cannot be made again");
  return {};
}

std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Node& node, NodeParameters parameters) {
  const auto shapes = graph.input_shapes(node);
  const Operation* op = node.op.get();
  if (auto* o = dynamic_cast<const Conv*>(op)) return make_conv_kernel(*o, shapes[0], std::move(parameters));
  if (auto* o = dynamic_cast<const ConvTranspose*>(op))
    return make_conv_transpose_kernel(*o, shapes[0], std::move(parameters));
  if (auto* o = dynamic_cast<const Upsample*>(op)) return make_upsample_kernel(*o, shapes[0]);
  if (auto* o = dynamic_cast<const MaxPool*>(op)) return make_max_pool_kernel(*o, shapes[0]);
  if (auto* o = dynamic_cast<const AvgPool*>(op)) return make_avg_pool_kernel(*o, shapes[0]);
  if (dynamic_cast<const GlobalAvgPool*>(op)) return make_global_avg_pool_kernel(shapes[0]);
  if (dynamic_cast<const Concat*>(op)) return make_concat_kernel(shapes);
  if (auto* o = dynamic_cast<const Dropout*>(op)) return make_dropout_kernel(*o, shapes[0], node.name);
  if (dynamic_cast<const Flatten*>(op)) return make_flatten_kernel(shapes[0]);
  if (auto* o = dynamic_cast<const Linear*>(op)) return make_linear_kernel(*o, std::move(parameters));
  if (auto* o = dynamic_cast<const CrossEntropy*>(op)) return make_cross_entropy_kernel(*o);
  throw Error(concat("node '", node.name, "': there is no kernel for operation '", op->kind(), "'"));
}

}  // namespace tessera
