// Kernels that are put down once and started together from then on. Starting them one by one takes the host several
// microseconds each; where they are short, a GPU waits for it.
#pragma once

#include <functional>
#include <memory>

namespace tessera {

class Recording {
 public:
  virtual ~Recording() = default;
  /// Does again what was recorded, with what is now in the memory that it looked at.
  virtual void play() = 0;
};

/// What `work` asks of the thread's current GPU; it is put down and not done. Memory that it takes stays with the
/// recording. Null, and nothing has happened on the GPU, where `work` does what cannot be recorded: look at a number,
/// say.
std::unique_ptr<Recording> record_kernels(const std::function<void()>& work);

}  // namespace tessera
