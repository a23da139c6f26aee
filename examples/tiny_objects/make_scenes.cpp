// Makes a data set for which resolution is everything. A scene is a cluttered picture of shapes and noise, and
// somewhere in it lies a mark of 24x24 pixels with stripes two pixels wide: across in class `across`, upright in class
// `upright`. The stripes are as much lighter as darker than what they lie on. So whoever shrinks the picture to an
// eighth, where two dark and two light stripes fall into one pixel, takes the mark away and nothing else.
//
//     make_scenes FOLDER [SIDE] [TRAIN_IMAGES] [VAL_IMAGES]
//
// writes FOLDER/{train,val}/{across,upright}/NUMBER.ppm.
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int mark_side = 24, stripe = 2, mark_contrast = 60;

/// The same numbers with every C++ library.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : generator_(seed) {}
  double uniform() { return static_cast<double>(generator_() >> 11) * 0x1p-53; }
  int below(int limit) { return static_cast<int>(uniform() * limit); }

 private:
  std::mt19937_64 generator_;
};

struct Scene {
  int side;
  std::vector<double> pixels;  // rows of RGB

  explicit Scene(int s) : side(s), pixels(static_cast<std::size_t>(s) * s * 3) {}
  double& at(int y, int x, int c) { return pixels[(static_cast<std::size_t>(y) * side + x) * 3 + c]; }
};

void paint_background(Scene& scene, Dice& dice) {
  for (int c = 0; c < 3; ++c) {
    const double base = 110 + 40 * dice.uniform(), down = 30 * (dice.uniform() - 0.5),
                 across = 30 * (dice.uniform() - 0.5);
    for (int y = 0; y < scene.side; ++y)
      for (int x = 0; x < scene.side; ++x) scene.at(y, x, c) = base + (down * y + across * x) / scene.side;
  }
}

void paint_shape(Scene& scene, Dice& dice) {
  const bool round = dice.uniform() < 0.5;
  const int height = 8 + dice.below(scene.side / 4), width = 8 + dice.below(scene.side / 4);
  const int top = dice.below(scene.side) - height / 2, left = dice.below(scene.side) - width / 2;
  const double colour[3] = {80 + 90 * dice.uniform(), 80 + 90 * dice.uniform(), 80 + 90 * dice.uniform()};
  for (int y = std::max(0, top); y < std::min(scene.side, top + height); ++y)
    for (int x = std::max(0, left); x < std::min(scene.side, left + width); ++x) {
      const double v = (2.0 * (y - top) + 1) / height - 1, u = (2.0 * (x - left) + 1) / width - 1;
      if (round && u * u + v * v > 1) continue;
      for (int c = 0; c < 3; ++c) scene.at(y, x, c) = colour[c];
    }
}

void add_mark(Scene& scene, Dice& dice, bool upright) {
  const int top = dice.below(scene.side - mark_side), left = dice.below(scene.side - mark_side);
  for (int y = 0; y < mark_side; ++y)
    for (int x = 0; x < mark_side; ++x) {
      const double change = (upright ? x : y) / stripe % 2 == 0 ? mark_contrast : -mark_contrast;
      for (int c = 0; c < 3; ++c) scene.at(top + y, left + x, c) += change;
    }
}

void write_scene(Scene& scene, Dice& dice, const std::string& path) {
  std::string bytes;
  for (const double value : scene.pixels) {
    const double noise = 12 * (dice.uniform() + dice.uniform() - 1);
    bytes += static_cast<char>(static_cast<std::uint8_t>(std::clamp(value + noise + 0.5, 0.0, 255.0)));
  }
  std::ofstream out(path, std::ios::binary);
  out << "P6\n" << scene.side << ' ' << scene.side << "\n255\n" << bytes;
  if (!out.flush()) {
    std::fprintf(stderr, "make_scenes: cannot write %s\n", path.c_str());
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: make_scenes FOLDER [SIDE] [TRAIN_IMAGES] [VAL_IMAGES]\n");
    return 2;
  }
  const std::string folder = argv[1];
  const int side = argc > 2 ? std::atoi(argv[2]) : 256;
  const int images[2] = {argc > 3 ? std::atoi(argv[3]) : 320, argc > 4 ? std::atoi(argv[4]) : 160};
  if (side < 2 * mark_side || images[0] < 2 || images[1] < 2) {
    std::fprintf(stderr, "make_scenes: scenes of at least %d pixels and at least 2 images of each part\n",
                 2 * mark_side);
    return 2;
  }
  ::mkdir(folder.c_str(), 0777);
  for (const int part : {0, 1}) {
    const std::string inner = folder + (part == 0 ? "/train" : "/val");
    ::mkdir(inner.c_str(), 0777);
    for (const char* name : {"/across", "/upright"}) ::mkdir((inner + name).c_str(), 0777);
    for (int i = 0; i < images[part]; ++i) {
      Dice dice(static_cast<std::uint64_t>(part) << 32 | static_cast<std::uint64_t>(i));
      Scene scene(side);
      paint_background(scene, dice);
      for (int s = 0; s < 14; ++s) paint_shape(scene, dice);
      const bool upright = i % 2 == 1;
      add_mark(scene, dice, upright);
      write_scene(scene, dice, inner + (upright ? "/upright/" : "/across/") + std::to_string(i) + ".ppm");
    }
  }
}
