#include "tessera/archive/interpreter.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/scalar_tensor.h>

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
    for (const auto& node : program_.body.nodes) run(node);
    std::vector<at::Tensor> out;
    for (const int v : program_.body.outputs) out.push_back(at(v).toTensor());
    return out;
  }

 private:
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
    const auto op =
        c10::Dispatcher::singleton().findSchema({node.op, node.overload == "default" ? std::string() : node.overload});
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
        stack.push_back(given ? converted(at(given->value), argument.type(), argument.name())
                              : argument.default_value().value_or(c10::IValue()));
    }
    op->callBoxed(&stack);
    for (std::size_t i = 0; i < node.outputs.size() && i < stack.size(); ++i) at(node.outputs[i]) = stack[i];
  }

  // Lists of the kind that the operator wants. A first size that is the number of samples at the export is that of now.
  c10::IValue converted(const c10::IValue& value, const c10::TypePtr& type, const std::string& name) const {
    if (const auto optional = type->cast<c10::OptionalType>())
      return value.isNone() ? value : converted(value, optional->getElementType(), name);
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
    const auto& exported = program_.exported_images;
    if ((name == "size" || name == "shape") && !exported.empty() && list.size() > 1 && list.get(0) == exported[0])
      list.set(0, samples_);
    return list;
  }

  const ForeignProgram& program_;
  std::map<std::string, at::Tensor> tensors_;
  std::vector<c10::IValue> values_;
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
