#include "tessera/archive/torchscript.h"

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <map>

#include "tessera/archive/stored.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

namespace jit = torch::jit;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Writes out the code of a module and of all modules and functions that it calls as one program.
class Converter {
 public:
  Converter(const jit::Module& module, ForeignProgram& program) : program_(program) {
    for (const auto& p : module.named_parameters())
      tensors_[p.name] = &program_.add(stored_tensor(p.name, p.value, p.value.requires_grad()));
    for (const auto& b : module.named_buffers())
      tensors_[b.name] = &program_.add(stored_tensor(b.name, b.value, false));
    const auto method = module.find_method("forward");
    require(method.has_value(), "it has no method 'forward'");
    const auto graph = jit::toGraphFunction(method->function()).graph();
    Scope scope;
    scope.values[graph->inputs().at(0)] = Object{"", module._ivalue()};
    require(graph->inputs().size() >= 2, "its method 'forward' takes no images");
    const auto& arguments = method->function().getSchema().arguments();
    for (std::size_t i = 1; i < graph->inputs().size(); ++i) {
      const int id = new_value();
      scope.values[graph->inputs()[i]] = id;
      if (i == 1) {
        program_.body.inputs = {id};
        continue;
      }
      const auto& otherwise = arguments.at(i).default_value();
      require(otherwise.has_value(), "its method 'forward' takes '", arguments[i].name(), "' beside the images");
      program_.body.nodes.push_back(constant(id, *otherwise));
    }
    convert(graph->block(), scope, program_.body);
    for (const auto* v : graph->outputs()) program_.body.outputs.push_back(id_of(v, scope, program_.body));
    program_.values = next_;
  }

 private:
  struct Object {
    std::string path;
    c10::IValue value;
  };
  // Values of the program have numbers; modules and functions are known while the code is written out.
  using Slot = std::variant<int, Object, const jit::Function*>;
  struct Scope {
    std::map<const jit::Value*, Slot> values;
    std::string path;
    int depth = 0;
  };

  int new_value() { return next_++; }

  ForeignNode constant(int id, const c10::IValue& value, const std::string& name = {}) {
    ForeignNode node{.op = "prim::Constant", .inputs = {}, .outputs = {id}};
    node.constant = thing_of(value, name);
    return node;
  }

  Thing thing_of(const c10::IValue& value, const std::string& name) {
    if (value.isNone()) return {};
    if (value.isBool()) return value.toBool();
    if (value.isInt()) return Thing::integer(value.toInt());
    if (value.isDouble()) return value.toDouble();
    if (value.isString()) return value.toStringRef();
    if (value.isTensor()) return tensor_thing(value.toTensor(), name);
    if (value.isList() || value.isTuple()) {
      std::vector<Thing> items;
      if (value.isTuple())
        for (const auto& item : value.toTupleRef().elements()) items.push_back(thing_of(item, {}));
      else
        for (const auto& item : value.toListRef()) items.push_back(thing_of(item, {}));
      return Thing::list(std::move(items));
    }
    if (value.isGenericDict()) {
      auto dict = std::make_shared<DictOfThings>();
      for (const auto& item : value.toGenericDict())
        dict->items.emplace_back(thing_of(item.key(), {}), thing_of(item.value(), {}));
      return dict;
    }
    return {};  // devices and the like
  }

  Thing tensor_thing(const at::Tensor& tensor, const std::string& name) {
    if (!tensor.defined()) return {};
    const StoredTensor* stored = nullptr;
    if (const auto found = tensors_.find(name); !name.empty() && found != tensors_.end()) {
      stored = found->second;
    } else if (tensor.dim() == 0 && tensor.is_floating_point()) {
      return tensor.item<double>();
    } else if (tensor.dim() == 0) {
      return Thing::integer(tensor.item<std::int64_t>());
    } else {
      stored = &program_.add(stored_tensor("", tensor, false));
    }
    return StoredRef{stored, stored->sizes};
  }

  int id_of(const jit::Value* value, Scope& scope, ForeignBlock& block) {
    const auto found = scope.values.find(value);
    if (found != scope.values.end())
      if (const int* id = std::get_if<int>(&found->second)) return *id;
    // A module that is handed on as a value; whoever looks at it finds nothing.
    const int id = new_value();
    block.nodes.push_back({.op = "prim::Constant", .inputs = {}, .outputs = {id}, .constant = Thing()});
    return id;
  }

  static const Object* object_of(const jit::Value* value, const Scope& scope) {
    const auto found = scope.values.find(value);
    return found == scope.values.end() ? nullptr : std::get_if<Object>(&found->second);
  }

  Whereabouts where(const jit::Node& node, const Scope& scope) {
    Whereabouts out{scope.path, ""};
    auto range = node.sourceRange();
    if (const auto source = range.source())
      if (const auto original = source->findSourceRangeThatGenerated(range)) range = *original;
    if (const auto place = range.file_line_col()) {
      const auto& [file, line, column] = *place;
      if (file.find("code/") != 0) out.source = concat(file.substr(file.rfind('/') + 1), ":", line);
    }
    return out;
  }

  void convert(const jit::Block* from, Scope& scope, ForeignBlock& to) {
    for (const jit::Node* node : from->nodes()) convert(*node, scope, to);
  }

  void convert(const jit::Node& node, Scope& scope, ForeignBlock& to) {
    switch (node.kind()) {
      case c10::prim::Constant:
        return convert_constant(node, scope, to);
      case c10::prim::GetAttr:
        return convert_attribute(node, scope, to);
      case c10::prim::SetAttr:
        return convert_set_attribute(node, scope, to);
      case c10::prim::CallMethod:
        return convert_call(node, scope, to, method_of(node, scope));
      case c10::prim::CallFunction:
        return convert_call(node, scope, to, function_of(node, scope));
      default:
        return convert_operator(node, scope, to);
    }
  }

  void convert_constant(const jit::Node& node, Scope& scope, ForeignBlock& to) {
    const jit::Value* out = node.output();
    if (const auto type = out->type()->cast<c10::FunctionType>()) {
      scope.values[out] = static_cast<const jit::Function*>(type->function());
      return;
    }
    const int id = new_value();
    scope.values[out] = id;
    const auto value = jit::toIValue(out);
    to.nodes.push_back(constant(id, value ? *value : c10::IValue()));
  }

  void convert_attribute(const jit::Node& node, Scope& scope, ForeignBlock& to) {
    const std::string name = node.s(c10::attr::name);
    const Object* object = object_of(node.input(), scope);
    if (!object) return convert_operator(node, scope, to);
    const std::string path = object->path.empty() ? name : concat(object->path, ".", name);
    const c10::IValue value = object->value.toObjectRef().getAttr(name);
    if (value.isObject()) {
      scope.values[node.output()] = Object{path, value};
      return;
    }
    const int id = new_value();
    scope.values[node.output()] = id;
    to.nodes.push_back(constant(id, value, path));
  }

  // Batches are counted by the engine; anything else that a network remembers is not supported.
  void convert_set_attribute(const jit::Node& node, Scope& scope, ForeignBlock& to) {
    const std::string name = node.s(c10::attr::name);
    if (name == "num_batches_tracked") return;
    to.nodes.push_back(
        {.op = concat("prim::SetAttr of '", name, "'"), .inputs = {}, .outputs = {}, .where = where(node, scope)});
  }

  static const jit::Function* function_of(const jit::Node& node, const Scope& scope) {
    const auto found = scope.values.find(node.input(0));
    const auto* function = found == scope.values.end() ? nullptr : std::get_if<const jit::Function*>(&found->second);
    return function ? *function : nullptr;
  }

  static const jit::Function* method_of(const jit::Node& node, const Scope& scope) {
    const Object* object = object_of(node.input(0), scope);
    return object ? object->value.toObjectRef().type()->findMethod(node.s(c10::attr::name)) : nullptr;
  }

  void convert_call(const jit::Node& node, Scope& scope, ForeignBlock& to, const jit::Function* function) {
    constexpr int most_calls = 500;  // in each other
    if (!function || !function->isGraphFunction() || scope.depth > most_calls) return convert_operator(node, scope, to);
    const auto graph = jit::toGraphFunction(*const_cast<jit::Function*>(function)).graph();
    Scope inner{.values = {}, .path = scope.path, .depth = scope.depth + 1};
    const bool method = node.kind() == c10::prim::CallMethod;
    if (method) inner.path = object_of(node.input(0), scope)->path;
    for (std::size_t i = 0; i < graph->inputs().size(); ++i) {
      const jit::Value* given = node.input(i + (method ? 0 : 1));
      const auto found = scope.values.find(given);
      inner.values[graph->inputs()[i]] = found == scope.values.end() ? Slot(id_of(given, scope, to)) : found->second;
    }
    convert(graph->block(), inner, to);
    for (std::size_t i = 0; i < node.outputs().size(); ++i) {
      const auto found = inner.values.find(graph->outputs()[i]);
      scope.values[node.outputs()[i]] =
          found == inner.values.end() ? Slot(id_of(graph->outputs()[i], inner, to)) : found->second;
    }
  }

  void convert_operator(const jit::Node& node, Scope& scope, ForeignBlock& to) {
    ForeignNode out{.op = node.kind().toQualString(), .inputs = {}, .outputs = {}, .where = where(node, scope)};
    const auto* schema = node.maybeSchema();
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      const bool named = schema && i < schema->arguments().size();
      out.inputs.push_back({named ? schema->arguments()[i].name() : "", id_of(node.input(i), scope, to)});
    }
    if (node.kind() == c10::prim::TupleConstruct)
      if (const auto type = node.output()->type()->cast<c10::TupleType>(); type && type->schema())
        for (const auto& field : type->schema()->arguments()) out.names.push_back(field.name());
    for (const jit::Block* block : node.blocks()) {
      ForeignBlock inner;
      for (const auto* v : block->inputs()) scope.values[v] = inner.inputs.emplace_back(new_value());
      convert(block, scope, inner);
      for (const auto* v : block->outputs()) inner.outputs.push_back(id_of(v, scope, inner));
      out.blocks.push_back(std::move(inner));
    }
    for (const auto* v : node.outputs()) scope.values[v] = out.outputs.emplace_back(new_value());
    to.nodes.push_back(std::move(out));
  }

  ForeignProgram& program_;
  std::map<std::string, const StoredTensor*> tensors_;
  int next_ = 0;
};

void collect(const c10::IValue& value, std::vector<at::Tensor>& out) {
  if (value.isTensor())
    out.push_back(value.toTensor());
  else if (value.isTuple())
    for (const auto& item : value.toTupleRef().elements()) collect(item, out);
  else if (value.isList())
    for (const auto& item : value.toListRef()) collect(item, out);
  else if (value.isGenericDict())
    for (const auto& item : value.toGenericDict()) collect(item.value(), out);
}

// The module of the file itself.
class ScriptNetwork final : public ForeignNetwork {
 public:
  ScriptNetwork(jit::Module module, const at::TensorOptions& options) : module_(std::move(module)) {
    module_.to(options.device(), options.dtype().toScalarType());
  }

  void bind(const std::string& name, const at::Tensor& tensor) override {
    jit::Module owner = module_;
    std::size_t begin = 0;
    for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.', begin)) {
      owner = owner.attr(name.substr(begin, dot - begin)).toModule();
      begin = dot + 1;
    }
    owner.setattr(name.substr(begin), tensor);
  }

  std::vector<at::Tensor> forward(const at::Tensor& images) override {
    // As it is written. From its second run on, torch would derive it by formulas of its own, which lose digits: the
    // gradient of a leaky ReLU in float64 was seen to be off by 1.6e-9.
    const jit::GraphOptimizerEnabledGuard as_written(false);
    std::vector<at::Tensor> out;
    collect(module_.forward({images}), out);
    return out;
  }

 private:
  jit::Module module_;
};

class ScriptFile final : public NetworkFile {
 public:
  explicit ScriptFile(std::string path) : path_(std::move(path)), module_(loaded(path_)) {
    try {
      Converter(module_, program_);
    } catch (const UsageError& error) {
      throw UsageError(concat("--model ", path_, ": ", error.what()));
    }
    for (const auto& p : module_.named_parameters()) tensors_[p.name] = p.value;
    for (const auto& b : module_.named_buffers()) tensors_[b.name] = b.value;
  }

  const ForeignProgram& program() const override { return program_; }
  std::unique_ptr<ForeignNetwork> network(const at::TensorOptions& options) const override {
    return std::make_unique<ScriptNetwork>(loaded(path_), options);
  }
  at::Tensor tensor(const std::string& name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? at::Tensor() : found->second;
  }
  std::string kind() const override { return "TorchScript"; }

 private:
  static jit::Module loaded(const std::string& path) {
    try {
      return jit::load(path, at::Device(at::kCPU));
    } catch (const std::exception& error) {
      throw UsageError(concat("--model ", path, " cannot be loaded: ", first_line(error.what())));
    }
  }

  std::string path_;
  jit::Module module_;
  ForeignProgram program_;
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace

std::shared_ptr<const NetworkFile> open_torchscript(const std::string& path) {
  return std::make_shared<ScriptFile>(path);
}

}  // namespace tessera
