// Where the values of a network wait between forward and backward, if not where they are made: in the host's memory
// beside a GPU, or in a file.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace tessera {

/// A tensor that waits somewhere. To be gone before its store.
class Stored {
 public:
  virtual ~Stored() = default;
  /// The same numbers in new memory, where the tensor came from and laid out as it was. May be called again.
  virtual at::Tensor get() = 0;
  /// get() will be called soon.
  virtual void prefetch() {}
};

/// Belongs to one thread.
class Store {
 public:
  virtual ~Store() = default;
  /// The caller may let go of the tensor at once, but must not write to it.
  virtual std::unique_ptr<Stored> put(const at::Tensor& tensor) = 0;
  /// The most that ever waited.
  virtual std::int64_t peak_bytes() const = 0;
  /// What is smaller is not worth the way.
  virtual std::size_t smallest() const { return 0; }
};

enum class StoreKind { device, host, file };
/// Throws UsageError.
StoreKind parse_store(const std::string& name);

/// What is wrong with the wish on any machine. Throws UsageError.
void check_store(StoreKind kind, at::DeviceType device, const std::string& scratch);
/// Null for StoreKind::device. `scratch`: the folder of the file, which has no name and goes with the process.
/// `leaving`: so many bytes of the device may be on their way out at once. Throws UsageError where the device has no
/// such store.
std::unique_ptr<Store> make_store(StoreKind kind, at::DeviceType device, const std::string& scratch,
                                  double leaving = 1 << 30);

/// In memory of the host that a GPU reads and writes while it computes.
std::unique_ptr<Store> make_pinned_store(double leaving);
/// In a file of this folder. Throws Error with the folder when that is full or cannot be written to.
std::unique_ptr<Store> make_file_store(const std::string& folder);

}  // namespace tessera
