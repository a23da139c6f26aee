#include "tessera/io/event_file.h"

#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/io/crc32c.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

// The protobuf fields that are used, by their numbers in event.proto and summary.proto.
enum EventField : unsigned { wall_time = 1, event_step = 2, file_version = 3, summary = 5, session_log = 7 };
enum SummaryField : unsigned { summary_value = 1 };
enum ValueField : unsigned { tag = 1, simple_value = 2 };
enum SessionLogField : unsigned { status = 1 };
constexpr std::uint64_t session_start = 1;

template <class T>
void put_raw(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 128; value >>= 7) out += static_cast<char>((value & 127) | 128);
  out += static_cast<char>(value);
}

// A field's key is its number and the form that follows: 0 a varint, 1 eight bytes, 2 a length and bytes, 5 four bytes.
void put_key(std::string& out, unsigned field, unsigned form) { put_varint(out, field << 3 | form); }
void put_whole(std::string& out, unsigned field, std::uint64_t value) {
  put_key(out, field, 0);
  put_varint(out, value);
}
void put_double(std::string& out, unsigned field, double value) {
  put_key(out, field, 1);
  put_raw(out, value);
}
void put_bytes(std::string& out, unsigned field, const std::string& bytes) {
  put_key(out, field, 2);
  put_varint(out, bytes.size());
  out += bytes;
}
void put_float(std::string& out, unsigned field, float value) {
  put_key(out, field, 5);
  put_raw(out, value);
}

// Rotated and shifted, because the checksum of data that holds its own checksum is a constant.
std::uint32_t masked_crc(const std::string& bytes) {
  return std::rotr(crc32c(bytes.data(), bytes.size()), 15) + 0xa282ead8u;
}

std::string record(const std::string& event) {
  std::string out;
  put_raw(out, static_cast<std::uint64_t>(event.size()));
  put_raw(out, masked_crc(out));
  out += event;
  put_raw(out, masked_crc(event));
  return out;
}

std::string event_head(double time, std::int64_t step) {
  std::string event;
  put_double(event, wall_time, time);
  if (step != 0) put_whole(event, event_step, static_cast<std::uint64_t>(step));  // protobuf leaves out zeros
  return event;
}

std::string new_path(const std::string& folder, double time) {
  static std::atomic<int> files{0};  // a process may write several in one second
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  make_folders(folder);
  return join_path(
      folder, concat("events.out.tfevents.", static_cast<std::int64_t>(time), ".", host, ".", getpid(), ".", files++));
}

}  // namespace

EventFile::EventFile(const std::string& folder, std::optional<std::int64_t> first_step, double time)
    : file_(new_path(folder, time)) {
  std::string version = event_head(time, first_step.value_or(0));
  put_bytes(version, file_version, "brain.Event:2");
  file_.append(record(version));
  if (!first_step) return;
  std::string log, start = event_head(time, *first_step);
  put_whole(log, status, session_start);
  put_bytes(start, session_log, log);
  file_.append(record(start));
}

void EventFile::write(std::int64_t step, const std::vector<Metric>& metrics, double time) {
  std::string values;
  for (const auto& metric : metrics) {
    const auto* number = std::get_if<double>(&metric.value);
    const auto* whole = std::get_if<std::int64_t>(&metric.value);
    if (number == nullptr && whole == nullptr) continue;
    std::string value;
    put_bytes(value, tag, metric.name);
    put_float(value, simple_value, number != nullptr ? static_cast<float>(*number) : static_cast<float>(*whole));
    put_bytes(values, summary_value, value);
  }
  if (values.empty()) return;
  std::string event = event_head(time, step);
  put_bytes(event, summary, values);
  file_.append(record(event));
}

}  // namespace tessera
