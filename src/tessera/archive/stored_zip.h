// Zip files whose records are not compressed, as Python's zipfile and torch.save write them. libtorch's own reader
// wants all records in one folder, which those of torch.export before torch 2.8 are not.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace tessera {

class StoredZip {
 public:
  /// `file` must live as long as this does. Throws Error where it is no such file, or damaged.
  explicit StoredZip(std::string_view file);

  bool has(const std::string& record) const { return records_.contains(record); }
  /// Throws Error where there is no such record.
  std::string_view at(const std::string& record) const;
  /// The record whose name ends so; torch.save puts all of them into a folder of any name.
  std::string_view ending(std::string_view name) const;

 private:
  std::map<std::string, std::string_view> records_;
};

}  // namespace tessera
