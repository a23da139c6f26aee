#include "tessera/data/npy_format.h"

#include <charconv>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera {
namespace {

[[noreturn]] void damaged(const std::string& what) { throw Error(concat("is not a file of numpy.save(): ", what)); }

// The head is the text of a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class Text {
 public:
  explicit Text(std::string_view text) : rest_(text) {}

  bool takes(char c) {
    spaces();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void want(char c) {
    if (!takes(c)) damaged(concat("its header lacks '", c, "'"));
  }
  bool takes(std::string_view word) {
    spaces();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  std::string quoted() {
    const char quote = takes('"') ? '"' : '\'';
    if (quote == '\'') want('\'');
    const auto end = rest_.find(quote);
    if (end == std::string_view::npos) damaged("its header ends within a word");
    const std::string word(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return word;
  }
  std::int64_t number() {
    spaces();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc() || value < 0) damaged("a size in its header is not a number");
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

 private:
  void spaces() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n')) rest_.remove_prefix(1);
  }
  std::string_view rest_;
};

}  // namespace

std::int64_t NpyHeader::elements() const {
  constexpr std::int64_t most = std::int64_t{1} << 48;
  std::int64_t n = 1;
  for (const std::int64_t side : shape) {
    if (side != 0 && n > most / side) damaged("an array of that size cannot be");
    n *= side;
  }
  return n;
}

NpyHeader parse_npy(const std::string& bytes) {
  constexpr std::string_view magic = "\x93NUMPY";
  if (bytes.substr(0, magic.size()) != magic || bytes.size() < 12) damaged("it does not begin with the magic bytes");
  const int version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3) damaged(concat("it is of version ", version));
  const std::size_t digits = version == 1 ? 2 : 4, begin = 8 + digits;
  std::size_t length = 0;
  for (std::size_t i = 0; i < digits; ++i) length |= std::size_t{static_cast<unsigned char>(bytes[8 + i])} << (8 * i);
  if (length > bytes.size() - begin) damaged("its header is cut short, or too long");
  Text text(std::string_view(bytes).substr(begin, length));
  NpyHeader header{.data = static_cast<std::int64_t>(begin + length)};
  bool typed = false, ordered = false, shaped = false;
  text.want('{');
  while (!text.takes('}')) {
    const std::string key = text.quoted();
    text.want(':');
    if (key == "descr") {
      header.type = text.quoted();
      typed = true;
    } else if (key == "fortran_order") {
      header.fortran_order = text.takes("True");
      if (!header.fortran_order && !text.takes("False")) damaged("'fortran_order' is neither True nor False");
      ordered = true;
    } else if (key == "shape") {
      text.want('(');
      while (!text.takes(')')) {
        header.shape.push_back(text.number());
        text.takes(',');
      }
      shaped = true;
    } else {
      damaged(concat("its header has '", key, "'"));
    }
    text.takes(',');
  }
  if (!typed || !ordered || !shaped) damaged("its header is incomplete");
  static_cast<void>(header.elements());
  return header;
}

}  // namespace tessera
