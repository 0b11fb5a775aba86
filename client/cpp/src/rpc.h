#pragma once

#include <google/protobuf/message_lite.h>

#include <memory>
#include <string>

#include "call_control.h"
#include "deadline.h"
#include "failures.h"

namespace rollserve::internal {

class Connection;

/// One RPC, whose responses one thread reads, which never waits for longer than it wants to. An RPC with a single
/// answer has one response.
///
/// gRPC's blocking streams cannot limit the time of a single read, so this one waits on a queue of its own. RPCs are
/// called by their names, so that the package needs no generated stubs and only few of its files include gRPC.
class Rpc {
 public:
  /// How a read has ended.
  enum class Outcome { Message, End, Silence };

  /// Start the RPC.
  ///
  /// @param connection the connection, which adds its metadata.
  /// @param control what can cancel the RPC; it has to last longer.
  /// @param until when the RPC has to be over.
  /// @param name the name of the RPC, such as `ObtainSamples`.
  /// @param request the serialized request.
  /// @param stays_open whether send() and end_requests() follow.
  Rpc(const Connection& connection, CallControl& control, const Deadline& until, const std::string& name,
      std::string request, bool stays_open = false);
  Rpc(const Rpc&) = delete;
  Rpc& operator=(const Rpc&) = delete;
  /// Cancel the RPC, unless it is over.
  ~Rpc();

  /// Read the next response, or the end of the stream, or cancel the RPC because neither comes within a time.
  ///
  /// @throws Malformed for a response of another type.
  Outcome read(google::protobuf::MessageLite& response, Milliseconds timeout);
  /// Read the next response as it was serialized, in the same way.
  Outcome read(std::string& response, Milliseconds timeout);

  /// Send another request, or cancel the RPC because the server takes none within a time. Of an RPC that has failed,
  /// the next read says so.
  Outcome send(std::string request, Milliseconds timeout);
  /// Close the client's side of the RPC, in the same way.
  Outcome end_requests(Milliseconds timeout);

  /// Return whether the RPC has ended well, after its end.
  bool is_ok() const;
  /// Return how the RPC has failed, after its end; not for one that its control has cancelled.
  Failure failure() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace rollserve::internal
