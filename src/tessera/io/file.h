// Files and folders by POSIX calls: nothing is believed written before the disk has said so, and every failure is an
// Error with the path, the system's reason and a way out. Not thread-safe, except where it says so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/paths.h"

namespace tessera {

/// Size and checksum of a file, as its writer meant it.
struct FileSum {
  std::int64_t bytes = 0;
  std::uint32_t crc32c = 0;
  friend bool operator==(const FileSum&, const FileSum&) = default;
};

/// An open file descriptor.
class FileHandle {
 public:
  explicit FileHandle(int descriptor = -1) : descriptor_(descriptor) {}
  ~FileHandle();
  FileHandle(FileHandle&& other) noexcept : descriptor_(other.release()) {}
  FileHandle& operator=(FileHandle&& other) noexcept;
  int get() const { return descriptor_; }
  int release();

 private:
  int descriptor_;
};

/// A new file, or an old one written anew from its start.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  /// Removes the file if it was not closed: half a file helps nobody.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  const std::string& path() const { return path_; }
  /// Returns once the bytes are on the disk.
  FileSum close();

 private:
  std::string path_;
  FileHandle file_;
  FileSum sum_;
};

/// A log: every append is there whole or not at all, as long as the process itself lives.
class AppendFile {
 public:
  explicit AppendFile(std::string path);
  void append(std::string_view record);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  FileHandle file_;
  std::int64_t size_ = 0;
};

/// For reading at any place. read() may be called by several threads at once.
class InputFile {
 public:
  explicit InputFile(std::string path);
  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }
  /// Throws if the file ends before.
  void read(std::int64_t offset, void* to, std::size_t bytes) const;

 private:
  std::string path_;
  FileHandle file_;
  std::int64_t size_ = 0;
};

/// The whole file. Throws if it is larger than `most`.
std::string read_text(const std::string& path, std::int64_t most = std::int64_t{1} << 30);
/// Reads it all, a piece at a time.
FileSum sum_of_file(const std::string& path);
FileSum write_text(const std::string& path, std::string_view text);
/// By way of `path`.part and a rename: whole or not there, also after a power cut. Devices, pipes and what is behind
/// links are written to as they are.
void write_text_atomically(const std::string& path, std::string_view text);

/// "a/b" and "c" give "a/b/c"; an empty folder is the current one.
std::string join_path(const std::string& folder, const std::string& name);
/// The folder that holds it: "." if the path has none.
std::string parent_of(const std::string& path);
/// Names in the folder, sorted, without "." and "..".
std::vector<std::string> list_folder(const std::string& path);
/// With the folders above it. Nothing happens if it is there.
void make_folders(const std::string& path);
/// A file that is not there is no error.
void remove_file(const std::string& path);
/// With everything in it; links are removed, not followed. One that is not there is no error.
void remove_folder(const std::string& path);
void rename_path(const std::string& from, const std::string& to);
/// Gives the folder `from` the name `to`, for good. If there is such a folder it goes away, in the same step where the
/// file system can.
void replace_folder(const std::string& from, const std::string& to);
/// Locks the folder against other processes for as long as the handle lives. Empty if another has it, and a handle
/// without a lock where the file system has none.
std::optional<FileHandle> lock_folder(const std::string& path);
/// Makes sure that names made, renamed or removed in the folder stay so after a power cut.
void sync_folder(const std::string& path);

}  // namespace tessera
