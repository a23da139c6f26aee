#include "tessera/data/cifar10_format.h"

#include "tessera/base/error.h"

namespace tessera::cifar10 {
namespace {

constexpr std::int64_t records_per_file = 10000;

}  // namespace

void check_size(std::int64_t bytes, const std::string& file) {
  require(bytes > 0 && bytes % record_bytes == 0, "CIFAR-10 file '", file, "' has ", bytes, " bytes; expected ",
          records_per_file * record_bytes, " (", records_per_file, " records) or another multiple of ", record_bytes,
          ". It is cut short or not CIFAR-10: fetch it again", way_out);
}

void check_labels(std::span<const std::uint8_t> records, const std::string& file) {
  for (std::size_t i = 0; i < records.size(); i += record_bytes)
    require(records[i] <= 9, "CIFAR-10 file '", file, "' has label ", static_cast<int>(records[i]), " in record ",
            i / record_bytes, "; expected 0 to 9. It is damaged or not CIFAR-10: fetch it again", way_out);
}

}  // namespace tessera::cifar10
