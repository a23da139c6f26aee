// Names, shapes and order of torchvision's state_dict, written down here without looking at the graph.
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/models/registry.h"

namespace tessera {
namespace {

struct Entry {
  std::string name;
  std::vector<std::int64_t> sizes;
  friend bool operator==(const Entry&, const Entry&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Entry& e) {
    out << e.name << " [";
    for (auto s : e.sizes) out << ' ' << s;
    return out << " ]";
  }
};

class StateDict {
 public:
  StateDict& conv(const std::string& name, std::int64_t out, std::int64_t in, std::int64_t kernel) {
    entries.push_back({name + ".weight", {out, in, kernel, kernel}});
    return *this;
  }
  StateDict& norm(const std::string& name, std::int64_t channels) {
    for (const char* suffix : {"weight", "bias", "running_mean", "running_var"})
      entries.push_back({name + "." + suffix, {channels}});
    entries.push_back({name + ".num_batches_tracked", {}});
    return *this;
  }
  StateDict& fc(std::int64_t out, std::int64_t in) {
    entries.push_back({"fc.weight", {out, in}});
    entries.push_back({"fc.bias", {out}});
    return *this;
  }
  std::vector<Entry> entries;
};

StateDict resnet18() {
  StateDict d;
  d.conv("conv1", 64, 3, 7).norm("bn1", 64);
  d.conv("layer1.0.conv1", 64, 64, 3).norm("layer1.0.bn1", 64);
  d.conv("layer1.0.conv2", 64, 64, 3).norm("layer1.0.bn2", 64);
  d.conv("layer1.1.conv1", 64, 64, 3).norm("layer1.1.bn1", 64);
  d.conv("layer1.1.conv2", 64, 64, 3).norm("layer1.1.bn2", 64);
  d.conv("layer2.0.conv1", 128, 64, 3).norm("layer2.0.bn1", 128);
  d.conv("layer2.0.conv2", 128, 128, 3).norm("layer2.0.bn2", 128);
  d.conv("layer2.0.downsample.0", 128, 64, 1).norm("layer2.0.downsample.1", 128);
  d.conv("layer2.1.conv1", 128, 128, 3).norm("layer2.1.bn1", 128);
  d.conv("layer2.1.conv2", 128, 128, 3).norm("layer2.1.bn2", 128);
  d.conv("layer3.0.conv1", 256, 128, 3).norm("layer3.0.bn1", 256);
  d.conv("layer3.0.conv2", 256, 256, 3).norm("layer3.0.bn2", 256);
  d.conv("layer3.0.downsample.0", 256, 128, 1).norm("layer3.0.downsample.1", 256);
  d.conv("layer3.1.conv1", 256, 256, 3).norm("layer3.1.bn1", 256);
  d.conv("layer3.1.conv2", 256, 256, 3).norm("layer3.1.bn2", 256);
  d.conv("layer4.0.conv1", 512, 256, 3).norm("layer4.0.bn1", 512);
  d.conv("layer4.0.conv2", 512, 512, 3).norm("layer4.0.bn2", 512);
  d.conv("layer4.0.downsample.0", 512, 256, 1).norm("layer4.0.downsample.1", 512);
  d.conv("layer4.1.conv1", 512, 512, 3).norm("layer4.1.bn1", 512);
  d.conv("layer4.1.conv2", 512, 512, 3).norm("layer4.1.bn2", 512);
  d.fc(1000, 512);
  return d;
}

// A group of bottlenecks: its name, how many, channels into the first one, width, channels out.
struct Group {
  std::string name;
  int blocks;
  std::int64_t in, width, out;
};

StateDict resnet50() {
  StateDict d;
  d.conv("conv1", 64, 3, 7).norm("bn1", 64);
  for (const Group& g : {Group{"layer1", 3, 64, 64, 256}, Group{"layer2", 4, 256, 128, 512},
                         Group{"layer3", 6, 512, 256, 1024}, Group{"layer4", 3, 1024, 512, 2048}})
    for (int i = 0; i < g.blocks; ++i) {
      const std::string b = g.name + "." + std::to_string(i);
      d.conv(b + ".conv1", g.width, i == 0 ? g.in : g.out, 1).norm(b + ".bn1", g.width);
      d.conv(b + ".conv2", g.width, g.width, 3).norm(b + ".bn2", g.width);
      d.conv(b + ".conv3", g.out, g.width, 1).norm(b + ".bn3", g.out);
      if (i == 0) d.conv(b + ".downsample.0", g.out, g.in, 1).norm(b + ".downsample.1", g.out);
    }
  d.fc(1000, 2048);
  return d;
}

std::vector<Entry> entries_of(const std::string& model) {
  std::vector<Entry> out;
  for (const auto& [name, spec] : builtin_models().build({.name = model}).parameters())
    out.push_back({name, spec.sizes});
  return out;
}

void expect_equal(const std::vector<Entry>& entries, const std::vector<Entry>& expected) {
  ASSERT_EQ(entries.size(), expected.size());
  for (std::size_t i = 0; i < entries.size(); ++i) EXPECT_EQ(entries[i], expected[i]) << "at " << i;
}

TEST(TorchvisionNames, Resnet18HasThemInOrderAndInShape) {
  ASSERT_EQ(resnet18().entries.size(), 122u) << "as torchvision's resnet18().state_dict()";
  expect_equal(entries_of("resnet18"), resnet18().entries);
}

TEST(TorchvisionNames, Resnet50HasThemInOrderAndInShape) {
  ASSERT_EQ(resnet50().entries.size(), 320u) << "as torchvision's resnet50().state_dict()";
  expect_equal(entries_of("resnet50"), resnet50().entries);
}

TEST(TorchvisionNames, OnlyStatisticsAreNotTrained) {
  for (const auto& [name, spec] : builtin_models().build({.name = "resnet18"}).parameters())
    EXPECT_EQ(spec.trainable, spec.suffix == "weight" || spec.suffix == "bias") << name;
}

TEST(TorchvisionNames, ParameterCountsAreThePublishedOnes) {
  const std::vector<std::pair<std::string, std::int64_t>> published{{"resnet18", 11689512},
                                                                    {"resnet34", 21797672},
                                                                    {"resnet50", 25557032},
                                                                    {"resnet101", 44549160},
                                                                    {"resnet152", 60192808}};
  for (const auto& [model, count] : published)
    EXPECT_EQ(builtin_models().build({.name = model}).trainable_elements(), count) << model;
}

}  // namespace
}  // namespace tessera
