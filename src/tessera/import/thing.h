// What the code of somebody's network computes with while it is followed: numbers, lists, stored weights, and tensors
// of which only the shape is known. No torch in here: a reader of files fills these in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/graph/graph.h"
#include "tessera/import/form.h"

namespace tessera {

/// A weight or buffer in the file.
struct StoredTensor {
  std::string name;  ///< "layer1.0.conv1.weight"; empty for a constant of the code
  std::vector<std::int64_t> sizes;
  bool trained = false;  ///< a parameter that requires gradients
  bool real = true;      ///< of floating point numbers
  std::function<double(std::int64_t index)> value;

  std::int64_t elements() const {
    std::int64_t n = 1;
    for (auto s : sizes) n *= s;
    return n;
  }
};

/// A stored tensor, perhaps seen under other sizes, or a matrix of them with its rows as columns.
struct StoredRef {
  const StoredTensor* tensor = nullptr;
  std::vector<std::int64_t> sizes;
  bool transposed = false;
};

/// What tensors that share memory have in common. What is changed in place is changed for all of them.
struct Storage {
  Value value;
  bool part = false;  ///< cut out of another one, so a change in place would change that one, too
};

/// A value of the graph, and how its axes lie in the dimensions that the code sees.
struct ForeignTensor {
  std::shared_ptr<Storage> storage;
  Form form;
  Value value() const { return storage->value; }
};

/// Zeros and ones that decide what is dropped, on their way to a product with what they are dropped from.
struct RandomNumbers {
  std::vector<std::int64_t> sizes;
  double keep = -1;  ///< the share of ones; below 0: not drawn yet
  double scale = 1;  ///< what the ones were multiplied by
};

/// An integer; sizes of the batch are told apart, because the network must not depend on them.
struct Integer {
  std::int64_t value = 0;
  bool of_batch = false;
};

struct None {};
/// It follows from something that cannot be followed; whoever made it has said what.
struct Unknown {};

struct Thing;
struct ListOfThings {
  std::vector<Thing> items;
  std::vector<std::string> names;  ///< of a tuple whose fields have some
};
struct DictOfThings {
  std::vector<std::pair<Thing, Thing>> items;
};

/// Lists and dictionaries are shared, as in Python.
struct Thing {
  using Any = std::variant<None, Unknown, bool, Integer, double, std::string, std::shared_ptr<ListOfThings>,
                           std::shared_ptr<DictOfThings>, StoredRef, std::shared_ptr<ForeignTensor>,
                           std::shared_ptr<RandomNumbers>>;
  Any any;

  Thing() = default;
  template <class T>
  requires std::is_constructible_v<Any, T&&> Thing(T&& value)
      : any(std::forward<T>(value)) {}  // NOLINT(google-explicit-constructor)
  static Thing integer(std::int64_t value) { return Integer{value}; }
  static Thing list(std::vector<Thing> items) {
    return std::make_shared<ListOfThings>(ListOfThings{std::move(items), {}});
  }

  template <class T>
  const T* as() const {
    return std::get_if<T>(&any);
  }
  bool none() const { return as<None>() != nullptr; }
  const ForeignTensor* tensor() const {
    const auto* t = as<std::shared_ptr<ForeignTensor>>();
    return t ? t->get() : nullptr;
  }
  const std::vector<Thing>* items() const {
    const auto* l = as<std::shared_ptr<ListOfThings>>();
    return l ? &(*l)->items : nullptr;
  }
  /// Whether it, or anything in it, is unknown.
  bool unknown() const;
};

/// For messages: "None", "[1, 1]", "a tensor of Nx64x8x8".
std::string text_of(const Thing& thing);

}  // namespace tessera
