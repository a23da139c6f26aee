// A file of CIFAR-10: whole records, with labels that there are classes for.
#include <span>

#include "fuzz/fuzz.h"
#include "tessera/data/cifar10_format.h"

void tessera::fuzz(std::string_view file) {
  cifar10::check_size(static_cast<std::int64_t>(file.size()), "file");
  const std::span records(reinterpret_cast<const std::uint8_t*>(file.data()), file.size());
  cifar10::check_labels(records, "file");
  must(file.size() % cifar10::record_bytes == 0);
  for (std::size_t i = 0; i < records.size(); i += cifar10::record_bytes) must(records[i] <= 9);
}
