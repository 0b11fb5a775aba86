#pragma once

#include <stdexcept>
#include <string>

#include "rollserve/errors.h"

namespace rollserve::internal {

/// An error before it is thrown, as data.
struct Failure {
  std::string message;
  ErrorDetails details;
};

/// Throw the error of the tree that the failure's status code and reason belong to.
[[noreturn]] void raise(Failure failure);

/// Return the text of an error about a field: `field: expected …, got …`.
std::string mismatch_text(const std::string& field, const std::string& expected, const std::string& got);

/// Throw the InvalidArgumentError for an argument that a call cannot send.
[[noreturn]] void raise_invalid(const std::string& field, const std::string& expected, const std::string& got);

/// A violation of the wire contract, which streams turn into a ServerError.
class Malformed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  Malformed(const std::string& field, const std::string& expected, const std::string& got)
      : std::runtime_error(mismatch_text(field, expected, got)) {}
};

/// Throw the ServerError for a stream that violates the wire contract.
[[noreturn]] void raise_malformed(const std::string& violation);

}  // namespace rollserve::internal
