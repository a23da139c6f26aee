// Which image files a data set has, and their labels. docs/files.md shows the layouts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/image_source.h"

namespace tessera {

struct ImageListOptions {
  /// A CSV file, or a folder that holds train.csv and val.csv or a folder for each class.
  std::string path;
  /// What messages call it.
  std::string flag = "--datapath";
  Split split = Split::train;
  /// Every image needs a mask.
  bool masks = false;
  /// An image has any number of labels: a CSV file separates them by semicolons.
  bool several = false;
  /// Labels must be less than this; 0 takes as many classes as there are.
  int classes = 0;
  /// What labels 0, 1, ... are called. Empty: the names of the training set, sorted, unless its labels are numbers.
  std::vector<std::string> class_names = {};
  /// Images that are only looked at may lack a label: in a CSV a line, or all of the column, and a folder may hold
  /// images in place of a folder for each class. `path` may be one image.
  bool labels_optional = false;
  /// Labels are not looked at, whatever they are; with labels_optional.
  bool only_files = false;
};

struct ImageFile {
  std::string path;
  std::int64_t label = 0;                                          ///< -1: it has none; the first of several
  std::string mask = "";                                           ///< empty: none was asked for
  int repeat = 1;                                                  ///< how often it is trained on in an epoch
  std::optional<std::vector<std::int64_t>> labels = std::nullopt;  ///< of ImageListOptions::several; not set: unknown
  std::optional<std::int64_t> item = std::nullopt;                 ///< which image of a file that has several
  std::optional<std::int64_t> mask_item = std::nullopt;            ///< which mask, likewise

  std::string name() const { return item ? concat(path, "[", *item, "]") : path; }
};

struct ImageList {
  std::vector<ImageFile> files;
  std::vector<std::string> class_names;  ///< empty when labels are numbers
  int classes = 0;
  std::string source;  ///< the folder or file that they were found in
};

/// It checks that every file is there and has a label; only arrays are opened, to see how many images they hold. Throws
/// UsageError with the first ten of all problems.
ImageList list_images(const ImageListOptions& options);

}  // namespace tessera
