#include "tessera/archive/pt2_graph.h"

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

class Parser {
 public:
  explicit Parser(const Json& json) : module_(json.at("graph_module")), graph_(module_.at("graph")) {}

  Pt2Graph parse() {
    ForeignProgram& program = out_.program;
    for (const auto& spec : module_.at("signature").at("input_specs")) add_input(spec);
    if (program.body.inputs.size() != 1)
      throw Error(concat("the network takes ", program.body.inputs.size(), " inputs, not images alone"));
    for (const auto& node : graph_.at("nodes")) add_node(node);
    const Json& outputs = graph_.at("outputs");
    const Json specs = module_.at("signature").value("output_specs", Json::array());
    for (std::size_t i = 0; i < outputs.size(); ++i) add_output(outputs[i], i < specs.size() ? specs[i] : Json());
    name_outputs();
    for (const auto& [name, meta] : graph_.at("tensor_values").items()) {
      const auto found = values_.find(name);
      std::vector<std::int64_t> sizes;
      for (const auto& size : meta.at("sizes"))
        if (const auto number = size.find("as_int"); number != size.end()) sizes.push_back(number->get<std::int64_t>());
      if (found == values_.end() || sizes.size() != meta.at("sizes").size()) continue;
      program.exported_sizes[found->second] = sizes;
      if (found->second == program.body.inputs[0] && sizes.size() == 4) program.exported_images = sizes;
    }
    program.values = next_;
    return std::move(out_);
  }

 private:
  int value(const std::string& name) {
    const auto [found, fresh] = values_.emplace(name, next_);
    next_ += fresh;
    return found->second;
  }

  // {"parameter": {"arg": {"name": ...}, "parameter_name": ...}}, a buffer, a constant, or what the user gives.
  void add_input(const Json& spec) {
    if (const auto user = spec.find("user_input"); user != spec.end()) {
      const Json& argument = user->at("arg");
      if (argument.contains("as_tensor"))
        out_.program.body.inputs.push_back(value(argument.at("as_tensor").at("name").get<std::string>()));
      return;
    }
    for (const auto& [kind, field] : {std::pair{"parameter", "parameter_name"}, std::pair{"buffer", "buffer_name"},
                                      std::pair{"tensor_constant", "tensor_constant_name"}}) {
      const auto found = spec.find(kind);
      if (found == spec.end()) continue;
      const int id = value(found->at("arg").at("name").get<std::string>());
      const std::string name = found->at(field).get<std::string>();
      out_.weights[name] = out_.program.body.nodes.size();
      const auto& values = graph_.at("tensor_values");
      const auto meta = values.find(found->at("arg").at("name").get<std::string>());
      out_.trained[name] =
          std::string_view(kind) == "parameter" && meta != values.end() && meta->value("requires_grad", false);
      out_.program.body.nodes.push_back({.op = "prim::Constant", .inputs = {}, .outputs = {id}, .constant = Thing()});
      return;
    }
    throw Error(concat("an input of an unknown kind: ", spec.dump().substr(0, 80)));
  }

  int constant(Thing thing) {
    const int id = next_++;
    out_.program.body.nodes.push_back(
        {.op = "prim::Constant", .inputs = {}, .outputs = {id}, .constant = std::move(thing)});
    return id;
  }

  // A list of things that are known only when the program is followed.
  int list(const std::vector<int>& items) {
    ForeignNode node{.op = "prim::ListConstruct", .inputs = {}, .outputs = {next_++}};
    for (const int item : items) node.inputs.push_back({"", item});
    out_.program.body.nodes.push_back(node);
    return node.outputs[0];
  }

  int symbol(const Json& json) {
    if (const auto name = json.find("as_name"); name != json.end()) return value(name->get<std::string>());
    return constant(Thing::integer(json.at("as_int").get<std::int64_t>()));
  }

  int argument(const Json& json) {
    if (!json.is_object() || json.empty()) throw Error("an argument that is no object");
    const std::string kind = json.begin().key();
    const Json& content = json.begin().value();
    if (kind == "as_tensor") return value(content.at("name").get<std::string>());
    if (kind == "as_tensors") return named_list(content);
    if (kind == "as_sym_int") return symbol(content);
    if (kind == "as_sym_ints") {
      std::vector<int> items;
      for (const auto& item : content) items.push_back(symbol(item));
      return list(items);
    }
    if (kind == "as_int" || kind == "as_scalar_type") return constant(Thing::integer(content.get<std::int64_t>()));
    if (kind == "as_float") return constant(content.get<double>());
    if (kind == "as_bool") return constant(content.get<bool>());
    if (kind == "as_string") return constant(content.get<std::string>());
    if (kind == "as_ints" || kind == "as_floats" || kind == "as_bools") {
      std::vector<Thing> items;
      for (const auto& item : content)
        items.push_back(kind == "as_ints"     ? Thing::integer(item.get<std::int64_t>())
                        : kind == "as_floats" ? Thing(item.get<double>())
                                              : Thing(item.get<bool>()));
      return constant(Thing::list(std::move(items)));
    }
    return constant(Thing());  // None, devices, memory formats
  }

  int named_list(const Json& names) {
    std::vector<int> items;
    for (const auto& item : names) items.push_back(value(item.at("name").get<std::string>()));
    return list(items);
  }

  // "torch.ops.aten.conv2d.default" is "aten::conv2d".
  void add_node(const Json& json) {
    std::string target = json.at("target").get<std::string>();
    ForeignNode node;
    if (const std::string prefix = "torch.ops."; target.starts_with(prefix)) {
      target = target.substr(prefix.size());
      const auto first = target.find('.'), second = target.find('.', first + 1);
      node.op = concat(target.substr(0, first), "::", target.substr(first + 1, second - first - 1));
      node.overload = second == std::string::npos ? "" : target.substr(second + 1);
    } else {
      node.op = target;
    }
    for (const auto& input : json.at("inputs"))
      node.inputs.push_back({input.at("name").get<std::string>(), argument(input.at("arg"))});
    if (json.contains("metadata")) node.where = where(json.at("metadata"));
    std::vector<int> unpacked;
    for (const auto& output : json.at("outputs")) {
      if (const auto several = output.find("as_tensors"); several != output.end()) {
        for (const auto& item : *several) unpacked.push_back(value(item.at("name").get<std::string>()));
        node.outputs.push_back(next_++);
      } else if (const auto one = output.find("as_tensor"); one != output.end()) {
        node.outputs.push_back(value(one->at("name").get<std::string>()));
      } else if (const auto number = output.find("as_sym_int"); number != output.end() && number->contains("as_name")) {
        node.outputs.push_back(value(number->at("as_name").get<std::string>()));
      } else {
        node.outputs.push_back(next_++);
      }
    }
    const int packed = node.outputs.empty() ? -1 : node.outputs.back();
    out_.program.body.nodes.push_back(std::move(node));
    if (!unpacked.empty())
      out_.program.body.nodes.push_back({.op = "prim::ListUnpack", .inputs = {{"", packed}}, .outputs = unpacked});
  }

  // "L__self__,,ResNet;L__self___layer1,layer1,Sequential": the last module's path.
  static Whereabouts where(const Json& metadata) {
    Whereabouts out;
    if (const auto stack = metadata.find("nn_module_stack"); stack != metadata.end() && stack->is_string()) {
      std::string last = stack->get<std::string>();
      last = last.substr(last.rfind(';') + 1);
      const auto first = last.find(','), second = last.find(',', first + 1);
      if (second != std::string::npos) {
        out.module = last.substr(first + 1, second - first - 1);
        out.kind = last.substr(second + 1);
      }
    }
    if (const auto trace = metadata.find("stack_trace"); trace != metadata.end() && trace->is_string()) {
      const std::string text = trace->get<std::string>();
      const auto line = text.rfind(", line "), slash = text.rfind('/', line), quote = text.rfind('"', line);
      if (line != std::string::npos && slash != std::string::npos && quote != std::string::npos && slash < quote)
        out.source = concat(text.substr(slash + 1, quote - slash - 1), ":",
                            text.substr(line + 7, text.find(',', line + 7) - line - 7));
    }
    return out;
  }

  // What the user gets, and what buffers become: code before torch 2.6, or after run_decompositions(), returns these
  // too.
  void add_output(const Json& output, const Json& spec) {
    const auto tensor = output.find("as_tensor");
    if (tensor == output.end()) return;
    const auto found = values_.find(tensor->at("name").get<std::string>());
    if (found == values_.end()) return;
    if (const auto buffer = spec.find("buffer_mutation"); buffer != spec.end())
      out_.program.renewed[buffer->at("buffer_name").get<std::string>()] = found->second;
    else if (spec.empty() || spec.contains("user_output"))
      out_.program.body.outputs.push_back(found->second);
  }

  // The keys of a dictionary, where the network returns one: the context of its tree.
  void name_outputs() {
    const auto calls = module_.find("module_call_graph");
    if (calls == module_.end() || calls->empty()) return;
    const auto signature = calls->at(0).find("signature");
    if (signature == calls->at(0).end() || !signature->is_object() || !signature->contains("out_spec")) return;
    const Json spec = Json::parse(signature->at("out_spec").get<std::string>(), nullptr, false);
    if (!spec.is_array() || spec.size() != 2 || !spec[1].is_object()) return;
    const auto context = spec[1].find("context");
    if (context == spec[1].end() || !context->is_string()) return;
    const Json keys = Json::parse(context->get<std::string>(), nullptr, false);
    if (!keys.is_array() || keys.size() != out_.program.body.outputs.size()) return;
    for (const auto& key : keys)
      if (key.is_string()) out_.program.output_names.push_back(key.get<std::string>());
  }

  const Json& module_;
  const Json& graph_;
  Pt2Graph out_;
  std::map<std::string, int> values_;
  int next_ = 0;
};

}  // namespace

Pt2Graph parse_pt2_graph(std::string_view text) {
  try {
    return Parser(Json::parse(text)).parse();
  } catch (const nlohmann::json::exception& error) {
    throw Error(concat("its graph cannot be read: ", error.what()));
  }
}

}  // namespace tessera
