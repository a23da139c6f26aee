// Zip files whose records are not compressed, as Python's zipfile and torch.save write them. libtorch's own reader
// wants all records in one folder, which those of torch.export before torch 2.8 are not.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace tessera {

class StoredZip {
 public:
  /// `file` must live as long as this does. Throws Error where it is no such file, or damaged.
  explicit StoredZip(std::string_view file);

  bool has(const std::string& record) const { return records_.contains(record); }
  /// Throws Error where there is no such record, or its checksum is another one.
  std::string_view at(const std::string& record) const;
  /// The record whose name ends so; torch.save puts all of them into a folder of any name. Their sums may be left out.
  std::string_view ending(std::string_view name) const;

 private:
  struct Record {
    std::string_view bytes;
    std::uint32_t checksum = 0;
  };
  std::map<std::string, Record> records_;
};

}  // namespace tessera
