#include "rpc_errors.h"

#include <google/protobuf/unknown_field_set.h>

#include <optional>
#include <string>

namespace rollserve::internal {

namespace {

using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

/// Return the first value of a length-delimited field of a serialized message; empty if there is none.
std::string value_of(const std::string& message, int number) {
  UnknownFieldSet fields;
  if (!fields.ParseFromString(message)) return "";
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    if (field.number() == number && field.type() == UnknownField::TYPE_LENGTH_DELIMITED) {
      return std::string(field.length_delimited());
    }
  }
  return "";
}

/// Return the field that google.rpc.BadRequest names in the details of a status; empty if there is none.
///
/// No library on every system has the classes of google.rpc, so the messages are read by the numbers of their fields.
std::string field_of(const std::string& status_details) {
  UnknownFieldSet status;
  if (!status.ParseFromString(status_details)) return "";
  for (int i = 0; i < status.field_count(); ++i) {
    const UnknownField& field = status.field(i);
    if (field.number() != 3 || field.type() != UnknownField::TYPE_LENGTH_DELIMITED) continue;
    const std::string detail(field.length_delimited());  // a view, by newer versions of protobuf
    if (value_of(detail, 1) != "type.googleapis.com/google.rpc.BadRequest") continue;
    return value_of(value_of(value_of(detail, 2), 1), 1);
  }
  return "";
}

std::string trailer_of(const grpc::ClientContext& context, const char* name) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find(name);
  return found == trailers.end() ? "" : std::string(found->second.data(), found->second.size());
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// Whether a status is gRPC's error of a connection that could not be made; other texts may come from a server.
bool is_without_connection(const std::string& message) {
  return message.rfind("failed to connect to all addresses", 0) == 0;
}

/// Return the client's error for TLS that fails with every attempt to connect. gRPC has one status for all of them.
std::optional<Failure> tls_failure_of(const grpc::Status& status) {
  const std::string message = status.error_message();
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE || !is_without_connection(message)) return std::nullopt;
  const auto failure = [&](const char* field, const char* expected, const std::string& got) {
    return Failure{mismatch_text(field, expected, got), {StatusCode::Unauthenticated, reason::TLS_FAILED, field, ""}};
  };
  // BoringSSL and OpenSSL write the same causes in different letters.
  if (contains(message, "CERTIFICATE_VERIFY_FAILED") || contains(message, "certificate verify failed")) {
    return failure("ca", "an authority that vouches for the server's certificate", "none");
  }
  if (contains(message, "Hostname Verification Check failed") || contains(message, "is not in peer certificate")) {
    return failure("target", "a name or address in the server's certificate", "another one");
  }
  if (contains(message, "WRONG_VERSION_NUMBER") || contains(message, "wrong version number")) {
    return failure("target", "a server that encrypts connections (TLS)", "one that does not");
  }
  if (contains(message, "SSL_ERROR_SSL")) {
    return failure("target", "a server whose TLS fits", "a failed handshake: " + message);
  }
  return std::nullopt;
}

std::string name_of_code(grpc::StatusCode code) { return "status " + std::to_string(static_cast<int>(code)); }

}  // namespace

Failure failure_of(const grpc::Status& status, const grpc::ClientContext& context) {
  if (auto failure = tls_failure_of(status)) return *failure;
  Failure failure;
  failure.message = status.error_message().empty() ? name_of_code(status.error_code()) : status.error_message();
  failure.details.code = static_cast<StatusCode>(status.error_code());
  failure.details.reason = trailer_of(context, "rollserve-reason");
  failure.details.field = field_of(status.error_details());
  failure.details.request_id = trailer_of(context, "rollserve-request-id");
  if (failure.details.code == StatusCode::Cancelled && failure.details.reason.empty()) {
    // gRPC does so with calls that a server has received and not begun when it stops.
    failure.message = "the server reset the call";
    failure.details.code = StatusCode::Unavailable;
  }
  return failure;
}

bool is_without_connection(const Failure& failure) {
  return failure.details.code == StatusCode::Unavailable && failure.details.reason.empty() &&
         is_without_connection(failure.message);
}

bool is_closed_at_once(const Failure& failure) {
  const std::string& message = failure.message;
  return is_without_connection(failure) &&
         (contains(message, "Socket closed") || contains(message, "Connection reset by peer") ||
          contains(message, "Handshake read failed"));
}

}  // namespace rollserve::internal
