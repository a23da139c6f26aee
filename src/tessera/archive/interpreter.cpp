#include "tessera/archive/interpreter.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/scalar_tensor.h>

#include <set>

#include "tessera/base/error.h"

namespace tessera {
namespace {

class Interpreter final : public ForeignNetwork {
 public:
  Interpreter(const ForeignProgram& program, const std::map<std::string, at::Tensor>& tensors,
              const at::TensorOptions& options)
      : program_(program) {
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor copy = tensor.detach().clone().to(options.device());
      tensors_[name] = copy.is_floating_point() ? copy.to(options.dtype().toScalarType()) : copy;
    }
  }

  void bind(const std::string& name, const at::Tensor& tensor) override { tensors_[name] = tensor; }

  std::vector<at::Tensor> forward(const at::Tensor& images) override {
    values_.assign(static_cast<std::size_t>(program_.values), {});
    samples_ = images.size(0);
    device_ = images.device();
    at(program_.body.inputs[0]) = images;
    sizes_.clear();
    note_size(program_.body.inputs[0]);
    for (const auto& node : program_.body.nodes) {
      run(node);
      for (const int v : node.outputs) note_size(v);
    }
    std::vector<at::Tensor> out;
    for (const int v : program_.body.outputs) out.push_back(at(v).toTensor());
    for (const auto& [name, value] : program_.renewed)
      if (const auto buffer = tensors_.find(name); buffer != tensors_.end())
        buffer->second.copy_(at(value).toTensor().detach());
    return out;
  }

 private:
  // What rows and columns at the export have become.
  void note_size(int value) {
    const auto exported = program_.exported_sizes.find(value);
    if (exported == program_.exported_sizes.end() || exported->second.size() != 4 || !at(value).isTensor()) return;
    const at::Tensor now = at(value).toTensor();
    if (now.dim() == 4) sizes_[{exported->second[2], exported->second[3]}].insert({now.size(2), now.size(3)});
  }

  // Sizes that are written into the code, for the images of now: as the importer makes them relative (call.h).
  void make_relative(c10::List<std::int64_t>& sizes, const ForeignNode& node) const {
    const auto& exported = program_.exported_images;
    if (exported.empty()) return;
    const bool planes = is_size_of_planes(node.op);
    if (!planes && sizes.size() > 1 && sizes.get(0) == exported[0]) sizes.set(0, samples_);
    // A module has its size from whoever wrote it.
    const bool constant = node.where.kind.find("Adaptive") != std::string::npos;
    if (constant || sizes.size() < (planes ? 2 : 4)) return;
    const std::size_t n = sizes.size();
    if (sizes.get(n - 2) == 1 && sizes.get(n - 1) == 1) return;
    const auto found = sizes_.find({sizes.get(n - 2), sizes.get(n - 1)});
    if (found == sizes_.end() || found->second.size() != 1) return;
    sizes.set(n - 2, found->second.begin()->first);
    sizes.set(n - 1, found->second.begin()->second);
  }

  // Rows and columns alone.
  static bool is_size_of_planes(const std::string& op) {
    return op.starts_with("aten::upsample") || op.starts_with("aten::adaptive");
  }

  c10::IValue& at(int value) { return values_.at(static_cast<std::size_t>(value)); }

  c10::IValue constant(const Thing& thing) const {
    if (const auto* stored = thing.as<StoredRef>()) return tensors_.at(stored->tensor->name);
    if (const auto* b = thing.as<bool>()) return *b;
    if (const auto* i = thing.as<Integer>()) return i->value;
    if (const auto* d = thing.as<double>()) return *d;
    if (const auto* s = thing.as<std::string>()) return *s;
    if (const auto* items = thing.items()) {
      c10::impl::GenericList list(c10::AnyType::get());
      for (const auto& item : *items) list.push_back(constant(item));
      return list;
    }
    return {};
  }

  void run(const ForeignNode& node) {
    if (node.constant) {
      at(node.outputs[0]) = constant(*node.constant);
    } else if (node.op == "prim::ListConstruct") {
      c10::impl::GenericList list(c10::AnyType::get());
      for (const auto& input : node.inputs) list.push_back(at(input.value));
      at(node.outputs[0]) = list;
    } else if (node.op == "prim::ListUnpack") {
      const auto list = at(node.inputs[0].value).toList();
      for (std::size_t i = 0; i < node.outputs.size(); ++i) at(node.outputs[i]) = list.get(i);
    } else {
      call(node);
    }
  }

  void call(const ForeignNode& node) {
    // What torch 1.13 does not have yet.
    const bool in_place = node.op == "aten::_native_batch_norm_legit_functional";
    const std::string name = in_place ? "aten::native_batch_norm" : node.op;
    const auto op =
        c10::Dispatcher::singleton().findSchema({name, node.overload == "default" ? std::string() : node.overload});
    if (!op) throw Error(concat("this torch has no operator ", node.op, ".", node.overload));
    std::vector<c10::IValue> stack;
    for (const auto& argument : op->schema().arguments()) {
      const ForeignArgument* given = nullptr;
      for (const auto& input : node.inputs)
        if (input.name == argument.name()) given = &input;
      // What the network makes itself, the noise of stochastic depth say, was made on the exporting machine's device.
      if (argument.name() == "device")
        stack.emplace_back(device_);
      else
        stack.push_back(given ? converted(at(given->value), argument.type(), argument.name(), node)
                              : argument.default_value().value_or(c10::IValue()));
    }
    if (in_place) {  // the statistics that are changed are copies, and come out as well
      stack[3] = stack[3].toTensor().clone();
      stack[4] = stack[4].toTensor().clone();
    }
    const std::vector<c10::IValue> statistics(in_place ? stack.begin() + 3 : stack.end(),
                                              in_place ? stack.begin() + 5 : stack.end());
    op->callBoxed(&stack);
    stack.insert(stack.end(), statistics.begin(), statistics.end());
    for (std::size_t i = 0; i < node.outputs.size() && i < stack.size(); ++i) at(node.outputs[i]) = stack[i];
  }

  // Lists of the kind that the operator wants.
  c10::IValue converted(const c10::IValue& value, const c10::TypePtr& type, const std::string& name,
                        const ForeignNode& node) const {
    if (const auto optional = type->cast<c10::OptionalType>())
      return value.isNone() ? value : converted(value, optional->getElementType(), name, node);
    if (type->kind() == c10::TypeKind::FloatType && value.isInt()) return static_cast<double>(value.toInt());
    if (type->kind() == c10::TypeKind::TensorType && (value.isInt() || value.isDouble())) {
      // A number of the code, which does not change the type of what it is added to: counters stay whole numbers.
      const at::Tensor number = at::scalar_tensor(value.toScalar(), value.isInt() ? at::kLong : at::kDouble);
      number.unsafeGetTensorImpl()->set_wrapped_number(true);
      return number;
    }
    const auto list_type = type->cast<c10::ListType>();
    if (!list_type) return value;
    const auto element = list_type->getElementType();
    std::vector<c10::IValue> items;
    if (value.isList())
      for (const auto& item : value.toListRef()) items.push_back(item);
    else
      items.push_back(value);
    if (element->kind() == c10::TypeKind::TensorType) {
      c10::List<at::Tensor> list;
      for (const auto& item : items) list.push_back(item.toTensor());
      return list;
    }
    if (element->kind() == c10::TypeKind::FloatType) {
      c10::List<double> list;
      for (const auto& item : items) list.push_back(item.toScalar().toDouble());
      return list;
    }
    c10::List<std::int64_t> list;
    for (const auto& item : items) list.push_back(item.toInt());
    if (name == "size" || name == "shape" || name == "output_size") make_relative(list, node);
    return list;
  }

  const ForeignProgram& program_;
  std::map<std::string, at::Tensor> tensors_;
  std::vector<c10::IValue> values_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::set<std::pair<std::int64_t, std::int64_t>>> sizes_;
  std::int64_t samples_ = 0;
  at::Device device_ = at::kCPU;
};

}  // namespace

std::unique_ptr<ForeignNetwork> interpreted(const ForeignProgram& program,
                                            const std::map<std::string, at::Tensor>& tensors,
                                            const at::TensorOptions& options) {
  return std::make_unique<Interpreter>(program, tensors, options);
}

}  // namespace tessera
