// Images of numpy.save(): one array per file.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tessera/base/error.h"
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

/// An image as it lies in the file: where the number of a row, a column and a channel is.
struct Layout {
  std::int64_t height = 0, width = 0, channels = 1;
  bool planes = false;            ///< channel by channel, not pixel by pixel
  std::int64_t number_bytes = 1;  ///< of 8 or 16 bits, without sign
  bool truth = false;             ///< True and False, not shades
  std::int64_t data = 0;
};

Layout layout_of(const std::string& path, const File& file) {
  std::string begin(static_cast<std::size_t>(std::min(file.bytes(), npy_header_limit)), '\0');
  file.read(0, static_cast<std::int64_t>(begin.size()), begin.data());
  NpyHeader header;
  try {
    header = parse_npy(begin);
  } catch (const Error& error) {
    bad_image(path, error.what());
  }
  Layout out{.data = header.data};
  if (header.type == "|u1" || header.type == "|b1")
    out.truth = header.type == "|b1";
  else if (header.type == "<u2")
    out.number_bytes = 2;
  else
    bad_image(path, concat("has numbers of type '", header.type, "'; save it as uint8 or uint16"));
  if (header.fortran_order) bad_image(path, "lies column by column; save numpy.ascontiguousarray() of it");
  const auto are_channels = [](std::int64_t side) { return side == 1 || side == 3 || side == 4; };
  const auto& shape = header.shape;
  if (shape.size() == 2) {
    out.height = shape[0];
    out.width = shape[1];
  } else if (shape.size() == 3 && are_channels(shape[2])) {
    out.height = shape[0];
    out.width = shape[1];
    out.channels = shape[2];
  } else if (shape.size() == 3 && are_channels(shape[0])) {
    out.planes = true;
    out.channels = shape[0];
    out.height = shape[1];
    out.width = shape[2];
  } else {
    std::string sides;
    for (const std::int64_t side : shape) sides += concat(sides.empty() ? "" : "x", side);
    bad_image(path, concat("is an array of ", sides.empty() ? "one number" : sides,
                           "; an image is height x width, or with 1, 3 or 4 channels behind or before these, and one ",
                           "file has one image"));
  }
  if (out.height == 0 || out.width == 0) bad_image(path, "is empty");
  const std::int64_t needed = header.data + header.elements() * out.number_bytes;
  if (file.bytes() < needed) bad_image(path, concat("is cut short: ", file.bytes(), " bytes of ", needed));
  return out;
}

class Decoder final : public ImageDecoder {
 public:
  Decoder(const std::string& path, PixelKind kind) : file_(path), layout_(layout_of(path, file_)), kind_(kind) {
    if (kind == PixelKind::rgb && layout_.truth) bad_image(path, "is of type bool, a mask, and no image");
    if (kind == PixelKind::label && layout_.channels != 1)
      bad_image(path, concat("has ", layout_.channels, " channels; a mask has one"));
  }

  std::int64_t height() const override { return layout_.height; }
  std::int64_t width() const override { return layout_.width; }
  void for_each_row(Interval rows, Interval columns, const std::function<void(const void*)>& take) override {
    const auto pixels = static_cast<std::size_t>(columns.size()), channels = static_cast<std::size_t>(layout_.channels);
    std::vector<std::uint16_t> row(pixels * channels);
    std::vector<std::uint8_t> rgb(3 * pixels);
    for (std::int64_t y = rows.begin; y < rows.end; ++y) {
      if (kind_ == PixelKind::rgb && layout_.channels == 3 && !layout_.planes && layout_.number_bytes == 1) {
        file_.read(layout_.data + (y * layout_.width + columns.begin) * 3, std::ssize(rgb), rgb.data());
        take(rgb.data());
        continue;
      }
      read_row(y, columns, row);
      if (kind_ == PixelKind::label) {
        take(row.data());
        continue;
      }
      for (std::size_t x = 0; x < pixels; ++x) to_rgb(&row[x * channels], &rgb[3 * x]);
      take(rgb.data());
    }
  }

 private:
  // The channels innermost.
  void read_row(std::int64_t y, Interval columns, std::vector<std::uint16_t>& row) {
    const std::int64_t pieces = layout_.planes ? layout_.channels : 1, together = layout_.planes ? 1 : layout_.channels;
    const std::int64_t count = columns.size() * together;
    bytes_.resize(static_cast<std::size_t>(count * layout_.number_bytes));
    for (std::int64_t c = 0; c < pieces; ++c) {
      const std::int64_t first = ((c * layout_.height + y) * layout_.width + columns.begin) * together;
      file_.read(layout_.data + first * layout_.number_bytes, std::ssize(bytes_), bytes_.data());
      for (std::int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(i);
        row[static_cast<std::size_t>(i * pieces + c)] =
            layout_.number_bytes == 1 ? bytes_[at]
                                      : static_cast<std::uint16_t>(bytes_[2 * at] | bytes_[2 * at + 1] << 8);
      }
    }
  }

  // Of 16 bits the upper 8, as for other files; grey three times; transparency laid on white.
  void to_rgb(const std::uint16_t* from, std::uint8_t* to) const {
    const int shift = layout_.number_bytes == 2 ? 8 : 0;
    for (std::size_t c = 0; c < 3; ++c) {
      const int value = from[layout_.channels == 1 ? 0 : c] >> shift;
      if (layout_.channels < 4) {
        to[c] = static_cast<std::uint8_t>(value);
        continue;
      }
      const int alpha = from[3] >> shift;
      to[c] = static_cast<std::uint8_t>((value * alpha + 255 * (255 - alpha) + 127) / 255);
    }
  }

  const File file_;
  const Layout layout_;
  const PixelKind kind_;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace

ImageHeader read_header(const std::string& path) {
  const Layout layout = layout_of(path, File(path));
  return {.loader = loader, .height = layout.height, .width = layout.width, .levels = {ImageLevel{}}, .band_rows = 1};
}

std::unique_ptr<ImageDecoder> open(const std::string& path, PixelKind kind) {
  return std::make_unique<Decoder>(path, kind);
}

}  // namespace tessera::npy
