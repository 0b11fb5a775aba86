#include "failures.h"

#include <utility>

namespace rollserve::internal {

namespace {

bool is_about_access(const std::string& text) {
  return text == reason::TOKEN_MISSING || text == reason::TOKEN_INVALID || text == reason::TOKEN_EXPIRED ||
         text == reason::SCOPE_MISSING;
}

}  // namespace

void raise(Failure failure) {
  auto& [message, details] = failure;
  if (is_about_access(details.reason)) throw AccessError(message, std::move(details));
  switch (details.code) {
    case StatusCode::InvalidArgument:
    case StatusCode::NotFound:
    case StatusCode::AlreadyExists:
    case StatusCode::OutOfRange:
    case StatusCode::PermissionDenied:
    case StatusCode::Unauthenticated:
    case StatusCode::Unimplemented:
      throw InvalidArgumentError(message, std::move(details));
    case StatusCode::FailedPrecondition:
    case StatusCode::Aborted:
      throw PreconditionError(message, std::move(details));
    case StatusCode::ResourceExhausted:
      throw LimitError(message, std::move(details));
    case StatusCode::Unavailable:
      throw UnavailableError(message, std::move(details));
    case StatusCode::Cancelled:
      throw CancelledError(message, std::move(details));
    case StatusCode::DeadlineExceeded:
      throw DeadlineError(message, std::move(details));
    default:
      throw ServerError(message, std::move(details));
  }
}

std::string mismatch_text(const std::string& field, const std::string& expected, const std::string& got) {
  return field + ": expected " + expected + ", got " + got;
}

void raise_invalid(const std::string& field, const std::string& expected, const std::string& got) {
  raise({mismatch_text(field, expected, got), {StatusCode::InvalidArgument, reason::INVALID_VALUE, field, ""}});
}

void raise_malformed(const std::string& violation) {
  raise({"malformed stream: " + violation, {StatusCode::DataLoss, "", "", ""}});
}

}  // namespace rollserve::internal
