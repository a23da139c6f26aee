// Follows a network's code from the images to its outputs, and adds to the graph what it meets.
#pragma once

#include <vector>

#include "tessera/import/call.h"

namespace tessera {

class Follower {
 public:
  Follower(const ForeignProgram& program, Translation& translation, std::vector<Unsupported>& unsupported);

  /// What the network returns; unknown where something on the way is not supported.
  std::vector<Thing> run();

 private:
  struct Stopped {};  // a branch or loop that cannot be decided

  void run(const ForeignBlock& block);
  void run(const ForeignNode& node);
  void branch(const ForeignNode& node);
  void loop(const ForeignNode& node);
  std::vector<Thing> call(const ForeignNode& node, const std::vector<Thing>& arguments);
  Thing in_place(const ForeignNode& node, const Thing& self, const Thing& result) const;
  void note_size(int value);
  void refuse(const ForeignNode& node, const std::string& why);
  void set(const std::vector<int>& values, const std::vector<Thing>& things);
  Thing& at(int value) { return things_.at(static_cast<std::size_t>(value)); }

  const ForeignProgram& program_;
  Translation& translation_;
  std::vector<Unsupported>& unsupported_;
  std::vector<Thing> things_;  // by value of the program
};

}  // namespace tessera
