// The networks once more, as a careful user of PyTorch writes them in torch::nn: what the tests compare with, and the
// baseline of the benchmarks. They are written from the architectures and share nothing with src/tessera/models but
// the names of parameters and buffers, so that values can be copied by name.
#pragma once

#include <torch/nn/module.h>

#include <memory>

namespace tessera {

/// Parameters begin as torch's modules make them. Training mode and float32 on the CPU, as torch's modules are; use
/// to(dtype), to(device), train() and eval(). For channels-last, give channels-last images and convert the 4-d weights.
struct OracleModel : torch::nn::Module {
  /// Logits [n, classes], or [n, classes, height, width], of images [n, 3, height, width] of any size.
  virtual torch::Tensor forward(torch::Tensor images) = 0;
};

/// torchvision's resnet18 and resnet50.
std::shared_ptr<OracleModel> oracle_resnet18(int classes);
std::shared_ptr<OracleModel> oracle_resnet50(int classes);
/// The full-resolution pre-activation network; depth is 9n+2.
std::shared_ptr<OracleModel> oracle_resnet_v2(int depth, int classes);
/// AmoebaNet-D; layers is a multiple of 3, filters of 8.
std::shared_ptr<OracleModel> oracle_amoebanet(int layers, int filters, int classes);
/// U-Net with batch norm: a class for every pixel. `levels` times the plane is halved; `filters` channels at first.
std::shared_ptr<OracleModel> oracle_unet(int levels, int filters, int classes, bool bilinear);

}  // namespace tessera
