#include "tessera/data/csv.h"

#include "tessera/base/error.h"

namespace tessera {
namespace {

class Parser {
 public:
  Parser(std::string_view text, const std::string& name) : text_(text), name_(name) {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;
  }

  std::vector<CsvRow> rows() {
    std::vector<CsvRow> rows;
    while (!done()) {
      CsvRow row{line_, {field()}};
      while (!done() && text_[at_] == ',') {
        ++at_;
        row.fields.push_back(field());
      }
      end_line();
      if (row.fields.size() > 1 || !row.fields.front().empty()) rows.push_back(std::move(row));
    }
    return rows;
  }

 private:
  bool done() const { return at_ >= text_.size(); }
  bool at_line_end() const {
    return done() || text_[at_] == '\n' || (text_[at_] == '\r' && (at_ + 1 == text_.size() || text_[at_ + 1] == '\n'));
  }
  void end_line() {
    if (!done() && text_[at_] == '\r') ++at_;
    if (!done()) ++at_;
    ++line_;
  }

  std::string field() {
    if (!done() && text_[at_] == '"') return quoted();
    const std::size_t begin = at_;
    while (!at_line_end() && text_[at_] != ',') ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string quoted() {
    const std::int64_t begin_line = line_;
    std::string out;
    for (++at_;; ++at_) {
      require(!done(), "'", name_, "' line ", begin_line, ": a quote is not closed");
      if (text_[at_] == '"') {
        if (at_ + 1 >= text_.size() || text_[at_ + 1] != '"') break;
        ++at_;
      }
      if (text_[at_] == '\n') ++line_;
      out += text_[at_];
    }
    ++at_;
    require(at_line_end() || text_[at_] == ',', "'", name_, "' line ", line_, ": '", done() ? ' ' : text_[at_],
            "' follows a closing quote; expected a comma");
    return out;
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
};

}  // namespace

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::vector<CsvRow> parse_csv(std::string_view text, const std::string& name) { return Parser(text, name).rows(); }

}  // namespace tessera
