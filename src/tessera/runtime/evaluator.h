// The network as it is used, on any plan: running statistics, nothing dropped, every image of a data set once.
//
// The plan, its layout and its executor are those of training; the schedule is one of forwards alone, in direction
// down, in which every rank has a place. A step looks at `batch()` images:
//
//     batch    | micro 0 of replica 0 | micro 0 of replica 1 | micro 1 of replica 0 | ...
//
// The last batch is filled up with blanks, which are left out of everything, and micros of nothing but blanks are not
// run. With running statistics no image has a say in what becomes of another, so this is exact.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "tessera/base/meter.h"
#include "tessera/data/image_source.h"
#include "tessera/plan/plan.h"
#include "tessera/runtime/executor.h"
#include "tessera/runtime/rank_images.h"
#include "tessera/runtime/scores.h"

namespace tessera {

struct EvaluatorOptions {
  at::ScalarType dtype = at::kFloat;  ///< of activations, as the parameters were made for
  int loader_workers = 1;
  at::DeviceType device = at::kCPU;  ///< where the parameters are
  std::optional<Value> maps = {};    ///< of the last stage; see TakeMaps
  StoreKind store = StoreKind::device;
  std::string scratch = {};
  double room = 0, leaving = 1 << 30;  ///< as TrainOptions has them
  at::TensorOptions activations() const { return at::TensorOptions().dtype(dtype).device(device); }
};

/// What the network says of consecutive images of the data set.
struct Predictions {
  std::int64_t first = 0;  ///< image
  at::Tensor logits;       ///< [images, classes], float64
  at::Tensor labels;       ///< [images], int64; -1: not known. Of several: [images, classes], 1 for those it has
  at::Tensor losses;       ///< [images], float64; 0 where the label is not known

  bool several() const { return labels.dim() == 2; }
  bool known(std::int64_t i) const {
    return labels.reshape({labels.size(0), -1}).select(1, 0)[i].item<std::int64_t>() >= 0;
  }
};

/// Where every pixel has a label: the class that was predicted for each pixel of an image.
struct PredictedMask {
  std::int64_t image = 0;
  at::Tensor classes;  ///< [height, width], uint8
};

/// What EvaluatorOptions::maps is for an image.
struct PredictedMaps {
  std::int64_t image = 0;
  at::Tensor planes;  ///< [channels, height, width], float32
};

struct Evaluation {
  std::int64_t images = 0;
  LabelKind labels = LabelKind::image;
  std::int64_t labelled = 0;   ///< images, or pixels; all that follows is about them
  std::optional<double> loss;  ///< their mean
  Confusion confusion;         ///< the first of the largest logits is predicted; of several labels: no (0) and yes (1)
  std::optional<double> auc;   ///< of two classes; of several labels the mean over the classes that have one
  /// Of several labels, by class: a logit above 0 is a yes.
  std::vector<Confusion> by_class = {};
  std::vector<std::optional<double>> class_auc = {};
  double seconds = 0;
  PartSeconds parts{};  ///< of these, what was not computing
};

/// Belongs to one thread, the rank's.
class Evaluator {
 public:
  using Take = std::function<void(const Predictions&)>;

  /// Which stage's parameters a rank needs for it.
  static int stage_of(const Plan& plan, int rank);

  /// Collective over `world`, which has the plan's ranks; null for a plan of one rank. Graph and parameters must
  /// outlive it; the parameters are looked at when it runs, so those of a Trainer may go on changing. Images are read
  /// as they are, in their order.
  Evaluator(const Graph& graph, const Plan& plan, const Parameters& parameters, const EvaluatorOptions& options,
            std::shared_ptr<const ImageSource> images, Communicator* world = nullptr);

  /// All images once. Collective; every rank takes all predictions, in order, and gets the same result. Maps, if the
  /// options ask for them, stay where they are made, as masks do: see run_masks().
  using TakeMaps = std::function<void(const PredictedMaps&)>;
  Evaluation run(const Take& take = {}, const TakeMaps& take_maps = {});
  /// The same for a network that labels pixels, whose predictions stay where they are made; only rank 0 takes masks,
  /// one after the other, and holds one at a time.
  using TakeMask = std::function<void(const PredictedMask&)>;
  /// `wanted`, the same on all ranks, says of which images; of all where it is empty.
  using Wanted = std::function<bool(std::int64_t image)>;
  Evaluation run_masks(const TakeMask& take, const Wanted& wanted = {});

  std::int64_t batch() const { return plan_.replicas * plan_.micros(Direction::down) * plan_.micro_size(); }

 private:
  /// [samples, channels, rows, columns] by the first sample of a micro's share.
  using PlanesBySample = std::map<std::int64_t, at::Tensor>;
  /// Called for each micro that this rank has an answer to, or a part of its maps: its samples, counted in the batch.
  /// Where pixels have labels it is called for the part of each member.
  using TakeAnswer = std::function<void(Interval samples, const Executor::Answer&)>;
  /// Called for each batch, with images [first, first + count) of the data set.
  using RunBatch = std::function<void(RankImages&, std::int64_t first, std::int64_t count)>;

  LabelKind label_kind() const { return graph_.label_kind(); }
  int classes() const { return static_cast<int>(graph_.shape(graph_.logits()).channels); }
  RankImages make_images();
  void for_each_batch(const RunBatch& run_batch);
  void run_micros(RankImages& images, std::int64_t first, std::int64_t count, const TakeAnswer& take);
  Predictions predict(RankImages& images, std::int64_t first, std::int64_t count, PlanesBySample& maps);
  Evaluation finished(Evaluation result, double start);
  /// A value of a batch, of which this rank has `mine`: rank 0 takes that of each image, [channels, rows, columns].
  using TakePlanes = std::function<void(std::int64_t image, const at::Tensor& planes)>;
  void gather(Value value, at::ScalarType dtype, const PlanesBySample& mine, std::int64_t first, std::int64_t count,
              const TakePlanes& take, const Wanted& wanted = {});
  /// A micro's share of this rank, counted in the batch.
  Interval samples_of(int micro) const;
  PassInfo pass_of(Interval samples, const at::Tensor& labels);
  at::Tensor labels_of(Interval samples, std::int64_t first) const;

  const Graph& graph_;
  const Plan plan_;
  const Parameters& parameters_;
  const EvaluatorOptions options_;
  const std::shared_ptr<const ImageSource> images_;
  Communicator* const world_;
  const Layout layout_;
  const int rank_, replica_;
  const Plan::Place place_;
  std::unique_ptr<Communicator> pipeline_, tile_group_;
  Meter meter_;
  const std::unique_ptr<Store> store_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace tessera
