#include "tessera/runtime/parameters.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/ops/slab.h"

namespace tessera {
namespace {

// Each parameter starts on a cache line of its own. The gaps hold zeros, and no optimizer moves them.
constexpr std::int64_t aligned_elements = 16;

std::int64_t padded(std::int64_t elements) {
  return (elements + aligned_elements - 1) / aligned_elements * aligned_elements;
}

at::Tensor view(const at::Tensor& flat, std::int64_t offset, const std::vector<std::int64_t>& sizes) {
  const at::Tensor part = flat.narrow(0, offset, [&] {
    std::int64_t n = 1;
    for (auto s : sizes) n *= s;
    return n;
  }());
  if (sizes.size() != 4) return part.view(sizes);
  const auto in = sizes[1], h = sizes[2], w = sizes[3];
  return part.as_strided(sizes, {in * h * w, 1, in * w, in}, flat.storage_offset() + offset);
}

void initialise(const at::Tensor& value, const ParameterSpec& spec, const std::string& name, std::uint64_t seed) {
  if (spec.init.kind == Initializer::Kind::constant) {
    value.fill_(spec.init.scale);
    return;
  }
  const RandomStream random(seed, name);
  const auto number = [&](std::int64_t element) {
    const auto index = static_cast<std::uint64_t>(element);
    if (spec.init.kind == Initializer::Kind::given) return spec.init.value(element);
    return spec.init.scale *
           (spec.init.kind == Initializer::Kind::normal ? random.normal(index) : 2 * random.uniform(index) - 1);
  };
  if (spec.sizes.empty()) {
    value.fill_(number(0));
    return;
  }
  // A few rows at a time: what is drawn takes twice the memory of what is kept.
  const std::int64_t rows = spec.sizes[0], row = spec.elements() / rows;
  const std::int64_t together = std::max<std::int64_t>(1, (std::int64_t{1} << 16) / row);
  for (std::int64_t first = 0; first < rows; first += together) {
    auto sizes = spec.sizes;
    sizes[0] = std::min(together, rows - first);
    const at::Tensor drawn = at::empty(sizes, at::kDouble);
    double* out = drawn.data_ptr<double>();
    at::parallel_for(0, drawn.numel(), 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) out[i] = number(first * row + i);
    });
    value.narrow(0, first, sizes[0]).copy_(drawn);
  }
}

}  // namespace

Parameters::Parameters(const Graph& graph, int first_node, int end_node, const at::TensorOptions& computed,
                       std::uint64_t seed, const Copies& copies)
    : first_node_(first_node), activations_(computed) {
  const at::ScalarType narrow = computed.dtype().toScalarType(), dtype = wide_dtype(narrow);
  const at::TensorOptions options = computed.dtype(dtype);
  // Trainable ones first, each kind in the order of the graph.
  std::int64_t trainable = 0, statistics = 0, fixed = 0;
  for (int n = first_node; n < end_node; ++n) {
    offsets_.push_back(trainable);
    for (const auto& spec : graph.node({n}).parameters)
      (spec.fixed ? fixed : spec.trainable ? trainable : statistics) += padded(spec.elements());
  }
  values_ = copies.zeros(trainable, options);
  sums_ = at::zeros({trainable + statistics}, options);
  if (narrow != dtype) narrow_ = at::zeros({trainable}, computed);
  fixed_ = at::zeros({fixed}, options);
  fixed_sums_ = at::zeros({fixed}, options);
  if (narrow != dtype) fixed_narrow_ = at::zeros({fixed}, computed);
  statistics_ = at::zeros({statistics}, options);
  counters_ = at::zeros({statistics}, options.dtype(at::kLong));
  at::Tensor decay = at::ones({statistics}, at::kDouble);
  std::int64_t offset = 0, statistic = trainable, fixed_offset = 0;
  for (int n = first_node; n < end_node; ++n) {
    const Node& node = graph.node({n});
    for (const auto& spec : node.parameters) {
      Parameter p{.name = node.parameter_name(spec),
                  .value = {},
                  .sum = {},
                  .trainable = spec.trainable,
                  .as_matrix = spec.as_matrix};
      std::int64_t& at = spec.fixed ? fixed_offset : spec.trainable ? offset : statistic;
      p.sum = view(spec.fixed ? fixed_sums_ : sums_, at, spec.sizes);
      if (spec.fixed) {
        p.value = view(fixed_, at, spec.sizes);
        if (fixed_narrow_.defined() && !spec.wide) p.narrow = view(fixed_narrow_, at, spec.sizes);
      } else if (spec.trainable) {
        p.value = view(values_, at, spec.sizes);
        if (narrow_.defined() && !spec.wide) p.narrow = view(narrow_, at, spec.sizes);
      } else {
        // A counter is a whole number, as in torch, and does not decay.
        const bool counter = spec.sizes.empty();
        p.value = view(counter ? counters_ : statistics_, at - trainable, spec.sizes);
        if (!counter) decay.narrow(0, at - trainable, spec.elements()).fill_(spec.decay);
      }
      at += padded(spec.elements());
      if (!spec.trainable || copies.writes(static_cast<std::int64_t>(all_.size())))
        initialise(p.value, spec, p.name, seed);
      index_.emplace(p.name, all_.size());
      all_.push_back(std::move(p));
    }
  }
  decay_ = decay.to(options.device());
  copies.settle();
  refresh();
}

void Parameters::refresh() const {
  if (narrow_.defined()) narrow_.copy_(values_);
  if (fixed_narrow_.defined()) fixed_narrow_.copy_(fixed_);
}

at::Tensor Parameters::part_like(const Parameter& parameter, const at::Tensor& flat) const {
  const bool statistic = is_statistic(parameter);
  ensure(parameter.trainable || statistic, parameter.name, " is neither trained nor a statistic");
  const at::Tensor& all = statistic ? statistics_ : values_;
  return flat.as_strided(parameter.value.sizes(), parameter.value.strides(),
                         flat.storage_offset() + parameter.value.storage_offset() - all.storage_offset());
}

void Parameters::update_statistics(std::int64_t micros) const {
  const at::Tensor sums = sums_.narrow(0, values_.size(0), statistics_.size(0));
  statistics_.mul_(decay_.pow(static_cast<double>(micros)).to(statistics_.scalar_type())).add_(sums);
  counters_.add_(sums.round().to(at::kLong));
  fixed_sums_.zero_();
}

NodeParameters Parameters::of(const Node& node) const {
  NodeParameters out;
  for (const auto& spec : node.parameters) {
    const Parameter& p = at(node.parameter_name(spec));
    out.values.push_back(p.narrow.defined() ? p.narrow : p.value);
    out.gradients.push_back(p.sum);
  }
  return out;
}

const Parameter& Parameters::at(const std::string& name) const {
  const Parameter* found = find(name);
  ensure(found != nullptr, "there is no parameter '", name, "'");
  return *found;
}

const Parameter* Parameters::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &all_[found->second];
}

}  // namespace tessera
