// predict --heatmap: where the network looked, as files.
#pragma once

#include <string>
#include <vector>

#include "tessera/data/image_source.h"
#include "tessera/runtime/evaluator.h"

namespace tessera {

/// For every image, named like it: a TIFF file of one map per class, whose mean is the class's logit, and a picture in
/// which the map of the predicted class lies over the image.
class Heatmaps {
 public:
  /// `names` are paths without endings, one for each image.
  Heatmaps(const ImageSource& images, std::vector<std::string> names) : images_(images), names_(std::move(names)) {}

  void add(const PredictedMaps& maps) const;

 private:
  const ImageSource& images_;
  const std::vector<std::string> names_;
};

/// [height, width, 3] of uint8 with a map of any size over it: as it is where the map is zero or less, yellow where it
/// is largest.
at::Tensor with_heat(const at::Tensor& rgb, const at::Tensor& map);

}  // namespace tessera
