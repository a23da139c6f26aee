// Images that are written: what a network that labels pixels says, and pictures for people.
#pragma once

#include <ATen/core/ATen_fwd.h>

#include <string>

#include "tessera/data/image_source.h"

namespace tessera {

/// Writes [height, width] of uint8 as a tiled TIFF of one channel, compressed without loss, by way of `path`.part and a
/// rename: whole or not there. `size`: what it is stretched to on the way, each pixel as the nearest one; it may be
/// larger than memory. Throws Error, UsageError in a build without libvips.
void write_label_image(const std::string& path, const at::Tensor& labels, ImageSize size);

/// Writes [channels, height, width] of float32 as a tiled TIFF of as many channels. As write_label_image().
void write_planes(const std::string& path, const at::Tensor& planes);

/// Writes [height, width, 3] of uint8 as a JPEG or PNG file, by the ending of `path`. As write_label_image().
void write_picture(const std::string& path, const at::Tensor& rgb);

}  // namespace tessera
