#include "tessera/io/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/io/crc32c.h"

namespace tessera {
namespace {

// The kernel moves at most 2 GiB in one call.
constexpr std::size_t largest_transfer = std::size_t{1} << 30;

const char* way_out(int reason) {
  switch (reason) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "; free some space there, or choose another place";
    case EACCES:
    case EPERM:
    case EROFS:
      return "; choose a place that you may write to";
    default:
      return "";
  }
}

// Takes errno first, before anything else can change it.
[[noreturn]] void fail(const char* what, const std::string& path) {
  const int reason = errno;
  throw Error(concat("could not ", what, " ", path, ": ", std::strerror(reason), way_out(reason)));
}

template <class Call>
auto again_if_interrupted(const Call& call) {
  decltype(call()) result;
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

int open_or_fail(const std::string& path, int flags, const char* what) {
  const int descriptor = again_if_interrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); });
  if (descriptor < 0) fail(what, path);
  return descriptor;
}

void write_all(int descriptor, const std::string& path, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const auto done = again_if_interrupted([&] { return ::write(descriptor, at, std::min(bytes, largest_transfer)); });
    if (done < 0) fail("write", path);
    at += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

std::int64_t size_of(int descriptor, const std::string& path) {
  struct stat status;
  if (::fstat(descriptor, &status) != 0) fail("look at", path);
  return status.st_size;
}

}  // namespace

FileHandle::~FileHandle() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

int FileHandle::release() { return std::exchange(descriptor_, -1); }

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), file_(open_or_fail(path_, O_WRONLY | O_CREAT | O_TRUNC, "write")) {}

OutputFile::~OutputFile() {
  if (file_.get() >= 0) ::unlink(path_.c_str());
}

void OutputFile::write(const void* data, std::size_t bytes) {
  write_all(file_.get(), path_, data, bytes);
  sum_.bytes += static_cast<std::int64_t>(bytes);
  sum_.crc32c = crc32c(data, bytes, sum_.crc32c);
}

FileSum OutputFile::close() {
  if (again_if_interrupted([&] { return ::fsync(file_.get()); }) != 0) fail("write", path_);
  // Network file systems may report a full disk only here. EINTR closes the file, too.
  if (::close(file_.release()) != 0 && errno != EINTR) {
    const int reason = errno;
    ::unlink(path_.c_str());
    errno = reason;
    fail("write", path_);
  }
  return sum_;
}

AppendFile::AppendFile(std::string path)
    : path_(std::move(path)), file_(open_or_fail(path_, O_WRONLY | O_CREAT | O_APPEND, "write")) {
  size_ = size_of(file_.get(), path_);
}

void AppendFile::append(std::string_view record) {
  try {
    write_all(file_.get(), path_, record.data(), record.size());
  } catch (const Error&) {
    // Half a record would spoil those after it.
    if (::ftruncate(file_.get(), size_) != 0) fail("shorten", path_);
    throw;
  }
  size_ += static_cast<std::int64_t>(record.size());
}

InputFile::InputFile(std::string path) : path_(std::move(path)), file_(open_or_fail(path_, O_RDONLY, "read")) {
  struct stat status;
  if (::fstat(file_.get(), &status) != 0) fail("look at", path_);
  if (!S_ISREG(status.st_mode)) throw Error(concat("could not read ", path_, ": it is not a file"));
  size_ = status.st_size;
}

void InputFile::read(std::int64_t offset, void* to, std::size_t bytes) const {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const auto done = again_if_interrupted(
        [&] { return ::pread(file_.get(), at, std::min(bytes, largest_transfer), static_cast<off_t>(offset)); });
    if (done < 0) fail("read", path_);
    if (done == 0)
      throw Error(concat(path_, " ends at byte ", offset, ", and ", bytes, " more were expected: it has been cut off"));
    at += done;
    offset += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

std::string read_text(const std::string& path, std::int64_t most) {
  const InputFile file(path);
  if (file.size() > most) throw Error(concat(path, " has ", file.size(), " bytes; at most ", most, " were expected"));
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

FileSum sum_of_file(const std::string& path) {
  const InputFile file(path);
  std::vector<char> piece(std::size_t{1} << 20);
  FileSum sum;
  while (sum.bytes < file.size()) {
    const auto bytes = std::min(piece.size(), static_cast<std::size_t>(file.size() - sum.bytes));
    file.read(sum.bytes, piece.data(), bytes);
    sum.crc32c = crc32c(piece.data(), bytes, sum.crc32c);
    sum.bytes += static_cast<std::int64_t>(bytes);
  }
  return sum;
}

FileSum write_text(const std::string& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  return file.close();
}

namespace {

// A device, a pipe or a link is written to and stays what it is: a rename would put a file in its place.
bool is_other_than_file(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

void write_through(const std::string& path, std::string_view text) {
  FILE* const file = fopen(path.c_str(), "w");
  bool good = file != nullptr && fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr) good = fclose(file) == 0 && good;
  if (!good) throw Error(concat("cannot write ", path, ": ", std::strerror(errno)));
}

}  // namespace

void write_text_atomically(const std::string& path, std::string_view text) {
  if (is_other_than_file(path)) return write_through(path, text);
  write_text(path + ".part", text);
  rename_path(path + ".part", path);
  sync_folder(parent_of(path));
}

std::string join_path(const std::string& folder, const std::string& name) {
  if (folder.empty()) return name;
  return folder.back() == '/' ? folder + name : folder + "/" + name;
}

std::string parent_of(const std::string& path) {
  const auto last = path.find_last_not_of('/');
  const auto slash = last == std::string::npos ? last : path.find_last_of('/', last);
  if (slash == std::string::npos) return path.starts_with('/') ? "/" : ".";
  const auto end = path.find_last_not_of('/', slash);
  return end == std::string::npos ? "/" : path.substr(0, end + 1);
}

std::vector<std::string> list_folder(const std::string& path) {
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) fail("list the folder", path);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  const int reason = errno;
  ::closedir(folder);
  errno = reason;
  if (reason != 0) fail("list the folder", path);
  std::sort(names.begin(), names.end());
  return names;
}

void make_folders(const std::string& path) {
  if (is_folder(path)) return;
  const std::string parent = parent_of(path);
  if (parent != path) make_folders(parent);
  // Another rank may have been faster.
  if (::mkdir(path.c_str(), 0777) != 0 && !(errno == EEXIST && is_folder(path))) fail("make the folder", path);
  sync_folder(parent);
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail("remove", path);
}

void remove_folder(const std::string& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return;
    fail("remove", path);
  }
  if (!S_ISDIR(status.st_mode)) return remove_file(path);
  for (const auto& name : list_folder(path)) remove_folder(join_path(path, name));
  if (::rmdir(path.c_str()) != 0 && errno != ENOENT) fail("remove", path);
}

void rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail("rename", concat(from, " to ", to));
}

void replace_folder(const std::string& from, const std::string& to) {
  std::string old;
  if (!is_folder(to)) {
    rename_path(from, to);
  } else if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    old = from;
  } else {
    // File systems that cannot exchange two names: for a moment there is neither.
    if (errno != EINVAL && errno != ENOSYS) fail("rename", concat(from, " to ", to));
    old = from + ".old";
    remove_folder(old);
    rename_path(to, old);
    rename_path(from, to);
  }
  sync_folder(parent_of(to));
  if (!old.empty()) remove_folder(old);
}

std::optional<FileHandle> lock_folder(const std::string& path) {
  FileHandle folder(open_or_fail(path, O_RDONLY | O_DIRECTORY, "open the folder"));
  const bool locked = again_if_interrupted([&] { return ::flock(folder.get(), LOCK_EX | LOCK_NB); }) == 0;
  if (!locked && errno == EWOULDBLOCK) return std::nullopt;
  return folder;
}

void sync_folder(const std::string& path) {
  const FileHandle folder(open_or_fail(path, O_RDONLY | O_DIRECTORY, "open the folder"));
  // Some network file systems have nothing to sync in a folder.
  if (again_if_interrupted([&] { return ::fsync(folder.get()); }) != 0 && errno != EINVAL && errno != ENOTSUP)
    fail("sync the folder", path);
}

}  // namespace tessera
