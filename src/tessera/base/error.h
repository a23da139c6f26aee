// Errors that carry the values and a way out. Each kind maps to one exit code of the program.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// What the program returns to the shell.
enum class ExitCode : int { ok = 0, failure = 1, usage = 2, numeric = 3 };

/// Base of everything Tessera throws on purpose.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ExitCode code = ExitCode::failure)
      : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// The user asked for something that cannot be done; the message names the flag to change. It may hold several
/// problems, each of which the user has to solve.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& problem) : UsageError(std::vector<std::string>{problem}) {}
  explicit UsageError(std::vector<std::string> problems);
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::vector<std::string> problems_;
};

/// A loss that is not a number.
class NumericError : public Error {
 public:
  explicit NumericError(const std::string& message) : Error(message, ExitCode::numeric) {}
};

/// Writes its arguments one after the other.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// For what a user can cause: throws UsageError.
template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) throw UsageError(concat(parts...));
}

/// For what only a mistake in Tessera can cause: throws Error.
template <class... Parts>
void ensure(bool condition, const Parts&... parts) {
  if (!condition) throw Error(concat("internal error: ", parts...));
}

/// Collects everything that is wrong, so that the user sees it all in one message.
class Problems {
 public:
  template <class... Parts>
  void add(const Parts&... parts) {
    list_.push_back(concat(parts...));
  }
  template <class... Parts>
  void check(bool condition, const Parts&... parts) {
    if (!condition) add(parts...);
  }
  /// Runs f and takes in the problems of a UsageError that it throws.
  template <class F>
  void absorb(const F& f) {
    try {
      f();
    } catch (const UsageError& error) {
      list_.insert(list_.end(), error.problems().begin(), error.problems().end());
    }
  }
  bool empty() const { return list_.empty(); }
  const std::vector<std::string>& list() const { return list_; }
  /// Throws UsageError with every problem on a line of its own.
  void throw_if_any() const;

 private:
  std::vector<std::string> list_;
};

}  // namespace tessera
