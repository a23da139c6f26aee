// One GPU: images a second and peak memory of training, for bench/gpu_compare.py to put beside PyTorch's. The images
// wait in memory, because this is about the steps, not about making images.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "../apps/tessera/network.h"
#include "tessera/base/error.h"
#include "tessera/data/synthetic.h"
#include "tessera/io/report.h"
#include "tessera/runtime/device.h"
#include "tessera/runtime/trainer.h"

namespace tessera {
namespace {

// The first image of a source, over and over.
class OneImage final : public ImageSource {
 public:
  explicit OneImage(const ImageSource& source)
      : shape_(source.image_shape()), classes_(source.classes()), label_(source.label(0)) {
    pixels_ = at::empty({shape_[1], shape_[2], shape_[0]}, at::kFloat).permute({2, 0, 1});
    source.read(0, {0, shape_[1]}, {0, shape_[2]}, pixels_);
  }
  std::int64_t size() const override { return 1 << 20; }
  int classes() const override { return classes_; }
  std::array<std::int64_t, 3> image_shape() const override { return shape_; }
  std::int64_t label(std::int64_t) const override { return label_; }
  void read(ReadKey, Interval rows, Interval columns, const at::Tensor& out) const override {
    out.copy_(pixels_.narrow(1, rows.begin, rows.size()).narrow(2, columns.begin, columns.size()));
  }
  std::string describe() const override { return "one image"; }

 private:
  std::array<std::int64_t, 3> shape_;
  int classes_;
  std::int64_t label_;
  at::Tensor pixels_;
};

// What the GPU does in two steps, one event a kernel, as a trace that chrome://tracing shows.
void write_trace(Trainer& trainer, const std::string& path) {
  namespace profiler = torch::profiler::impl;
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
  const std::set<profiler::ActivityType> what{profiler::ActivityType::CPU, profiler::ActivityType::CUDA};
  torch::autograd::profiler::prepareProfiler(config, what);
  torch::autograd::profiler::enableProfiler(config, what);
  for (int i = 0; i < 2; ++i) trainer.step();
  torch::autograd::profiler::disableProfiler()->save(path);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  CLI::App app{"Training steps of one GPU"};
  ModelOptions model{.name = "resnet50", .classes = 10};
  std::int64_t size = 1024, batch = 1;
  int steps = 20, warmup = 8, most_tried = 10;
  std::string dtype = "bfloat16", recompute = "norm", trace;
  bool search = true, replay = true;
  app.add_option("--model", model.name, "a built-in network, or a file of PyTorch")->capture_default_str();
  app.add_option("--depth", model.depth, "of resnet_v1 and resnet_v2");
  app.add_option("--image-size", size, "")->capture_default_str();
  app.add_option("--batch-size", batch, "")->capture_default_str();
  app.add_option("--steps", steps, "that are timed")->capture_default_str();
  app.add_option("--warmup", warmup, "that are not")->capture_default_str();
  app.add_option("--dtype", dtype, "")->check(CLI::IsMember({"float32", "bfloat16"}))->capture_default_str();
  app.add_option("--recompute", recompute, "")->capture_default_str();
  app.add_flag("!--no-search", search, "take cuDNN's first guess at an algorithm");
  app.add_option("--most-tried", most_tried, "of cuDNN's algorithms for a convolution; 0: all")->capture_default_str();
  app.add_flag("!--no-replay", replay, "start every kernel by itself, even where the host cannot keep up");
  app.add_option("--trace", trace, "file for the kernels of two more steps, for chrome://tracing");
  CLI11_PARSE(app, argc, argv);
  try {
    require(gpu_count() > 0, "there is no GPU, or this program was built without CUDA");
    model.image = {3, size, size};
    use_device(at::kCUDA, 0);
    configure_gpus({.tf32 = true, .try_algorithms = search});
    at::globalContext().setBenchmarkLimitCuDNN(most_tried);
    const Graph graph = with_files(builtin_models(), std::make_shared<NetworkFiles>()).build(model);
    const TrainOptions train{.steps = warmup + steps + 2,
                             .optimizer = {.lr = 1e-3, .momentum = 0.9},
                             .seed = 1,
                             .dtype = dtype == "float32" ? at::kFloat : at::kBFloat16,
                             .recompute = parse_recompute(recompute),
                             .loader_workers = 4,
                             .replay = replay ? TrainOptions::Replay::when_slow : TrainOptions::Replay::never,
                             .device = at::kCUDA};
    const SyntheticImages synthetic({.classes = 10, .height = size, .width = size, .size = 1, .seed = 1});
    Trainer trainer(graph, make_plan(graph, {.batch_size = batch}), train, std::make_shared<OneImage>(synthetic));
    std::vector<double> seconds;
    double first_loss = 0, loss = 0, waited = 0;
    for (int s = 0; s < warmup + steps; ++s) {
      if (s == std::min(3, warmup)) reset_peak_gpu_bytes();  // choosing algorithms takes memory, too
      const StepReport report = trainer.step();
      if (s == 0) first_loss = report.loss;
      loss = report.loss;
      if (s < warmup) continue;
      seconds.push_back(report.seconds);
      waited += report.part(Part::data) / steps;
    }
    if (!trace.empty()) write_trace(trainer, trace);
    const Spread spread = spread_of(seconds);
    fmt::print("{}\n", nlohmann::ordered_json{{"model", model.name},
                                              {"image_size", size},
                                              {"dtype", dtype},
                                              {"recompute", recompute},
                                              {"batch_size", batch},
                                              {"images_per_second", static_cast<double>(batch) / spread.median},
                                              {"slowest_images_per_second", static_cast<double>(batch) / spread.high},
                                              {"replayed", trainer.replays()},
                                              {"seconds_waiting_for_images", waited},
                                              {"peak_bytes", peak_gpu_bytes()},
                                              {"first_loss", first_loss},
                                              {"last_loss", loss}}
                           .dump());
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_gpu: {}\n", error.what());
    return 1;
  }
}
