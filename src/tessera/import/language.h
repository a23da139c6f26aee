// The part of a network's code that is no tensor: numbers, texts, lists, dictionaries. It is simply computed.
#pragma once

#include <optional>
#include <vector>

#include "tessera/import/foreign.h"

namespace tessera {

/// The outputs of an operator of the language; nothing where the operator, or what it is applied to, is not of it.
/// Throws NotTranslated where the code itself raises an error.
std::optional<std::vector<Thing>> compute(const ForeignNode& node, const std::vector<Thing>& arguments);

/// Nothing if it is not a truth that is known.
std::optional<bool> truth_of(const Thing& thing);
std::optional<double> number_of(const Thing& thing);
std::optional<Integer> integer_of(const Thing& thing);
bool same(const Thing& a, const Thing& b);

}  // namespace tessera
