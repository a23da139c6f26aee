#include "tessera/runtime/store.h"

#include <ATen/ops/empty_strided.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// One file in which tensors take ranges; a range that was given back serves the next tensor of its length. Steps repeat
// themselves, so the file does not grow after the first.
class FileStore final : public Store {
 public:
  explicit FileStore(const std::string& folder) : folder_(folder) {
    file_ = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file_ < 0) {  // not every file system has files without names
      std::string name = folder + "/tessera-XXXXXX";
      file_ = ::mkostemp(name.data(), O_CLOEXEC);
      if (file_ >= 0) ::unlink(name.c_str());
    }
    require(file_ >= 0, "--scratch ", folder, ": ", std::strerror(errno), "; name a folder that can be written to");
  }
  ~FileStore() override { ::close(file_); }

  std::unique_ptr<Stored> put(const at::Tensor& tensor) override;
  std::int64_t peak_bytes() const override { return peak_; }

 private:
  class Ranged;

  std::int64_t take(std::int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    auto& free = free_[bytes];
    if (free.empty()) {
      end_ += bytes;
      return end_ - bytes;
    }
    const std::int64_t at = free.back();
    free.pop_back();
    return at;
  }
  void give_back(std::int64_t at, std::int64_t bytes) {
    live_ -= bytes;
    free_[bytes].push_back(at);
  }
  // All of `bytes`, with ::pread or ::pwrite.
  template <class Call, class Byte>
  void transfer(Call call, const char* what, Byte* data, std::int64_t bytes, std::int64_t at) const {
    for (std::int64_t done = 0; done < bytes;) {
      const auto n =
          call(file_, data + done, static_cast<std::size_t>(std::min<std::int64_t>(bytes - done, 1 << 30)), at + done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0)
        throw Error(concat("cannot ", what, " values in --scratch ", folder_, ": ",
                           n == 0 ? "the file ends early" : std::strerror(errno), "; it needs room for ", end_ >> 20,
                           " MiB and more"));
      done += n;
    }
  }

  const std::string folder_;
  int file_ = -1;
  std::int64_t end_ = 0, live_ = 0, peak_ = 0;
  std::map<std::int64_t, std::vector<std::int64_t>> free_;  // by length: where
};

class FileStore::Ranged final : public Stored {
 public:
  /// `tensor` is on the CPU; `options` say where it came from.
  Ranged(FileStore& store, const at::Tensor& tensor, const at::TensorOptions& options)
      : store_(store),
        sizes_(tensor.sizes().vec()),
        strides_(tensor.strides().vec()),
        options_(options),
        bytes_(static_cast<std::int64_t>(tensor.nbytes())),
        at_(store.take(bytes_)) {
    store_.transfer(::pwrite, "keep", static_cast<const char*>(tensor.data_ptr()), bytes_, at_);
  }
  ~Ranged() override { store_.give_back(at_, bytes_); }
  at::Tensor get() override {
    at::Tensor out = at::empty_strided(sizes_, strides_, options_.device(at::kCPU));
    store_.transfer(::pread, "read", static_cast<char*>(out.data_ptr()), bytes_, at_);
    return out.to(options_.device());
  }

 private:
  FileStore& store_;
  const std::vector<std::int64_t> sizes_, strides_;
  const at::TensorOptions options_;
  const std::int64_t bytes_, at_;
};

std::unique_ptr<Stored> FileStore::put(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.is_non_overlapping_and_dense() ? tensor : tensor.clone();
  return std::make_unique<Ranged>(*this, whole.cpu(), tensor.options());
}

}  // namespace

StoreKind parse_store(const std::string& name) {
  if (name == "device") return StoreKind::device;
  if (name == "host") return StoreKind::host;
  require(name == "file", "--store ", name, " is not one of device, host, file");
  return StoreKind::file;
}

std::unique_ptr<Store> make_file_store(const std::string& folder) { return std::make_unique<FileStore>(folder); }

void check_store(StoreKind kind, at::DeviceType device, const std::string& scratch) {
  require(kind != StoreKind::host || device == at::kCUDA,
          "--store host is for GPUs, and this run is on CPUs, whose values are there already; ",
          "use --store file with --scratch DIR");
  require(kind != StoreKind::file || !scratch.empty(), "--store file needs a folder: --scratch DIR");
  require(kind == StoreKind::file || scratch.empty(), "--scratch is for --store file");
}

std::unique_ptr<Store> make_store(StoreKind kind, at::DeviceType device, const std::string& scratch, double leaving) {
  check_store(kind, device, kind == StoreKind::file ? scratch : std::string());
  switch (kind) {
    case StoreKind::device:
      return nullptr;
    case StoreKind::host:
      return make_pinned_store(leaving);
    case StoreKind::file:
      return make_file_store(scratch);
  }
  return nullptr;
}

}  // namespace tessera
