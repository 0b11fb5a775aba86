#pragma once

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <rollserve/rollserve.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <vector>

#include "rollserve/v1/sampler_service.grpc.pb.h"

namespace v1 = rollserve::v1;

/// What one call of a scripted server does: its responses, and how it ends.
struct Scripted {
  std::vector<v1::ObtainSamplesResponse> responses;
  std::function<grpc::Status(grpc::ServerContext&)> end;  // status OK without it
};

/// What a scripted server sends for a request of a session, and how the session ends, if it does.
struct SessionAnswer {
  std::vector<v1::DriveEnvironmentsResponse> responses;
  std::function<grpc::Status(grpc::ServerContext&)> end;
};

/// A server on a real connection whose streams send what the test says, one Scripted for each call.
class ScriptedServer final : public v1::SamplerService::Service {
 public:
  explicit ScriptedServer(std::vector<Scripted> calls,
                          std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials(),
                          int port = 0);
  ~ScriptedServer() override;

  /// Return the address.
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  /// Return the port.
  int port() const { return port_; }
  /// Return a sampler that is connected to the server.
  rollserve::Sampler connect(const rollserve::Config& config = {}) const {
    return rollserve::connect(address(), config);
  }

  grpc::Status ObtainSamples(grpc::ServerContext* context, const v1::ObtainSamplesRequest* request,
                             grpc::ServerWriter<v1::ObtainSamplesResponse>* writer) override;
  grpc::Status ObtainExactEpisodes(grpc::ServerContext* context, const v1::ObtainExactEpisodesRequest* request,
                                   grpc::ServerWriter<v1::ObtainExactEpisodesResponse>* writer) override;
  grpc::Status UpdateAgent(grpc::ServerContext* context, const v1::UpdateAgentRequest* request,
                           v1::UpdateAgentResponse* response) override;
  grpc::Status UpdateEnv(grpc::ServerContext* context, const v1::UpdateEnvRequest* request,
                         v1::UpdateEnvResponse* response) override;
  grpc::Status CallEnvironments(grpc::ServerContext* context, const v1::CallEnvironmentsRequest* request,
                                v1::CallEnvironmentsResponse* response) override;
  grpc::Status GetSampler(grpc::ServerContext* context, const v1::GetSamplerRequest* request,
                          v1::GetSamplerResponse* response) override;
  grpc::Status Evaluate(grpc::ServerContext* context, const v1::EvaluateRequest* request,
                        grpc::ServerWriter<v1::EvaluateResponse>* writer) override;
  grpc::Status DriveEnvironments(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::DriveEnvironmentsResponse, v1::DriveEnvironmentsRequest>* stream) override;

  /// The answers to each request of a session, and to the end of its requests, which is nullptr.
  std::function<SessionAnswer(const v1::DriveEnvironmentsRequest*)> session;
  /// How GetSampler ends instead of with an answer; to be set between calls.
  std::function<grpc::Status(grpc::ServerContext&)> unary;

  // What was received, to be read between calls.
  std::vector<v1::ObtainSamplesRequest> samples;
  std::vector<v1::ObtainExactEpisodesRequest> exact_episodes;
  std::vector<v1::UpdateAgentRequest> agents;
  std::vector<v1::UpdateEnvRequest> envs;
  std::vector<v1::CallEnvironmentsRequest> env_calls;
  std::vector<v1::EvaluateRequest> evaluations;
  std::vector<v1::DriveEnvironmentsRequest> driven;
  std::vector<std::multimap<std::string, std::string>> metadata;

 private:
  Scripted next_call(const grpc::ServerContext& context);

  std::mutex mutex_;
  std::vector<Scripted> calls_;
  std::size_t num_calls_ = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

/// Return an end of a call with an error in the form of the server: with a reason, a field and a request id.
std::function<grpc::Status(grpc::ServerContext&)> failure(grpc::StatusCode code, const std::string& reason,
                                                          const std::string& field = "");
/// Return an end of a call as a lost connection has it.
std::function<grpc::Status(grpc::ServerContext&)> broken();
/// Return an end of a call that waits until the client cancels it.
std::function<grpc::Status(grpc::ServerContext&)> until_cancelled();

/// A segment of a scripted batch: its observations count from 100 times the episode, plus the step.
struct Segment {
  std::uint64_t episode;
  std::uint64_t first_step;
  std::uint32_t length;
  bool ends;
};

/// Return a batch of segments.
v1::EpisodeBatch batch_of(const std::vector<Segment>& segments);

/// Return a tensor of values, written as the wire has them, without the package.
template <class T>
v1::Tensor tensor(v1::DataType type, const std::vector<T>& values, const std::vector<std::int64_t>& shape) {
  v1::Tensor message;
  message.set_data_type(type);
  message.mutable_shape()->Add(shape.begin(), shape.end());
  message.set_data(values.data(), values.size() * sizeof(T));
  return message;
}

/// Add a named tensor.
void add(google::protobuf::RepeatedPtrField<v1::NamedTensor>& columns, const std::string& name, v1::Tensor tensor);

/// Steps of an agent of many as a segment: the environment steps in which it acted.
struct Life {
  std::uint32_t agent;
  std::vector<std::uint32_t> env_steps;
  Segment segment;
};

/// Return a batch of the agents `a` and `b`, without policies. One agent acts in each environment step.
v1::MultiAgentBatch episodes_of(const std::vector<Segment>& parts);

/// Return the segments of a policy.
v1::PolicyBatch policy_of(const std::string& name, const std::vector<Life>& lives);

v1::ObtainSamplesResponse beginning();
v1::ObtainSamplesResponse response_of(v1::EpisodeBatch batch);
v1::ObtainSamplesResponse response_of(v1::MultiAgentBatch batch);
v1::ObtainSamplesResponse progress(std::uint64_t num_simulated_steps, std::uint64_t num_ended_episodes);
v1::ObtainSamplesResponse account(std::uint64_t num_episodes, std::uint64_t num_steps);
/// Return progress with a warning.
v1::ObtainSamplesResponse warning(const std::string& text);
/// Return several responses in one.
v1::ObtainSamplesResponse joined(const std::vector<v1::ObtainSamplesResponse>& responses);
/// Return a call that delivers one episode of one step.
Scripted one_step();
/// Return what a call makes of messages, with a beginning before and an account behind them.
rollserve::EpisodeBatch obtain(std::uint64_t num_episodes, std::uint64_t num_steps,
                               const std::vector<v1::EpisodeBatch>& batches);

/// Return the elements of an array as a vector, which GoogleTest compares and prints.
template <class T>
std::vector<T> values(const rollserve::Array& array) {
  const auto span = array.values<T>();
  return std::vector<T>(span.begin(), span.end());
}

/// Return the error of exactly a class that a function throws; any other error, or none, fails the test.
template <class E, class Function>
E error_of(Function function) {
  try {
    function();
  } catch (const E& error) {
    if (typeid(error) != typeid(E)) throw;
    return error;
  }
  throw std::logic_error("expected an error, got none");
}
