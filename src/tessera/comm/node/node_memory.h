// Memory that the processes of one machine share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tessera {

/// One process's part of the shared memory: made by its owner, full of zeros, and opened by the others by process and
/// file number. Untouched pages cost nothing. It lasts as long as anybody holds it.
class SharedPart {
 public:
  /// Null where the system does not allow it. `mark` is any number that no other part has.
  static std::unique_ptr<SharedPart> make(std::uint64_t mark);
  /// Null where the system does not allow it, or where that is not the part with this mark.
  static std::unique_ptr<SharedPart> open(std::int64_t process, int file, std::uint64_t mark);
  ~SharedPart();
  SharedPart(const SharedPart&) = delete;
  SharedPart& operator=(const SharedPart&) = delete;

  int file() const { return file_; }
  /// From then on nobody can open it.
  void close_file();
  /// The memory after the mark, on a new page.
  std::byte* at(std::int64_t offset) const { return data_ + page + offset; }
  std::int64_t size() const { return whole - page; }

  static constexpr std::int64_t page = 4096;

 private:
  SharedPart(int file, std::byte* data) : file_(file), data_(data) {}
  static std::unique_ptr<SharedPart> map(int file);
  std::uint64_t& mark() const { return *reinterpret_cast<std::uint64_t*>(data_); }

  static constexpr std::int64_t whole = std::int64_t{16} << 30;
  int file_;
  std::byte* data_;
};

}  // namespace tessera
