#include "tessera/comm/node/node_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera {

std::unique_ptr<SharedPart> SharedPart::map(int file) {
  void* data =
      mmap(nullptr, static_cast<std::size_t>(whole), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (data != MAP_FAILED) return std::unique_ptr<SharedPart>(new SharedPart(file, static_cast<std::byte*>(data)));
  ::close(file);
  return nullptr;
}

std::unique_ptr<SharedPart> SharedPart::make(std::uint64_t mark) {
  // Of no file system, so that a small /dev/shm does not matter, and gone with the last process.
  const int file = memfd_create("tessera", MFD_CLOEXEC);
  if (file < 0) return nullptr;
  if (ftruncate(file, whole) != 0) {
    ::close(file);
    return nullptr;
  }
  auto part = map(file);
  if (part) part->mark() = mark;
  return part;
}

std::unique_ptr<SharedPart> SharedPart::open(std::int64_t process, int file, std::uint64_t mark) {
  const int own = ::open(concat("/proc/", process, "/fd/", file).c_str(), O_RDWR | O_CLOEXEC);
  if (own < 0) return nullptr;
  // In a container of its own a process may have the number of another.
  if (lseek(own, 0, SEEK_END) != whole) {
    ::close(own);
    return nullptr;
  }
  auto part = map(own);
  return part && part->mark() == mark ? std::move(part) : nullptr;
}

SharedPart::~SharedPart() {
  munmap(data_, static_cast<std::size_t>(whole));
  close_file();
}

void SharedPart::close_file() {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

}  // namespace tessera
