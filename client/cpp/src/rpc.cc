#include "rpc.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <utility>
#include <vector>

#include "connection.h"
#include "rpc_errors.h"

namespace rollserve::internal {

namespace {

/// Return a text as the buffer of a message, without a copy.
grpc::ByteBuffer buffer_of(std::string text) {
  auto* const owner = new std::string(std::move(text));
  const grpc::Slice slice(
      owner->data(), owner->size(), [](void* held) { delete static_cast<std::string*>(held); }, owner);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

class Rpc::State {
 public:
  State(const Connection& connection, CallControl& control, const Deadline& until, const std::string& name,
        std::string request, bool stays_open)
      : control_(control) {
    context_.set_deadline(until.for_grpc());
    context_.set_initial_metadata_corked(true);  // sent with the request
    connection.prepare(context_);
    grpc::GenericStub stub(connection.channel());
    stream_ = stub.PrepareCall(&context_, "/rollserve.v1.SamplerService/" + name, &queue_);
    stream_->StartCall(this);
    if (stays_open) {
      stream_->Write(buffer_of(std::move(request)), this);
    } else {
      stream_->WriteLast(buffer_of(std::move(request)), grpc::WriteOptions(), this);
    }
    control_.attach(context_);
  }

  State(const State&) = delete;
  State& operator=(const State&) = delete;

  ~State() {
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

  Outcome read(grpc::ByteBuffer& response, Milliseconds timeout) {
    const Waited waited = perform(timeout, [&] { stream_->Read(&response, this); });
    if (waited.ok && !waited.timed_out) return Outcome::Message;
    finish();
    return waited.timed_out ? Outcome::Silence : Outcome::End;
  }

  Outcome send(grpc::ByteBuffer request, Milliseconds timeout) {
    return sent(perform(timeout, [&] { stream_->Write(request, this); }));
  }

  Outcome end_requests(Milliseconds timeout) {
    return sent(perform(timeout, [&] { stream_->WritesDone(this); }));
  }

  const grpc::Status& status() const { return status_; }
  const grpc::ClientContext& context() const { return context_; }

 private:
  struct Waited {
    bool ok;
    bool timed_out;
  };

  /// Begin an operation once the RPC has started, and wait for it.
  template <class Begin>
  Waited perform(Milliseconds timeout, Begin begin) {
    const Deadline deadline{timeout};
    Waited waited{true, false};
    if (is_starting_) {
      waited = wait(deadline);
      is_starting_ = false;
    }
    if (waited.ok && !waited.timed_out) {
      begin();
      waited = wait(deadline);
    }
    return waited;
  }

  Outcome sent(Waited waited) {
    if (!waited.timed_out) return Outcome::Message;
    finish();
    return Outcome::Silence;
  }

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
    stream_->Finish(&status_, this);
    wait(Deadline());
    is_finished_ = true;
  }

  CallControl& control_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::Status status_;
  bool is_starting_ = true;
  bool is_finished_ = false;
};

Rpc::Rpc(const Connection& connection, CallControl& control, const Deadline& until, const std::string& name,
         std::string request, bool stays_open)
    : state_(std::make_unique<State>(connection, control, until, name, std::move(request), stays_open)) {}

Rpc::~Rpc() = default;

Rpc::Outcome Rpc::read(google::protobuf::MessageLite& response, Milliseconds timeout) {
  grpc::ByteBuffer buffer;
  const Outcome outcome = state_->read(buffer, timeout);
  if (outcome == Outcome::Message) {
    grpc::ProtoBufferReader reader(&buffer);
    if (!response.ParseFromZeroCopyStream(&reader)) throw Malformed("a response cannot be read");
  }
  return outcome;
}

Rpc::Outcome Rpc::read(std::string& response, Milliseconds timeout) {
  grpc::ByteBuffer buffer;
  const Outcome outcome = state_->read(buffer, timeout);
  if (outcome == Outcome::Message) {
    std::vector<grpc::Slice> slices;
    if (!buffer.Dump(&slices).ok()) throw Malformed("a response cannot be read");
    response.clear();
    for (const grpc::Slice& slice : slices) {
      response.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
  }
  return outcome;
}

Rpc::Outcome Rpc::send(std::string request, Milliseconds timeout) {
  return state_->send(buffer_of(std::move(request)), timeout);
}

Rpc::Outcome Rpc::end_requests(Milliseconds timeout) { return state_->end_requests(timeout); }

bool Rpc::is_ok() const { return state_->status().ok(); }

Failure Rpc::failure() const { return failure_of(state_->status(), state_->context()); }

}  // namespace rollserve::internal
