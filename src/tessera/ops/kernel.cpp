#include "tessera/ops/kernel.h"

#include "tessera/base/error.h"
#include "tessera/ops/families.h"

namespace tessera {

at::Tensor agreed_alone(const Offer& offer) {
  return offer.how == Offer::How::gather && offer.data.defined() ? offer.data.unsqueeze(0) : offer.data;
}

Slab Kernel::recompute(const ForwardArgs& args) {
  Saved scratch;
  return forward({args.inputs, args.out, args.owned, args.pass, scratch, args.into});
}

void Kernels::add(std::string_view kind, KernelWay way) { ways_.emplace_back(kind, std::move(way)); }

void Kernels::add(std::string_view kind, std::function<std::unique_ptr<Kernel>(const KernelRequest&)> make) {
  add(kind, {"general", [](const KernelRequest&) { return true; }, std::move(make)});
}

std::unique_ptr<Kernel> Kernels::make(const KernelRequest& request) const {
  const std::string_view kind = request.step.pointwise ? pointwise_kind : request.node().op->kind();
  for (const auto& [name, way] : ways_)
    if (name == kind && way.accepts(request)) {
      auto kernel = way.make(request);
      kernel->records_ = way.records;
      return kernel;
    }
  throw Error(concat("node '", request.node().name, "': there is no kernel for operation '", kind,
                     "'; register one with RegisterKernel (docs/own_model.md)"));
}

Kernels& kernels() {
  static Kernels all = [] {
    Kernels made;
    for (const auto add :
         {add_pointwise_kernels, add_conv_kernels, add_pool_kernels, add_upsample_kernels, add_resample_kernels,
          add_channel_kernels, add_dropout_kernels, add_prelu_kernels, add_norm_kernels, add_head_kernels})
      add(made);
    for (auto& [kind, way] : made.ways_) way.records = true;  // of Tessera's own all may be; of others, who says so
    return made;
  }();
  return all;
}

}  // namespace tessera
