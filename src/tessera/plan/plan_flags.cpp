#include "tessera/plan/plan_flags.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera {
namespace {

/// One flag: how its value stands in the options. No text: it is as by default.
struct Flag {
  std::string name;
  std::function<std::optional<std::string>(const PlanOptions&)> get;
  std::function<void(PlanOptions&, const std::string&)> set;
};

std::int64_t number(const std::string& name, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size(), "--", name, " ", text, " is not a whole number");
  return value;
}

Flag of_number(std::string name, std::int64_t PlanOptions::*field) {
  return {name,
          [field](const PlanOptions& o) -> std::optional<std::string> {
            if (o.*field == PlanOptions{}.*field) return std::nullopt;
            return std::to_string(o.*field);
          },
          [name, field](PlanOptions& o, const std::string& text) { o.*field = number(name, text); }};
}

Flag of_number(std::string name, std::optional<std::int64_t> PlanOptions::*field) {
  return {name,
          [field](const PlanOptions& o) -> std::optional<std::string> {
            if (!(o.*field)) return std::nullopt;
            return std::to_string(*(o.*field));
          },
          [name, field](PlanOptions& o, const std::string& text) { o.*field = number(name, text); }};
}

Flag of_text(std::string name, std::optional<std::string> PlanOptions::*field) {
  return {std::move(name), [field](const PlanOptions& o) { return o.*field; },
          [field](PlanOptions& o, const std::string& text) { o.*field = text; }};
}

Flag of_text(std::string name, std::string PlanOptions::*field) {
  return {std::move(name),
          [field](const PlanOptions& o) -> std::optional<std::string> {
            if (o.*field == PlanOptions{}.*field) return std::nullopt;
            return o.*field;
          },
          [field](PlanOptions& o, const std::string& text) { o.*field = text; }};
}

Flag of_switch(std::string name, bool PlanOptions::*field) {
  return {name,
          [field](const PlanOptions& o) -> std::optional<std::string> {
            if (!(o.*field)) return std::nullopt;
            return "true";
          },
          [name, field](PlanOptions& o, const std::string& text) {
            require(text == "true" || text == "false", "--", name, " is given or not; its value cannot be ", text);
            o.*field = text == "true";
          }};
}

const std::vector<Flag>& all_flags() {
  using O = PlanOptions;
  static const std::vector<Flag> flags{of_number("batch-size", &O::batch_size),
                                       of_number("parts", &O::parts),
                                       of_number("replicas", &O::replicas),
                                       of_number("split-size", &O::split_size),
                                       of_text("balance", &O::balance),
                                       of_text("balance-by", &O::balance_by),
                                       of_text("schedule", &O::schedule),
                                       of_number("times", &O::times),
                                       of_text("num-spatial-parts", &O::num_spatial_parts),
                                       of_text("grid", &O::grid),
                                       of_number("spatial-size", &O::spatial_size),
                                       of_text("slice-method", &O::slice_method),
                                       of_number("local-DP", &O::local_dp),
                                       of_text("turns", &O::turns),
                                       of_switch("halo-D2", &O::halo_d2),
                                       of_number("fused-layers", &O::fused_layers),
                                       of_text("batch-norm", &O::batch_norm),
                                       of_text("grad-sync", &O::grad_sync),
                                       of_number("num-hp", &O::num_hp),
                                       of_switch("DP-ONLY", &O::dp_only),
                                       of_number("ranks-per-node", &O::ranks_per_node)};
  return flags;
}

}  // namespace

PlanFlags flags_of(const PlanOptions& options) {
  PlanFlags flags;
  for (const Flag& flag : all_flags())
    if (const auto text = flag.get(options)) flags[flag.name] = *text;
  return flags;
}

void set_flag(PlanOptions& options, const std::string& name, const std::string& value) {
  for (const Flag& flag : all_flags())
    if (flag.name == name) return flag.set(options, value);
  throw UsageError(concat("--", name, " is not about how a run is divided"));
}

std::string words_of(const PlanFlags& flags) {
  std::vector<std::string> words;
  const auto say = [&](const std::string& name, const std::string& value) {
    words.push_back(value == "true" ? concat("--", name) : concat("--", name, " ", value));
  };
  for (const Flag& flag : all_flags())
    if (const auto found = flags.find(flag.name); found != flags.end()) say(flag.name, found->second);
  for (const auto& [name, value] : flags) {
    const bool said =
        std::any_of(all_flags().begin(), all_flags().end(), [&](const Flag& f) { return f.name == name; });
    if (!said) say(name, value);
  }
  return join(words, " ");
}

}  // namespace tessera
