#include "rollserve/sampler.h"

#include <utility>

#include "connection.h"
#include "encoding.h"
#include "evaluate.h"
#include "failures.h"
#include "records.h"
#include "sampling_calls.h"
#include "session_state.h"
#include "tensors.h"

namespace rollserve {

using internal::Connection;

namespace {

/// Return what a function makes of an answer; an answer that violates the wire contract is a ServerError.
template <class Function>
auto read_answer(Function function) {
  try {
    return function();
  } catch (const internal::Malformed& violation) {
    internal::raise_malformed(violation.what());
  }
}

/// Write an update for each worker; no update is a message with nothing set.
template <class Update, class Message>
void write_updates(const std::vector<std::optional<Update>>& updates,
                   google::protobuf::RepeatedPtrField<Message>& messages) {
  for (const auto& update : updates) {
    Message& message = *messages.Add();
    if (update) message = internal::message_of(*update);
  }
}

std::int64_t send(Connection& connection, v1::UpdateAgentRequest& request, const UpdateAgentOptions& options) {
  request.set_sampler(connection.config().sampler);
  request.set_skip_if_identical(options.skip_if_identical);
  connection.own_versions().expect_in(request);
  const auto response = read_answer(
      [&] { return connection.answer<v1::UpdateAgentResponse>("UpdateAgent", request.SerializeAsString(), options); });
  connection.own_versions().set_agent(response.policy_version(), response.environment_version());
  return response.policy_version();
}

EnvUpdated send(Connection& connection, v1::UpdateEnvRequest& request, const CallOptions& options) {
  request.set_sampler(connection.config().sampler);
  connection.own_versions().expect_in(request);
  return read_answer([&] {
    auto response = connection.answer<v1::UpdateEnvResponse>("UpdateEnv", request.SerializeAsString(), options,
                                                             internal::making_time);
    connection.own_versions().set_env(response.environment_version());
    return internal::env_updated_of(response);
  });
}

}  // namespace

Sampler::Sampler(const std::string& target, const Config& config)
    : connection_(std::make_shared<Connection>(target, config)) {}

Sampler::Sampler(std::shared_ptr<internal::Connection> connection) : connection_(std::move(connection)) {}

Sampler::Sampler(Sampler&&) noexcept = default;

Sampler& Sampler::operator=(Sampler&& other) noexcept {
  std::swap(connection_, other.connection_);
  if (this != &other) other.close();
  return *this;
}

Sampler::~Sampler() { close(); }

void Sampler::close() noexcept {
  if (connection_) connection_->close();
}

std::int64_t Sampler::update_agent(const AgentUpdate& agent, const UpdateAgentOptions& options) {
  v1::UpdateAgentRequest request;
  *request.mutable_all_workers() = internal::message_of(agent);
  return send(*connection_, request, options);
}

std::int64_t Sampler::update_agent_per_worker(const std::vector<std::optional<AgentUpdate>>& agents,
                                              const UpdateAgentOptions& options) {
  v1::UpdateAgentRequest request;
  write_updates(agents, *request.mutable_per_worker()->mutable_updates());
  return send(*connection_, request, options);
}

EnvUpdated Sampler::update_env(const EnvUpdate& env, const CallOptions& options) {
  v1::UpdateEnvRequest request;
  *request.mutable_all_workers() = internal::message_of(env);
  return send(*connection_, request, options);
}

EnvUpdated Sampler::update_env(const std::string& id, const CallOptions& options) {
  return update_env(EnvSpec(id), options);
}

EnvUpdated Sampler::update_env_per_worker(const std::vector<std::optional<EnvUpdate>>& envs,
                                          const CallOptions& options) {
  v1::UpdateEnvRequest request;
  write_updates(envs, *request.mutable_per_worker()->mutable_updates());
  return send(*connection_, request, options);
}

std::vector<std::string> Sampler::call_environments(const std::string& method,
                                                    const std::vector<std::string>& arguments_json,
                                                    const CallEnvironmentsOptions& options) {
  v1::CallEnvironmentsRequest request;
  request.set_sampler(connection_->config().sampler);
  request.set_method(method);
  for (const std::string& argument : arguments_json) request.add_arguments_json(argument);
  if (options.env_version) request.set_environment_version(*options.env_version);
  connection_->own_versions().expect_in(request);
  const auto response = read_answer([&] {
    return connection_->answer<v1::CallEnvironmentsResponse>("CallEnvironments", request.SerializeAsString(), options,
                                                             internal::making_time);
  });
  return {response.values_json().begin(), response.values_json().end()};
}

EpisodeBatch Sampler::obtain_samples(std::int64_t num_steps, const SamplingOptions& options) {
  internal::check_joinable(options);
  return stream_samples(num_steps, options).join();
}

EpisodeBatch Sampler::obtain_exact_episodes(std::int64_t num_episodes_per_worker, const SamplingOptions& options) {
  internal::check_joinable(options);
  return stream_exact_episodes(num_episodes_per_worker, options).join();
}

EpisodeBatch Sampler::obtain_fragments(std::int64_t num_steps, const FragmentOptions& options) {
  internal::check_joinable(options);
  return stream_fragments(num_steps, options).join();
}

Stream Sampler::stream_samples(std::int64_t num_steps, const SamplingOptions& options) {
  return Stream(internal::started<EpisodeBatch>(connection_,
                                                internal::samples_request(*connection_, num_steps, options), options));
}

Stream Sampler::stream_exact_episodes(std::int64_t num_episodes_per_worker, const SamplingOptions& options) {
  return Stream(internal::started<EpisodeBatch>(
      connection_, internal::exact_episodes_request(*connection_, num_episodes_per_worker, options), options));
}

Stream Sampler::stream_fragments(std::int64_t num_steps, const FragmentOptions& options) {
  return Stream(internal::started<EpisodeBatch>(
      connection_, internal::fragments_request(*connection_, num_steps, options), options));
}

MultiAgentSampler Sampler::multi_agent() const { return MultiAgentSampler(connection_); }

Evaluation Sampler::evaluate(std::uint32_t num_episodes, const EvaluationOptions& options) {
  v1::EvaluateRequest request;
  request.set_sampler(connection_->config().sampler);
  request.set_episode_count(num_episodes);
  *request.mutable_options() = internal::message_of(options);
  connection_->own_versions().expect_in(*request.mutable_options());
  if (options.return_episodes) {
    v1::EpisodeDelivery& delivery = *request.mutable_episodes();
    delivery.set_max_message_bytes(connection_->config().max_message_bytes);
    internal::write_compressions(connection_->config().compression, *delivery.mutable_accept_compression());
    delivery.set_accept_frame_stacks(true);
  }
  return internal::evaluate(*connection_, request, internal::limits_of(*connection_, options), options);
}

PopulationEvaluation Sampler::evaluate_population(const Parameters& parameters, std::uint32_t num_episodes,
                                                  const EvaluationOptions& options) {
  v1::EvaluatePopulationRequest request;
  request.set_sampler(connection_->config().sampler);
  request.set_episode_count(num_episodes);
  request.set_different_episodes(options.different_episodes);
  internal::write_named("parameters", parameters, *request.mutable_parameters()->mutable_tensors());
  *request.mutable_options() = internal::message_of(options);
  connection_->own_versions().expect_in(*request.mutable_options());
  return internal::evaluate_population(*connection_, request, internal::limits_of(*connection_, options), options);
}

Session Sampler::drive(const DriveOptions& options) {
  v1::DriveEnvironmentsRequest first;
  v1::DriveSpec& spec = *first.mutable_spec();
  spec = internal::message_of(options, connection_->config());
  connection_->own_versions().expect_in(*spec.mutable_options());
  spec.mutable_options()->clear_expected_policy_version();  // no agent of the sampler acts
  return Session(std::make_unique<internal::SessionState>(connection_, std::move(first), options));
}

Session Sampler::resume_session(const std::string& token, const DriveOptions& options) {
  v1::DriveEnvironmentsRequest first;
  first.mutable_resumption()->set_sampler(connection_->config().sampler);
  first.mutable_resumption()->set_token(token);
  return Session(std::make_unique<internal::SessionState>(connection_, std::move(first), options));
}

Status Sampler::status(const CallOptions& options) {
  v1::GetSamplerRequest request;
  request.set_sampler(connection_->config().sampler);
  return read_answer([&] {
    auto response = connection_->answer<v1::GetSamplerResponse>("GetSampler", request.SerializeAsString(), options);
    return internal::status_of(response);
  });
}

std::string Sampler::call(const std::string& rpc, const std::string& request, const CallOptions& options) {
  return read_answer([&] { return connection_->answer<std::string>(rpc, request, options); });
}

}  // namespace rollserve
