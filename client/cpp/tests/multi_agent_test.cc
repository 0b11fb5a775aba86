#include <gtest/gtest.h>

#include <cmath>

#include "scripted_server.h"

namespace {

using rollserve::AgentNamed;
using rollserve::AgentSteps;
using rollserve::AgentsWithPrefix;
using rollserve::EpisodeBatch;
using rollserve::InvalidArgumentError;
using rollserve::MultiAgentBatch;
using rollserve::PolicyBatch;
using rollserve::PolicyMap;
using rollserve::RandomAgent;
using rollserve::SamplingOptions;
using rollserve::ServerError;

template <class T>
using Values = std::vector<T>;

v1::MultiAgentBatch many(const std::vector<Segment>& parts, const std::vector<v1::PolicyBatch>& policies) {
  v1::MultiAgentBatch batch = episodes_of(parts);
  for (const v1::PolicyBatch& policy : policies) *batch.add_policies() = policy;
  return batch;
}

v1::MultiAgentBatch with_states(v1::MultiAgentBatch batch, const Values<float>& states, const Values<float>& last) {
  const auto size = [](const Values<float>& values) { return static_cast<std::int64_t>(values.size()); };
  *batch.mutable_global_states() = tensor(v1::DATA_TYPE_FLOAT32, states, {size(states), 1});
  *batch.mutable_last_global_states() = tensor(v1::DATA_TYPE_FLOAT32, last, {size(last), 1});
  return batch;
}

/// Return the first three steps of episode 4, in which policy main acts for both agents.
v1::ObtainSamplesResponse first_part() {
  const auto main = policy_of("main", {{0, {0, 2}, {4, 0, 2, false}}, {1, {1}, {4, 0, 1, false}}});
  return response_of(with_states(many({{4, 0, 3, false}}, {main}), {40, 41, 42}, {43}));
}

/// Return the rest of episode 4, and episode 5, in which policy other acts for agent b.
v1::ObtainSamplesResponse second_part() {
  const auto main =
      policy_of("main", {{0, {4}, {4, 2, 1, true}}, {1, {3}, {4, 1, 1, true}}, {0, {0}, {5, 0, 1, true}}});
  auto other = policy_of("other", {{1, {1}, {5, 0, 1, true}}});
  other.add_rewards_before(7);
  const auto batch = many({{4, 3, 2, true}, {5, 0, 2, true}}, {main, other});
  return response_of(with_states(batch, {43, 44, 50, 51}, {45, 52}));
}

/// Return what a call makes of messages, with a beginning before and an account behind them.
MultiAgentBatch obtain_many(std::uint64_t num_episodes, std::uint64_t num_steps,
                            const std::vector<v1::ObtainSamplesResponse>& batches) {
  Scripted call{{beginning()}, {}};
  call.responses.insert(call.responses.end(), batches.begin(), batches.end());
  call.responses.push_back(account(num_episodes, num_steps));
  const ScriptedServer server({call});
  rollserve::Sampler sampler = server.connect();
  return sampler.multi_agent().obtain_samples(static_cast<std::int64_t>(num_steps));
}

MultiAgentBatch two_episodes() { return obtain_many(2, 7, {first_part(), second_part()}); }

TEST(MultiAgentBatches, EpisodesAreJoinedOverMessages) {
  const MultiAgentBatch batch = two_episodes();
  EXPECT_EQ(batch.agents, (Values<std::string>{"a", "b"}));
  EXPECT_EQ(batch.episode_indices, (Values<std::uint64_t>{4, 5}));
  EXPECT_EQ(batch.first_steps, (Values<std::uint64_t>{0, 0}));
  EXPECT_EQ(batch.lengths, (Values<std::int64_t>{5, 2}));
  EXPECT_EQ(batch.terminated, (std::vector<bool>{true, true}));
  EXPECT_EQ(batch.truncated, (std::vector<bool>{false, false}));
  EXPECT_EQ(batch.agent_step_counts, (Values<std::uint64_t>{5, 2}));
  EXPECT_EQ(batch.num_agent_steps(), 7u);
  EXPECT_EQ(batch.account->num_steps, 7u);
  EXPECT_EQ(values<float>(batch.global_states.value()), (Values<float>{40, 41, 42, 43, 44, 50, 51}));
  EXPECT_EQ(values<float>(batch.last_global_states.value()), (Values<float>{45, 52}));
  EXPECT_EQ(batch.text(), "MultiAgentBatch(2 episodes, 7 environment steps, policies main, other)");
}

TEST(MultiAgentBatches, PoliciesHaveTheLivesInWhichTheyActed) {
  const MultiAgentBatch batch = two_episodes();
  const PolicyBatch& main = batch.policies.at(0);
  EXPECT_EQ(main.policy, "main");
  EXPECT_EQ(main.agent_positions, (Values<std::uint32_t>{0, 1, 0}));
  EXPECT_EQ(main.env_steps, (Values<std::uint32_t>{0, 2, 4, 1, 3, 0}));
  EXPECT_EQ(main.batch.lengths, (Values<std::int64_t>{3, 2, 1}));
  EXPECT_EQ(main.batch.terminated, (std::vector<bool>{true, true, true}));
  EXPECT_EQ(main.batch.episode_indices, (Values<std::uint64_t>{4, 4, 5}));
  EXPECT_EQ(values<float>(main.batch.observations.at("")), (Values<float>{400, 401, 402, 400, 401, 500}));
  EXPECT_EQ(values<float>(main.batch.last_observations.at("")), (Values<float>{403, 402, 501}));
  const auto policies = batch.by_policy();
  EXPECT_EQ(policies.size(), 2u);
  EXPECT_EQ(policies.at("other").returns(), (Values<double>{0}));
  EXPECT_EQ(policies.at("other").episode_returns(), (Values<double>{7}));  // with the rewards before the first action
}

TEST(MultiAgentBatches, AgentsHaveTheirLivesWhateverPoliciesActed) {
  const auto agents = two_episodes().by_agent();
  EXPECT_EQ(agents.size(), 2u);
  EXPECT_EQ(agents.at("a").lengths, (Values<std::int64_t>{3, 1}));
  const EpisodeBatch& second = agents.at("b");
  EXPECT_EQ(second.lengths, (Values<std::int64_t>{2, 1}));
  EXPECT_EQ(second.episode_indices, (Values<std::uint64_t>{4, 5}));
  EXPECT_EQ(values<float>(second.observations.at("")), (Values<float>{400, 401, 500}));
  EXPECT_EQ(second.episode_returns(), (Values<double>{1, 7}));
}

TEST(MultiAgentBatches, JointStepsAreAlignedToTheEnvironment) {
  const auto joint = two_episodes().joint();
  const AgentSteps& first = joint.at("a");
  EXPECT_EQ(first.acted, (std::vector<bool>{true, false, true, false, true, true, false}));
  EXPECT_EQ(values<float>(first.observations.at("")), (Values<float>{400, 0, 401, 0, 402, 500, 0}));
  EXPECT_EQ(values<double>(first.rewards), (Values<double>{0, 0, 1, 0, 2, 0, 0}));
  EXPECT_EQ(first.terminated, (std::vector<bool>{false, false, false, false, true, true, false}));
  EXPECT_EQ(first.policy_versions, (Values<std::int64_t>{1, 0, 1, 0, 1, 1, 0}));
  const AgentSteps& second = joint.at("b");
  EXPECT_EQ(values<std::int64_t>(second.actions.at("")), (Values<std::int64_t>{0, 0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(second.acted, (std::vector<bool>{false, true, false, true, false, false, true}));
}

TEST(MultiAgentBatches, JointStepsOfFragmentsLeaveOutThoseOfEarlierOnes) {
  const auto main = policy_of("main", {{0, {2, 4}, {4, 1, 2, false}}, {1, {3}, {4, 1, 1, false}}});
  const MultiAgentBatch batch = obtain_many(0, 2, {response_of(many({{4, 3, 2, false}}, {main}))});
  const auto joint = batch.joint();
  EXPECT_EQ(joint.at("a").acted, (std::vector<bool>{false, true}));
  EXPECT_EQ(values<float>(joint.at("a").observations.at("")), (Values<float>{0, 402}));
  EXPECT_EQ(batch.by_agent().at("a").lengths, (Values<std::int64_t>{2}));
}

TEST(MultiAgentBatches, LivesOfOneAgentStayApart) {
  const auto first = policy_of("main", {{0, {0}, {4, 0, 1, true}}, {0, {1}, {4, 0, 1, false}}});
  const auto rest = policy_of("main", {{0, {2}, {4, 1, 1, true}}});
  const MultiAgentBatch batch =
      obtain_many(1, 3, {response_of(many({{4, 0, 2, false}}, {first})), response_of(many({{4, 2, 1, true}}, {rest}))});
  EXPECT_EQ(batch.by_policy().at("main").lengths, (Values<std::int64_t>{1, 2}));
  EXPECT_EQ(batch.by_agent().at("a").lengths, (Values<std::int64_t>{1, 2}));
}

TEST(MultiAgentBatches, MalformedOnesAreServerErrors) {
  const auto fail = [](const v1::MultiAgentBatch& batch) {
    error_of<ServerError>([&] { obtain_many(1, 1, {response_of(batch)}); });
  };
  const std::vector<Segment> parts{{4, 0, 1, true}};
  fail(many(parts, {policy_of("p", {{2, {0}, {4, 0, 1, true}}})}));
  fail(many(parts, {policy_of("p", {{0, {0, 1}, {4, 0, 1, true}}})}));
  auto batch = many(parts, {});
  batch.clear_agent_step_counts();
  fail(batch);
  batch = many(parts, {});
  batch.add_agents("a");
  fail(batch);
  batch = many(parts, {});
  *batch.mutable_global_states() = tensor<float>(v1::DATA_TYPE_FLOAT32, {1}, {1});
  fail(batch);
  fail(many({{4, 0, 1, false}}, {}));
}

TEST(MultiAgentBatches, OthersCannotBeConcatenated) {
  MultiAgentBatch other = two_episodes();
  other.agents = {"a", "c"};
  error_of<InvalidArgumentError>([&] { MultiAgentBatch::concatenate({two_episodes(), other}); });
  error_of<InvalidArgumentError>([] { MultiAgentBatch::concatenate({}); });
  const MultiAgentBatch twice = MultiAgentBatch::concatenate({two_episodes(), two_episodes()});
  EXPECT_EQ(twice.num_steps(), 14u);
  EXPECT_EQ(twice.joined().policies.size(), 2u);
}

TEST(MultiAgentStreams, ContinueWithinAnEpisode) {
  const auto again = policy_of("main", {{0, {0}, {4, 0, 1, false}}, {1, {1}, {4, 0, 1, false}}});
  const auto main =
      policy_of("main", {{0, {2, 4}, {4, 1, 2, true}}, {1, {3}, {4, 1, 1, true}}, {0, {0}, {5, 0, 1, true}}});
  const auto other = policy_of("other", {{1, {1}, {5, 0, 1, true}}});
  const ScriptedServer server({{{beginning(), first_part()}, broken()},
                               {{beginning(), response_of(many({{4, 0, 2, false}}, {again})),
                                 response_of(many({{4, 2, 3, true}, {5, 0, 2, true}}, {main, other})), account(2, 7)},
                                {}}});
  rollserve::Sampler sampler = server.connect();
  SamplingOptions options;
  options.count_agent_steps = true;
  rollserve::MultiAgentStream stream = sampler.multi_agent().stream_samples(7, options);
  stream.next();
  const MultiAgentBatch rest = stream.next().value();
  EXPECT_EQ(rest.first_steps, (Values<std::uint64_t>{3, 0}));
  EXPECT_EQ(rest.lengths, (Values<std::int64_t>{2, 2}));
  EXPECT_EQ(rest.agent_step_counts, (Values<std::uint64_t>{2, 2}));
  const PolicyBatch& kept = rest.policies.at(0);
  EXPECT_EQ(kept.batch.first_steps, (Values<std::uint64_t>{2, 1, 0}));
  EXPECT_EQ(kept.env_steps, (Values<std::uint32_t>{4, 3, 0}));
  EXPECT_EQ(values<float>(kept.batch.observations.at("")), (Values<float>{402, 401, 500}));
  EXPECT_FALSE(stream.next());
  EXPECT_EQ(stream.account().num_resumptions, 1);
  EXPECT_EQ(server.samples.at(1).options().first_episode_index(), 4u);
  EXPECT_EQ(server.samples.at(1).step_count(), 7);
}

TEST(MultiAgentStreams, NeedFewerStepsOfAgentsAfterWholeEpisodes) {
  const auto episode = [](std::uint64_t index) {
    auto batch = many({{index, 0, 2, true}}, {policy_of("main", {{0, {0, 1}, {index, 0, 2, true}}})});
    batch.set_agent_step_counts(0, 4);
    return response_of(batch);
  };
  const ScriptedServer server({{{beginning(), episode(4)}, broken()},
                               {{beginning(), episode(5)}, broken()},
                               {{beginning(), episode(5), account(1, 2)}, {}}});
  rollserve::Sampler sampler = server.connect();
  SamplingOptions options;
  options.count_agent_steps = true;
  options.deliver = {"main"};
  const MultiAgentBatch batch = sampler.multi_agent().obtain_samples(7, options);
  EXPECT_EQ(batch.agent_step_counts, (Values<std::uint64_t>{4, 4}));
  EXPECT_EQ(batch.account->num_steps, 4u);
  const auto& rest = server.samples.at(1);
  EXPECT_EQ(rest.step_count(), 3);
  EXPECT_EQ(rest.options().first_episode_index(), 5u);
  EXPECT_EQ(rest.options().deliver_policies(0), "main");
  // Only the account is missing: the last episode comes once more, which is needed for the same steps.
  EXPECT_EQ(server.samples.at(2).step_count(), 3);
  EXPECT_EQ(server.samples.at(2).options().first_episode_index(), 5u);
}

TEST(MultiAgentStreams, OfTheOtherNumberOfAgentsAreRefused) {
  const ScriptedServer server({one_step(), {{beginning(), first_part()}, {}}});
  rollserve::Sampler sampler = server.connect();
  EXPECT_EQ(error_of<InvalidArgumentError>([&] { sampler.multi_agent().obtain_samples(1); }).field(), "environment");
  EXPECT_EQ(error_of<InvalidArgumentError>([&] { sampler.obtain_samples(1); }).field(), "environment");
}

TEST(Policies, UpdatesHaveThemAndTheirMap) {
  const ScriptedServer server({});
  rollserve::Sampler sampler = server.connect();
  sampler.update_agent(RandomAgent{});
  rollserve::Policies policies{{{"main", RandomAgent{}}, {"bot", rollserve::AgentChange{"{}", {}}}}};
  policies.policy_map = PolicyMap{{AgentNamed{"a"}, {{"main"}}},
                                  {AgentsWithPrefix{"b"}, {{"main", -1, 0.25}, {"bot", 3}}},
                                  {rollserve::AgentAt{2}, {{"bot"}}}};
  sampler.update_agent(policies);
  const v1::UpdateAgentRequest& update = server.agents.at(1);
  EXPECT_EQ(update.expected_policy_version(), 7);  // policies that are left out stay as they are
  const v1::PolicyUpdates& sent = update.all_workers().policies();
  EXPECT_TRUE(sent.policies().at("main").agent().has_random());
  EXPECT_EQ(sent.policies().at("bot").change().kwargs_json(), "{}");
  EXPECT_EQ(sent.policy_map().rules_size(), 3);
  EXPECT_EQ(sent.policy_map().rules(0).name(), "a");
  EXPECT_EQ(sent.policy_map().rules(0).choices(0).weight(), 1);
  EXPECT_EQ(sent.policy_map().rules(1).prefix(), "b");
  EXPECT_EQ(sent.policy_map().rules(1).choices(0).version(), -1);
  EXPECT_EQ(sent.policy_map().rules(1).choices(0).weight(), 0.25);
  EXPECT_EQ(sent.policy_map().rules(1).choices(1).policy(), "bot");
  EXPECT_EQ(sent.policy_map().rules(2).position(), 2u);
  sampler.update_agent(rollserve::Policies{{{"main", rollserve::Parameters{}}}});
  const v1::PolicyUpdates& parameters = server.agents.at(2).all_workers().policies();
  EXPECT_TRUE(parameters.policies().at("main").has_parameters());
  EXPECT_FALSE(parameters.has_policy_map());
}

TEST(MultiAgentEnvironments, HaveTheirInterfaceAndTheirAgents) {
  const ScriptedServer server({});
  rollserve::Sampler sampler = server.connect();
  rollserve::EnvSpec env("mpe/simple_spread-v3");
  env.multi_agent = rollserve::MultiAgentApi::Parallel;
  env.global_state = true;
  EXPECT_EQ(sampler.update_env(env).agents, (Values<std::string>{"a", "b"}));
  EXPECT_EQ(server.envs.at(0).all_workers().environment().multi_agent(), v1::MULTI_AGENT_API_PARALLEL);
  const rollserve::EnvSpec known = sampler.status().envs.at(0);
  EXPECT_EQ(known.multi_agent, rollserve::MultiAgentApi::Parallel);
  EXPECT_TRUE(known.global_state);
  EXPECT_TRUE(sampler.update_env("CartPole-v1").agents.empty());
}

TEST(MultiAgentEvaluations, SummarizeAgentsAndPolicies) {
  auto last = account(2, 7);
  last.mutable_account()->set_policy_version(3);
  const ScriptedServer server(
      {{{beginning(), first_part()}, broken()}, {{beginning(), first_part(), second_part(), last}, {}}});
  rollserve::Sampler sampler = server.connect();
  rollserve::EvaluationOptions options;
  options.policy_maps = {{{AgentsWithPrefix{""}, {{"main"}}}}, {{AgentsWithPrefix{""}, {{"old"}}}}};
  options.return_episodes = true;
  const rollserve::Evaluation evaluation = sampler.evaluate(3, options);
  EXPECT_EQ(server.evaluations.at(1).options().policy_maps(1).rules(0).choices(0).policy(), "old");
  EXPECT_EQ(evaluation.multi_agent_episodes.value().lengths, (Values<std::int64_t>{5, 2}));
  EXPECT_FALSE(evaluation.episodes);
  const rollserve::AgentReturns& returns = evaluation.agent_returns.value();
  EXPECT_EQ(returns.policy_positions, (Values<std::int32_t>{0, -1, 0, 0, 0, 1}));
  EXPECT_TRUE(std::isnan(returns.returns.at(1)));

  const auto agents = returns.by_agent();
  const rollserve::Summary& first = agents.at("a");  // of 1, 2, 4
  EXPECT_NEAR(first.mean, 7.0 / 3, 1e-12);
  const double margin = 4.302652729749458 * first.standard_deviation.value() / std::sqrt(3.0);  // t, 2 degrees
  EXPECT_NEAR(first.confidence_low.value(), 7.0 / 3 - margin, 1e-12);
  EXPECT_NEAR(first.confidence_high.value(), 7.0 / 3 + margin, 1e-12);
  EXPECT_EQ(agents.at("b").confidence_high, 5);  // of 5, 5
  const auto policies = returns.by_policy();
  // Of the second episode, in which main acts for both, the mean counts: 1, 3.5, 4.
  EXPECT_NEAR(policies.at({"main", 3}).mean, 8.5 / 3, 1e-12);
  EXPECT_EQ(policies.at({"old", 1}).mean, 5);
  EXPECT_FALSE(policies.at({"old", 1}).standard_deviation);
  EXPECT_EQ(policies.begin()->first.text(), "main@3");
}

TEST(MultiAgentEvaluations, HaveStudentsConfidenceIntervals) {
  const std::map<std::size_t, double> bounds = {{1, 12.706204736174659},
                                                {10, 2.2281388519862735},
                                                {19, 2.0930240544083105},
                                                {1000, 1.9623390808263312},
                                                {1001, 1.9623367052792953}};
  for (const auto& [degrees, bound] : bounds) {
    rollserve::AgentReturns returns;
    returns.agents = {"a"};
    returns.policies = {{"main", 1}};
    for (std::size_t i = 0; i <= degrees; ++i) returns.returns.push_back(i % 2 == 0 ? 1 : -1);
    returns.policy_positions.assign(degrees + 1, 0);
    const rollserve::Summary summary = returns.by_agent().at("a");
    const double half = (*summary.confidence_high - *summary.confidence_low) / 2;
    const double error = *summary.standard_deviation / std::sqrt(static_cast<double>(degrees + 1));
    EXPECT_NEAR(half / error, bound, 1e-9) << degrees;
  }
}

}  // namespace
