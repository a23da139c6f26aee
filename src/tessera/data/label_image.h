// An image of labels: what a network that labels pixels says.
#pragma once

#include <ATen/core/ATen_fwd.h>

#include <string>

namespace tessera {

/// Writes [height, width] of uint8 as a tiled TIFF of one channel, compressed without loss, by way of `path`.part and a
/// rename: whole or not there. Throws Error, UsageError in a build without libvips.
void write_label_image(const std::string& path, const at::Tensor& labels);

}  // namespace tessera
