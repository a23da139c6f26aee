#include "tessera/archive/stored_zip.h"

#include <array>
#include <cstdint>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
constexpr std::string_view end_mark = "PK\x05\x06", entry_mark = "PK\x01\x02", record_mark = "PK\x03\x04";
constexpr std::size_t end_bytes = 22, entry_bytes = 46, record_bytes = 30, longest_comment = 65535;
constexpr std::uint64_t in_extra = 0xffffffff;  ///< the number stands in the zip64 field

class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}
  std::string_view part(std::uint64_t at, std::uint64_t count) const {
    if (at > bytes_.size() || count > bytes_.size() - at) throw Error("the zip file is cut short or damaged");
    return bytes_.substr(at, count);
  }
  std::uint64_t number(std::uint64_t at, std::uint64_t count) const {
    std::uint64_t value = 0;
    const std::string_view digits = part(at, count);
    for (std::size_t i = digits.size(); i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(digits[i]);
    return value;
  }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
};

std::uint32_t checksum(std::string_view bytes) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> out{};
    for (std::uint32_t i = 0; i < out.size(); ++i) {
      out[i] = i;
      for (int bit = 0; bit < 8; ++bit) out[i] = out[i] >> 1 ^ (out[i] & 1 ? 0xedb88320u : 0);
    }
    return out;
  }();
  std::uint32_t sum = ~0u;
  for (const char byte : bytes) sum = sum >> 8 ^ table[(sum ^ static_cast<std::uint8_t>(byte)) & 0xff];
  return ~sum;
}

std::uint64_t end_of(std::string_view file) {
  for (std::size_t at = file.size() >= end_bytes ? file.size() - end_bytes + 1 : 0; at-- > 0;) {
    if (file.substr(at, end_mark.size()) == end_mark) return at;
    if (file.size() - at > end_bytes + longest_comment) break;
  }
  throw Error("it is no zip file, or cut short");
}

}  // namespace

StoredZip::StoredZip(std::string_view file) {
  const Bytes bytes(file);
  const std::uint64_t end = end_of(file), count = bytes.number(end + 10, 2);
  std::uint64_t at = bytes.number(end + 16, 4);
  if (at == in_extra || count == 0xffff) throw Error("the zip file has more records, or is larger, than can be read");
  for (std::uint64_t i = 0; i < count; ++i) {
    if (bytes.part(at, entry_mark.size()) != entry_mark) throw Error("the zip file's list of records is damaged");
    const std::uint64_t name_bytes = bytes.number(at + 28, 2), extra_bytes = bytes.number(at + 30, 2);
    std::uint64_t packed = bytes.number(at + 20, 4), size = bytes.number(at + 24, 4), begin = bytes.number(at + 42, 4);
    const std::string name(bytes.part(at + entry_bytes, name_bytes));
    // What does not fit 32 bits stands in the field 1 of the extras, in this order.
    const Bytes extra(bytes.part(at + entry_bytes + name_bytes, extra_bytes));
    for (std::uint64_t field = 0; field + 4 <= extra.size(); field += 4 + extra.number(field + 2, 2)) {
      if (extra.number(field, 2) != 1) continue;
      std::uint64_t next = field + 4;
      for (std::uint64_t* value : {&size, &packed, &begin})
        if (*value == in_extra) {
          *value = extra.number(next, 8);
          next += 8;
        }
    }
    if (bytes.number(at + 10, 2) != 0 || packed != size)
      throw Error(concat("its record '", name,
                         "' is compressed; write the file with torch.export.save, without zipping it again"));
    if (bytes.part(begin, record_mark.size()) != record_mark) throw Error(concat("its record '", name, "' is damaged"));
    const std::uint64_t data = begin + record_bytes + bytes.number(begin + 26, 2) + bytes.number(begin + 28, 2);
    records_[name] = {bytes.part(data, size), static_cast<std::uint32_t>(bytes.number(at + 16, 4))};
    at += entry_bytes + name_bytes + extra_bytes + bytes.number(at + 32, 2);
  }
}

std::string_view StoredZip::at(const std::string& record) const {
  const auto found = records_.find(record);
  if (found == records_.end()) throw Error(concat("it has no record '", record, "'"));
  const auto& [bytes, sum] = found->second;
  if (checksum(bytes) != sum) throw Error(concat("its record '", record, "' is damaged"));
  return bytes;
}

std::string_view StoredZip::ending(std::string_view name) const {
  for (const auto& [record, stored] : records_)
    if (record.ends_with(name)) return stored.bytes;
  throw Error(concat("it has no record '", name, "'"));
}

}  // namespace tessera
