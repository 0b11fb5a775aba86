#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "rollserve/reasons.h"

/// @file
/// Exceptions of the client, grouped by what the caller can do about them.
///
///     Error
///     ├── InvalidArgumentError   change the request: a field, a name or a permission is wrong
///     │   └── AccessError        get a token, or one with the scope that the message names
///     ├── PreconditionError      bring the sampler into the right state, then call again
///     ├── LimitError             ask for less, or have a limit raised
///     ├── UnavailableError       the server is out of reach, starting or stopping: call again later
///     ├── StoppedError           the call ended early
///     │   ├── CancelledError     the caller cancelled it
///     │   └── DeadlineError      its deadline passed, or it made no progress for its timeout
///     └── ServerError            a fault of the server or an environment: look at the server's log

namespace rollserve {

/// The status codes of gRPC.
enum class StatusCode : int {
  Ok = 0,                  ///< No error.
  Cancelled = 1,           ///< The caller cancelled the call.
  Unknown = 2,             ///< An error without a code.
  InvalidArgument = 3,     ///< A field of the request is wrong.
  DeadlineExceeded = 4,    ///< The call's time is over.
  NotFound = 5,            ///< Something that the request names does not exist.
  AlreadyExists = 6,       ///< Something that the request makes exists.
  PermissionDenied = 7,    ///< The client may not do that.
  ResourceExhausted = 8,   ///< A limit does not allow that.
  FailedPrecondition = 9,  ///< The sampler is in another state than the request needs.
  Aborted = 10,            ///< The call met another one.
  OutOfRange = 11,         ///< A field of the request is beyond a limit.
  Unimplemented = 12,      ///< The server does not know the call.
  Internal = 13,           ///< A fault of the server.
  Unavailable = 14,        ///< The server is out of reach.
  DataLoss = 15,           ///< A message violates the wire contract.
  Unauthenticated = 16,    ///< The client does not prove who it is.
};

/// What programs tell errors apart by.
struct ErrorDetails {
  StatusCode code = StatusCode::Unknown;  ///< The gRPC status code.
  std::string reason;      ///< One of rollserve::reason, or what a newer server sends; empty for gRPC's own errors.
  std::string field;       ///< The path of the argument or field that is at fault; empty if none is.
  std::string request_id;  ///< The name of the request in the server's log; empty for gRPC's and the client's errors.
};

/// The base class of all errors of calls.
///
/// Its subclasses say what the caller can do; reason() says exactly what happened. what() begins with the field, if one
/// is at fault, and reads `field: expected …, got …`.
class Error : public std::runtime_error {
 public:
  /// Make an error with a message.
  Error(const std::string& message, ErrorDetails details)
      : std::runtime_error(message), details_(std::make_shared<const ErrorDetails>(std::move(details))) {}

  /// Return the gRPC status code.
  StatusCode code() const noexcept { return details_->code; }
  /// Return a constant of rollserve::reason, or what a newer server sends; empty if the error is gRPC's own.
  const std::string& reason() const& noexcept { return details_->reason; }
  /// Return the path of the argument or of the request's field that is at fault; empty if none is.
  const std::string& field() const& noexcept { return details_->field; }
  /// Return the name of the request in the server's log; empty if the error is gRPC's or the client's own.
  const std::string& request_id() const& noexcept { return details_->request_id; }

  /// @cond
  std::string reason() const&& { return details_->reason; }  // of an error that is a temporary
  std::string field() const&& { return details_->field; }
  std::string request_id() const&& { return details_->request_id; }
  /// @endcond

 private:
  std::shared_ptr<const ErrorDetails> details_;  // shared, so that copies of the exception cannot fail
};

/// The error of a request that cannot be met: a value, a name or a permission is wrong. Change the request.
class InvalidArgumentError : public Error {
 public:
  using Error::Error;
};

/// The error of a client that does not prove who it is, or lacks the scope that the message names.
class AccessError : public InvalidArgumentError {
 public:
  using InvalidArgumentError::InvalidArgumentError;
};

/// The error of a sampler that is not in the state that the request needs, for example because it has no agent yet.
class PreconditionError : public Error {
 public:
  using Error::Error;
};

/// The error of a request or a result that is larger than a limit allows.
class LimitError : public Error {
 public:
  using Error::Error;
};

/// The error of a server that is out of reach, starting or stopping, or has lost a worker. Call again later.
class UnavailableError : public Error {
 public:
  using Error::Error;
};

/// The error of a call that ended early, because of its caller or of a time limit.
class StoppedError : public Error {
 public:
  using Error::Error;
};

/// The error of a call whose stream or sampler the caller has cancelled, closed or destroyed.
class CancelledError : public StoppedError {
 public:
  using StoppedError::StoppedError;
};

/// The error of a call whose deadline passed, or that made no progress for its timeout (reason::NO_PROGRESS).
class DeadlineError : public StoppedError {
 public:
  using StoppedError::StoppedError;
};

/// The error of the server or of an environment. The server's log has the details.
class ServerError : public Error {
 public:
  using Error::Error;
};

}  // namespace rollserve
