#include "survey.h"

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::plans {

void Survey::add(const Flags& flags, Outcome outcome) {
  ++plans_;
  ++outcomes_[static_cast<std::size_t>(outcome)];
  for (const auto& [flag, value] : flags) {
    Count& count = values_[flag][value];
    ++count.drawn;
    if (outcome == Outcome::refused) ++count.refused;
  }
}

std::string Survey::totals() const {
  std::string text = concat(plans_, " plans");
  for (std::size_t i = 0; i < outcomes_.size(); ++i)
    if (outcomes_[i] > 0 || is_fault(static_cast<Outcome>(i)))
      text += concat(", ", outcomes_[i], " ", outcome_names[i]);
  return text;
}

std::string Survey::table() const {
  constexpr std::size_t most_values = 12;
  Table table({"flag", "plans", "refused", "values"});
  for (const auto& [flag, values] : values_) {
    Count all;
    std::string text;
    for (const auto& [value, count] : values) {
      all.drawn += count.drawn;
      all.refused += count.refused;
      if (!value.empty()) text += concat(text.empty() ? "" : ", ", value, " (", count.drawn, ")");
    }
    if (values.size() > most_values) text = concat(values.size(), " different ones");
    table.row({flag, std::to_string(all.drawn), std::to_string(all.refused), text});
  }
  return table.str();
}

double Survey::refused_share() const {
  return plans_ == 0
             ? 0
             : static_cast<double>(outcomes_[static_cast<std::size_t>(Outcome::refused)]) / static_cast<double>(plans_);
}

std::int64_t Survey::faults() const {
  std::int64_t faults = 0;
  for (std::size_t i = 0; i < outcomes_.size(); ++i)
    if (is_fault(static_cast<Outcome>(i))) faults += outcomes_[i];
  return faults;
}

}  // namespace tessera::plans
