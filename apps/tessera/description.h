// What checkpoints say of themselves, made from flags and turned back into them.
#pragma once

#include "job.h"
#include "tessera/io/checkpoint.h"

namespace tessera {

/// What checkpoints call the network: the name of a built-in one, or the absolute path of a file.
std::string network_name(const Options& options);

RunDescription describe_run(const Options& options, const Job& job);

/// Fills in what `path` (a checkpoint, a folder of them, or an exported file) says of its network and images. Nothing
/// where it says nothing. Throws UsageError for every flag that contradicts it, with both values; another image size
/// or other values of masks may be meant, and are a warning.
void take_description(Options& options, const std::string& path, const Warn& warn);

}  // namespace tessera
