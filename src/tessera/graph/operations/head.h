// The end of a network: flatten, linear, loss.
#pragma once

#include "tessera/graph/operation.h"

namespace tessera {

/// Channels, rows and columns of a sample in one long channel, in torch's order.
class Flatten final : public Operation {
 public:
  std::string_view kind() const override { return "flatten"; }
  Shape output_shape(Shapes inputs) const override { return {inputs[0].elements(), 1, 1, 1}; }
  Box input_box(const Box& out, std::size_t i, Shapes inputs) const override { return inputs[0].box(out.batch()); }
  Box owned_output(const Box& in, Shapes inputs) const override { return first_pixel_owner(in); }
  Cost cost(Shapes inputs, const Box& out) const override { return {}; }
  /// One position is in torch's order as it is.
  Workspace workspace(Shapes inputs, const Box& out, std::int64_t element_bytes) const override {
    return {.shares_input = inputs[0].positions() == 1};
  }
  Needs needs() const override { return {}; }
  bool repeats() const override { return false; }
  std::optional<OperationPtr> before_mean() const override { return nullptr; }
};

struct LinearOptions {
  std::int64_t out = 0;
  bool bias = true;
};

class Linear final : public Operation {
 public:
  explicit Linear(const LinearOptions& options);
  std::string_view kind() const override { return "linear"; }
  Shape output_shape(Shapes inputs) const override;
  std::vector<ParameterSpec> parameters(Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
  Needs needs() const override { return {.inputs = true}; }
  bool repeats() const override { return true; }
  std::optional<OperationPtr> before_mean() const override;

  const LinearOptions options;
};

struct LossOptions {
  double smoothing = 0;               ///< this share of every label is spread evenly over all classes
  std::vector<double> class_weights;  ///< what a label of each class counts; empty: 1
  double auxiliary = 0;               ///< what the loss of each further row of logits counts
  double dice = 0;                    ///< of pixels: what the Dice loss counts, beside the cross entropy
  bool binary = false;                ///< of images: each class is a question of its own, answered by yes or no
  bool plain() const { return smoothing == 0 && class_weights.empty() && auxiliary == 0 && dice == 0 && !binary; }
};

/// Softmax and cross-entropy on logits; the output is one loss per sample, or one per pixel. The loss of a batch is
/// the mean over all of them that have a label, each counted as its class does: torch.nn.CrossEntropyLoss. The first
/// input are the network's logits; others are those of auxiliary heads, whose losses are added.
///
/// The Dice loss of a sample is the mean over all classes of 1 - (2·I + s)/(P + L + s), where P is the sum of the
/// class's probability over all pixels that have a label, L how many are of the class, I the sum of its probability
/// over these, and s is 1e-5; that of a batch is the mean over its samples. (MONAI's DiceLoss with softmax.)
///
/// Where images have several labels, the loss of a sample is the mean over all classes of the binary cross entropy of
/// the class's logit: torch.nn.BCEWithLogitsLoss, whose pos_weight are the classes' weights; smoothing leads every
/// answer so far to one half.
class CrossEntropy final : public Operation {
 public:
  /// The value of a mask's pixel that has no label: its loss is 0 and it does not count.
  static constexpr std::int64_t ignored_label = 255;

  explicit CrossEntropy(LabelKind kind = LabelKind::image, LossOptions o = {}) : labels(kind), options(std::move(o)) {}
  std::string_view kind() const override { return "cross_entropy"; }
  Shape output_shape(Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
  Workspace workspace(Shapes inputs, const Box& out, std::int64_t element_bytes) const override;
  Needs needs() const override { return {}; }
  bool repeats() const override { return false; }
  /// On the sums of the Dice loss.
  Agreement agreement() const override { return options.dice > 0 ? Agreement::tiles : Agreement::none; }
  std::optional<LabelKind> loss_labels() const override { return labels; }
  /// With several labels the mean is over samples, whatever labels count.
  std::vector<double> loss_weights() const override {
    return labels == LabelKind::several ? std::vector<double>() : options.class_weights;
  }

  const LabelKind labels;
  const LossOptions options;
};

}  // namespace tessera
