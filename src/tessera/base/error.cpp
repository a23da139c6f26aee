#include "tessera/base/error.h"

namespace tessera {
namespace {

std::string list_of(const std::vector<std::string>& problems) {
  if (problems.size() == 1) return problems.front();
  std::string all = concat(problems.size(), " problems:");
  for (const auto& problem : problems) all += "\n  - " + problem;
  return all;
}

}  // namespace

UsageError::UsageError(std::vector<std::string> problems)
    : Error(list_of(problems), ExitCode::usage), problems_(std::move(problems)) {}

void Problems::throw_if_any() const {
  if (!list_.empty()) throw UsageError(list_);
}

}  // namespace tessera
