// Stands in for libFuzzer where there is no clang: changes the seeds at random, the same way every time. It does not
// look at what the code does with them, so it finds less.
//   PROGRAM ROUNDS SEED_FOLDER
#include <dirent.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::vector<std::string> seeds_in(const std::string& folder) {
  std::vector<std::string> seeds{""};
  DIR* open = opendir(folder.c_str());
  while (const dirent* entry = open ? readdir(open) : nullptr) {
    if (entry->d_name[0] == '.') continue;
    std::ifstream in(folder + "/" + entry->d_name, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  if (open) closedir(open);
  return seeds;
}

std::string changed(std::string text, const std::vector<std::string>& seeds, std::mt19937_64& random) {
  static const std::vector<std::string> words{"{",  "}",     "[",    "]",    "\"",         ",",        ":",     "0",
                                              "-1", "1e999", "\r\n", "null", "4294967296", "\xff\xfe", "\\u00", "/"};
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random() % n); };
  for (std::size_t i = 0, changes = 1 + below(8); i < changes; ++i) {
    const std::size_t at = below(text.size() + 1);
    switch (below(5)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      case 1:
        text.insert(at, words[below(words.size())]);
        break;
      case 2:
        text.erase(at, 1 + below(16));
        break;
      case 3:
        text.resize(at);
        break;
      default: {
        const std::string& other = seeds[below(seeds.size())];
        text.insert(at, other.substr(below(other.size()), below(64)));
      }
    }
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto seeds = seeds_in(argv[2]);
  if (seeds.size() < 2) {
    std::fprintf(stderr, "no seeds in %s\n", argv[2]);
    return 2;
  }
  std::mt19937_64 random(1);
  const long rounds = std::stol(argv[1]);
  for (long i = 0; i < rounds; ++i) {
    const std::string input = changed(seeds[random() % seeds.size()], seeds, random);
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  }
  std::printf("%ld changed files of %zu seeds: nothing found\n", rounds, seeds.size() - 1);
}
