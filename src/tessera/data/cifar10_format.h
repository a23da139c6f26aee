// What a file of CIFAR-10's binary version must be. Knows no torch.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tessera::cifar10 {

inline constexpr std::int64_t side = 32, plane_bytes = side * side, record_bytes = 1 + 3 * plane_bytes;
inline constexpr const char* way_out =
    "; give the folder of CIFAR-10's binary version (data_batch_1.bin ... data_batch_5.bin, test_batch.bin) "
    "with --datapath";

/// Throws UsageError, which names the file, unless these are whole records.
void check_size(std::int64_t bytes, const std::string& file);
/// Throws UsageError, which names the file, unless every label is from 0 to 9. Precondition: check_size() was content.
void check_labels(std::span<const std::uint8_t> records, const std::string& file);

}  // namespace tessera::cifar10
