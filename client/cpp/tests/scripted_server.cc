#include "scripted_server.h"

#include <grpcpp/server_builder.h>

#include <chrono>
#include <cmath>
#include <thread>

namespace {

std::string text_field(int number, const std::string& value) {  // texts of less than 128 bytes
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(value.size())} + value;
}

/// Return three episodes: `a` got 1, 2 and 4 by version 3 of main, and `b` got 5 in the last two.
v1::AgentReturns agent_returns() {
  v1::AgentReturns message;
  message.add_agents("a");
  message.add_agents("b");
  message.add_policies()->set_policy("main");
  message.mutable_policies(0)->set_version(3);
  message.add_policies()->set_policy("old");
  message.mutable_policies(1)->set_version(1);
  for (const double value : {1.0, std::nan(""), 2.0, 5.0, 4.0, 5.0}) message.add_returns(value);
  for (const int position : {0, -1, 0, 0, 0, 1}) message.add_policy_positions(position);
  return message;
}

v1::ObtainExactEpisodesResponse exact(const v1::ObtainSamplesResponse& response) {
  v1::ObtainExactEpisodesResponse same;
  same.ParseFromString(response.SerializeAsString());
  return same;
}

}  // namespace

ScriptedServer::ScriptedServer(std::vector<Scripted> calls, std::shared_ptr<grpc::ServerCredentials> credentials,
                               int port)
    : calls_(std::move(calls)) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:" + std::to_string(port), std::move(credentials), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
}

ScriptedServer::~ScriptedServer() { server_->Shutdown(std::chrono::system_clock::now()); }

Scripted ScriptedServer::next_call(const grpc::ServerContext& context) {
  auto& received = metadata.emplace_back();
  for (const auto& [name, value] : context.client_metadata()) {
    received.emplace(std::string(name.data(), name.size()), std::string(value.data(), value.size()));
  }
  return num_calls_ < calls_.size() ? calls_[num_calls_++] : Scripted{};
}

grpc::Status ScriptedServer::ObtainSamples(grpc::ServerContext* context, const v1::ObtainSamplesRequest* request,
                                           grpc::ServerWriter<v1::ObtainSamplesResponse>* writer) {
  Scripted call;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    samples.push_back(*request);
    call = next_call(*context);
  }
  for (const auto& response : call.responses) writer->Write(response);
  return call.end ? call.end(*context) : grpc::Status::OK;
}

grpc::Status ScriptedServer::ObtainExactEpisodes(grpc::ServerContext* context,
                                                 const v1::ObtainExactEpisodesRequest* request,
                                                 grpc::ServerWriter<v1::ObtainExactEpisodesResponse>* writer) {
  Scripted call;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    exact_episodes.push_back(*request);
    call = next_call(*context);
  }
  for (const auto& response : call.responses) writer->Write(exact(response));
  return call.end ? call.end(*context) : grpc::Status::OK;
}

grpc::Status ScriptedServer::UpdateAgent(grpc::ServerContext*, const v1::UpdateAgentRequest* request,
                                         v1::UpdateAgentResponse* response) {
  const std::lock_guard<std::mutex> lock(mutex_);
  agents.push_back(*request);
  response->set_policy_version(7);
  response->set_environment_version(3);
  return grpc::Status::OK;
}

grpc::Status ScriptedServer::UpdateEnv(grpc::ServerContext*, const v1::UpdateEnvRequest* request,
                                       v1::UpdateEnvResponse* response) {
  const std::lock_guard<std::mutex> lock(mutex_);
  envs.push_back(*request);
  response->set_environment_version(5);
  if (request->all_workers().environment().multi_agent() != v1::MULTI_AGENT_API_UNSPECIFIED) {
    response->add_agents("a");
    response->add_agents("b");
  }
  response->mutable_observation_space()->mutable_discrete()->set_n(4);
  response->mutable_action_space()->mutable_discrete()->set_n(2);
  return grpc::Status::OK;
}

grpc::Status ScriptedServer::CallEnvironments(grpc::ServerContext*, const v1::CallEnvironmentsRequest* request,
                                              v1::CallEnvironmentsResponse* response) {
  const std::lock_guard<std::mutex> lock(mutex_);
  env_calls.push_back(*request);
  response->add_values_json("[1, 2]");
  response->add_values_json("null");
  return grpc::Status::OK;
}

grpc::Status ScriptedServer::GetSampler(grpc::ServerContext* context, const v1::GetSamplerRequest*,
                                        v1::GetSamplerResponse* response) {
  if (unary) return unary(*context);
  const std::lock_guard<std::mutex> lock(mutex_);
  next_call(*context);
  for (const v1::UpdateEnvRequest& update : envs) *response->add_environments() = update.all_workers().environment();
  response->mutable_observation_space()->mutable_discrete()->set_n(4);
  response->mutable_action_space()->mutable_discrete()->set_n(2);
  return grpc::Status::OK;
}

grpc::Status ScriptedServer::Evaluate(grpc::ServerContext* context, const v1::EvaluateRequest* request,
                                      grpc::ServerWriter<v1::EvaluateResponse>* writer) {
  Scripted call;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    evaluations.push_back(*request);
    call = next_call(*context);
  }
  for (const auto& response : call.responses) {
    v1::EvaluateResponse same;
    if (response.has_beginning()) *same.mutable_beginning() = response.beginning();
    if (response.has_progress()) *same.mutable_progress() = response.progress();
    if (response.has_batch()) *same.mutable_batch() = response.batch();
    if (response.has_multi_agent_batch()) *same.mutable_multi_agent_batch() = response.multi_agent_batch();
    if (response.has_account()) {
      same.mutable_evaluation()->add_returns(1.5);
      *same.mutable_evaluation()->mutable_account() = response.account();
      if (same.evaluation().account().policy_version() > 0) {
        *same.mutable_evaluation()->mutable_agent_returns() = agent_returns();
      }
    }
    writer->Write(same);
  }
  return call.end ? call.end(*context) : grpc::Status::OK;
}

grpc::Status ScriptedServer::DriveEnvironments(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::DriveEnvironmentsResponse, v1::DriveEnvironmentsRequest>* stream) {
  const auto answer = [&](const v1::DriveEnvironmentsRequest* request) {
    SessionAnswer each = session(request);
    for (const auto& response : each.responses) stream->Write(response);
    return each.end;
  };
  for (v1::DriveEnvironmentsRequest request; stream->Read(&request);) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      driven.push_back(request);
    }
    if (const auto end = answer(&request)) return end(*context);
  }
  const auto end = answer(nullptr);
  return end ? end(*context) : grpc::Status::OK;
}

std::function<grpc::Status(grpc::ServerContext&)> failure(grpc::StatusCode code, const std::string& reason,
                                                          const std::string& field) {
  return [=](grpc::ServerContext& context) {
    context.AddTrailingMetadata("rollserve-reason", reason);
    context.AddTrailingMetadata("rollserve-request-id", "0123456789abcdef");
    const std::string violation = text_field(1, field) + text_field(2, "description");
    const std::string detail =
        text_field(1, "type.googleapis.com/google.rpc.BadRequest") + text_field(2, text_field(1, violation));
    const std::string status = std::string{8, static_cast<char>(code)} + text_field(2, "it failed") +
                               text_field(3, text_field(1, "type.googleapis.com/some.Other")) + text_field(3, detail);
    return grpc::Status(code, "it failed", status);
  };
}

std::function<grpc::Status(grpc::ServerContext&)> broken() {
  return [](grpc::ServerContext&) { return grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection lost"); };
}

std::function<grpc::Status(grpc::ServerContext&)> until_cancelled() {
  return [](grpc::ServerContext& context) {
    while (!context.IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return grpc::Status::CANCELLED;
  };
}

v1::EpisodeBatch batch_of(const std::vector<Segment>& segments) {
  v1::EpisodeBatch batch;
  std::vector<float> observations;
  std::vector<float> last;
  std::vector<std::int64_t> actions;
  std::vector<double> rewards;
  for (const auto& [episode, first_step, length, ends] : segments) {
    batch.add_episode_indices(episode);
    batch.add_first_steps(first_step);
    batch.add_lengths(length);
    batch.add_terminated(ends);
    batch.add_truncated(false);
    batch.add_policy_versions(1);
    batch.add_environment_seeds(static_cast<std::uint32_t>(1000 + episode));
    for (std::uint64_t step = first_step; step < first_step + length; ++step) {
      observations.push_back(static_cast<float>(100 * episode + step));
      actions.push_back(static_cast<std::int64_t>(step));
      rewards.push_back(static_cast<double>(step));
    }
    last.push_back(static_cast<float>(100 * episode + first_step + length));
  }
  const auto num_steps = static_cast<std::int64_t>(rewards.size());
  const auto num_segments = static_cast<std::int64_t>(last.size());
  add(*batch.mutable_observations(), "", tensor(v1::DATA_TYPE_FLOAT32, observations, {num_steps, 1}));
  add(*batch.mutable_last_observations(), "", tensor(v1::DATA_TYPE_FLOAT32, last, {num_segments, 1}));
  add(*batch.mutable_actions(), "", tensor(v1::DATA_TYPE_INT64, actions, {num_steps}));
  *batch.mutable_rewards() = tensor(v1::DATA_TYPE_FLOAT64, rewards, {num_steps});
  return batch;
}

void add(google::protobuf::RepeatedPtrField<v1::NamedTensor>& columns, const std::string& name, v1::Tensor tensor) {
  v1::NamedTensor& named = *columns.Add();
  named.set_name(name);
  *named.mutable_tensor() = std::move(tensor);
}

v1::ObtainSamplesResponse beginning() {
  v1::ObtainSamplesResponse response;
  v1::Beginning& content = *response.mutable_beginning();
  content.set_seed(std::uint64_t{1} << 63);
  content.set_first_episode_index(4);
  content.set_policy_version(1);
  content.set_environment_version(2);
  content.set_sampler_run("run");
  content.set_worker_count(3);
  content.set_reproducibility(v1::REPRODUCIBILITY_EPISODE);
  return response;
}

v1::ObtainSamplesResponse response_of(v1::EpisodeBatch batch) {
  v1::ObtainSamplesResponse response;
  *response.mutable_batch() = std::move(batch);
  return response;
}

v1::ObtainSamplesResponse response_of(v1::MultiAgentBatch batch) {
  v1::ObtainSamplesResponse response;
  *response.mutable_multi_agent_batch() = std::move(batch);
  return response;
}

v1::MultiAgentBatch episodes_of(const std::vector<Segment>& parts) {
  v1::MultiAgentBatch batch;
  batch.add_agents("a");
  batch.add_agents("b");
  for (const Segment& part : parts) {
    batch.add_episode_indices(part.episode);
    batch.add_first_steps(part.first_step);
    batch.add_lengths(part.length);
    batch.add_terminated(part.ends);
    batch.add_truncated(false);
    batch.add_agent_step_counts(part.length);
  }
  return batch;
}

v1::PolicyBatch policy_of(const std::string& name, const std::vector<Life>& lives) {
  v1::PolicyBatch policy;
  policy.set_policy(name);
  std::vector<Segment> segments;
  for (const Life& life : lives) {
    policy.add_agent_positions(life.agent);
    policy.mutable_environment_steps()->Add(life.env_steps.begin(), life.env_steps.end());
    segments.push_back(life.segment);
  }
  *policy.mutable_batch() = batch_of(segments);
  return policy;
}

v1::ObtainSamplesResponse progress(std::uint64_t num_simulated_steps, std::uint64_t num_ended_episodes) {
  v1::ObtainSamplesResponse response;
  response.mutable_progress()->set_simulated_step_count(num_simulated_steps);
  response.mutable_progress()->set_ended_episode_count(num_ended_episodes);
  return response;
}

v1::ObtainSamplesResponse account(std::uint64_t num_episodes, std::uint64_t num_steps) {
  v1::ObtainSamplesResponse response;
  response.mutable_account()->set_episode_count(num_episodes);
  response.mutable_account()->set_step_count(num_steps);
  return response;
}

v1::ObtainSamplesResponse warning(const std::string& text) {
  v1::ObtainSamplesResponse response;
  response.mutable_progress()->set_warning(text);
  return response;
}

v1::ObtainSamplesResponse joined(const std::vector<v1::ObtainSamplesResponse>& responses) {
  v1::ObtainSamplesResponse message;
  for (const auto& response : responses) message.mutable_joined()->add_responses(response.SerializeAsString());
  return message;
}

Scripted one_step() { return {{beginning(), response_of(batch_of({{4, 0, 1, true}})), account(1, 1)}, {}}; }

rollserve::EpisodeBatch obtain(std::uint64_t num_episodes, std::uint64_t num_steps,
                               const std::vector<v1::EpisodeBatch>& batches) {
  Scripted call{{beginning()}, {}};
  for (const auto& batch : batches) call.responses.push_back(response_of(batch));
  call.responses.push_back(account(num_episodes, num_steps));
  const ScriptedServer server({call});
  return server.connect().obtain_samples(static_cast<std::int64_t>(num_steps));
}
