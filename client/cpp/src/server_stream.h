#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/async_stream.h>

#include <memory>

#include "call_control.h"
#include "connection.h"

namespace rollserve::internal {

/// One RPC with a stream of responses, read by one thread, which never waits for longer than it wants to.
///
/// gRPC's blocking streams cannot limit the time of a single read, so this one waits on a queue of its own.
template <class Response>
class ServerStream {
 public:
  /// How a read has ended.
  enum class Outcome { Message, End, Silence };

  /// Start the RPC.
  ///
  /// @param connection the connection, which adds its metadata.
  /// @param control what can cancel the RPC; it has to last longer.
  /// @param until when the RPC has to be over.
  /// @param start called with a context and a queue, returns the reader of the responses.
  template <class Start>
  ServerStream(const Connection& connection, CallControl& control, const Deadline& until, const Start& start)
      : control_(control) {
    context_.set_deadline(until.for_grpc());
    connection.prepare(context_);
    reader_ = start(&context_, &queue_);
    reader_->StartCall(this);
    control_.attach(context_);
  }

  ServerStream(const ServerStream&) = delete;
  ServerStream& operator=(const ServerStream&) = delete;

  ~ServerStream() {
    control_.detach();
    if (!is_finished_) {
      context_.TryCancel();
      if (is_starting_) wait(Deadline());
      finish();
    }
    queue_.Shutdown();
    void* tag = nullptr;
    for (bool ok = false; queue_.Next(&tag, &ok);) continue;
  }

  /// Read the next response, or the end of the stream, or cancel the RPC because neither comes within a time.
  Outcome read(Response* response, Milliseconds timeout) {
    const Deadline deadline{timeout};
    Waited waited{true, false};
    if (is_starting_) {
      waited = wait(deadline);
      is_starting_ = false;
    }
    if (waited.ok && !waited.timed_out) {
      reader_->Read(response, this);
      waited = wait(deadline);
    }
    if (waited.ok && !waited.timed_out) return Outcome::Message;
    finish();
    return waited.timed_out ? Outcome::Silence : Outcome::End;
  }

  /// Return the status that the stream has ended with.
  const grpc::Status& status() const { return status_; }
  /// Return the context of the RPC, which has its trailers after its end.
  const grpc::ClientContext& context() const { return context_; }

 private:
  struct Waited {
    bool ok;
    bool timed_out;
  };

  /// Wait for the operation that is under way. If it takes too long, cancel the RPC, which ends it.
  Waited wait(const Deadline& deadline) {
    void* tag = nullptr;
    bool ok = false;
    if (queue_.AsyncNext(&tag, &ok, deadline.for_grpc()) != grpc::CompletionQueue::TIMEOUT) return {ok, false};
    context_.TryCancel();
    queue_.Next(&tag, &ok);
    return {ok, true};
  }

  void finish() {
    reader_->Finish(&status_, this);
    wait(Deadline());
    is_finished_ = true;
  }

  CallControl& control_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReader<Response>> reader_;
  grpc::Status status_;
  bool is_starting_ = true;
  bool is_finished_ = false;
};

}  // namespace rollserve::internal
