#include "tessera/io/background_writer.h"

#include <ATen/ops/empty.h>

#include <chrono>
#include <memory>

#include "tessera/base/error.h"

namespace tessera {
namespace {

void write(const ShardPlace& place, const ShardContents& contents, const std::optional<RunState>& state,
           const FinishOptions& finish) {
  std::string own;
  try {
    write_shard(place, contents);
  } catch (const std::exception& error) {
    own = concat("no checkpoint of step ", place.step, " in ", place.dir, ": ", error.what());
    if (!state || !has_reported(place)) throw Error(own);
  }
  if (!state) return;
  try {
    finish_checkpoint(place, *state, finish);  // also after a failure: the other ranks' shards must go
  } catch (const Error&) {
    if (!own.empty()) throw Error(own);
    throw;
  }
}

}  // namespace

std::vector<NamedTensor> copy_of(const std::vector<NamedTensor>& tensors) {
  std::vector<NamedTensor> copies;
  for (const auto& t : tensors) {
    // Row-major at once, so that the thread that writes has nothing to compute.
    at::Tensor copy = at::empty(t.tensor.sizes(), t.tensor.scalar_type());
    copy.copy_(t.tensor.detach());
    copies.push_back({t.name, std::move(copy)});
  }
  return copies;
}

BackgroundWriter::BackgroundWriter(Options options)
    : options_(std::move(options)), hurry_(std::make_shared<std::atomic<bool>>(false)) {
  options_.finish.hurry = hurry_;
}

BackgroundWriter::~BackgroundWriter() { *hurry_ = true; }

void BackgroundWriter::save(const SaveRequest& request) {
  wait();
  const ShardPlace place{.dir = options_.dir,
                         .step = request.step,
                         .shard = options_.shard,
                         .shards = options_.shards,
                         .attempt = options_.run.empty() ? concat(saves_) : concat(options_.run, "-", saves_)};
  ++saves_;
  auto contents = std::make_shared<ShardContents>(
      ShardContents{copy_of(request.contents.model), copy_of(request.contents.optimizer)});
  writing_ = std::async(std::launch::async, [place, contents = std::move(contents), state = request.state,
                                             finish = options_.finish] { write(place, *contents, state, finish); });
}

void BackgroundWriter::poll() {
  if (writing_.valid() && !busy()) writing_.get();
}

void BackgroundWriter::wait() {
  if (writing_.valid()) writing_.get();
}

bool BackgroundWriter::busy() const {
  return writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

}  // namespace tessera
