#include "tessera/io/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "support/scratch.h"
#include "tessera/io/event_file.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Metrics = test::ScratchFolder;
using Json = nlohmann::json;

TEST_F(Metrics, AreALineOfJsonAStepThatIsThereAtOnce) {
  MetricsFile file(path("metrics.jsonl"));
  file.write(1, {{"loss", 0.25}, {"epoch", std::int64_t{3}}, {"note", "a \"b\"\n"}, {"bad", std::nan("")}}, 100.5);
  EXPECT_EQ(read_text(path("metrics.jsonl")),
            "{\"step\":1,\"time\":100.5,\"loss\":0.25,\"epoch\":3,\"note\":\"a \\\"b\\\"\\n\",\"bad\":null}\n");
  file.write(2, {{"loss", 0.1}});
  const std::string all = read_text(path("metrics.jsonl"));
  const Json second = Json::parse(all.substr(all.find('\n') + 1));
  EXPECT_EQ(second["loss"], 0.1);  // every digit
  EXPECT_GT(second["time"], 1.6e9);
}

TEST_F(Metrics, OfStepsThatARunWillTakeAgainAreDropped) {
  const auto steps = [&] {
    std::vector<int> found;
    std::istringstream in(read_text(path("m")));
    for (std::string line; std::getline(in, line);) found.push_back(Json::parse(line).value("step", -1));
    return found;
  };
  {
    MetricsFile file(path("m"));
    for (const int step : {1, 2, 3, 4}) file.write(step, {{"loss", 1.}});
  }
  AppendFile(path("m")).append("{\"step\": 5, \"lo");  // killed here
  { MetricsFile(path("m"), 3).write(3, {}); }
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3));
  AppendFile(path("m")).append("{\"comment\": 1}\n{\"step\": 4");
  { MetricsFile(path("m")).write(9, {}); }
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3, -1, 9));
  { MetricsFile(path("m"), 0); }
  EXPECT_THAT(steps(), ElementsAre(-1));
}

TEST_F(Metrics, OnAFullDiskAreAnErrorAndTheLinesBeforeStay) {
  MetricsFile file(path("m"));
  file.write(1, {});
  const std::string before = read_text(path("m"));
  {
    const test::FullDisk full(before.size() + 5);
    EXPECT_THAT(test::error_of([&] { file.write(2, {}); }), AllOf(HasSubstr(path("m")), HasSubstr("free some space")));
  }
  EXPECT_EQ(read_text(path("m")), before);
  EXPECT_THROW(MetricsFile(path("no/such/m")), Error);
}

// An independent decoder of event files: bit by bit, and every protobuf field by its number.
std::uint32_t slow_crc(const std::string& bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const unsigned char byte : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      const bool low = (crc ^ (byte >> bit)) & 1;
      crc = (crc >> 1) ^ (low ? 0x82f63b78 : 0);
    }
  return ~crc;
}

std::uint32_t unmasked(const std::string& four) {
  std::uint32_t masked;
  std::memcpy(&masked, four.data(), 4);
  masked -= 0xa282ead8;
  return (masked >> 17) | (masked << 15);
}

using Message = std::multimap<int, std::string>;  // field -> raw bytes

std::uint64_t varint(const std::string& bytes, std::size_t& at) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.at(at++));
    value |= std::uint64_t{byte & 127u} << shift;
    if (byte < 128) return value;
  }
}

Message decoded(const std::string& bytes) {
  Message message;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto key = varint(bytes, at);
    std::size_t length = 0;
    std::string raw;
    switch (key & 7) {
      case 0: {
        const auto value = varint(bytes, at);
        raw.assign(reinterpret_cast<const char*>(&value), 8);
        break;
      }
      case 1:
        length = 8;
        break;
      case 2:
        length = varint(bytes, at);
        break;
      case 5:
        length = 4;
        break;
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
    }
    if (at + length > bytes.size()) ADD_FAILURE() << "a field runs over the end";
    if (length > 0) raw = bytes.substr(at, length);
    at += length;
    message.emplace(static_cast<int>(key >> 3), raw);
  }
  return message;
}

template <class T>
T as(const std::string& raw) {
  T value{};
  EXPECT_EQ(raw.size(), sizeof value);
  std::memcpy(&value, raw.data(), sizeof value);
  return value;
}

std::vector<Message> events_of(const std::string& path) {
  const std::string all = read_text(path);
  std::vector<Message> events;
  for (std::size_t at = 0; at < all.size();) {
    const auto length = as<std::uint64_t>(all.substr(at, 8));
    EXPECT_EQ(unmasked(all.substr(at + 8, 4)), slow_crc(all.substr(at, 8)));
    const std::string event = all.substr(at + 12, length);
    EXPECT_EQ(unmasked(all.substr(at + 12 + length, 4)), slow_crc(event));
    events.push_back(decoded(event));
    at += 16 + length;
  }
  return events;
}

TEST_F(Metrics, InEventFilesAreScalarsByTagStepAndTime) {
  EventFile file(path("logs/deep"), std::nullopt, 1700000000.25);
  EXPECT_THAT(file.path(), HasSubstr("/logs/deep/events.out.tfevents.1700000000."));
  file.write(300, {{"train/loss", 0.5}, {"note", "text is left out"}, {"epoch", std::int64_t{7}}}, 1700000001.5);
  const auto events = events_of(file.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(as<double>(events[0].find(1)->second), 1700000000.25);
  EXPECT_EQ(events[0].find(3)->second, "brain.Event:2");
  EXPECT_FALSE(events[0].contains(7));
  EXPECT_EQ(as<double>(events[1].find(1)->second), 1700000001.5);
  EXPECT_EQ(as<std::int64_t>(events[1].find(2)->second), 300);
  const Message summary = decoded(events[1].find(5)->second);
  ASSERT_EQ(summary.count(1), 2u);
  std::map<std::string, float> scalars;
  for (const auto& [field, raw] : summary) {
    const Message value = decoded(raw);
    scalars[value.find(1)->second] = as<float>(value.find(2)->second);
  }
  EXPECT_EQ(scalars, (std::map<std::string, float>{{"train/loss", 0.5f}, {"epoch", 7.f}}));
}

TEST_F(Metrics, InEventFilesHaveStepsOfAnySize) {
  EventFile file(path(""));
  const std::vector<std::int64_t> steps{1, 127, 128, 129, 16383, 16384, std::int64_t{1} << 40};
  for (const auto step : steps) file.write(step, {{"x", 1.}});
  const auto events = events_of(file.path());
  ASSERT_EQ(events.size(), steps.size() + 1);
  for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(as<std::int64_t>(events[i + 1].find(2)->second), steps[i]);
}

TEST_F(Metrics, EventFilesBeginAsThoseOfTensorFlow) {
  const std::string bytes = read_text(EventFile(path(""), std::nullopt, 0).path());
  // Length 24, its masked checksum, wall time 0, then field 3 of 13 characters.
  EXPECT_EQ(bytes.substr(0, 12), std::string("\x18\0\0\0\0\0\0\0\xa3\x7fK\"", 12));
  EXPECT_EQ(bytes.substr(12, 24), std::string("\x09\0\0\0\0\0\0\0\0\x1a\x0d"
                                              "brain.Event:2",
                                              24));
}

TEST_F(Metrics, OfAResumedRunTellTensorBoardWhereItStarts) {
  const auto events = events_of(EventFile(path(""), 120).path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(as<std::int64_t>(events[1].find(2)->second), 120);
  EXPECT_EQ(as<std::int64_t>(decoded(events[1].find(7)->second).find(1)->second), 1);  // SessionLog.START
}

TEST_F(Metrics, OfTwoEventFilesOfOneSecondAreApart) {
  EXPECT_NE(EventFile(path(""), std::nullopt, 5).path(), EventFile(path(""), std::nullopt, 5).path());
  EXPECT_THAT(list_folder(path("")), testing::SizeIs(2));
}

}  // namespace
}  // namespace tessera
