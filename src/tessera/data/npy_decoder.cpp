// Images of numpy.save(): one array per file, of one image or several.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include <c10/util/Half.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/decoders.h"
#include "tessera/data/npy_format.h"

namespace tessera::npy {
namespace {

[[noreturn]] void bad_image(const std::string& path, const std::string& what) {
  throw Error(concat("image '", path, "' ", what));
}

class File {
 public:
  explicit File(const std::string& path) : path_(path), handle_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (handle_ < 0) bad_image(path, concat("cannot be read: ", std::strerror(errno)));
  }
  ~File() { ::close(handle_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::int64_t bytes() const {
    struct stat facts {};
    return ::fstat(handle_, &facts) == 0 ? static_cast<std::int64_t>(facts.st_size) : 0;
  }
  void read(std::int64_t at, std::int64_t count, void* to) const {
    auto* out = static_cast<char*>(to);
    while (count > 0) {
      const ssize_t got = ::pread(handle_, out, static_cast<std::size_t>(count), at);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) bad_image(path_, concat("cannot be read: ", std::strerror(errno)));
      if (got == 0) bad_image(path_, "is cut short");
      out += got;
      at += got;
      count -= got;
    }
  }

 private:
  const std::string path_;
  const int handle_;
};

/// Numbers as numpy calls them.
enum class Stored { truth, uint8, int8, uint16, int16, uint32, int32, uint64, int64, float16, float32, float64 };

struct StoredType {
  const char* name;
  Stored type;
  std::int64_t bytes;
};
constexpr std::array stored_types{StoredType{"|b1", Stored::truth, 1},   StoredType{"|u1", Stored::uint8, 1},
                                  StoredType{"|i1", Stored::int8, 1},    StoredType{"<u2", Stored::uint16, 2},
                                  StoredType{"<i2", Stored::int16, 2},   StoredType{"<u4", Stored::uint32, 4},
                                  StoredType{"<i4", Stored::int32, 4},   StoredType{"<u8", Stored::uint64, 8},
                                  StoredType{"<i8", Stored::int64, 8},   StoredType{"<f2", Stored::float16, 2},
                                  StoredType{"<f4", Stored::float32, 4}, StoredType{"<f8", Stored::float64, 8}};

/// One image as it lies in the file: where the number of a row, a column and a channel is.
struct Layout {
  std::int64_t height = 0, width = 0, channels = 1;
  std::int64_t images = 1;
  bool planes = false;  ///< channel by channel, not pixel by pixel
  StoredType stored{};
  std::int64_t data = 0;

  PixelFormat format() const {
    return {channels, stored.type == Stored::uint8    ? PixelType::uint8
                      : stored.type == Stored::uint16 ? PixelType::uint16
                                                      : PixelType::float32};
  }
};

enum class ChannelSide { first, last, unclear };

bool familiar(std::int64_t channels) { return channels == 1 || channels == 3 || channels == 4; }

// Of three sides: grey, RGB and RGBA are known by their number, other channels by being fewer than rows and columns.
ChannelSide channel_side(std::int64_t first, std::int64_t middle, std::int64_t last) {
  if (familiar(last)) return ChannelSide::last;
  if (familiar(first)) return ChannelSide::first;
  if (last < std::min(first, middle)) return ChannelSide::last;
  if (first < std::min(middle, last)) return ChannelSide::first;
  return ChannelSide::unclear;
}

// `shape`: three sides, or two.
void take_sides(Layout& out, std::span<const std::int64_t> shape, ChannelSide side) {
  out.planes = side == ChannelSide::first;
  if (shape.size() == 3) out.channels = shape[out.planes ? 0 : 2];
  out.height = shape[out.planes ? 1 : 0];
  out.width = shape[out.planes ? 2 : 1];
}

[[noreturn]] void bad_shape(const std::string& path, std::span<const std::int64_t> shape, bool mask) {
  std::string sides;
  for (const std::int64_t side : shape) sides += concat(sides.empty() ? "" : "x", side);
  bad_image(path, concat("is an array of ", sides.empty() ? "one number" : sides, "; ",
                         mask ? "a mask is height x width, and several are number x height x width"
                              : "an image is height x width, or height x width x channels with fewer channels than "
                                "rows and columns, and several are number x height x width x channels"));
}

bool is_integer(Stored type) { return type != Stored::float16 && type != Stored::float32 && type != Stored::float64; }

NpyHeader header_of(const std::string& path, const File& file) {
  std::string begin(static_cast<std::size_t>(std::min(file.bytes(), npy_header_limit)), '\0');
  file.read(0, static_cast<std::int64_t>(begin.size()), begin.data());
  NpyHeader header;
  try {
    header = parse_npy(begin);
  } catch (const Error& error) {
    bad_image(path, error.what());
  }
  if (header.fortran_order) bad_image(path, "lies column by column; save numpy.ascontiguousarray() of it");
  return header;
}

StoredType stored_type(const std::string& path, const NpyHeader& header) {
  const auto stored = std::ranges::find_if(stored_types, [&](const auto& type) { return header.type == type.name; });
  if (stored == stored_types.end())
    bad_image(path, concat("has numbers of type '", header.type, "'; save it as uint8, uint16 or float32"));
  return *stored;
}

void check_length(const std::string& path, const File& file, const NpyHeader& header, const StoredType& stored) {
  const std::int64_t needed = header.data + header.elements() * stored.bytes;
  if (file.bytes() < needed) bad_image(path, concat("is cut short: ", file.bytes(), " bytes of ", needed));
}

Layout layout_of(const std::string& path, const File& file, bool mask) {
  const NpyHeader header = header_of(path, file);
  Layout out{.stored = stored_type(path, header), .data = header.data};
  const std::span<const std::int64_t> shape = header.shape;
  if (shape.size() == 2) {
    take_sides(out, shape, ChannelSide::last);
  } else if (shape.size() == 3 && mask && !familiar(shape[2])) {
    out.images = shape[0];
    take_sides(out, shape.subspan(1), ChannelSide::last);
  } else if (shape.size() == 3) {
    const ChannelSide side = channel_side(shape[0], shape[1], shape[2]);
    if (side == ChannelSide::unclear) bad_shape(path, shape, mask);
    take_sides(out, shape, side);
  } else if (shape.size() == 4) {
    out.images = shape[0];
    take_sides(out, shape.subspan(1), channel_side(shape[1], shape[2], shape[3]));
  } else {
    bad_shape(path, shape, mask);
  }
  if (out.height == 0 || out.width == 0 || out.channels == 0 || out.images == 0) bad_image(path, "is empty");
  check_length(path, file, header, out.stored);
  return out;
}

template <class Number>
Number number_at(const std::uint8_t* bytes, std::int64_t i) {
  Number number;
  std::memcpy(&number, bytes + i * static_cast<std::int64_t>(sizeof number), sizeof number);
  return number;
}

/// Calls run(i) -> number for what the bytes are.
template <class Run>
void with_stored(Stored type, const std::uint8_t* bytes, const Run& run) {
  const auto as = [&]<class Number>(Number) { run([bytes](std::int64_t i) { return number_at<Number>(bytes, i); }); };
  switch (type) {
    case Stored::truth:
    case Stored::uint8:
      return as(std::uint8_t{});
    case Stored::int8:
      return as(std::int8_t{});
    case Stored::uint16:
      return as(std::uint16_t{});
    case Stored::int16:
      return as(std::int16_t{});
    case Stored::uint32:
      return as(std::uint32_t{});
    case Stored::int32:
      return as(std::int32_t{});
    case Stored::uint64:
      return as(std::uint64_t{});
    case Stored::int64:
      return as(std::int64_t{});
    case Stored::float16:
      return as(c10::Half{});
    case Stored::float32:
      return as(float{});
    case Stored::float64:
      return as(double{});
  }
}

class Decoder final : public ImageDecoder {
 public:
  Decoder(const std::string& path, std::int64_t item, PixelKind kind)
      : path_(path), file_(path), layout_(layout_of(path, file_, kind.label)), item_(item), label_(kind.label) {
    const Stored type = layout_.stored.type;
    if (!kind.label && type == Stored::truth) bad_image(path, "is of type bool, a mask, and no image");
    if (kind.label && layout_.channels != 1)
      bad_image(path, concat("has ", layout_.channels, " channels; a mask has one"));
    if (kind.label && !is_integer(type)) bad_image(path, "is a mask of floats; save it as integers");
  }

  std::int64_t height() const override { return layout_.height; }
  std::int64_t width() const override { return layout_.width; }
  void for_each_row(Interval rows, Interval columns, const std::function<void(const void*)>& take) override {
    if (label_) return each_row<std::uint16_t>(rows, columns, take);
    with_numbers(layout_.format().type, [&]<class Number>() { each_row<Number>(rows, columns, take); });
  }

 private:
  template <class Number>
  void each_row(Interval rows, Interval columns, const std::function<void(const void*)>& take) {
    const std::int64_t pieces = layout_.planes ? layout_.channels : 1, together = layout_.channels / pieces;
    const std::int64_t count = columns.size() * together, bytes = layout_.stored.bytes;
    // int32 is as long as float32, so sizes do not tell.
    const Stored same = std::is_same_v<Number, std::uint8_t>    ? Stored::uint8
                        : std::is_same_v<Number, std::uint16_t> ? Stored::uint16
                                                                : Stored::float32;
    const bool as_stored = pieces == 1 && layout_.stored.type == same;
    std::vector<Number> row(static_cast<std::size_t>(count * pieces));
    bytes_.resize(static_cast<std::size_t>(as_stored ? 0 : count * bytes));
    for (std::int64_t y = rows.begin; y < rows.end; ++y) {
      for (std::int64_t piece = 0; piece < pieces; ++piece) {
        const std::int64_t line = (item_ * pieces + piece) * layout_.height + y;
        const std::int64_t at = layout_.data + (line * layout_.width + columns.begin) * together * bytes;
        if (as_stored) {
          file_.read(at, count * bytes, row.data());
          continue;
        }
        file_.read(at, count * bytes, bytes_.data());
        with_stored(layout_.stored.type, bytes_.data(), [&](const auto& number) {
          Number* to = row.data() + piece;
          for (std::int64_t i = 0; i < count; ++i, to += pieces) *to = as_number<Number>(number(i));
        });
      }
      take(row.data());
    }
  }

  template <class Number, class From>
  Number as_number(From from) const {
    if constexpr (std::is_integral_v<From>)
      if (label_ && !std::in_range<std::uint16_t>(from))
        bad_image(path_, concat("has the value ", +from, "; values of a mask are 0 to 65535"));
    return static_cast<Number>(from);
  }

  const std::string path_;
  const File file_;
  const Layout layout_;
  const std::int64_t item_;
  const bool label_;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace

ImageHeader read_header(const std::string& path, std::int64_t item, bool mask) {
  const Layout layout = layout_of(path, File(path), mask);
  if (item >= layout.images)
    bad_image(path, concat("has ", counted(layout.images, "image"), ", counted from 0, and no image ", item));
  return {.loader = loader,
          .height = layout.height,
          .width = layout.width,
          .levels = {ImageLevel{}},
          .band_rows = 1,
          .item = item,
          .images = layout.images,
          .format = layout.format()};
}

Integers read_integers(const std::string& path) {
  const File file(path);
  const NpyHeader header = header_of(path, file);
  const StoredType stored = stored_type(path, header);
  if (!is_integer(stored.type)) bad_image(path, concat("has numbers of type '", header.type, "', and not integers"));
  const std::int64_t count = header.elements();
  check_length(path, file, header, stored);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count * stored.bytes));
  file.read(header.data, std::ssize(bytes), bytes.data());
  Integers out{.shape = header.shape};
  with_stored(stored.type, bytes.data(), [&](const auto& number) {
    for (std::int64_t i = 0; i < count; ++i) out.values.push_back(static_cast<std::int64_t>(number(i)));
  });
  return out;
}

std::unique_ptr<ImageDecoder> open(const std::string& path, std::int64_t item, PixelKind kind) {
  return std::make_unique<Decoder>(path, item, kind);
}

}  // namespace tessera::npy
