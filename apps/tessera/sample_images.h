// A few images of the validation set with what the network says of them, in the log, for the report.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/image_source.h"
#include "tessera/runtime/evaluator.h"

namespace tessera {

class SampleImages {
 public:
  /// Not without libvips; and masks come whole to the rank that writes them, so they must not be too large for that.
  static bool can_show(const Graph& graph);
  /// Chooses images evenly over the set. `class_names` may be empty.
  SampleImages(std::shared_ptr<const ImageSource> images, std::vector<std::string> class_names);

  bool has(std::int64_t image) const { return samples_.contains(image); }
  /// Predictions of any images, as an evaluation hands them out.
  void take(const Predictions& predictions);
  /// Of an image that it has.
  void take(const PredictedMask& mask);
  /// samples.json, and the pictures in samples/ when they are not there yet. Throws Error.
  void write(const std::string& folder);

 private:
  struct Sample {
    std::string label, predicted;  ///< names; of several labels all of them
    std::optional<double> probability;
    at::Tensor mask = {};  ///< of a network that labels pixels: what it says, in pixels of the picture
  };
  void write_masks(const std::string& folder, std::int64_t image, const Sample& sample) const;
  std::string name_of(std::int64_t label) const;
  /// Of a row of numbers by class: the names of those that hold() says yes to.
  template <class Holds>
  std::string names_of(std::int64_t classes, const Holds& holds) const;

  const std::shared_ptr<const ImageSource> images_;
  const std::vector<std::string> class_names_;
  std::map<std::int64_t, Sample> samples_;  // by image
  bool pictures_written_ = false;
};

}  // namespace tessera
