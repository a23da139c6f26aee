#include "tessera/data/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Fields as "a|b", rows one after the other, each with its line.
std::string shown(const std::string& text) {
  std::string out;
  for (const CsvRow& row : parse_csv(text, "t.csv")) {
    out += concat(out.empty() ? "" : " ", row.line, ":");
    for (std::size_t i = 0; i < row.fields.size(); ++i) out += (i ? "|" : "") + row.fields[i];
  }
  return out;
}

std::string csv_refusal(const std::string& text) {
  try {
    parse_csv(text, "t.csv");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Csv, LinesAndFields) {
  EXPECT_EQ(shown("a,b\nc,d\n"), "1:a|b 2:c|d");
  EXPECT_EQ(shown("a,b\r\nc,d"), "1:a|b 2:c|d") << "Windows' line ends; no line end at the end";
  EXPECT_EQ(shown("a\r\n\n\nb,\n,c\n"), "1:a 4:b| 5:|c") << "blank lines do not count, empty fields do";
  EXPECT_EQ(shown("\xef\xbb\xbfpath,label\n"), "1:path|label") << "a byte order mark";
  EXPECT_EQ(shown(""), "");
  EXPECT_EQ(shown("\r"), "");
  EXPECT_EQ(shown("a b , c"), "1:a b | c") << "blanks belong to the field";
}

TEST(Csv, Quotes) {
  EXPECT_EQ(shown("\"a,b\",\"c\"\"d\"\ne"), "1:a,b|c\"d 2:e");
  EXPECT_EQ(shown("\"a\nb\",c\nd"), "1:a\nb|c 3:d") << "lines are counted inside of quotes";
  EXPECT_EQ(shown("\"\",\"\"\r\n"), "1:|");
  EXPECT_EQ(shown("a\"b,c"), "1:a\"b|c") << "a quote in the middle is just a character";
}

TEST(Csv, AQuoteThatDoesNotFitIsNamedWithItsLine) {
  EXPECT_THAT(csv_refusal("a\n\"b"), AllOf(HasSubstr("'t.csv' line 2"), HasSubstr("not closed")));
  EXPECT_THAT(csv_refusal("a\n\"b\"c"), AllOf(HasSubstr("'t.csv' line 2"), HasSubstr("'c' follows")));
}

TEST(Csv, AWrittenFieldIsReadAgain) {
  for (const std::string text : {"plain", "a,b", "say \"x\"", "two\nlines", ""}) {
    const auto rows = parse_csv(csv_field(text) + ",end\n", "t");
    ASSERT_EQ(rows.size(), 1u) << text;
    EXPECT_EQ(rows[0].fields[0], text);
  }
  EXPECT_EQ(csv_field("plain"), "plain");
}

}  // namespace
}  // namespace tessera
