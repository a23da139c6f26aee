// What was drawn, and what came of it.
#pragma once

#include <array>
#include <map>
#include <string>

#include "draw.h"

namespace tessera::plans {

enum class Outcome { equal, refused, hidden, not_equal, died, hung };
inline constexpr std::array outcome_names{"equal", "refused", "hidden by rounding", "not equal", "died", "hung"};
inline const char* name_of(Outcome outcome) { return outcome_names[static_cast<std::size_t>(outcome)]; }
inline bool is_fault(Outcome outcome) { return outcome >= Outcome::not_equal; }

class Survey {
 public:
  void add(const Flags& flags, Outcome outcome);

  /// "20 plans: 17 equal, 3 refused".
  std::string totals() const;
  /// For every flag how often it was drawn with which values, and how often such a plan was refused.
  std::string table() const;
  double refused_share() const;
  std::int64_t faults() const;

 private:
  struct Count {
    std::int64_t drawn = 0, refused = 0;
  };
  std::array<std::int64_t, outcome_names.size()> outcomes_{};
  std::int64_t plans_ = 0;
  std::map<std::string, std::map<std::string, Count>> values_;  ///< by flag and value
};

}  // namespace tessera::plans
