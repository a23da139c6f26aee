// Operators with weights.
#include "tessera/base/text.h"
#include "tessera/import/call.h"

namespace tessera {
namespace {

using Of = Piece::Of;

// A node with parameters of the file: weight, and bias if there is one.
template <class Op, class Options>
Value layer(const Call& call, const Options& options, Value x, const StoredRef& weight, const StoredRef* bias) {
  const std::string name = call.translation.owner_of(weight, "weight", call.module());
  const Value y = call.graph().add_node(std::make_shared<Op>(options), {x}, name);
  call.translation.adopt(y, "weight", weight);
  if (bias) call.translation.adopt(y, "bias", *bias);
  return y;
}

const StoredRef& weight_of(const Call& call, std::size_t rank) {
  const StoredRef* weight = call.stored("weight");
  if (!weight) not_translated("it has no weight");
  if (weight->sizes.size() != rank)
    not_translated("its weight '", weight->tensor->name, "' has ", weight->sizes.size(), " dimensions, not ", rank,
                   rank == 4 && weight->sizes.size() == 5 ? " (volumes are not supported)" : "");
  return *weight;
}

// "same" of an even window is one less before than after.
void take_padding(const Call& call, ConvOptions& o) {
  const auto* word = call.argument("padding").as<std::string>();
  if (!word) {
    o.pad = call.pair("padding", 0);
    return;
  }
  if (*word == "valid") return;
  const Pair all{o.dilation.height * (o.kernel.height - 1), o.dilation.width * (o.kernel.width - 1)};
  o.pad = {all.height / 2, all.width / 2};
  o.pad_end = Pair{all.height - o.pad.height, all.width - o.pad.width};
}

Thing transposed_conv(const Call& call) {
  const StoredRef &weight = weight_of(call, 4), *bias = call.stored("bias");
  const Value x = call.planes("input");
  ConvTransposeOptions o;
  o.groups = call.integer("groups", 1);
  o.out = weight.sizes[1] * o.groups;
  o.scale = call.pair("stride", 1);
  o.bias = bias != nullptr;
  o.kernel = Pair{weight.sizes[2], weight.sizes[3]};
  o.pad = call.pair("padding", 0);
  o.output_pad = call.pair("output_padding", 0);
  o.dilation = call.pair("dilation", 1);
  if (weight.sizes[0] != call.graph().shape(x).channels)
    not_translated("its weight '", weight.tensor->name, "' is for ", weight.sizes[0], " channels, and ",
                   call.graph().shape(x).channels, " come in");
  return call.result(layer<ConvTranspose>(call, o, x, weight, bias));
}

Thing conv(const Call& call) {
  if (call.flag("transposed", false)) return transposed_conv(call);
  const StoredRef &weight = weight_of(call, 4), *bias = call.stored("bias");
  const Value x = call.planes("input");
  ConvOptions o;
  o.out = weight.sizes[0];
  o.kernel = {weight.sizes[2], weight.sizes[3]};
  o.stride = call.pair("stride", 1);
  o.dilation = call.pair("dilation", 1);
  o.groups = call.integer("groups", 1);
  o.bias = bias != nullptr;
  take_padding(call, o);
  const bool of_images = !call.graph().node(x).op;
  require(!of_images || weight.sizes[1] * o.groups == call.graph().shape(x).channels, "it takes images of ",
          counted(weight.sizes[1] * o.groups, "channel"), ", and these have ", call.graph().shape(x).channels,
          "; see --channels");
  if (weight.sizes[1] * o.groups != call.graph().shape(x).channels)
    not_translated("its weight '", weight.tensor->name, "' is for ", weight.sizes[1] * o.groups, " channels, and ",
                   call.graph().shape(x).channels, " come in");
  return call.result(layer<Conv>(call, o, x, weight, bias));
}

Thing no_volumes(const Call&) { not_translated("volumes are not supported, only images"); }
Thing no_sequences(const Call&) { not_translated("sequences are not supported, only images"); }

// Of one position a linear layer; at every position, along the last dimension, it is a convolution of one pixel.
Thing linear(const Call& call, const ForeignTensor& x, const StoredRef& weight, const StoredRef* bias) {
  Graph& g = call.graph();
  Value value = x.value();
  Form form = x.form;
  const std::size_t last = form.rank() - 1;
  if (form.rank() == 2 && !form.holds(1, {Of::channels}) && form.holds(1, {Of::channels, Of::rows, Of::columns})) {
    value = call.add(std::make_shared<Flatten>(), {value});
    form = Form::planes(g.shape(value));
    form.dims.resize(2);
  }
  if (!form.holds(last, {Of::channels}))
    not_translated("it is applied to ", text_of(Thing(std::make_shared<ForeignTensor>(x))),
                   ", whose last dimension is not the channels");
  if (weight.sizes[1] != g.shape(value).channels)
    not_translated("its weight '", weight.tensor->name, "' is for ", weight.sizes[1], " numbers, and ",
                   g.shape(value).channels, " come in; another --image-size may be what it needs");
  const Value y =
      g.shape(value).positions() == 1
          ? layer<Linear>(call, LinearOptions{weight.sizes[0], bias != nullptr}, value, weight, bias)
          : layer<Conv>(call, ConvOptions{.out = weight.sizes[0], .bias = bias != nullptr}, value, weight, bias);
  form.dims[last] = weight.sizes[0] == 1 ? Dimension{} : Dimension{{Of::channels, weight.sizes[0], 0}};
  return call.result(y, form);
}

// bias + x · weightᵀ: what a linear layer is once its code is taken apart.
Thing product_of_matrices(const Call& call, std::string_view x, const StoredRef* bias) {
  const auto* weight = call.argument("mat2").as<StoredRef>();
  if (!weight || !weight->transposed || call.number("beta", 1) != 1 || call.number("alpha", 1) != 1)
    not_translated("a product of matrices that is no linear layer");
  return linear(call, call.tensor(x), {weight->tensor, weight->tensor->sizes}, bias);
}

// The parameters of a norm, as far as it has them.
void adopt_affine(const Call& call, Value y, const StoredRef* weight, const StoredRef* bias) {
  if ((weight == nullptr) != (bias == nullptr)) not_translated("it has a weight or a bias, but not both");
  if (weight) call.translation.adopt(y, "weight", *weight);
  if (bias) call.translation.adopt(y, "bias", *bias);
}

Thing batch_norm(const Call& call, bool training) {
  const StoredRef *weight = call.stored("weight"), *bias = call.stored("bias");
  const StoredRef *mean = call.stored("running_mean"), *variance = call.stored("running_var");
  if (!mean || !variance) not_translated("it has no running statistics; make it with track_running_stats=True");
  const Value x = call.planes("input");
  const BatchNormOptions o{.epsilon = call.number("eps", 1e-5),
                           .momentum = call.number("momentum", 0.1),
                           .affine = weight != nullptr,
                           .frozen = !training};
  Translation& t = call.translation;
  const Value y =
      call.graph().add_node(std::make_shared<Norm>(o), {x}, t.owner_of(*mean, "running_mean", call.module()));
  adopt_affine(call, y, weight, bias);
  const Start start = o.frozen ? Start::as_in_the_file : Start::as_asked;
  t.adopt(y, "running_mean", *mean, start);
  t.adopt(y, "running_var", *variance, start);
  const std::string& name = mean->tensor->name;
  const std::string counter =
      name.substr(0, name.size() - std::min(name.size(), std::string("running_mean").size())) + "num_batches_tracked";
  if (const StoredTensor* batches = t.find(counter))
    t.adopt(y, "num_batches_tracked", {batches, batches->sizes}, start);
  ++t.norms;
  t.frozen_norms += o.frozen;
  return call.result_like(call.tensor("input"), y);
}

Thing instance_norm(const Call& call) {
  if (call.given("running_mean")) not_translated("instance norm with running statistics");
  const StoredRef *weight = call.stored("weight"), *bias = call.stored("bias");
  const Value x = call.planes("input");
  const InstanceNormOptions o{.epsilon = call.number("eps", 1e-5), .affine = weight != nullptr};
  const auto name = weight ? call.translation.owner_of(*weight, "weight", call.module()) : call.name("instance_norm");
  const Value y = call.graph().add_node(std::make_shared<Norm>(o), {x}, name);
  adopt_affine(call, y, weight, bias);
  return call.result_like(call.tensor("input"), y);
}

Value group_normed(const Call& call, Value x, std::int64_t groups) {
  const StoredRef *weight = call.stored("weight"), *bias = call.stored("bias");
  const GroupNormOptions o{.groups = groups, .epsilon = call.number("eps", 1e-5), .affine = weight != nullptr};
  const auto name = weight ? call.translation.owner_of(*weight, "weight", call.module()) : call.name("group_norm");
  const Value y = call.graph().add_node(std::make_shared<Norm>(o), {x}, name);
  adopt_affine(call, y, weight, bias);
  return y;
}

Thing group_norm(const Call& call) {
  return call.result_like(call.tensor("input"),
                          group_normed(call, call.planes("input"), call.integer("num_groups", 1)));
}

// Over the channels, where these are the last dimension; over the whole sample it is a group norm of one group.
Thing layer_norm(const Call& call) {
  const ForeignTensor& x = call.tensor("input");
  const auto over = call.integers("normalized_shape");
  const std::size_t last = x.form.rank() - 1;
  const StoredRef *weight = call.stored("weight"), *bias = call.stored("bias");
  if (over.size() == 1 && x.form.holds(last, {Of::channels})) {
    const LayerNormOptions o{.epsilon = call.number("eps", 1e-5), .affine = weight != nullptr};
    const auto name = weight ? call.translation.owner_of(*weight, "weight", call.module()) : call.name("layer_norm");
    const Value y = call.graph().add_node(std::make_shared<LayerNorm>(o), {x.value()}, name);
    adopt_affine(call, y, weight, bias);
    return call.result(y, x.form);
  }
  if (over.size() == 3 && x.form.rank() == 4) {
    if (weight) not_translated("a layer norm over channels, rows and columns with a weight for each pixel");
    return call.result(group_normed(call, call.planes(x), 1));
  }
  not_translated("a layer norm over ", over.size(), " dimensions, which are not the channels alone");
}

Thing prelu(const Call& call) {
  const StoredRef* weight = call.stored("weight");
  if (!weight) not_translated("it has no weight");
  const ForeignTensor& x = call.tensor("self");
  const Value v = call.planes(x);
  const Value y = call.graph().add_node(std::make_shared<PRelu>(weight->tensor->elements() > 1), {v},
                                        call.translation.owner_of(*weight, "weight", call.module()));
  call.translation.adopt(y, "weight", *weight);
  return call.result_like(x, y);
}

// The first of several outputs: the others are statistics for backward.
Thing first_of(const Call& call, Thing first) {
  std::vector<Thing> all(call.outputs(), Thing(Unknown{}));
  all[0] = std::move(first);
  return call.outputs() == 1 ? all[0] : Thing::list(std::move(all));
}

}  // namespace

void add_layers(OperatorTable& t) {
  for (const char* name : {"conv2d", "_convolution", "convolution", "_convolution_mode"})
    t[std::string("aten::") + name] = conv;
  t["aten::conv_transpose2d"] = transposed_conv;
  for (const char* name : {"conv3d", "conv_transpose3d", "max_pool3d", "avg_pool3d", "adaptive_avg_pool3d"})
    t[std::string("aten::") + name] = no_volumes;
  for (const char* name : {"conv1d", "conv_transpose1d", "max_pool1d", "adaptive_avg_pool1d"})
    t[std::string("aten::") + name] = no_sequences;
  t["aten::linear"] = [](const Call& c) { return linear(c, c.tensor("input"), weight_of(c, 2), c.stored("bias")); };
  t["aten::addmm"] = [](const Call& c) { return product_of_matrices(c, "mat1", c.stored("self")); };
  t["aten::mm"] = [](const Call& c) { return product_of_matrices(c, "self", nullptr); };
  t["aten::batch_norm"] = [](const Call& c) { return batch_norm(c, c.flag("training", false)); };
  for (const char* name : {"_native_batch_norm_legit_functional", "_native_batch_norm_legit", "native_batch_norm",
                           "cudnn_batch_norm", "_batch_norm_with_update_functional", "_batch_norm_with_update"})
    t[std::string("aten::") + name] = [](const Call& c) {
      return first_of(c, batch_norm(c, c.flag("training", true)));
    };
  for (const char* name : {"_native_batch_norm_legit_no_training", "_batch_norm_no_update"})
    t[std::string("aten::") + name] = [](const Call& c) { return first_of(c, batch_norm(c, false)); };
  t["aten::instance_norm"] = instance_norm;
  t["aten::group_norm"] = group_norm;
  t["aten::native_group_norm"] = [](const Call& c) {
    return first_of(c, c.result(group_normed(c, c.planes("input"), c.integer("group", 1))));
  };
  t["aten::layer_norm"] = layer_norm;
  t["aten::native_layer_norm"] = [](const Call& c) { return first_of(c, layer_norm(c)); };
  t["aten::prelu"] = prelu;
  t["aten::_prelu_kernel"] = prelu;
}

}  // namespace tessera
