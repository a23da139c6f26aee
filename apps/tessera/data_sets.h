// The images that a job trains and evaluates on, as the flags name them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "options.h"
#include "tessera/data/vips_images.h"

namespace tessera {

class Launch;

/// What --app says; the seeds call the data sets by number.
std::string app_name(const std::string& app);
/// Which part eval and predict look at: a set that is not divided into training and validation is taken as it is.
Split evaluated_split(const Options& options);

/// While they are opened: those of files may still lose images.
class DataSets {
 public:
  explicit DataSets(const Options& options) : options_(options) {}

  /// masks: a label for each pixel is needed.
  void open(bool masks);
  void leave_out_bad_images(const Launch& launch);
  /// Once no image goes any more: holds out what is evaluated on, and changes what is trained on.
  void divide();

  std::shared_ptr<const ImageSource> images() const { return images_; }
  std::shared_ptr<const ImageSource> validation() const { return validation_; }

 private:
  std::shared_ptr<const ImageSource> open_one(Split split, const std::vector<std::string>& names);

  const Options& options_;
  bool masks_ = false;
  std::vector<std::shared_ptr<VipsImages>> files_;
  std::shared_ptr<const ImageSource> images_, validation_;
};

}  // namespace tessera
