#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <optional>
#include <string>

#include "call_control.h"
#include "interruptions.h"
#include "own_versions.h"
#include "rollserve/options.h"
#include "rollserve/v1/sampler_service.grpc.pb.h"
#include "rpc_errors.h"

namespace rollserve::internal {

/// How long a server may make environments, while it can be reached.
constexpr Milliseconds making_time = std::chrono::minutes(10);

/// The connection of a client to a server, and what all of its calls share. Thread-safe.
class Connection {
 public:
  /// Check the configuration, and make a channel that connects by itself.
  ///
  /// @throws InvalidArgumentError for a target or a configuration that cannot be used.
  Connection(const std::string& target, const Config& config);

  /// Return the configuration.
  const Config& config() const { return config_; }
  /// Return the generated client.
  v1::SamplerService::Stub& stub() { return *stub_; }
  /// Return the versions that the client expects in its calls.
  OwnVersions& own_versions() { return own_versions_; }
  /// Return whether the server has ever answered, and by which way.
  Contact& contact() { return contact_; }
  /// Return the open calls.
  OpenCalls& open_calls() { return open_calls_; }

  /// Add the metadata of a call: its token and its sampler's name.
  ///
  /// @throws InvalidArgumentError for a file that has no token any more.
  void prepare(grpc::ClientContext& context) const;

  /// Return the timeout of a call.
  ///
  /// @throws InvalidArgumentError for a timeout that is not positive.
  Milliseconds timeout_of(std::optional<Milliseconds> timeout) const;

  /// Make a call with a single answer. If a server that has answered before is away, or is lost before its answer, the
  /// call is made again, within its time. An update may then be made twice, with the same result and a version more.
  ///
  /// @param timeout the time of the call; by default that of the configuration, and the further time `work`.
  template <class Request, class Response>
  Response answer(grpc::Status (v1::SamplerService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, std::optional<Milliseconds> timeout, Milliseconds work = Milliseconds{0});

 private:
  Config config_;
  std::unique_ptr<v1::SamplerService::Stub> stub_;
  OwnVersions own_versions_;
  Contact contact_;
  OpenCalls open_calls_;
};

template <class Request, class Response>
Response Connection::answer(grpc::Status (v1::SamplerService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                             Response*),
                            const Request& request, std::optional<Milliseconds> timeout, Milliseconds work) {
  Milliseconds time = timeout_of(timeout);
  if (!timeout && time < Milliseconds::max() - work) time += work;
  const TimeLimits limits(timeout_of(timeout), time);
  const auto control = open_calls_.open();
  Interruptions interruptions(contact_, limits);
  while (true) {
    Response response;
    grpc::ClientContext context;
    context.set_deadline(limits.until.for_grpc());
    prepare(context);
    control->attach(context);
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    control->detach();
    if (status.ok()) {
      contact_.was_made = true;
      return response;
    }
    if (control->is_cancelled()) control->raise_cancelled();
    const Failure failure = failure_of(status, context);
    if (failure.details.code == StatusCode::DeadlineExceeded && failure.details.reason.empty()) {
      if (interruptions.last()) raise(*interruptions.last());  // the last attempt had only the rest of the time
      raise({"timeout: no answer for " + text_of(time), {StatusCode::DeadlineExceeded, "", "timeout", ""}});
    }
    interruptions.pause(*control, failure, false, false);
  }
}

}  // namespace rollserve::internal
