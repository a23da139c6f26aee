#include "tessera/runtime/parameters.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/base/random.h"

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
  at::Tensor drawn = at::empty(spec.sizes, at::kDouble);
  double* out = drawn.data_ptr<double>();
  at::parallel_for(0, drawn.numel(), 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto index = static_cast<std::uint64_t>(i);
      out[i] = spec.init.scale *
               (spec.init.kind == Initializer::Kind::normal ? random.normal(index) : 2 * random.uniform(index) - 1);
    }
  });
  value.copy_(drawn);
}

}  // namespace

Parameters::Parameters(const Graph& graph, at::ScalarType dtype, std::uint64_t seed) {
  const auto specs = graph.parameters();
  std::int64_t total = 0;
  for (const auto& [name, spec] : specs) total += spec.trainable ? padded(spec.elements()) : 0;
  values_ = at::zeros({total}, dtype);
  gradients_ = at::zeros({total}, dtype);
  std::int64_t offset = 0;
  for (const auto& [name, spec] : specs) {
    Parameter p{name, {}, {}};
    if (spec.trainable) {
      p.value = view(values_, offset, spec.sizes);
      p.gradient = view(gradients_, offset, spec.sizes);
      offset += padded(spec.elements());
    } else {
      // A counter is a whole number, as in torch.
      p.value = at::empty(spec.sizes, spec.sizes.empty() ? at::kLong : dtype);
    }
    initialise(p.value, spec, name, seed);
    index_.emplace(name, all_.size());
    all_.push_back(std::move(p));
  }
}

NodeParameters Parameters::of(const Node& node) const {
  NodeParameters out;
  for (const auto& spec : node.parameters) {
    const Parameter& p = at(node.name + "." + spec.suffix);
    out.values.push_back(p.value);
    out.gradients.push_back(p.gradient);
  }
  return out;
}

const Parameter& Parameters::at(const std::string& name) const {
  const auto found = index_.find(name);
  ensure(found != index_.end(), "there is no parameter '", name, "'");
  return all_[found->second];
}

}  // namespace tessera
