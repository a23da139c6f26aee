#include "tessera/io/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <vector>

#include "support/scratch.h"
#include "tessera/io/crc32c.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Files = test::ScratchFolder;

TEST(Crc32c, HasThePublishedValues) {  // RFC 3720, B.4
  std::vector<unsigned char> rising(32);
  for (unsigned char i = 0; i < 32; ++i) rising[i] = i;
  for (const auto& crc : {&crc32c, &crc32c_portable}) {
    EXPECT_EQ(crc("123456789", 9, 0), 0xe3069283u);
    EXPECT_EQ(crc(std::string(32, '\0').data(), 32, 0), 0x8a9136aau);
    EXPECT_EQ(crc(std::string(32, '\xff').data(), 32, 0), 0x62a8ab43u);
    EXPECT_EQ(crc(rising.data(), 32, 0), 0x46dd794eu);
    EXPECT_EQ(crc("", 0, 0), 0u);
  }
}

TEST(Crc32c, GoesOnFromAnyPlaceAndIsTheSameWithoutTheInstruction) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * i >> 3);
  const auto whole = crc32c(text.data(), text.size());
  EXPECT_EQ(crc32c_portable(text.data(), text.size()), whole);
  for (std::size_t cut = 0; cut < 40; ++cut) {
    EXPECT_EQ(crc32c(text.data() + cut, text.size() - cut, crc32c(text.data(), cut)), whole);
    EXPECT_EQ(crc32c_portable(text.data() + cut, text.size() - cut, crc32c_portable(text.data(), cut)), whole);
  }
}

TEST_F(Files, AreReadAsWritten) {
  const std::string text = std::string(3'000'000, 'x') + "end";
  const FileSum sum = write_text(path("a"), text);
  EXPECT_EQ(sum.bytes, 3'000'003);
  EXPECT_EQ(read_text(path("a")), text);
  EXPECT_EQ(sum_of_file(path("a")), sum);
  EXPECT_EQ(sum.crc32c, crc32c(text.data(), text.size()));
  char three[3];
  InputFile(path("a")).read(3'000'000, three, 3);
  EXPECT_EQ(std::string(three, 3), "end");
}

TEST_F(Files, ThatEndTooEarlyAreSaidToBeCutOff) {
  write_text(path("a"), "0123456789");
  char ten[10];
  EXPECT_THAT(test::error_of([&] { InputFile(path("a")).read(5, ten, 10); }),
              AllOf(HasSubstr(path("a")), HasSubstr("cut off")));
  EXPECT_THAT(test::error_of([&] { read_text(path("a"), 9); }), HasSubstr("10 bytes"));
}

TEST_F(Files, ThatAreNotThereOrAreFoldersAreErrors) {
  EXPECT_THAT(test::error_of([&] { InputFile(path("no")); }), AllOf(HasSubstr(path("no")), HasSubstr("No such file")));
  make_folders(path("folder"));
  EXPECT_THAT(test::error_of([&] { InputFile(path("folder")); }), HasSubstr("is not a file"));
  EXPECT_THROW(OutputFile(path("no/such/folder")), Error);
}

TEST_F(Files, OnAFullDiskLeaveNothingBehindAndKeepTheOldOne) {
  write_text_atomically(path("a"), "old");
  ASSERT_EQ(symlink("/dev/full", path("b").c_str()), 0);
  EXPECT_THAT(test::error_of([&] { write_text(path("b"), "x"); }),
              AllOf(HasSubstr(path("b")), HasSubstr("No space left"), HasSubstr("free some space")));
  const test::FullDisk full(1000);
  EXPECT_THAT(test::error_of([&] { write_text_atomically(path("a"), std::string(2000, 'x')); }),
              AllOf(HasSubstr(path("a.part")), HasSubstr("free some space")));
  EXPECT_EQ(read_text(path("a")), "old");
  EXPECT_THAT(list_folder(path("")), ElementsAre("a"));
}

TEST_F(Files, LinksAndDevicesStayWhatTheyAre) {
  ASSERT_EQ(symlink(path("a").c_str(), path("link").c_str()), 0);
  ASSERT_EQ(symlink("/dev/full", path("full").c_str()), 0);
  write_text_atomically(path("link"), "new");
  EXPECT_EQ(read_text(path("a")), "new");
  EXPECT_THAT(test::error_of([&] { write_text_atomically(path("full"), "new"); }), HasSubstr("No space left"));
  for (const char* name : {"link", "full"}) {
    struct stat status {};
    EXPECT_TRUE(lstat(path(name).c_str(), &status) == 0 && S_ISLNK(status.st_mode)) << name;
  }
}

TEST_F(Files, ThatNobodyClosedAreRemoved) {
  { OutputFile(path("a")).write("half"); }
  EXPECT_FALSE(is_file(path("a")));
}

TEST_F(Files, OfRecordsStayWholeWhenTheDiskIsFull) {
  AppendFile log(path("log"));
  log.append(std::string(900, 'a'));
  {
    const test::FullDisk full(1000);
    EXPECT_THROW(log.append(std::string(200, 'b')), Error);
  }
  EXPECT_EQ(InputFile(path("log")).size(), 900);
  log.append("c");
  EXPECT_EQ(read_text(path("log")), std::string(900, 'a') + "c");
  AppendFile(path("log")).append("d");
  EXPECT_EQ(InputFile(path("log")).size(), 902);
}

TEST_F(Files, HaveFoldersAboveThem) {
  EXPECT_EQ(parent_of("a"), ".");
  EXPECT_EQ(parent_of("a/b"), "a");
  EXPECT_EQ(parent_of("a/b/"), "a");
  EXPECT_EQ(parent_of("/a"), "/");
  EXPECT_EQ(parent_of("/"), "/");
  EXPECT_EQ(parent_of("//a//b//"), "//a");
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("", "b"), "b");
}

TEST_F(Files, FoldersAreMadeListedReplacedAndRemoved) {
  make_folders(path("x/y/z"));
  make_folders(path("x/y/z"));
  write_text(path("x/y/one"), "1");
  EXPECT_THAT(list_folder(path("x/y")), ElementsAre("one", "z"));
  make_folders(path("new"));
  write_text(path("new/two"), "2");
  replace_folder(path("new"), path("x"));
  EXPECT_THAT(list_folder(path("x")), ElementsAre("two"));
  EXPECT_THAT(list_folder(path("")), ElementsAre("x"));
  remove_folder(path("x"));
  remove_folder(path("x"));
  EXPECT_THAT(list_folder(path("")), ElementsAre());
  write_text(path("file"), "");
  EXPECT_THROW(make_folders(path("file/below")), Error);
  EXPECT_THROW(list_folder(path("no")), Error);
}

TEST_F(Files, FoldersAreLockedUntilTheHandleGoes) {
  make_folders(path("run"));
  std::optional<FileHandle> first = lock_folder(path("run"));
  ASSERT_TRUE(first);
  EXPECT_FALSE(lock_folder(path("run"))) << "another one has it";
  EXPECT_TRUE(lock_folder(path("."))) << "another folder";
  first.reset();
  EXPECT_TRUE(lock_folder(path("run")));
  EXPECT_THAT(test::error_of([&] { lock_folder(path("nowhere")); }), HasSubstr("nowhere"));
}

TEST_F(Files, BehindLinksAreNotRemovedWithTheLink) {
  make_folders(path("precious"));
  write_text(path("precious/one"), "1");
  make_folders(path("x"));
  ASSERT_EQ(symlink(path("precious").c_str(), path("x/link").c_str()), 0);
  remove_folder(path("x"));
  EXPECT_TRUE(is_file(path("precious/one")));
}

}  // namespace
}  // namespace tessera
