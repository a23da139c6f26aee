// Event files, as TensorBoard reads them: records of TFRecord framing, each a protobuf message `Event`.
//
//   8 bytes  length        4 bytes  masked CRC-32C of these 8
//   length bytes           4 bytes  masked CRC-32C of the bytes
//
// The few messages that are needed are encoded by hand, so that neither protobuf nor TensorFlow is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/io/metrics.h"

namespace tessera {

/// Belongs to one thread.
class EventFile {
 public:
  /// Makes a new file events.out.tfevents.TIME.HOST.PID.N in the folder, which is made, too. For a resumed run,
  /// `first_step` tells TensorBoard to forget what the run before it wrote from this step on.
  explicit EventFile(const std::string& folder, std::optional<std::int64_t> first_step = std::nullopt,
                     double time = wall_clock());

  /// Numbers become scalars of single precision; texts are left out. Every record has been handed to the system when it
  /// returns.
  void write(std::int64_t step, const std::vector<Metric>& metrics, double time = wall_clock());
  const std::string& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace tessera
