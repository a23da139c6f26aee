#include "tessera/base/text.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(HumanBytes, KeepsThreeOrFourDigitsInBinaryUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(10 * 1024), "10.0 KiB");
  EXPECT_EQ(human_bytes(1000 * 1024), "1000.0 KiB");
  EXPECT_EQ(human_bytes(std::int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(human_bytes(std::int64_t{5} << 40), "5.00 TiB");
  EXPECT_EQ(human_bytes(-2048), "-2.00 KiB");
}

TEST(HumanBytes, DoesNotRunOutOfUnits) { EXPECT_EQ(human_bytes(std::int64_t{4096} << 50), "4096.0 PiB"); }

TEST(HumanCount, UsesDecimalMultiplesAndNoTrailingBlank) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1000), "1.00 k");
  EXPECT_EQ(human_count(3.2e6), "3.20 M");
  EXPECT_EQ(human_count(21.4e9), "21.4 G");
}

TEST(HumanSeconds, ShowsHoursOnlyWhenThereAreAny) {
  EXPECT_EQ(human_seconds(3), "0:03");
  EXPECT_EQ(human_seconds(123), "2:03");
  EXPECT_EQ(human_seconds(59.6), "1:00");
  EXPECT_EQ(human_seconds(3723), "1:02:03");
  EXPECT_EQ(human_seconds(100 * 3600), "100:00:00");
  EXPECT_EQ(human_seconds(-5), "0:00");
}

TEST(Counted, KnowsOneFromMany) {
  EXPECT_EQ(counted(1, "step"), "1 step");
  EXPECT_EQ(counted(0, "step"), "0 steps");
  EXPECT_EQ(counted(2, "class"), "2 classes");
  EXPECT_EQ(counted(1, "class"), "1 class");
}

TEST(Join, PutsTheSeparatorBetweenPartsOnly) {
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(join({"a"}, ", "), "a");
  EXPECT_EQ(join({"a", "", "c"}, ", "), "a, , c");
}

TEST(Table, NumbersStandRightWordsStandLeftAndHeadingsFollowTheirColumn) {
  Table table({"stage", "name", "MiB"});
  table.row({"0", "stem", "12.5"});
  table.row({"10", "b", "3"});
  EXPECT_EQ(table.str(),
            "stage  name   MiB\n"
            "-----------------\n"
            "    0  stem  12.5\n"
            "   10  b        3\n");
}

TEST(Table, CountsCharactersAndNotBytes) {
  Table table({"kernel", "n"});
  table.row({"×", "1"});
  table.row({"wide×wide", "-2"});
  EXPECT_EQ(table.str(),
            "kernel      n\n"
            "-------------\n"
            "×           1\n"
            "wide×wide  -2\n");
}

TEST(Table, LinesHaveNoBlanksAtTheirEndAndRowsMayBeShortOrLong) {
  Table table({"a", "word"});
  table.row({"1", "x"});
  table.row({"22", "y", "extra"});
  table.row({"3"});
  EXPECT_EQ(table.str(),
            " a  word\n"
            "---------------\n"
            " 1  x\n"
            "22  y     extra\n"
            " 3\n");
}

TEST(Table, AHeadingAloneIsATable) {
  EXPECT_EQ(Table({"name", "value"}).str(),
            "name  value\n"
            "-----------\n");
}

}  // namespace
}  // namespace tessera
