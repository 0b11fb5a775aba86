#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "failures.h"

namespace rollserve::internal {

/// Return the client's error for the status that an RPC has ended with, without its caller having cancelled it.
Failure failure_of(const grpc::Status& status, const grpc::ClientContext& context);

/// Whether a failure is gRPC's own error of a connection that could not be made.
bool is_without_connection(const Failure& failure);

/// Whether a failure is gRPC's own error of a new connection that the server closes without a word.
bool is_closed_at_once(const Failure& failure);

}  // namespace rollserve::internal
