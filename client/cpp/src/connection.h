#pragma once

#include <google/protobuf/message_lite.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "call_control.h"
#include "interruptions.h"
#include "own_versions.h"
#include "rollserve/options.h"
#include "rpc.h"

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

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
  /// Check the configuration, and call through a channel.
  ///
  /// @throws InvalidArgumentError for a configuration that cannot be used.
  Connection(std::shared_ptr<grpc::Channel> channel, const Config& config);

  /// Return the configuration.
  const Config& config() const { return config_; }
  /// Return the channel.
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  /// Return the versions that the client expects in its calls.
  OwnVersions& own_versions() { return own_versions_; }
  /// Return whether the server has ever answered, and by which way.
  Contact& contact() { return contact_; }

  /// Return the control of a new call, which close() and a cancellation end.
  std::shared_ptr<CallControl> open_call(const std::optional<Cancellation>& cancellation);
  /// End all calls, and later ones.
  void close() noexcept { calls_.cancel(); }

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
  /// @tparam Response a message, or std::string for a serialized one.
  /// @param rpc the name of the RPC.
  /// @param request the serialized request.
  /// @param options options of the call; by default, it has the time of the configuration, and the further time `work`.
  template <class Response>
  Response answer(const std::string& rpc, const std::string& request, const CallOptions& options,
                  Milliseconds work = Milliseconds{0}) {
    Response response;
    const auto read = [&](Rpc& running) { return running.read(response, Milliseconds::max()); };
    receive_answer(rpc, request, options, work, read);
    return response;
  }

 private:
  void receive_answer(const std::string& rpc, const std::string& request, const CallOptions& options, Milliseconds work,
                      const std::function<Rpc::Outcome(Rpc&)>& read);

  Config config_;
  std::shared_ptr<grpc::Channel> channel_;
  OwnVersions own_versions_;
  Contact contact_;
  CallGroup calls_{"the sampler was closed"};
};

}  // namespace rollserve::internal
