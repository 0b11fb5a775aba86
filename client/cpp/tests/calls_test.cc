#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>
#include <type_traits>

#include "scripted_server.h"

namespace {

using namespace std::chrono_literals;

using rollserve::CancelledError;
using rollserve::DeadlineError;
using rollserve::EpisodeBatch;
using rollserve::SamplingOptions;
using rollserve::ServerError;
using rollserve::UnavailableError;
namespace reason = rollserve::reason;

TEST(Errors, AreTheirClassAndAllAboveIt) {
  const ScriptedServer server({{{}, failure(grpc::StatusCode::PERMISSION_DENIED, reason::SCOPE_MISSING)},
                               {{}, failure(grpc::StatusCode::INVALID_ARGUMENT, "INVALID_VALUE", "step_count")},
                               {{}, failure(grpc::StatusCode::FAILED_PRECONDITION, "NO_AGENT")},
                               {{}, failure(grpc::StatusCode::RESOURCE_EXHAUSTED, "SOME_NEW_REASON")},
                               {{}, failure(grpc::StatusCode::INTERNAL, "ENV_FAILED")},
                               {{}, failure(grpc::StatusCode::UNAVAILABLE, "TOO_FEW_WORKERS")}});
  rollserve::Sampler sampler = server.connect();
  const auto fail = [&] { sampler.obtain_samples(1); };
  const auto access = error_of<rollserve::AccessError>(fail);
  EXPECT_EQ(access.reason(), reason::SCOPE_MISSING);
  static_assert(std::is_base_of_v<rollserve::InvalidArgumentError, rollserve::AccessError>);
  const auto invalid = error_of<rollserve::InvalidArgumentError>(fail);
  EXPECT_EQ(invalid.field(), "step_count");
  EXPECT_EQ(invalid.request_id(), "0123456789abcdef");
  EXPECT_STREQ(invalid.what(), "it failed");
  EXPECT_EQ(invalid.code(), rollserve::StatusCode::InvalidArgument);
  EXPECT_EQ(error_of<rollserve::PreconditionError>(fail).reason(), reason::NO_AGENT);
  EXPECT_EQ(error_of<rollserve::LimitError>(fail).reason(), "SOME_NEW_REASON");
  EXPECT_EQ(error_of<ServerError>(fail).reason(), reason::ENV_FAILED);
  EXPECT_EQ(error_of<UnavailableError>(fail).reason(), reason::TOO_FEW_WORKERS);
  EXPECT_EQ(server.samples.size(), 6u);
}

TEST(TimeLimits, EndCalls) {
  const ScriptedServer server({{{beginning()}, until_cancelled()}, {{beginning()}, until_cancelled()}});
  rollserve::Sampler sampler = server.connect();
  SamplingOptions options;
  options.deadline = 50ms;
  const auto deadline = error_of<DeadlineError>([&] { sampler.obtain_samples(1, options); });
  EXPECT_TRUE(deadline.reason().empty() && deadline.field() == "deadline") << deadline.what();
  options.deadline.reset();
  options.timeout = 50ms;
  const auto silence = error_of<DeadlineError>([&] { sampler.obtain_samples(1, options); });
  EXPECT_EQ(silence.reason(), reason::NO_PROGRESS);
}

TEST(Streams, EndWhenTheyAreCancelledOrTheirSamplerIsClosed) {
  const ScriptedServer server({{{beginning()}, until_cancelled()}, {{beginning()}, until_cancelled()}});
  rollserve::Sampler sampler = server.connect();
  for (const bool closes : {false, true}) {
    rollserve::Stream stream = sampler.stream_samples(1);
    std::thread other([&] {
      std::this_thread::sleep_for(50ms);
      if (closes)
        sampler.close();
      else
        stream.cancel();
    });
    const auto error = error_of<CancelledError>([&] { stream.next(); });
    other.join();
    EXPECT_STREQ(error.what(), closes ? "the sampler was closed" : "the stream was closed");
    EXPECT_THROW(stream.next(), CancelledError);
  }
  EXPECT_THROW(sampler.obtain_samples(1), CancelledError);
}

TEST(Cancellation, EndsCallsOfAllKinds) {
  const Scripted waits{{}, until_cancelled()};
  ScriptedServer server({waits, waits, waits, waits});
  server.unary = until_cancelled();
  rollserve::Sampler sampler = server.connect();
  const auto run = [&](int kind, const rollserve::Cancellation& cancellation) {
    SamplingOptions sampling;
    rollserve::EvaluationOptions evaluation;
    rollserve::CallOptions call;
    sampling.cancellation = evaluation.cancellation = call.cancellation = cancellation;
    if (kind == 0) sampler.obtain_samples(1, sampling);
    if (kind == 1) sampler.evaluate(1, evaluation);
    if (kind == 2) sampler.status(call);
    if (kind == 3) sampler.call("GetSampler", "", call);
  };
  for (int kind = 0; kind < 4; ++kind) {
    const rollserve::Cancellation cancellation;
    std::thread other([cancellation] {  // a copy
      std::this_thread::sleep_for(50ms);
      cancellation.cancel();
    });
    const auto error = error_of<CancelledError>([&] { run(kind, cancellation); });
    other.join();
    EXPECT_STREQ(error.what(), "the call was cancelled") << kind;
    EXPECT_TRUE(cancellation.is_cancelled());
    EXPECT_THROW(run(kind, cancellation), CancelledError) << kind;  // at once
  }
  server.unary = nullptr;
  EXPECT_NO_THROW(run(2, rollserve::Cancellation())) << "others go on";
}

TEST(Streams, CancelTheirCallsWhenTheyAreDestroyed) {
  std::atomic<bool> was_cancelled{false};
  const auto end = [&](grpc::ServerContext& context) {
    const auto status = until_cancelled()(context);
    was_cancelled = true;
    return status;
  };
  const ScriptedServer server({{{beginning(), response_of(batch_of({{4, 0, 1, true}}))}, end}});
  rollserve::Sampler sampler = server.connect();
  {
    rollserve::Stream stream = sampler.stream_samples(100);
    EXPECT_EQ(stream.next().value().num_steps(), 1u);
  }
  for (int i = 0; i < 1000 && !was_cancelled; ++i) std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(was_cancelled);
}

TEST(Streams, DeliverJoinedResponsesAndTheirAccount) {
  const auto first = response_of(batch_of({{4, 0, 1, true}}));
  const auto second = response_of(batch_of({{5, 0, 2, true}}));
  const ScriptedServer server({{{joined({beginning(), first, second}), account(2, 3)}, {}}});
  rollserve::Sampler sampler = server.connect();
  rollserve::Stream stream = sampler.stream_samples(3);
  const auto early = error_of<rollserve::InvalidArgumentError>([&] { stream.account(); });
  EXPECT_NE(std::string(early.what()).find("got one that goes on"), std::string::npos) << early.what();
  std::vector<std::int64_t> lengths;
  for (const EpisodeBatch& part : stream) lengths.insert(lengths.end(), part.lengths.begin(), part.lengths.end());
  EXPECT_EQ(lengths, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(stream.account().num_steps, 3u);
  EXPECT_FALSE(stream.next());
}

TEST(Streams, CountEndedEpisodes) {
  const ScriptedServer server(
      {{{beginning(), progress(40, 9), response_of(batch_of({{4, 0, 1, true}})), progress(50, 8), account(1, 1)}, {}},
       {{beginning(), response_of(batch_of({{4, 0, 1, true}, {5, 0, 1, true}})), account(2, 2)}, {}}});
  rollserve::Sampler sampler = server.connect();
  rollserve::Stream reported = sampler.stream_samples(1);
  EXPECT_EQ(reported.num_ended_episodes(), 0u);
  while (reported.next()) continue;
  EXPECT_EQ(reported.num_ended_episodes(), 9u);  // fewer only because some run again
  rollserve::Stream received = sampler.stream_samples(2);
  received.next();
  EXPECT_EQ(received.num_ended_episodes(), 2u);
}

TEST(BrokenStreams, ContinueWithTheRawReturnsOfTheirSteps) {
  const auto part = [](std::uint64_t first_step, std::uint32_t length) {
    auto batch = batch_of({{4, first_step, length, false}});
    const std::vector<double> raw(length, 0.5);
    *batch.mutable_raw_rewards() = tensor(v1::DATA_TYPE_FLOAT64, raw, {length});
    if (first_step > 0) batch.add_returns_before(0.5 * static_cast<double>(first_step));
    return response_of(batch);
  };
  const ScriptedServer server(
      {{{beginning(), part(0, 3)}, broken()}, {{beginning(), part(0, 2), part(2, 4), account(0, 6)}, {}}});
  rollserve::Sampler sampler = server.connect();
  rollserve::Stream stream = sampler.stream_samples(6);
  stream.next();
  const EpisodeBatch rest = *stream.next();
  EXPECT_EQ(rest.first_steps, (std::vector<std::uint64_t>{3}));
  EXPECT_EQ(rest.returns_before, (std::vector<double>{1.5}));
  EXPECT_EQ(rest.raw_rewards.value().num_rows(), 3u);
  EXPECT_EQ(rest.episode_returns(), (std::vector<double>{3}));
}

TEST(BrokenStreams, ContinueWithinAnEpisode) {
  const ScriptedServer server(
      // Episode 5 failed and was skipped.
      {{{beginning(), response_of(batch_of({{4, 0, 3, true}, {6, 0, 2, false}}))}, broken()},
       {{}, broken()},
       {{beginning(), response_of(batch_of({{6, 0, 1, false}})), response_of(batch_of({{6, 1, 4, true}})),
         account(1, 5)},
        {}}});
  SamplingOptions options;
  options.expected_policy_version = 1;
  options.expected_env_version = 2;
  options.prefetch = true;
  const EpisodeBatch batch = server.connect().obtain_samples(8, options);
  EXPECT_EQ(batch.lengths, (std::vector<std::int64_t>{3, 5}));
  EXPECT_EQ(values<float>(batch.observations.at("")), (std::vector<float>{400, 401, 402, 600, 601, 602, 603, 604}));
  EXPECT_EQ(batch.account->num_steps, 8u);
  EXPECT_EQ(batch.account->num_failed_episodes, 1u);
  EXPECT_EQ(batch.account->num_resumptions, 2);
  const v1::ObtainSamplesRequest& rest = server.samples.at(2);
  EXPECT_EQ(rest.step_count(), 5);
  EXPECT_EQ(rest.options().first_episode_index(), 6u);
  EXPECT_EQ(rest.options().seed(), std::uint64_t{1} << 63);
  EXPECT_EQ(rest.options().sampler_run(), "run");
  EXPECT_EQ(rest.options().policy_version(), 1);
  EXPECT_EQ(rest.options().environment_version(), 2);
  EXPECT_FALSE(rest.options().has_expected_policy_version() || rest.options().has_expected_environment_version());
  EXPECT_FALSE(rest.options().prefetch());
}

TEST(BrokenStreams, ContinueWithTheStatesOfTheirSteps) {
  const auto part = [](std::int64_t length) {
    auto batch = batch_of({{4, 0, static_cast<std::uint32_t>(length), false}});
    add(*batch.mutable_initial_states(), "h", tensor<float>(v1::DATA_TYPE_FLOAT32, {0.5f}, {1, 1}));
    std::vector<float> states(static_cast<std::size_t>(length));
    for (std::size_t i = 0; i < states.size(); ++i) states[i] = 0.5f + static_cast<float>(i);
    add(*batch.mutable_agent_infos(), "state/h", tensor(v1::DATA_TYPE_FLOAT32, states, {length, 1}));
    return batch;
  };
  auto wide = part(3);
  *wide.mutable_agent_infos(0)->mutable_tensor() =
      tensor(v1::DATA_TYPE_FLOAT32, std::vector<float>(3 * 1000), {3, 1000});
  const ScriptedServer server({{{beginning(), response_of(part(2))}, broken()},
                               {{beginning(), response_of(part(3)), account(0, 3)}, {}},
                               {{beginning(), response_of(part(2))}, broken()},
                               {{beginning(), response_of(wide), account(0, 3)}, {}}});
  rollserve::Sampler sampler = server.connect();
  rollserve::Stream stream = sampler.stream_samples(3);
  stream.next();
  const EpisodeBatch rest = *stream.next();
  EXPECT_EQ(rest.first_steps, (std::vector<std::uint64_t>{2}));
  EXPECT_EQ(values<float>(rest.initial_states.at("h")), (std::vector<float>{2.5f}));
  EXPECT_THROW(sampler.obtain_samples(3), ServerError);
}

TEST(BrokenStreams, RepeatTheLastEpisodeIfTheyLackTheirAccount) {
  const ScriptedServer server({{{beginning(), response_of(batch_of({{4, 0, 3, true}, {5, 0, 2, true}}))}, broken()},
                               {{beginning(), response_of(batch_of({{5, 0, 2, true}})), account(1, 2)}, {}}});
  const EpisodeBatch batch = server.connect().obtain_samples(5);
  EXPECT_EQ(batch.lengths, (std::vector<std::int64_t>{3, 2}));
  EXPECT_EQ(server.samples.at(1).step_count(), 2);
  EXPECT_EQ(server.samples.at(1).options().first_episode_index(), 5u);
}

TEST(BrokenStreams, OfExactEpisodesAndFragmentsSkipWhatArrived) {
  const ScriptedServer server({{{beginning(), response_of(batch_of({{4, 0, 3, true}}))}, broken()},
                               {{beginning(), response_of(batch_of({{5, 0, 2, true}})), account(1, 2)}, {}},
                               {{beginning(), response_of(batch_of({{4, 0, 3, false}}))}, broken()},
                               {{beginning(), response_of(batch_of({{5, 0, 2, false}})), account(0, 2)}, {}}});
  rollserve::Sampler sampler = server.connect();
  EXPECT_EQ(sampler.obtain_exact_episodes(2).lengths, (std::vector<std::int64_t>{3, 2}));
  const v1::ObtainExactEpisodesRequest& exact = server.exact_episodes.at(1);
  EXPECT_EQ(exact.skip_episode_count(), 1u);
  EXPECT_EQ(exact.options().first_episode_index(), 4u);
  EXPECT_EQ(exact.options().worker_count(), 3u);
  EXPECT_EQ(sampler.obtain_fragments(5).lengths, (std::vector<std::int64_t>{3, 2}));
  const v1::ObtainSamplesRequest& fragments = server.samples.at(1);
  EXPECT_EQ(fragments.fragments().skip_step_count(), 3u);
  EXPECT_EQ(fragments.step_count(), 5);
  EXPECT_EQ(fragments.options().worker_count(), 3u);
}

TEST(BrokenStreams, ThatCannotBeRepeatedFail) {
  auto begun = beginning();
  begun.mutable_beginning()->set_reproducibility(v1::REPRODUCIBILITY_WORKER);
  const ScriptedServer server({{{begun}, broken()},
                               {{beginning()}, failure(grpc::StatusCode::UNAVAILABLE, "WORKER_HUNG")},
                               {{beginning()}, broken()}});
  rollserve::Sampler sampler = server.connect();
  EXPECT_THROW(sampler.obtain_samples(5), UnavailableError);
  EXPECT_EQ(error_of<UnavailableError>([&] { sampler.obtain_samples(5); }).reason(), reason::WORKER_HUNG);
  rollserve::FragmentOptions fragments;
  fragments.fraction_of_workers = 0.5;
  EXPECT_THROW(sampler.obtain_fragments(4, fragments), UnavailableError);
  EXPECT_EQ(server.samples.size(), 3u);
}

TEST(BrokenStreams, EndWithTheLastErrorAfterTheirTimeout) {
  std::vector<Scripted> calls(100, Scripted{{beginning()}, broken()});
  const ScriptedServer server(calls);
  SamplingOptions options;
  options.timeout = 300ms;
  EXPECT_THROW(server.connect().obtain_samples(5, options), UnavailableError);
  EXPECT_GT(server.samples.size(), 1u);
  EXPECT_LT(server.samples.size(), 100u);
}

TEST(Calls, GoOnWithTheNextServer) {
  const auto leaving = [](const char* name) { return failure(grpc::StatusCode::UNAVAILABLE, name); };
  for (const char* each : {reason::SERVER_STOPPING, reason::SAMPLER_TAKEN, reason::JOURNAL_LOST}) {
    ScriptedServer server({one_step(), {{}, leaving(each)}, one_step(), {{}, leaving(reason::TOO_FEW_WORKERS)}});
    rollserve::Sampler sampler = server.connect();
    for (int i = 0; i < 2; ++i) EXPECT_EQ(sampler.obtain_samples(1).num_steps(), 1u) << each;
    int num_unary = 0;
    server.unary = [&](grpc::ServerContext& context) {
      return ++num_unary == 1 ? leaving(each)(context) : grpc::Status::OK;
    };
    EXPECT_NO_THROW(sampler.call("GetSampler", "")) << each;
    EXPECT_EQ(num_unary, 2) << each;
    EXPECT_EQ(error_of<UnavailableError>([&] { sampler.obtain_samples(1); }).reason(), reason::TOO_FEW_WORKERS);
    EXPECT_EQ(server.samples.size(), 4u) << each;
  }
}

TEST(Calls, AreMadeAgainWhenTheServerResetsThem) {
  const auto reset = [](grpc::ServerContext&) { return grpc::Status(grpc::StatusCode::CANCELLED, "CANCELLED"); };
  const ScriptedServer server({{{}, reset}, one_step(), {{}, reset}, one_step()});
  rollserve::Sampler sampler = server.connect();
  const auto first = error_of<UnavailableError>([&] { sampler.obtain_samples(1); });  // no server has answered before
  EXPECT_STREQ(first.what(), "the server reset the call");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(sampler.obtain_samples(1).num_steps(), 1u);
  EXPECT_EQ(server.samples.size(), 4u);
}

TEST(Evaluations, AreRepeatedAfterInterruptions) {
  const auto batch = response_of(batch_of({{4, 0, 2, true}}));
  const ScriptedServer server({{{beginning(), batch}, broken()}, {{beginning(), batch, account(1, 2)}, {}}});
  rollserve::EvaluationOptions options;
  options.return_episodes = true;
  const rollserve::Evaluation evaluation = server.connect().evaluate(1, options);
  EXPECT_EQ(evaluation.returns, (std::vector<double>{1.5}));
  EXPECT_EQ(evaluation.episodes->lengths, (std::vector<std::int64_t>{2}));
  EXPECT_FALSE(server.evaluations.at(0).options().has_seed());
  EXPECT_EQ(server.evaluations.at(1).options().seed(), std::uint64_t{1} << 63);
  EXPECT_EQ(server.evaluations.at(1).options().sampler_run(), "run");
}

TEST(Calls, ExpectTheirClientsOwnVersions) {
  const ScriptedServer server({one_step(), one_step(), one_step()});
  rollserve::Config config;
  config.sampler = "mine";
  rollserve::Sampler sampler = server.connect(config);
  EXPECT_EQ(sampler.update_agent(rollserve::RandomAgent{}), 7);
  sampler.obtain_samples(1);
  const auto& call = server.samples.at(0).options();
  EXPECT_EQ(call.expected_policy_version(), 7);
  EXPECT_EQ(call.expected_environment_version(), 3);
  EXPECT_FALSE(call.client_id().empty());
  EXPECT_EQ(call.client_id(), server.agents.at(0).client_id());
  EXPECT_EQ(server.metadata.at(0).find("rollserve-sampler")->second, "mine");

  SamplingOptions options;
  options.policy_version = 2;
  sampler.obtain_samples(1, options);
  EXPECT_FALSE(server.samples.at(1).options().has_expected_policy_version());

  EXPECT_EQ(sampler.update_env("CartPole-v1").env_version, 5);
  EXPECT_FALSE(server.envs.at(0).has_expected_environment_version());  // a whole environment replaces any
  sampler.update_env(rollserve::EnvChange{"{\"a\": 1}", {}, {}});
  EXPECT_EQ(server.envs.at(1).expected_environment_version(), 5);
  sampler.obtain_samples(1);
  EXPECT_EQ(server.samples.at(2).options().expected_environment_version(), 5);

  config.shared = true;
  rollserve::Sampler shared = server.connect(config);
  shared.update_agent(rollserve::RandomAgent{});
  EXPECT_TRUE(server.agents.at(1).client_id().empty());
}

TEST(Calls, ExpectTheVersionsThatTheyKeep) {
  const ScriptedServer server({});
  rollserve::Sampler sampler = server.connect();
  sampler.update_env("CartPole-v1");
  sampler.update_agent(rollserve::RandomAgent{});
  sampler.update_agent_per_worker({rollserve::RandomAgent{}, rollserve::RandomAgent{}});
  EXPECT_FALSE(server.agents.at(1).has_expected_policy_version());  // whole agents replace any
  sampler.update_agent_per_worker({std::nullopt, rollserve::RandomAgent{}});
  const v1::UpdateAgentRequest& agents = server.agents.at(2);
  EXPECT_EQ(agents.expected_policy_version(), 7);
  EXPECT_EQ(agents.per_worker().updates(0).update_case(), v1::AgentUpdate::UPDATE_NOT_SET);
  EXPECT_TRUE(agents.per_worker().updates(1).agent().has_random());
  sampler.update_agent(rollserve::AgentChange{});
  EXPECT_EQ(server.agents.at(3).expected_policy_version(), 7);

  sampler.update_env_per_worker({rollserve::EnvSpec("CartPole-v1"), std::nullopt});
  const v1::UpdateEnvRequest& envs = server.envs.at(1);
  EXPECT_EQ(envs.expected_environment_version(), 5);
  EXPECT_TRUE(envs.per_worker().updates(0).has_environment());
  EXPECT_EQ(envs.per_worker().updates(1).update_case(), v1::EnvironmentUpdate::UPDATE_NOT_SET);
}

TEST(Calls, OfEnvironmentsReturnTheirValues) {
  const ScriptedServer server({});
  rollserve::Sampler sampler = server.connect();
  sampler.update_env("CartPole-v1");
  EXPECT_EQ(sampler.call_environments("level", {"1", "\"a\""}), (std::vector<std::string>{"[1, 2]", "null"}));
  const v1::CallEnvironmentsRequest& call = server.env_calls.at(0);
  EXPECT_EQ(call.method(), "level");
  EXPECT_EQ(call.arguments_json(1), "\"a\"");
  EXPECT_EQ(call.expected_environment_version(), 5);
  EXPECT_FALSE(call.client_id().empty() || call.has_environment_version());
  rollserve::CallEnvironmentsOptions options;
  options.env_version = 3;
  sampler.call_environments("level", {}, options);
  EXPECT_EQ(server.env_calls.at(1).environment_version(), 3);
  EXPECT_FALSE(server.env_calls.at(1).has_expected_environment_version());
}

TEST(Calls, WithAnAgentFailIfTheServerIgnoresIt) {
  Scripted updated = one_step();
  updated.responses[0].mutable_beginning()->set_agent_updated(true);
  const ScriptedServer server({updated, one_step(), one_step()});
  rollserve::Sampler sampler = server.connect();
  SamplingOptions options;
  options.agent = rollserve::RandomAgent{};
  sampler.obtain_samples(1, options);
  sampler.obtain_samples(1);
  EXPECT_EQ(server.samples.at(1).options().expected_policy_version(), 1);
  EXPECT_EQ(server.samples.at(1).options().expected_environment_version(), 2);
  EXPECT_EQ(error_of<ServerError>([&] { sampler.obtain_samples(1, options); }).field(), "agent");
  options.policy_version = 1;
  EXPECT_EQ(error_of<rollserve::InvalidArgumentError>([&] { sampler.obtain_samples(1, options); }).field(), "agent");
}

TEST(Tokens, AreReadForEachCallAndNeverSentInTheClear) {
  const std::string file = ::testing::TempDir() + "rollserve-token-" + std::to_string(::getpid());
  const auto write = [&](const std::string& token) { std::ofstream(file) << token; };
  const ScriptedServer server({one_step(), one_step()});
  write("first\n");
  rollserve::Config config;
  config.token_file = file;
  rollserve::Sampler sampler = server.connect(config);
  sampler.obtain_samples(1);
  write("second");
  sampler.obtain_samples(1);
  EXPECT_EQ(server.metadata.at(0).find("authorization")->second, "Bearer first");
  EXPECT_EQ(server.metadata.at(1).find("authorization")->second, "Bearer second");
  std::remove(file.c_str());
  EXPECT_EQ(error_of<rollserve::InvalidArgumentError>([&] { sampler.obtain_samples(1); }).field(), "token_file");

  rollserve::Config secret;
  secret.token = "secret";
  for (const char* target : {"server.lab:50051", "127.0.0.1.evil.lab:50051", "127.0.0.1.1:50051"}) {
    const auto error = error_of<rollserve::InvalidArgumentError>([&] { rollserve::connect(target, secret); });
    EXPECT_EQ(error.field(), "token") << target;
    EXPECT_EQ(std::string(error.what()).find("secret"), std::string::npos);
  }
  for (const char* target : {"127.0.0.1:1", "localhost:1", "[::1]:1", "dns:///localhost:1", "unix:/a/path"}) {
    EXPECT_NO_THROW(rollserve::connect(target, secret)) << target;
  }
}

/// An environment variable with a value, until the end of the scope.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

TEST(Proxies, AreNotOnTheWayToThisMachine) {
  const ScriptedServer server({one_step(), one_step(), one_step()});
  const Variable proxy("http_proxy", "http://127.0.0.1:1");  // where nobody listens
  rollserve::Config config;
  config.token = "secret";
  EXPECT_NO_THROW(server.connect(config).obtain_samples(1));
  EXPECT_NO_THROW(server.connect().obtain_samples(1));
  EXPECT_NO_THROW(rollserve::connect("LocalHost:" + std::to_string(server.port())).obtain_samples(1));
}

TEST(Proxies, AreNamedWhereTheyAreOnTheWay) {
  const Variable proxy("http_proxy", "http://127.0.0.1:1");
  const auto message = [](const char* target) {
    return std::string(error_of<UnavailableError>([&] { rollserve::connect(target).status(); }).what());
  };
  EXPECT_NE(message("server.invalid:50051").find("(through the proxy of http_proxy)"), std::string::npos);
  const Variable exceptions("no_proxy", "elsewhere.lab,.invalid");
  EXPECT_EQ(message("server.invalid:50051").find("proxy"), std::string::npos);
}

TEST(Connections, ReachAServerThatIsBackWhateverOthersSaw) {
  auto lost = std::make_unique<ScriptedServer>(std::vector<Scripted>{});
  const int port = lost->port();
  const std::string address = lost->address();
  lost.reset();
  for (int i = 0; i < 6; ++i) EXPECT_THROW(rollserve::connect(address).status(), UnavailableError);
  rollserve::Sampler early = rollserve::connect(address);
  EXPECT_THROW(early.status(), UnavailableError);
  const ScriptedServer back({one_step()}, grpc::InsecureServerCredentials(), port);
  EXPECT_NO_THROW(rollserve::connect(address).obtain_samples(1));
}

TEST(Warnings, GoToTheCallbackOrToStandardError) {
  const Scripted warned{
      {beginning(), warning("no episode ends"), response_of(batch_of({{4, 0, 1, true}})), account(1, 1)}, {}};
  const ScriptedServer server({warned, warned, warned});
  std::vector<std::string> warnings;
  rollserve::Config config;
  config.warn = [&](const std::string& text) { warnings.push_back(text); };
  rollserve::Sampler sampler = server.connect(config);
  sampler.obtain_samples(1);
  sampler.evaluate(1);
  EXPECT_EQ(warnings, (std::vector<std::string>{"no episode ends", "no episode ends"}));
  ::testing::internal::CaptureStderr();
  server.connect().obtain_samples(1);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "rollserve: no episode ends\n");
}

TEST(Calls, FailAtOnceWhereNoServerListens) {
  const auto began = std::chrono::steady_clock::now();
  EXPECT_THROW(rollserve::connect("127.0.0.1:1").status(), UnavailableError);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 30s);  // the timeout of a call is 60 s
}

}  // namespace
