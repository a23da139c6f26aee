#include "tessera/data/data_kind.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/files.h"
#include "tessera/data/image_decoder.h"

namespace tessera {
namespace {

constexpr const char* what_is_read =
    "; --datapath takes a folder of images (one folder per class, or images/ and masks/), a CSV file of path,label, or "
    "the folder of CIFAR-10's binary files";

// Files that hold many images in one, which people have and Tessera does not read.
const char* container_of(const std::string& name) {
  static const std::set<std::string> arrays{"npz", "h5", "hdf5", "zarr", "mat"};
  static const std::set<std::string> archives{"zip", "tar", "tgz", "gz", "7z", "lmdb", "tfrecord", "parquet"};
  const std::string ending = files::ending_of(name);
  if (arrays.contains(ending)) return "is a file of arrays: write each image as a PNG, TIFF or .npy file";
  if (archives.contains(ending)) return "is an archive: unpack it first";
  return nullptr;
}

bool holds_cifar(const std::string& folder) {
  for (const char* name : {"data_batch_1.bin", "test_batch.bin"})
    if (files::is_file(files::path_in(folder, name))) return true;
  return files::is_folder(files::path_in(folder, "cifar-10-batches-bin"));
}

std::string text_of(const ImageSize& size) { return concat(size.height, "x", size.width); }

/// Why two images cannot be of one set; empty: they can.
std::string difference(const ImageFacts& a, const std::string& a_name, const ImageFacts& b, const std::string& b_name,
                       const FactsWanted& wanted) {
  if (wanted.size && a.size != b.size)
    return concat("which --image-size? The images have several sizes ('", a_name, "' has ", text_of(a.size), ", '",
                  b_name, "' ", text_of(b.size),
                  "); they are stretched to the one that you name, for example --image-size ", text_of(a.size));
  const bool grey_or_colours = can_become(a.format.channels, 3) && can_become(b.format.channels, 3);
  if (wanted.channels && a.format.channels != b.format.channels)
    return concat("the images differ in their channels ('", a_name, "' has ", a.format.text(), ", '", b_name, "' ",
                  b.format.text(), ")",
                  grey_or_colours ? "; --channels 3 makes colours of grey, and lays transparency on white"
                                  : "; a network takes one number of them");
  const auto floats = [](const ImageFacts& facts) { return facts.format.type == PixelType::float32; };
  if (floats(a) != floats(b))
    return concat("integers are divided by the largest that there can be, and floats are taken as they are: '", a_name,
                  "' has ", a.format.text(), ", '", b_name, "' ", b.format.text(),
                  "; save all of them as one of these");
  return "";
}

}  // namespace

DataKind data_kind_of(const std::string& path) {
  if (files::is_file(path)) {
    const char* container = container_of(path);
    require(container == nullptr, "--datapath ", path, " ", container ? container : "", what_is_read);
    return DataKind::image_files;
  }
  require(files::is_folder(path), "--datapath ", path, " does not exist", what_is_read);
  if (holds_cifar(path)) return DataKind::cifar10;
  for (const std::string& name : files::names_in(path)) {
    const char* container = container_of(name);
    require(container == nullptr, "--datapath ", path, ": ", name, " ", container ? container : "", what_is_read);
  }
  return DataKind::image_files;
}

ImageFacts common_facts(const ImageList& images, const FactsWanted& wanted) {
  ensure(!images.files.empty(), "what no images have in common");
  const auto facts_of = [&](std::size_t i) -> std::optional<ImageFacts> {
    const ImageFile& file = images.files[i];
    try {
      const ImageHeader header = read_header(file.path, file.item.value_or(0));
      return ImageFacts{{header.height, header.width}, header.format};
    } catch (const UsageError&) {
      throw;
    } catch (const Error& error) {
      if (!wanted.size) return std::nullopt;  // whoever reads it will say so
      throw UsageError(concat(error.what(), "; leave it out of the data set, or say --image-size"));
    }
  };
  std::size_t model = 0;
  std::optional<ImageFacts> first = facts_of(0);
  while (!first && ++model < images.files.size()) first = facts_of(model);
  if (!first) return {};
  const auto problem_with = [&](std::size_t i) -> std::string {
    try {
      const auto facts = facts_of(i);
      return facts ? difference(*first, images.files[model].name(), *facts, images.files[i].name(), wanted) : "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  std::mutex mutex;  // guards the problem, which is that of the first such image, whichever thread finds it
  std::size_t where = images.files.size();
  std::string problem;
  std::atomic<std::size_t> next = model + 1;
  const auto look = [&] {
    for (std::size_t i = next++; i < images.files.size(); i = next++) {
      const std::string found = problem_with(i);
      if (found.empty()) continue;
      const std::lock_guard lock(mutex);
      if (i < where) problem = found;
      where = std::min(where, i);
      return;  // threads take images in order, so none before this one is left out
    }
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < std::max(1U, std::thread::hardware_concurrency()); ++t) threads.emplace_back(look);
  }
  if (!problem.empty()) throw UsageError(problem);
  return *first;
}

}  // namespace tessera
