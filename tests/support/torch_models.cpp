#include "support/torch_models.h"

#include <torch/torch.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace tessera {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;
using Pair = torch::ExpandingArray<2>;

nn::Conv2d conv2d(std::int64_t in, std::int64_t out, Pair kernel, Pair stride = 1, Pair pad = 0) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(pad).bias(false));
}

Tensor pooled(const Tensor& x) {
  return torch::flatten(F::adaptive_avg_pool2d(x, F::AdaptiveAvgPool2dFuncOptions(1)), 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// torchvision's resnet

struct BasicBlock : nn::Module {
  static constexpr std::int64_t expansion = 1;

  BasicBlock(std::int64_t in, std::int64_t width, std::int64_t stride) {
    conv1 = register_module("conv1", conv2d(in, width, 3, stride, 1));
    bn1 = register_module("bn1", nn::BatchNorm2d(width));
    conv2 = register_module("conv2", conv2d(width, width, 3, 1, 1));
    bn2 = register_module("bn2", nn::BatchNorm2d(width));
    if (stride != 1 || in != width)
      downsample = register_module("downsample", nn::Sequential(conv2d(in, width, 1, stride), nn::BatchNorm2d(width)));
  }
  Tensor forward(Tensor x) {
    Tensor out = bn1(conv1(x)).relu_();
    out = bn2(conv2(out));
    out += downsample ? downsample->forward(x) : x;
    return out.relu_();
  }

  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
  nn::Sequential downsample{nullptr};
};

struct Bottleneck : nn::Module {
  static constexpr std::int64_t expansion = 4;

  Bottleneck(std::int64_t in, std::int64_t width, std::int64_t stride) {
    const std::int64_t out = expansion * width;
    conv1 = register_module("conv1", conv2d(in, width, 1));
    bn1 = register_module("bn1", nn::BatchNorm2d(width));
    conv2 = register_module("conv2", conv2d(width, width, 3, stride, 1));
    bn2 = register_module("bn2", nn::BatchNorm2d(width));
    conv3 = register_module("conv3", conv2d(width, out, 1));
    bn3 = register_module("bn3", nn::BatchNorm2d(out));
    if (stride != 1 || in != out)
      downsample = register_module("downsample", nn::Sequential(conv2d(in, out, 1, stride), nn::BatchNorm2d(out)));
  }
  Tensor forward(Tensor x) {
    Tensor out = bn1(conv1(x)).relu_();
    out = bn2(conv2(out)).relu_();
    out = bn3(conv3(out));
    out += downsample ? downsample->forward(x) : x;
    return out.relu_();
  }

  nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
  nn::BatchNorm2d bn1{nullptr}, bn2{nullptr}, bn3{nullptr};
  nn::Sequential downsample{nullptr};
};

template <class Block>
struct Resnet final : OracleModel {
  Resnet(const std::array<int, 4>& blocks, int classes) {
    conv1 = register_module("conv1", conv2d(3, 64, 7, 2, 3));
    bn1 = register_module("bn1", nn::BatchNorm2d(64));
    layer1 = register_module("layer1", layer(64, blocks[0], 1));
    layer2 = register_module("layer2", layer(128, blocks[1], 2));
    layer3 = register_module("layer3", layer(256, blocks[2], 2));
    layer4 = register_module("layer4", layer(512, blocks[3], 2));
    fc = register_module("fc", nn::Linear(in, classes));
  }
  Tensor forward(Tensor x) override {
    x = bn1(conv1(x)).relu_();
    x = F::max_pool2d(x, F::MaxPool2dFuncOptions(3).stride(2).padding(1));
    x = layer4->forward(layer3->forward(layer2->forward(layer1->forward(x))));
    return fc(pooled(x));
  }

  nn::Conv2d conv1{nullptr};
  nn::BatchNorm2d bn1{nullptr};
  nn::Sequential layer1{nullptr}, layer2{nullptr}, layer3{nullptr}, layer4{nullptr};
  nn::Linear fc{nullptr};

 private:
  nn::Sequential layer(std::int64_t width, int count, std::int64_t stride) {
    nn::Sequential blocks;
    for (int i = 0; i < count; ++i) {
      blocks->push_back(std::make_shared<Block>(in, width, i == 0 ? stride : 1));
      in = width * Block::expansion;
    }
    return blocks;
  }
  std::int64_t in = 64;
};

// ---------------------------------------------------------------------------------------------------------------------
// resnet_v2

struct PreActivationBlock : nn::Module {
  PreActivationBlock(std::int64_t in, std::int64_t width, std::int64_t out, std::int64_t stride, bool project) {
    bn1 = register_module("bn1", nn::BatchNorm2d(in));
    conv1 = register_module("conv1", conv2d(in, width, 3, stride, 1));
    bn2 = register_module("bn2", nn::BatchNorm2d(width));
    conv2 = register_module("conv2", conv2d(width, width, 3, 1, 1));
    bn3 = register_module("bn3", nn::BatchNorm2d(width));
    conv3 = register_module("conv3", conv2d(width, out, 1));
    if (project) downsample = register_module("downsample", conv2d(in, out, 1, stride));
  }
  Tensor forward(Tensor x) {
    const Tensor active = bn1(x).relu_();
    Tensor y = conv1(active);
    y = conv2(bn2(y).relu_());
    y = conv3(bn3(y).relu_());
    y += downsample ? downsample(active) : x;
    return y;
  }

  nn::BatchNorm2d bn1{nullptr}, bn2{nullptr}, bn3{nullptr};
  nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr}, downsample{nullptr};
};

struct ResnetV2 final : OracleModel {
  ResnetV2(int depth, int classes) {
    const int blocks = (depth - 2) / 9;
    conv1 = register_module("conv1", conv2d(3, 16, 3, 1, 1));
    layer1 = register_module("layer1", layer(16, 16, 64, 1, blocks));
    layer2 = register_module("layer2", layer(64, 64, 128, 2, blocks));
    layer3 = register_module("layer3", layer(128, 128, 256, 2, blocks));
    bn = register_module("bn", nn::BatchNorm2d(256));
    fc = register_module("fc", nn::Linear(256, classes));
  }
  Tensor forward(Tensor x) override {
    x = layer3->forward(layer2->forward(layer1->forward(conv1(x))));
    return fc(pooled(bn(x).relu_()));
  }

  nn::Conv2d conv1{nullptr};
  nn::Sequential layer1{nullptr}, layer2{nullptr}, layer3{nullptr};
  nn::BatchNorm2d bn{nullptr};
  nn::Linear fc{nullptr};

 private:
  static nn::Sequential layer(std::int64_t in, std::int64_t width, std::int64_t out, std::int64_t stride, int count) {
    nn::Sequential blocks;
    for (int i = 0; i < count; ++i)
      blocks->push_back(
          std::make_shared<PreActivationBlock>(i == 0 ? in : out, width, out, i == 0 ? stride : 1, i == 0));
    return blocks;
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// AmoebaNet-D

struct Unary : nn::Module {
  virtual Tensor forward(Tensor x) = 0;
};

struct ReluConvBn final : Unary {
  struct Options {
    Pair kernel = 1, stride = 1, pad = 0;
    bool in_place = false;  // only where nobody else reads the input
  };
  ReluConvBn(std::int64_t in, std::int64_t out, const Options& options) : in_place(options.in_place) {
    conv = register_module("conv", conv2d(in, out, options.kernel, options.stride, options.pad));
    bn = register_module("bn", nn::BatchNorm2d(out));
  }
  Tensor forward(Tensor x) override { return bn(conv(in_place ? x.relu_() : x.relu())); }

  bool in_place;
  nn::Conv2d conv{nullptr};
  nn::BatchNorm2d bn{nullptr};
};

struct FactorizedReduction final : Unary {
  FactorizedReduction(std::int64_t in, std::int64_t out) {
    conv1 = register_module("conv1", conv2d(in, out / 2, 1, 2));
    conv2 = register_module("conv2", conv2d(in, out - out / 2, 1, 2));
    bn = register_module("bn", nn::BatchNorm2d(out));
  }
  Tensor forward(Tensor x) override {
    using torch::indexing::Slice;
    x = x.relu();
    // One column on the right and one row at the bottom replace those that the slice takes away.
    const Tensor shifted = torch::constant_pad_nd(x.index({Slice(), Slice(), Slice(1), Slice(1)}), {0, 1, 0, 1});
    return bn(torch::cat({conv1(x), conv2(shifted)}, 1));
  }

  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::BatchNorm2d bn{nullptr};
};

nn::Sequential conv3x3(std::int64_t channels, std::int64_t stride) {
  const std::int64_t narrow = channels / 4;
  return nn::Sequential(std::make_shared<ReluConvBn>(channels, narrow, ReluConvBn::Options{}),
                        std::make_shared<ReluConvBn>(narrow, narrow, ReluConvBn::Options{3, stride, 1, true}),
                        std::make_shared<ReluConvBn>(narrow, channels, ReluConvBn::Options{1, 1, 0, true}));
}

// Only states after the first two take it in reduction cells, so it never strides.
nn::Sequential conv1x7_7x1(std::int64_t channels) {
  const std::int64_t narrow = channels / 4;
  return nn::Sequential(std::make_shared<ReluConvBn>(channels, narrow, ReluConvBn::Options{}),
                        std::make_shared<ReluConvBn>(narrow, narrow, ReluConvBn::Options{{1, 7}, 1, {0, 3}, true}),
                        std::make_shared<ReluConvBn>(narrow, narrow, ReluConvBn::Options{{7, 1}, 1, {3, 0}, true}),
                        std::make_shared<ReluConvBn>(narrow, channels, ReluConvBn::Options{1, 1, 0, true}));
}

std::shared_ptr<ReluConvBn> conv1x1(std::int64_t in, std::int64_t out) {
  return std::make_shared<ReluConvBn>(in, out, ReluConvBn::Options{});
}

Tensor max3x3(const Tensor& x, std::int64_t stride = 1) {
  return F::max_pool2d(x, F::MaxPool2dFuncOptions(3).stride(stride).padding(1));
}
Tensor half_max2x2(const Tensor& x) { return F::max_pool2d(x, F::MaxPool2dFuncOptions(2).stride(2).ceil_mode(true)); }
Tensor avg3x3(const Tensor& x) {
  return F::avg_pool2d(x, F::AvgPool2dFuncOptions(3).stride(1).padding(1).count_include_pad(false));
}

// What a cell is told about the two cells before it.
struct Before {
  std::int64_t near, far;  // channels
  bool near_reduced;
};

struct AmoebaCell : nn::Module {
  AmoebaCell(const Before& before, std::int64_t channels) {
    reduce1 = register_module("reduce1", conv1x1(before.near, channels));
    if (before.near_reduced)
      reduce2 = std::make_shared<FactorizedReduction>(before.far, channels);
    else if (before.far != channels)
      reduce2 = conv1x1(before.far, channels);
    if (reduce2) register_module("reduce2", reduce2);
  }
  Tensor forward(const Tensor& near, const Tensor& far) {
    return join(reduce1->forward(near), reduce2 ? reduce2->forward(far) : far);
  }
  virtual Tensor join(const Tensor& s0, const Tensor& s1) = 0;

  std::shared_ptr<Unary> reduce1, reduce2;
};

// Operation 2p+i is half i of pair p; pools and identities have no parameters and stand in join().
struct NormalCell final : AmoebaCell {
  NormalCell(const Before& before, std::int64_t channels) : AmoebaCell(before, channels) {
    op0 = register_module("op0", conv1x1(channels, channels));
    op3 = register_module("op3", conv1x7_7x1(channels));
    op4 = register_module("op4", conv1x1(channels, channels));
    op5 = register_module("op5", conv1x7_7x1(channels));
    op9 = register_module("op9", conv1x1(channels, channels));
  }
  Tensor join(const Tensor& s0, const Tensor& s1) override {
    const Tensor s2 = op0->forward(s1).add_(max3x3(s1));
    const Tensor s3 = op3->forward(s0).add_(s1);
    const Tensor s4 = op4->forward(s0).add_(op5->forward(s0));
    const Tensor s5 = max3x3(s2).add_(s2);
    const Tensor s6 = avg3x3(s1).add_(op9->forward(s5));
    return torch::cat({s0, s3, s4, s6}, 1);
  }

  std::shared_ptr<ReluConvBn> op0, op4, op9;
  nn::Sequential op3{nullptr}, op5{nullptr};
};

struct ReductionCell final : AmoebaCell {
  ReductionCell(const Before& before, std::int64_t channels) : AmoebaCell(before, channels) {
    op3 = register_module("op3", conv3x3(channels, 2));
    op4 = register_module("op4", conv1x7_7x1(channels));
    op9 = register_module("op9", conv1x1(channels, channels));
  }
  Tensor join(const Tensor& s0, const Tensor& s1) override {
    const Tensor s2 = half_max2x2(s0).add_(max3x3(s0, 2));
    const Tensor s3 = op3->forward(s1).add_(s2);
    const Tensor s4 = op4->forward(s2).add_(max3x3(s2));
    const Tensor s5 = half_max2x2(s1).add_(s3);
    const Tensor s6 = avg3x3(s2).add_(op9->forward(s3));
    return torch::cat({s4, s5, s6}, 1);
  }

  nn::Sequential op3{nullptr}, op4{nullptr};
  std::shared_ptr<ReluConvBn> op9;
};

struct AmoebaStem final : nn::Module {
  explicit AmoebaStem(std::int64_t channels) {
    conv = register_module("conv", conv2d(3, channels, 3, 2, 1));
    bn = register_module("bn", nn::BatchNorm2d(channels));
  }
  Tensor forward(Tensor x) { return bn(conv(x)); }

  nn::Conv2d conv{nullptr};
  nn::BatchNorm2d bn{nullptr};
};

struct Amoebanet final : OracleModel {
  Amoebanet(int layers, int filters, int classes) {
    std::int64_t channels = filters / 4;
    stem = register_module("stem", std::make_shared<AmoebaStem>(channels));
    Before before{channels, channels, false};
    const std::string run(static_cast<std::size_t>(layers / 3), 'N');
    for (char kind : "RR" + run + "R" + run + "R" + run) {
      const bool reduction = kind == 'R';
      channels *= reduction ? 2 : 1;
      std::shared_ptr<AmoebaCell> cell;
      if (reduction)
        cell = std::make_shared<ReductionCell>(before, channels);
      else
        cell = std::make_shared<NormalCell>(before, channels);
      cells.push_back(register_module("cell" + std::to_string(cells.size() + 1), cell));
      before = {(reduction ? 3 : 4) * channels, before.near, reduction};
    }
    classifier = register_module("classifier", nn::Linear(before.near, classes));
  }
  Tensor forward(Tensor x) override {
    Tensor near = stem->forward(x), far = near;
    for (const auto& cell : cells) {
      Tensor out = cell->forward(near, far);
      far = std::exchange(near, std::move(out));
    }
    return classifier(pooled(near));
  }

  std::shared_ptr<AmoebaStem> stem;
  std::vector<std::shared_ptr<AmoebaCell>> cells;
  nn::Linear classifier{nullptr};
};

// ---------------------------------------------------------------------------------------------------------------------
// U-Net

struct DoubleConv : nn::Module {
  DoubleConv(std::int64_t in, std::int64_t out) {
    conv1 = register_module("conv1", conv2d(in, out, 3, 1, 1));
    bn1 = register_module("bn1", nn::BatchNorm2d(out));
    conv2 = register_module("conv2", conv2d(out, out, 3, 1, 1));
    bn2 = register_module("bn2", nn::BatchNorm2d(out));
  }
  Tensor convolved(Tensor x) { return bn2(conv2(bn1(conv1(x)).relu_())).relu_(); }

  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
};

struct UpStep final : DoubleConv {
  UpStep(std::int64_t channels, bool bilinear) : DoubleConv(2 * channels, channels) {
    if (bilinear)
      narrow = register_module("up", nn::Conv2d(nn::Conv2dOptions(2 * channels, channels, 1)));
    else
      up = register_module("up", nn::ConvTranspose2d(nn::ConvTranspose2dOptions(2 * channels, channels, 2).stride(2)));
  }
  Tensor forward(Tensor x, const Tensor& skip) {
    using torch::indexing::Slice;
    // The convolution behind the upsampling here; before it, it is a quarter of the work.
    x = up ? up(x)
           : narrow(F::interpolate(x, F::InterpolateFuncOptions()
                                          .scale_factor(std::vector<double>{2, 2})
                                          .mode(torch::kBilinear)
                                          .align_corners(false)));
    x = x.index({Slice(), Slice(), Slice(0, skip.size(2)), Slice(0, skip.size(3))});
    return convolved(torch::cat({skip, x}, 1));
  }

  nn::ConvTranspose2d up{nullptr};
  nn::Conv2d narrow{nullptr};
};

struct Unet final : OracleModel {
  Unet(int levels, int filters, int classes, bool bilinear) {
    std::int64_t in = 3, channels = filters;
    for (int level = 1; level <= levels; ++level, channels *= 2) {
      down.push_back(register_module("down" + std::to_string(level), std::make_shared<DoubleConv>(in, channels)));
      up.push_back(register_module("up" + std::to_string(level), std::make_shared<UpStep>(channels, bilinear)));
      in = channels;
    }
    bottom = register_module("bottom", std::make_shared<DoubleConv>(in, channels));
    head = register_module("head", nn::Conv2d(nn::Conv2dOptions(filters, classes, 1)));
  }
  Tensor forward(Tensor x) override {
    std::vector<Tensor> skips;
    for (const auto& step : down) {
      skips.push_back(step->convolved(x));
      x = F::max_pool2d(skips.back(), F::MaxPool2dFuncOptions(2).ceil_mode(true));
    }
    x = bottom->convolved(x);
    for (std::size_t level = up.size(); level-- > 0;) x = up[level]->forward(x, skips[level]);
    return head(x);
  }

  std::vector<std::shared_ptr<DoubleConv>> down;
  std::vector<std::shared_ptr<UpStep>> up;
  std::shared_ptr<DoubleConv> bottom;
  nn::Conv2d head{nullptr};
};

}  // namespace

std::shared_ptr<OracleModel> oracle_unet(int levels, int filters, int classes, bool bilinear) {
  return std::make_shared<Unet>(levels, filters, classes, bilinear);
}
std::shared_ptr<OracleModel> oracle_resnet18(int classes) {
  return std::make_shared<Resnet<BasicBlock>>(std::array{2, 2, 2, 2}, classes);
}
std::shared_ptr<OracleModel> oracle_resnet50(int classes) {
  return std::make_shared<Resnet<Bottleneck>>(std::array{3, 4, 6, 3}, classes);
}
std::shared_ptr<OracleModel> oracle_resnet_v2(int depth, int classes) {
  return std::make_shared<ResnetV2>(depth, classes);
}
std::shared_ptr<OracleModel> oracle_amoebanet(int layers, int filters, int classes) {
  return std::make_shared<Amoebanet>(layers, filters, classes);
}

}  // namespace tessera
