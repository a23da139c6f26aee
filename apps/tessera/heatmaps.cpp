#include "heatmaps.h"

#include <ATen/ops/upsample_bilinear2d.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tessera/data/files.h"
#include "tessera/data/label_image.h"
#include "tessera/io/file.h"

namespace tessera {
namespace {

constexpr std::int64_t most_side = 1024;

// From cold to hot: dark violet, red, orange, yellow, evenly brighter, so that a grey print shows the same.
std::array<double, 3> colour_of(double heat) {
  constexpr std::array<std::array<double, 3>, 4> stops{{{60, 9, 101}, {187, 55, 84}, {249, 142, 9}, {252, 255, 164}}};
  const double at = std::clamp(heat, 0.0, 1.0) * (stops.size() - 1);
  const auto below = std::min(static_cast<std::size_t>(at), stops.size() - 2);
  std::array<double, 3> out{};
  for (std::size_t c = 0; c < 3; ++c)
    out[c] = stops[below][c] + (at - static_cast<double>(below)) * (stops[below + 1][c] - stops[below][c]);
  return out;
}

}  // namespace

at::Tensor with_heat(const at::Tensor& rgb, const at::Tensor& map) {
  constexpr double most_cover = 0.75;
  const at::Tensor stretched = at::upsample_bilinear2d(map.to(at::kDouble).unsqueeze(0).unsqueeze(0),
                                                       {rgb.size(0), rgb.size(1)}, /*align_corners=*/false)
                                   .contiguous();
  const double hottest = std::max(0.0, stretched.max().item<double>());
  at::Tensor out = rgb.contiguous().clone();
  const double* heat = stretched.data_ptr<double>();
  std::uint8_t* pixel = out.data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < stretched.numel(); ++i, pixel += 3) {
    const double share = hottest > 0 ? std::max(0.0, heat[i]) / hottest : 0;
    const auto colour = colour_of(share);
    for (std::size_t c = 0; c < 3; ++c)
      pixel[c] = static_cast<std::uint8_t>(std::lround(pixel[c] + most_cover * share * (colour[c] - pixel[c])));
  }
  return out;
}

void Heatmaps::add(const PredictedMaps& maps) const {
  const std::string& name = names_[static_cast<std::size_t>(maps.image)];
  make_folders(files::folder_of(name));
  write_planes(name + ".tif", maps.planes);
  const auto predicted = maps.planes.mean({1, 2}, false, at::kDouble).argmax().item<std::int64_t>();
  const ImageSize size = shrunk_to(images_.own_size(maps.image), most_side);
  write_picture(name + ".jpg", with_heat(images_.thumbnail(maps.image, size), maps.planes.select(0, predicted)));
}

}  // namespace tessera
