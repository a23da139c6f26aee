#include "tessera/io/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "support/scratch.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::json;

class Safetensors : public test::ScratchFolder {
 protected:
  // A file made by hand; `data` bytes follow the header.
  std::string made(const std::string& header, std::size_t data) const {
    const std::uint64_t length = header.size();
    write_text(path("made"), std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data, 'x'));
    return path("made");
  }
  std::string refusal(const std::string& header, std::size_t data) const {
    return test::error_of([&] { SafetensorsFile(made(header, data)); });
  }
  // Of the reader in Python.
  std::string python(const std::string& verb, const std::string& file) const {
    const std::string command = "python3 " TESSERA_READ_SAFETENSORS " " + verb + " " + file;
    FILE* pipe = popen(command.c_str(), "r");
    std::string output;
    for (int c; (c = fgetc(pipe)) != EOF;) output += static_cast<char>(c);
    EXPECT_EQ(pclose(pipe), 0) << command;
    return output;
  }
};

at::Tensor numbers(std::vector<std::int64_t> shape, at::ScalarType dtype = at::kFloat) {
  std::int64_t n = 1;
  for (const auto s : shape) n *= s;
  return at::arange(n, at::kDouble).mul(0.25).sub(3).to(dtype).view(shape);
}

std::vector<NamedTensor> one_of_each() {
  return {{"byte", numbers({13}, at::kByte).add(3)},
          {"f32", numbers({2, 3, 5})},
          {"f64", numbers({7}, at::kDouble)},
          {"half", numbers({3, 3}, at::kHalf)},
          {"bfloat", numbers({5}, at::kBFloat16)},
          {"counter", at::full({}, 42, at::kLong)},
          {"empty", at::zeros({0, 4})},
          {"odd \"name\"/ä", numbers({1})}};
}

TEST_F(Safetensors, AreReadAsWritten) {
  const FileSum sum = write_safetensors(path("a"), one_of_each(), {{"format", "pt"}, {"key", "value"}});
  EXPECT_EQ(sum_of_file(path("a")), sum);
  const SafetensorsFile file(path("a"));
  EXPECT_EQ(file.tensors().size(), one_of_each().size());
  EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}, {"key", "value"}}));
  for (const auto& t : one_of_each()) {
    const at::Tensor read = file.read(t.name);
    EXPECT_EQ(read.scalar_type(), t.tensor.scalar_type()) << t.name;
    EXPECT_EQ(read.sizes(), t.tensor.sizes()) << t.name;
    EXPECT_TRUE(at::equal(read, t.tensor)) << t.name;
  }
}

TEST_F(Safetensors, AreReadByAnotherProgram) {
  write_safetensors(path("a"), one_of_each(), {{"format", "pt"}});
  const Json read = Json::parse(python("read", path("a")));
  EXPECT_EQ(read["metadata"]["format"], "pt");
  EXPECT_EQ(read["tensors"].size(), one_of_each().size());
  const std::map<std::string, std::string> dtypes{
      {"byte", "U8"}, {"f64", "F64"}, {"half", "F16"}, {"bfloat", "BF16"}, {"counter", "I64"}};
  for (const auto& t : one_of_each()) {
    const Json& found = read["tensors"].at(t.name);
    EXPECT_EQ(found[0], dtypes.contains(t.name) ? dtypes.at(t.name) : "F32") << t.name;
    EXPECT_EQ(found[1], Json(t.tensor.sizes().vec())) << t.name;
    const at::Tensor flat = t.tensor.to(at::kDouble).contiguous().view({-1});
    EXPECT_EQ(found[2].get<std::vector<double>>(),
              std::vector<double>(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()))
        << t.name;
  }
}

TEST_F(Safetensors, OfAnotherProgramAreRead) {
  python("write", path("a"));
  const SafetensorsFile file(path("a"));
  EXPECT_EQ(file.metadata().at("who"), "python");
  EXPECT_TRUE(at::equal(file.read("grid ä"), at::arange(6, at::kFloat).view({2, 3})));
  EXPECT_EQ(file.read("counter").item<std::int64_t>(), -7);
  EXPECT_EQ(file.read("half")[1].item<double>(), -1.5);
  EXPECT_THAT(file.read("empty").sizes().vec(), ElementsAre(4, 0));
}

TEST_F(Safetensors, OfAnyStridesAreWrittenRowByRow) {
  const at::Tensor plain = numbers({2, 3, 4, 5});
  write_safetensors(path("a"), {{"last", plain.contiguous(at::MemoryFormat::ChannelsLast)},
                                {"turned", plain.permute({3, 1, 0, 2})},
                                {"part", plain.narrow(2, 1, 2)}});
  const SafetensorsFile file(path("a"));
  EXPECT_TRUE(at::equal(file.read("last"), plain));
  EXPECT_TRUE(at::equal(file.read("turned"), plain.permute({3, 1, 0, 2})));
  EXPECT_TRUE(at::equal(file.read("part"), plain.narrow(2, 1, 2)));
  EXPECT_EQ(Json::parse(python("read", path("a")))["tensors"]["turned"][2][1], plain[0][0][1][0].item<double>());

  at::Tensor into = at::zeros({2, 3, 4, 5}, at::kDouble).contiguous(at::MemoryFormat::ChannelsLast);
  file.read("last", into);
  EXPECT_TRUE(at::equal(into, plain.to(at::kDouble)));
  EXPECT_TRUE(into.is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST_F(Safetensors, ConvertOneKindOfNumberOnly) {
  write_safetensors(path("a"),
                    {{"f64", numbers({4}, at::kDouble)}, {"count", at::full({}, 9, at::kLong)}, {"f32", numbers({4})}});
  const SafetensorsFile file(path("a"));
  const at::Tensor single = at::zeros({4}), twice = at::zeros({4}, at::kDouble), count = at::zeros({}, at::kInt);
  file.read("f64", single);
  file.read("f32", twice);
  file.read("count", count);
  EXPECT_TRUE(at::equal(single, numbers({4})));
  EXPECT_TRUE(at::equal(twice, numbers({4}, at::kDouble)));
  EXPECT_EQ(count.item<int>(), 9);
  EXPECT_THAT(test::error_of([&] { file.read("f32", at::zeros({4}, at::kLong)); }),
              AllOf(HasSubstr(path("a")), HasSubstr("'f32'"), HasSubstr("F32"), HasSubstr("Long")));
  EXPECT_THROW(file.read("count", at::zeros({})), Error);
  EXPECT_THROW(file.read("count", at::zeros({}, at::kBool)), Error);
}

TEST_F(Safetensors, OfAnotherShapeOrNameAreErrors) {
  write_safetensors(path("a"), {{"w", numbers({4, 2})}});
  const SafetensorsFile file(path("a"));
  EXPECT_THAT(test::error_of([&] {
                file.read("w", at::zeros({2, 4}));
              }),
              AllOf(HasSubstr(path("a")), HasSubstr("'w'"), HasSubstr("[4, 2]"), HasSubstr("[2, 4]")));
  EXPECT_THAT(test::error_of([&] { file.read("v"); }), AllOf(HasSubstr(path("a")), HasSubstr("'v'")));
  EXPECT_EQ(file.find("v"), nullptr);
}

TEST_F(Safetensors, ThatAreNoneAreRefused) {
  write_text(path("short"), "1234567");
  EXPECT_THAT(test::error_of([&] { SafetensorsFile(path("short")); }),
              AllOf(HasSubstr(path("short")), HasSubstr("too few")));
  write_text(path("zip"), std::string("PK\x03\x04\x00\x00\x00\x08 and so on", 18));
  EXPECT_THAT(test::error_of([&] { SafetensorsFile(path("zip")); }),
              AllOf(HasSubstr(path("zip")), HasSubstr("PyTorch checkpoint"), HasSubstr("save_file")));
  write_text(path("cut"), std::string("\x20\0\0\0\0\0\0\0{\"a\":", 13));
  EXPECT_THAT(test::error_of([&] { SafetensorsFile(path("cut")); }), HasSubstr("header alone ends at 40"));
  std::string long_header(8, '\0');
  const std::uint64_t length = 100'000'001;
  std::memcpy(long_header.data(), &length, 8);
  write_text(path("long"), long_header);
  EXPECT_THAT(test::error_of([&] { SafetensorsFile(path("long")); }),
              AllOf(HasSubstr("100000001"), HasSubstr("not a safetensors file")));
  EXPECT_THAT(refusal(" {}", 0), HasSubstr("begin with '{'"));
  EXPECT_THAT(refusal("{]", 0), HasSubstr("JSON"));
  EXPECT_THAT(refusal("", 0), HasSubstr("begin with '{'"));
}

TEST_F(Safetensors, WithAHeaderThatDoesNotFitTheBytesAreRefusedByNameOfFileAndTensor) {
  const auto entry = [](const std::string& name, const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + shape + "],\"data_offsets\":[" + offsets +
           "]}";
  };
  const auto one = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{" + entry("w", dtype, shape, offsets) + "}";
  };
  EXPECT_NO_THROW(SafetensorsFile(made(one("F32", "2,3", "0,24"), 24)));
  for (const auto& [header, data, reason] : std::vector<std::tuple<std::string, std::size_t, std::string>>{
           {one("F32", "2,3", "0,24"), 23, "the file has 23 bytes"},
           {one("F32", "2,3", "0,20"), 20, "20 bytes instead of 24"},
           {one("F64", "2,3", "0,24"), 24, "24 bytes instead of 48"},
           {one("F32", "2,3", "24,0"), 24, "[24, 0]"},
           {one("F32", "2,3", "0,24,24"), 24, "[0, 24, 24]"},
           {one("F32", "2,-3", "0,24"), 24, "no whole number"},
           {one("F32", "2,3.0", "0,24"), 24, "no whole number"},
           {one("F32", "2,18446744073709551615", "0,24"), 24, "no whole number"},
           {one("F32", "4294967296,4294967296", "0,0"), 0, "too large"},
           {one("F32", "0,4294967296,4294967296", "0,0"), 0, "too large"},
           {"{\"w\":3}", 0, "not described"},
           {"{\"w\":{\"shape\":[],\"data_offsets\":[0,0]}}", 0, "dtype"},
           {"{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,0]}}", 0, "shape"},
           {"{\"w\":{\"dtype\":\"F32\",\"shape\":[0]}}", 0, "data_offsets"},
           {"{\"w\":{\"dtype\":[[]],\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "dtype"},
           {"{" + entry("v", "U8", "4", "0,4") + "," + entry("w", "U8", "4", "3,7") + "}", 7, "overlap at byte 3"},
           {"{" + entry("v", "U8", "4", "0,4") + "," + entry("w", "U8", "4", "5,9") + "}", 9, "1 bytes before"},
           {"{" + entry("w", "U8", "4", "0,4") + "," + entry("w", "U8", "4", "4,8") + "}", 8, "twice"},
       }) {
    EXPECT_THAT(refusal(header, data), AllOf(HasSubstr(path("made")), HasSubstr("w"), HasSubstr(reason))) << header;
  }
  EXPECT_THAT(refusal(one("F32", "2,3", "0,24"), 25), HasSubstr("24 bytes, and the file holds 25"));
  EXPECT_THAT(refusal("{\"__metadata__\":{\"a\":1}}", 0), HasSubstr("not text"));
  EXPECT_THAT(refusal("{\"__metadata__\":[]}", 0), HasSubstr("__metadata__"));
}

TEST_F(Safetensors, OfADataTypeOfTheFutureAreListedAndNotRead) {
  const SafetensorsFile file(made(
      R"({"a":{"dtype":"F4","shape":[16],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[1],"data_offsets":[8,9]}})",
      9));
  EXPECT_EQ(file.find("a")->dtype, "F4");
  EXPECT_EQ(file.read("b").item<int>(), 'x');
  EXPECT_THAT(test::error_of([&] { file.read("a"); }), AllOf(HasSubstr("'a'"), HasSubstr("F4")));
}

TEST_F(Safetensors, WithADeeplyNestedHeaderDoNotExhaustTheStack) {
  const std::string deep(1'000'000, '[');
  EXPECT_THROW(SafetensorsFile(made("{\"w\":" + deep, 0)), Error);
  EXPECT_THROW(SafetensorsFile(made("{\"w\":{\"dtype\":" + deep + std::string(deep.size(), ']') + "}}", 0)), Error);
}

TEST_F(Safetensors, ThatShrinkWhileOpenAreErrorsNotCrashes) {
  write_safetensors(path("a"), {{"w", numbers({1000})}});
  const SafetensorsFile file(path("a"));
  test::cut(path("a"), 100);
  EXPECT_THAT(test::error_of([&] { file.read("w"); }), HasSubstr("cut off"));
}

TEST_F(Safetensors, OnAFullDiskAreNotThere) {
  write_safetensors_file(path("a"), {{"w", numbers({4})}});
  const test::FullDisk full(2000);
  EXPECT_THAT(test::error_of([&] {
                write_safetensors_file(path("a"), {{"w", numbers({1000})}});
              }),
              HasSubstr("free some space"));
  EXPECT_THAT(list_folder(path("")), ElementsAre("a"));
  EXPECT_EQ(SafetensorsFile(path("a")).read("w").numel(), 4);
}

TEST_F(Safetensors, WriterTakesWhatWasSaidAndNothingElse) {
  EXPECT_THROW(write_safetensors(path("a"), {{"w", numbers({1})}, {"w", numbers({1})}}), Error);
  EXPECT_THROW(write_safetensors(path("a"), {{"__metadata__", numbers({1})}}), Error);
  EXPECT_THROW(write_safetensors(path("a"), {{"w\xff", numbers({1})}}), Error);
  EXPECT_THAT(test::error_of([&] {
                write_safetensors(path("a"), {{"z", at::zeros({1}, at::kComplexFloat)}});
              }),
              AllOf(HasSubstr("'z'"), HasSubstr("ComplexFloat")));
  SafetensorsWriter writer(path("a"), {{"w", {4}, at::kFloat}, {"v", {2}, at::kDouble}});
  EXPECT_EQ(writer.order()[0].name, "v");  // wide ones first
  EXPECT_THROW(writer.close(), Error);
  EXPECT_THROW(SafetensorsWriter(path("b"), {{"w", {4}, at::kFloat}}).add(numbers({2, 2})), Error);
  EXPECT_THROW(SafetensorsWriter(path("b"), {{"w", {4}, at::kFloat}}).add(numbers({4}, at::kDouble)), Error);
  EXPECT_FALSE(is_file(path("b")));
}

TEST_F(Safetensors, DamagedAtRandomAreReadOrRefusedButNeverCrash) {
  write_safetensors(path("a"), one_of_each());
  const std::string good = read_text(path("a"));
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, good.data(), 8);
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (int n = 1 + static_cast<int>(random() % 3); n > 0; --n) {
      const std::size_t at = random() % (8 + header_bytes);
      switch (random() % 3) {
        case 0:
          bad[at] = static_cast<char>(random());
          break;
        case 1:
          bad.erase(at, random() % 4);
          break;
        default:
          bad.insert(at, bad.substr(random() % header_bytes, random() % 20));
      }
    }
    std::uint64_t length = header_bytes + bad.size() - good.size();  // else nearly all fail at the first check
    if (i % 4 != 0) std::memcpy(bad.data(), &length, 8);
    remove_file(path("bad"));
    AppendFile(path("bad")).append(bad);  // without waiting for the disk
    try {
      const SafetensorsFile file(path("bad"));
      for (const auto& t : file.tensors())
        if (t.dtype != "F4") file.read(t.name);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(path("bad")));
      ++refused;
    }
  }
  EXPECT_GT(refused, 2000);
  EXPECT_LT(refused, 3000);
}

TEST(SafetensorsHeader, TellsAPickleFromAHeaderOf640Bytes) {
  constexpr std::uint64_t six_hundred_forty = 0x0280, zip = 0x0808'0000'0403'4b50, pickle = 0x8a0a'6cfc'9c46'0280;
  EXPECT_EQ(safetensors_header_bytes(six_hundred_forty, 10'000, "f"), 640);
  for (const std::uint64_t first : {zip, pickle})
    EXPECT_THAT(test::error_of([&] { safetensors_header_bytes(first, 10'000, "f"); }), HasSubstr("PyTorch checkpoint"));
}

}  // namespace
}  // namespace tessera
