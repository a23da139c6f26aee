#include "shrink.h"

#include <cctype>
#include <set>

namespace tessera::plans {
namespace {

// What a network has to have said of it, or would become a large one without.
const std::set<std::string> never_left_out{"--model", "--image-size", "--batch-size", "--num-layers", "--num-filters"};
// Which network, or which random numbers: a smaller one is not a smaller plan.
const std::set<std::string> names{"--seed", "--depth"};

const std::vector<std::pair<std::string, std::string>> simplest_first{
    {"resnet_v1", "8"}, {"resnet_v2", "11"}, {"resnet18", ""}};

struct Number {
  std::size_t begin, length;
  std::int64_t value;
};

std::vector<Number> whole_numbers(const std::string& text) {
  std::vector<Number> found;
  if (text.find('.') != std::string::npos || text.find('e') != std::string::npos) return found;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
    if (end > i && end - i < 10) found.push_back({i, end - i, std::stoll(text.substr(i, end - i))});
    i = end + 1;
  }
  return found;
}

std::string with_number(const std::string& text, const Number& at, std::int64_t value) {
  return text.substr(0, at.begin) + std::to_string(value) + text.substr(at.begin + at.length);
}

}  // namespace

std::vector<Flags> smaller_plans(const Flags& flags) {
  std::vector<Flags> out;
  const auto with = [&](const std::string& flag, const std::string& value) {
    Flags smaller = flags;
    smaller[flag] = value;
    if (smaller != flags) out.push_back(smaller);
  };
  for (const auto& [flag, value] : flags) {
    if (never_left_out.count(flag)) continue;
    Flags without = flags;
    without.erase(flag);
    out.push_back(without);
  }
  for (const auto& [model, depth] : simplest_first) {
    const auto found = flags.find("--model");
    if (found == flags.end() || found->second == model || found->second == "random") break;
    Flags simpler = flags;
    for (const char* flag : {"--num-layers", "--num-filters", "--upsampling", "--depth"}) simpler.erase(flag);
    simpler["--model"] = model;
    if (!depth.empty()) simpler["--depth"] = depth;
    out.push_back(simpler);
  }
  for (const auto& [flag, value] : flags) {
    if (names.count(flag)) continue;
    for (const Number& n : whole_numbers(value))
      for (const std::int64_t less : {std::int64_t{1}, n.value / 2, n.value - n.value / 4, n.value - 1})
        if (less >= 1 && less < n.value) with(flag, with_number(value, n, less));
    if (const auto comma = value.rfind(','); comma != std::string::npos) with(flag, value.substr(0, comma));
  }
  return out;
}

Flags shrunk(Flags flags, const std::function<bool(const Flags&)>& fails, int budget) {
  std::set<Flags> tried{flags};
  for (bool smaller = true; smaller && budget > 0;) {
    smaller = false;
    for (const Flags& next : smaller_plans(flags)) {
      if (!tried.insert(next).second) continue;
      if (budget-- <= 0) break;
      if (!fails(next)) continue;
      flags = next;
      smaller = true;
      break;
    }
  }
  return flags;
}

}  // namespace tessera::plans
