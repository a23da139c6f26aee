// Sequential training: Tessera beside torch's autograd (torch::nn modules, torch::optim), on the same network, batch
// and optimizer, in one run. Torch runs with its own memory management, in its default layout and in channels-last.
//
// Each contender is a process of its own: in one process the others' live memory would keep the C library from giving
// pages back, and torch would look faster than it is. Their steps take turns, so that a noisy machine is noisy for all
// of them; the figure is the median.
#include <ATen/Parallel.h>
#include <fmt/core.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "support/torch_models.h"
#include "tessera/base/error.h"
#include "tessera/base/instruction_set.h"
#include "tessera/base/text.h"
#include "tessera/data/synthetic.h"
#include "tessera/io/report.h"
#include "tessera/models/registry.h"
#include "tessera/ops/way_choices.h"
#include "tessera/runtime/conv_trials.h"
#include "tessera/runtime/threads.h"
#include "tessera/runtime/trainer.h"

namespace tessera {
namespace {

struct Case {
  std::string model;
  std::optional<std::int64_t> depth;
  std::int64_t size, batch;
};

// One way of training, inside its process.
struct Contender {
  std::function<double()> step;  // returns the loss
  std::function<torch::Tensor()> first_gradient;
};

constexpr double lr = 1e-3;

constexpr int unet_filters = 32, unet_levels = 4;

ModelOptions model_of(const Case& k) {
  ModelOptions options{.name = k.model, .image = {3, k.size, k.size}, .classes = 10, .depth = k.depth};
  if (k.model == "unet") {
    options.num_layers = unet_levels;
    options.num_filters = unet_filters;
  }
  return options;
}

std::shared_ptr<OracleModel> torch_model(const Case& k) {
  if (k.model == "unet") return oracle_unet(unet_levels, unet_filters, 10, /*bilinear=*/false);
  return k.model == "resnet50" ? oracle_resnet50(10) : oracle_resnet_v2(static_cast<int>(k.depth.value_or(110)), 10);
}

std::string first_weights(const Case& k) { return k.model == "unet" ? "down1.conv1.weight" : "conv1.weight"; }

// One batch, over and over: the benchmark is of steps, not of data.
std::shared_ptr<SyntheticImages> images_of(const Case& k) {
  return std::make_shared<SyntheticImages>(SyntheticOptions{.classes = 10,
                                                            .height = k.size,
                                                            .width = k.size,
                                                            .size = k.batch,
                                                            .seed = 1,
                                                            .mask_classes = k.model == "unet" ? 10 : 0});
}

// Torch's parameters get the values of Tessera's, by name.
Contender torch_contender(const Case& k, at::MemoryFormat layout) {
  const auto model = torch_model(k);
  {
    const torch::NoGradGuard guard;
    const Graph graph = builtin_models().build(model_of(k));
    const Parameters start(graph, 0, static_cast<int>(graph.nodes().size()), at::kFloat, 1);
    for (auto& p : model->named_parameters()) {
      const auto value = start.at(p.key()).value;
      p.value().set_data(value.dim() == 4 ? value.clone(layout) : value.clone());
    }
  }
  const auto optimizer =
      std::make_shared<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  LoaderOptions reading{.batch_size = k.batch, .seed = 1};
  if (k.model == "unet") reading.mask_dtype = at::kLong;
  const Batch batch = Loader(images_of(k), reading).next();
  const auto images = batch.images.clone(layout);
  const auto labels = batch.masks.defined() ? batch.masks : batch.labels;
  return {.step =
              [model, optimizer, images, labels] {
                for (auto& p : model->parameters()) p.mutable_grad().reset();  // less memory than zeroing them
                const auto loss = torch::nn::functional::cross_entropy(model->forward(images), labels);
                loss.backward();
                optimizer->step();
                return loss.item<double>();
              },
          .first_gradient = [model, name = first_weights(k)] { return model->named_parameters()[name].grad(); }};
}

Contender tessera_contender(const Case& k) {
  const auto graph = std::make_shared<Graph>(builtin_models().build(model_of(k)));
  const Plan plan = make_plan(*graph, {.batch_size = k.batch});
  const TrainOptions train{.steps = 1, .optimizer = {.lr = lr, .momentum = 0.9}, .seed = 1, .loader_workers = 0};
  try_convolutions(
      {.graph = *graph, .plan = plan, .threads = {at::get_num_threads()}, .activations = train.activations()});
  const auto trainer = std::make_shared<Trainer>(*graph, plan, train, images_of(k));
  return {.step = [trainer, graph] { return trainer->step().loss; },
          .first_gradient = [trainer, name = first_weights(k)] { return trainer->find(name)->sum; }};
}

// What a step tells its parent.
struct StepResult {
  double loss = 0, seconds = 0;
  std::int64_t peak_bytes = 0;
};

// A contender's process. A step is asked for with one byte; the result comes back through a pipe.
class Process {
 public:
  Process(std::string title, BlockReuse reuse, int threads, const std::function<Contender()>& make)
      : name(std::move(title)) {
    int down[2], up[2];
    ensure(pipe(down) == 0 && pipe(up) == 0, "no pipe to a benchmark's process");
    child_ = fork();
    ensure(child_ >= 0, "no process for a benchmark");
    if (child_ == 0) {
      close(down[1]);
      close(up[0]);
      serve(down[0], up[1], reuse, threads, make);
    }
    close(down[0]);
    close(up[1]);
    ask_ = down[1];
    answer_ = up[0];
    // One is made after the other: trials of convolutions want the machine for themselves.
    char ready = 0;
    get(&ready, sizeof ready);
  }
  ~Process() {
    close(ask_);
    close(answer_);
    waitpid(child_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  StepResult step() {
    ensure(write(ask_, "s", 1) == 1, name, "'s process has ended");
    StepResult result;
    get(&result, sizeof result);
    return result;
  }
  std::vector<float> first_gradient() {
    ensure(write(ask_, "g", 1) == 1, name, "'s process has ended");
    std::int64_t size = 0;
    get(&size, sizeof size);
    std::vector<float> out(static_cast<std::size_t>(size));
    get(out.data(), out.size() * sizeof(float));
    return out;
  }

  const std::string name;
  std::vector<double> seconds;
  std::int64_t peak = 0;

 private:
  void get(void* to, std::size_t bytes) const {
    for (std::size_t got = 0; got < bytes;) {
      const ssize_t n = read(answer_, static_cast<char*>(to) + got, bytes - got);
      ensure(n > 0, name, "'s process ended without an answer");
      got += static_cast<std::size_t>(n);
    }
  }

  [[noreturn]] static void serve(int ask, int answer, BlockReuse reuse, int threads,
                                 const std::function<Contender()>& make) {
    use_threads(threads, 1);
    install_cpu_allocator(reuse);
    const auto account = std::make_shared<MemoryAccount>();
    const MemoryScope scope(account);
    const Contender contender = make();
    const auto put = [&](const void* from, std::size_t bytes) {
      for (std::size_t sent = 0; sent < bytes;) {
        const ssize_t n = write(answer, static_cast<const char*>(from) + sent, bytes - sent);
        if (n <= 0) _exit(1);
        sent += static_cast<std::size_t>(n);
      }
    };
    put("r", 1);
    for (char command = 0; read(ask, &command, 1) == 1;) {
      if (command == 's') {
        account->reset_peak();
        const auto start = std::chrono::steady_clock::now();
        StepResult r{.loss = contender.step()};
        r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        r.peak_bytes = account->peak_bytes();
        put(&r, sizeof r);
      } else {
        const auto g = contender.first_gradient().contiguous();
        const std::int64_t size = g.numel();
        put(&size, sizeof size);
        put(g.data_ptr<float>(), static_cast<std::size_t>(size) * sizeof(float));
      }
    }
    _exit(0);
  }

  pid_t child_ = -1;
  int ask_ = -1, answer_ = -1;
};

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, scale = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    scale += b[i] * b[i];
  }
  return std::sqrt(difference / scale);
}

// Deep networks amplify rounding on the way to the first layer's gradient (torch's own two layouts differ there by per
// cents), so the yardstick is how far torch is from itself.
void verify(Process& torch, Process& torch_last, Process& ours) {
  const double expected = torch.step().loss;
  torch_last.step();
  const double loss = ours.step().loss;
  const auto reference = torch.first_gradient();
  const double allowed = std::max(1e-3, 3 * distance(torch_last.first_gradient(), reference));
  const double found = distance(ours.first_gradient(), reference);
  ensure(std::abs(loss / expected - 1) < 1e-3 && found < allowed, "the two compute different things: loss ", loss,
         " for ", expected, ", first gradient off by ", found, ", allowed ", allowed);
}

nlohmann::ordered_json run_case(const Case& k, int threads, int iterations, Table& table) {
  Process torch("torch", BlockReuse::off, threads, [&] { return torch_contender(k, at::MemoryFormat::Contiguous); });
  Process torch_last("torch channels-last", BlockReuse::off, threads,
                     [&] { return torch_contender(k, at::MemoryFormat::ChannelsLast); });
  Process tessera("tessera", BlockReuse::on, threads, [&] { return tessera_contender(k); });
  const std::array<Process*, 3> contenders{&torch, &torch_last, &tessera};
  verify(torch, torch_last, tessera);
  for (Process* c : contenders) c->step();  // warm
  for (int i = 0; i < iterations; ++i)
    for (Process* c : contenders) {
      const StepResult r = c->step();
      c->seconds.push_back(r.seconds);
      c->peak = std::max(c->peak, r.peak_bytes);
    }

  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const double ours = spread_of(tessera.seconds).median;
  const auto our_peak = static_cast<double>(tessera.peak);
  for (const Process* c : contenders) {
    const Spread s = spread_of(c->seconds);
    const auto name = k.model + (k.depth ? fmt::format("-{}", *k.depth) : "");
    table.row({fmt::format("{} {}² b{}", name, k.size, k.batch), std::to_string(threads), c->name,
               fmt::format("{:.3f}", s.median), fmt::format("{:.3f}..{:.3f}", s.low, s.high),
               fmt::format("{:.2f}", static_cast<double>(k.batch) / s.median), fmt::format("{:.2f}", s.median / ours),
               fmt::format("{:.0f}", static_cast<double>(c->peak) / 1e6),
               fmt::format("{:.2f}", our_peak / static_cast<double>(c->peak))});
    rows.push_back({{"model", name},
                    {"image_size", k.size},
                    {"batch_size", k.batch},
                    {"threads", threads},
                    {"contender", c->name},
                    {"seconds", {{"p10", s.low}, {"median", s.median}, {"p90", s.high}}},
                    {"tessera_is_faster_by", s.median / ours},
                    {"peak_bytes", c->peak},
                    {"tessera_peak_share", our_peak / static_cast<double>(c->peak)}});
  }
  return rows;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  limit_libraries(argv);
  CLI::App app{"Sequential training beside torch's autograd"};
  int iterations = 7;
  std::string json, conv_choice = "measured";
  std::vector<int> threads{1, 2};
  std::int64_t resnet50_size = 512, resnet_v2_size = 256, unet_size = 256, batch = 2;
  int resnet_v2_depth = 110;
  app.add_option("--iterations", iterations, "timed steps of each")->capture_default_str();
  app.add_option("--threads", threads, "")->delimiter(',')->capture_default_str();
  app.add_option("--resnet50-size", resnet50_size, "of the images; 0 leaves the network out")->capture_default_str();
  app.add_option("--resnet-v2-size", resnet_v2_size, "")->capture_default_str();
  app.add_option("--resnet-v2-depth", resnet_v2_depth, "")->capture_default_str();
  app.add_option("--unet-size", unet_size, "")->capture_default_str();
  app.add_option("--batch-size", batch, "")->capture_default_str();
  app.add_option("--conv-choice", conv_choice, "as tessera's: measured, or fixed; or the name of a way")
      ->capture_default_str();
  app.add_option("--json", json, "write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  WayChoices::of_process().choose_by(conv_choice);

  Table table({"training step", "threads", "", "seconds", "10..90 %", "images/s", "tessera faster", "peak MB",
               "tessera share"});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Case& k :
       {Case{"resnet50", std::nullopt, resnet50_size, batch}, Case{"resnet_v2", resnet_v2_depth, resnet_v2_size, batch},
        Case{"unet", std::nullopt, unet_size, batch}})
    for (int t : k.size > 0 ? threads : std::vector<int>{})
      for (auto& row : run_case(k, t, iterations, table)) rows.push_back(row);
  const BuildInfo build = build_info();
  fmt::print("{}commit {}, {}, convolutions {}, {} timed steps each, float32\n", table.str(), build.commit,
             to_string(instruction_set()), conv_choice, iterations);
  if (!json.empty())
    std::ofstream(json) << nlohmann::ordered_json{
        {"commit", build.commit},
        {"cpu", to_string(instruction_set())},
        {"conv_choice", conv_choice},
        {"rows", rows}}.dump(2);
}
