#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "scripted_server.h"

namespace {

using namespace std::chrono_literals;

using rollserve::Array;
using rollserve::Columns;
using rollserve::DrivenStep;
using rollserve::DriveOptions;
using rollserve::InvalidArgumentError;
using rollserve::PreconditionError;
using rollserve::ServerError;
using Request = v1::DriveEnvironmentsRequest;
using Response = v1::DriveEnvironmentsResponse;

constexpr std::uint32_t num_rows = 3;  // two of the first worker, and one of the second

Response beginning_of_session() {
  Response response;
  v1::Beginning& content = *response.mutable_beginning();
  content.set_row_count(num_rows);
  content.mutable_observation_space()->mutable_discrete()->set_n(4);
  content.mutable_action_space()->mutable_discrete()->set_n(2);
  return response;
}

void observe(google::protobuf::RepeatedPtrField<v1::NamedTensor>& columns, const std::vector<float>& values) {
  add(columns, "", tensor(v1::DATA_TYPE_FLOAT32, values, {static_cast<std::int64_t>(values.size())}));
}

/// Return a step, with which the episode of the last row has ended by both causes, unless it is the first.
Response step_of(std::uint64_t number) {
  Response response;
  v1::DrivenStep& step = *response.mutable_step();
  step.set_step(number);
  v1::DrivenRows& first = *step.add_workers();
  v1::DrivenRows& second = *step.add_workers();
  const auto base = static_cast<float>(10 * number);
  observe(*first.mutable_observations(), {base, base + 1});
  observe(*second.mutable_observations(), {base + 2});
  for (const int row : {0, 1}) {
    first.add_episode_indices(row);
    first.add_environment_seeds(100 + static_cast<std::uint64_t>(row));
  }
  second.add_episode_indices(static_cast<std::int64_t>(2 + number));
  second.add_environment_seeds(102);
  if (number == 0) return response;
  first.add_rewards(1);
  first.add_rewards(2);
  second.add_rewards(3);
  second.add_ended_rows(0);
  second.add_terminated(true);
  second.add_truncated(true);
  observe(*second.mutable_last_observations(), {-1});
  return response;
}

Response part_of(const std::vector<Segment>& segments) {
  Response response;
  *response.mutable_batch() = batch_of(segments);
  return response;
}

Response round_of(std::uint64_t num_steps) {
  Response response;
  response.mutable_round()->set_step_count(num_steps);
  return response;
}

Response account_of(std::uint64_t num_steps) {
  Response response;
  response.mutable_account()->set_step_count(num_steps);
  return response;
}

/// Answer actions with the next step, and the end of the requests with an account.
SessionAnswer answer(const Request* request) {
  if (request == nullptr) return {{account_of(0)}, {}};
  if (request->has_spec()) return {{beginning_of_session(), step_of(0)}, {}};
  if (request->has_actions()) return {{step_of(request->actions().step() + 1)}, {}};
  return {};
}

/// A server whose sessions are answered as `answer` does, unless another function has an answer.
struct Driven {
  explicit Driven(std::function<std::optional<SessionAnswer>(const Request*)> others = nullptr) {
    server.session = [others = std::move(others)](const Request* request) {
      if (const auto other = others ? others(request) : std::nullopt) return *other;
      return answer(request);
    };
  }

  ScriptedServer server{{}};
  rollserve::Sampler sampler = server.connect();
};

Array actions_of(std::vector<std::int64_t> values) { return Array(std::move(values)); }

const Array still = actions_of({0, 0, 0});

TEST(Sessions, ShowTheRowsOfAllWorkers) {
  Driven driven;
  DriveOptions options;
  options.seed = std::uint64_t{1} << 63;
  options.fragment_length = 5;
  options.infos = true;
  rollserve::Session session = driven.sampler.drive(options);
  EXPECT_EQ(session.num_rows(), num_rows);
  EXPECT_EQ(std::get<rollserve::DiscreteSpace>(session.action_space().kind).n, 2);
  EXPECT_EQ(std::get<rollserve::DiscreteSpace>(session.observation_space().kind).n, 4);
  const DrivenStep first = session.observe();
  EXPECT_EQ(first.number, 0u);
  EXPECT_EQ(first.rewards, std::vector<double>(3));
  EXPECT_TRUE(first.ended_rows.empty());
  EXPECT_EQ(first.last_observations.at("").shape(), (rollserve::Shape{0}));
  const DrivenStep second = session.step(actions_of({1, 0, 1}));
  EXPECT_EQ(values<float>(second.observations.at("")), (std::vector<float>{10, 11, 12}));
  EXPECT_EQ(values<float>(second.last_observations.at("")), (std::vector<float>{-1}));
  EXPECT_EQ(second.rewards, (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(second.ended_rows, (std::vector<std::size_t>{2}));
  const std::vector<bool> last{false, false, true};
  EXPECT_TRUE(second.terminated == last && second.truncated == last && second.ended() == last);
  EXPECT_EQ(second.episode_indices, (std::vector<std::uint64_t>{0, 1, 3}));
  EXPECT_EQ(second.env_seeds, (std::vector<std::uint64_t>{100, 101, 102}));
  const v1::DriveSpec& spec = driven.server.driven.at(0).spec();
  EXPECT_EQ(spec.options().seed(), options.seed);
  EXPECT_TRUE(spec.options().return_spaces() && !spec.options().accept_joined() && spec.return_infos());
  EXPECT_EQ(spec.fragment_length(), 5);
  const v1::DrivenActions& sent = driven.server.driven.at(1).actions();
  EXPECT_EQ(sent.SerializeAsString(), [] {
    v1::DrivenActions expected;
    add(*expected.mutable_actions(), "", tensor<std::int64_t>(v1::DATA_TYPE_INT64, {1, 0, 1}, {3}));
    return expected.SerializeAsString();
  }());
}

TEST(Sessions, MaskInfosThatAWorkerLacks) {
  Driven driven([](const Request* request) -> std::optional<SessionAnswer> {
    if (request == nullptr || !request->has_spec()) return std::nullopt;
    Response step = step_of(0);
    add(*step.mutable_step()->mutable_workers(1)->mutable_infos(), "speed",
        tensor<double>(v1::DATA_TYPE_FLOAT64, {7}, {1}));
    return SessionAnswer{{beginning_of_session(), step}, {}};
  });
  rollserve::Session session = driven.sampler.drive();
  const DrivenStep step = session.observe();
  EXPECT_EQ(values<double>(step.infos.at("speed")), (std::vector<double>{0, 0, 7}));
  EXPECT_EQ(values<bool>(step.infos.at("_speed")), (std::vector<bool>{false, false, true}));
}

TEST(Sessions, NameTheLeavesOfNestedSpacesByTheirPaths) {
  Driven driven([](const Request* request) -> std::optional<SessionAnswer> {
    if (request == nullptr || !request->has_spec()) return std::nullopt;
    Response begun = beginning_of_session();
    v1::NamedSpace& arm = *begun.mutable_beginning()->mutable_action_space()->mutable_dict()->add_spaces();
    arm.set_name("arm");
    arm.mutable_space()->mutable_tuple()->add_spaces()->mutable_discrete()->set_n(2);
    arm.mutable_space()->mutable_tuple()->add_spaces()->mutable_multi_binary()->add_shape(2);
    return SessionAnswer{{begun, step_of(0)}, {}};
  });
  rollserve::Session session = driven.sampler.drive();
  session.step({{"arm/0", still}, {"arm/1", Array(std::vector<std::int8_t>(6), {3, 2})}});
  EXPECT_EQ(driven.server.driven.at(1).actions().actions_size(), 2);
}

TEST(Sessions, RefuseWrongActionsAndGoOn) {
  Driven driven;
  DriveOptions options;
  options.agent_infos = {{"value", Array::scalar(0.0f)}};
  rollserve::Session session = driven.sampler.drive(options);
  EXPECT_EQ(driven.server.driven.at(0).spec().agent_infos(0).tensor().shape(0), 0);
  const Columns infos = {{"value", Array(std::vector<float>(3))}};
  const auto field_of = [&](const Columns& actions, const Columns& agent_infos, const std::vector<bool>& idle = {}) {
    return error_of<InvalidArgumentError>([&] { session.step(actions, agent_infos, idle); }).field();
  };
  EXPECT_EQ(field_of({{"", actions_of({0, 1})}}, infos), "actions");
  EXPECT_EQ(field_of({{"", Array(std::vector<std::int64_t>(3), {3, 1})}}, infos), "actions");
  EXPECT_EQ(field_of({{"", Array(std::vector<double>(3))}}, infos), "actions");
  EXPECT_EQ(field_of({{"left", still}}, infos), "actions");
  EXPECT_EQ(field_of({{"", still}}, {}), "agent_infos");
  EXPECT_EQ(field_of({{"", still}}, {{"value", Array(std::vector<double>(3))}}), "agent_infos['value']");
  EXPECT_EQ(field_of({{"", still}}, infos, {true}), "idle");
  EXPECT_EQ(session.step(still, infos).number, 1u);
  EXPECT_EQ(driven.server.driven.size(), 2u);
}

TEST(Sessions, JoinSegmentsOfARoundAndNotOfTwo) {
  Driven driven([](const Request* request) -> std::optional<SessionAnswer> {
    if (request == nullptr || !request->has_fragment_end()) return std::nullopt;
    return SessionAnswer{{part_of({{0, 0, 1, false}}), part_of({{0, 1, 1, false}}), round_of(2),
                          part_of({{0, 2, 2, true}}), round_of(2)},
                         {}};
  });
  rollserve::Session session = driven.sampler.drive();
  EXPECT_EQ(error_of<PreconditionError>([&] { session.batch(); }).field(), "batch");
  session.step(still);
  session.step(still, {}, {true, true, false});
  const rollserve::EpisodeBatch batch = session.batch();
  EXPECT_EQ(batch.lengths, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(values<float>(batch.observations.at("")), (std::vector<float>{0, 1, 2, 3}));
  EXPECT_EQ(batch.row_indices, (std::vector<std::uint64_t>{0, 0}));
  EXPECT_EQ(error_of<PreconditionError>([&] { session.batch(); }).field(), "batch");
}

TEST(Sessions, EndWithAnAccountAndWhatWasRecorded) {
  Driven driven([](const Request* request) -> std::optional<SessionAnswer> {
    if (request != nullptr) return std::nullopt;
    return SessionAnswer{{part_of({{0, 0, 3, true}}), round_of(3), account_of(3)}, {}};
  });
  rollserve::Session session = driven.sampler.drive();
  session.step(still);
  EXPECT_EQ(error_of<InvalidArgumentError>([&] { session.account(); }).field(), "account");
  EXPECT_EQ(session.end().num_steps, 3u);
  EXPECT_EQ(session.end().num_steps, 3u);
  EXPECT_EQ(session.account().num_steps, 3u);
  EXPECT_EQ(session.batch().num_steps(), 3u);
  EXPECT_EQ(error_of<PreconditionError>([&] { session.step(still); }).field(), "session");
}

TEST(Sessions, HaveNoBatchWhenNothingIsRecorded) {
  Driven driven;
  DriveOptions options;
  options.record = false;
  rollserve::Session session = driven.sampler.drive(options);
  session.step(still);
  EXPECT_EQ(error_of<PreconditionError>([&] { session.batch(); }).field(), "batch");
  EXPECT_TRUE(driven.server.driven.at(0).spec().options().blackhole());
}

TEST(Sessions, ThrowTheErrorThatEndsThemAgain) {
  Driven driven([](const Request* request) -> std::optional<SessionAnswer> {
    if (request == nullptr || !request->has_actions()) return std::nullopt;
    return SessionAnswer{{}, failure(grpc::StatusCode::FAILED_PRECONDITION, "WORKER_COUNT")};
  });
  rollserve::Session session = driven.sampler.drive();
  EXPECT_EQ(error_of<PreconditionError>([&] { session.step(still); }).reason(), rollserve::reason::WORKER_COUNT);
  EXPECT_EQ(error_of<PreconditionError>([&] { session.batch(); }).reason(), rollserve::reason::WORKER_COUNT);
  EXPECT_EQ(error_of<PreconditionError>([&] { session.end(); }).reason(), rollserve::reason::WORKER_COUNT);
}

/// Return the beginning of a session with a lease.
Response lasting() {
  Response response = beginning_of_session();
  response.mutable_beginning()->set_session_token("token-7");
  return response;
}

TEST(Sessions, GoOnAfterTheirStreamBreaks) {
  bool is_lost = false;
  Driven driven([&](const Request* request) -> std::optional<SessionAnswer> {
    if (request == nullptr) return std::nullopt;
    if (request->has_spec()) return SessionAnswer{{lasting(), step_of(0)}, {}};
    if (request->has_resumption()) {
      is_lost = true;
      return SessionAnswer{{lasting(), step_of(1)}, {}};
    }
    if (request->has_session_end()) {  // and the stream breaks again, behind the account
      if (request->session_end().has_account()) return SessionAnswer{{}, broken()};
      return SessionAnswer{{part_of({{0, 3, 3, true}}), round_of(3), account_of(6)}, {}};
    }
    if (request->actions().step() == 0) {  // with a part of a round
      return SessionAnswer{{part_of({{0, 0, 3, false}}), round_of(3), part_of({{0, 3, 1, false}}), step_of(1)}, {}};
    }
    if (!is_lost) return SessionAnswer{{}, broken()};
    return std::nullopt;
  });
  DriveOptions options;
  options.lease = 60s;
  rollserve::Session session = driven.sampler.drive(options);
  EXPECT_EQ(session.token(), "token-7");
  session.step(still);
  EXPECT_EQ(session.step(actions_of({1, 1, 1})).number, 2u);
  EXPECT_EQ(session.end().num_steps, 6u);
  EXPECT_EQ(session.batch().lengths, (std::vector<std::int64_t>{3, 3}));
  const auto& sent = driven.server.driven;
  ASSERT_EQ(sent.size(), 7u);
  EXPECT_EQ(sent[0].spec().lease_seconds(), 60);
  EXPECT_EQ(sent[3].resumption().token(), "token-7");
  EXPECT_EQ(sent[3].resumption().round_count(), 1u);
  EXPECT_EQ(sent[4].SerializeAsString(), sent[2].SerializeAsString());
  EXPECT_TRUE(sent[5].has_session_end() && !sent[5].session_end().has_account());
  EXPECT_TRUE(sent[6].session_end().has_account());
}

TEST(Sessions, AreTakenUpByTheirTokens) {
  Driven driven([](const Request* request) -> std::optional<SessionAnswer> {
    if (request == nullptr || !request->has_resumption()) return std::nullopt;
    if (request->resumption().token() == "token-7") return SessionAnswer{{lasting(), step_of(5)}, {}};
    return SessionAnswer{{}, failure(grpc::StatusCode::NOT_FOUND, "SESSION_NOT_FOUND")};
  });
  rollserve::Session session = driven.sampler.resume_session("token-7");
  EXPECT_EQ(session.step(still).number, 6u);
  EXPECT_EQ(driven.server.driven.at(1).actions().step(), 5u);
  EXPECT_EQ(error_of<InvalidArgumentError>([&] { driven.sampler.resume_session("token-8"); }).reason(),
            rollserve::reason::SESSION_NOT_FOUND);
}

/// Return a step with rows of workers, which have made as many steps as each worker.
Response ready(std::uint64_t number, const std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>>& workers) {
  Response response;
  response.mutable_step()->set_step(number);
  for (const auto& [made, rows] : workers) {
    v1::DrivenRows& worker = *response.mutable_step()->add_workers();
    observe(*worker.mutable_observations(), std::vector<float>(rows.begin(), rows.end()));
    for (const std::int64_t row : rows) {
      worker.add_episode_indices(row);
      worker.add_environment_seeds(1);
      worker.add_rows(row);
      worker.add_row_step_counts(made);
    }
  }
  return response;
}

TEST(Sessions, HaveRowsThatDoNotWaitForEachOther) {
  std::atomic<int> num_actions{0};
  Driven driven([&](const Request* request) -> std::optional<SessionAnswer> {
    if (request == nullptr) return std::nullopt;
    if (request->has_spec()) return SessionAnswer{{lasting(), ready(0, {{0, {0, 1}}})}, {}};
    if (request->has_resumption()) return SessionAnswer{{lasting(), ready(3, {{0, {2}}, {1, {0, 1}}})}, {}};
    switch (++num_actions) {
      case 1:
        return SessionAnswer{{ready(1, {{0, {2}}})}, {}};
      case 2:
        return SessionAnswer{{}, broken()};
      case 3:
        return SessionAnswer{};
      default:
        return SessionAnswer{{ready(4, {{1, {2}}})}, {}};
    }
  });
  DriveOptions options;
  options.min_ready = 1;
  options.lease = 60s;
  rollserve::Session session = driven.sampler.drive(options);
  const DrivenStep first = session.recv();
  EXPECT_EQ(first.rows, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(values<float>(first.observations.at("")), (std::vector<float>{0, 1}));
  const Array two = actions_of({1, 0});
  const auto field_of = [&](const Array& actions, const std::vector<std::size_t>& rows) {
    return error_of<InvalidArgumentError>([&] { session.send(actions, rows); }).field();
  };
  EXPECT_EQ(field_of(two, {0, 2}), "rows[1]");
  EXPECT_EQ(field_of(two, {1, 1}), "rows[1]");
  EXPECT_EQ(field_of(two, {1}), "actions");
  EXPECT_EQ(error_of<InvalidArgumentError>([&] { session.step(still); }).field(), "step");
  session.send(two, {1, 0});
  EXPECT_EQ(field_of(two, {}), "rows[0]");  // they have acted
  EXPECT_EQ(session.recv().rows, (std::vector<std::size_t>{2}));
  session.send(actions_of({1}));
  const DrivenStep news = session.recv();
  EXPECT_EQ(news.rows, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(news.row_steps, (std::vector<std::uint64_t>{1, 1}));
  EXPECT_EQ(session.recv().row_steps, (std::vector<std::uint64_t>{1}));
  const auto& sent = driven.server.driven;
  ASSERT_EQ(sent.size(), 6u);
  EXPECT_EQ(sent[0].spec().min_ready_row_count(), 1u);
  EXPECT_EQ(sent[1].actions().rows(0), 1);
  EXPECT_EQ(sent[1].actions().row_step_counts(0), 0);
  EXPECT_EQ(sent[4].SerializeAsString(), sent[1].SerializeAsString());
  EXPECT_EQ(sent[5].SerializeAsString(), sent[2].SerializeAsString());
}

TEST(Sessions, BeginAgainOnlyBeforeTheirBeginning) {
  std::atomic<int> num_begun{0};
  Driven driven([&](const Request* request) -> std::optional<SessionAnswer> {
    if (request == nullptr || !request->has_spec()) return SessionAnswer{{}, broken()};
    if (++num_begun != 2) return std::nullopt;
    return SessionAnswer{{}, failure(grpc::StatusCode::UNAVAILABLE, "SERVER_STOPPING")};
  });
  driven.sampler.drive().cancel();
  rollserve::Session session = driven.sampler.drive();  // the server has answered before
  EXPECT_THROW(session.step(still), rollserve::UnavailableError);
  EXPECT_EQ(num_begun, 3);
}

/// Leave actions without an answer.
std::optional<SessionAnswer> silence(const Request* request) {
  if (request == nullptr || !request->has_actions()) return std::nullopt;
  return SessionAnswer{{}, until_cancelled()};
}

TEST(Sessions, AreCancelled) {
  for (const bool by_handle : {false, true}) {
    Driven driven(silence);
    DriveOptions options;
    options.cancellation = rollserve::Cancellation();
    rollserve::Session session = driven.sampler.drive(options);
    std::thread other([&] {
      std::this_thread::sleep_for(50ms);
      if (by_handle)
        options.cancellation->cancel();
      else
        session.cancel();
    });
    const auto error = error_of<rollserve::CancelledError>([&] { session.step(still); });
    other.join();
    EXPECT_STREQ(error.what(), by_handle ? "the call was cancelled" : "the session was closed");
    EXPECT_THROW(session.step(still), rollserve::CancelledError);
  }
}

TEST(Sessions, AreCancelledWhenTheyAreDestroyed) {
  std::atomic<bool> has_ended{false};
  Driven driven([&](const Request* request) -> std::optional<SessionAnswer> {
    if (request == nullptr) has_ended = true;
    return std::nullopt;
  });
  { const rollserve::Session session = driven.sampler.drive(); }
  for (int i = 0; i < 1000 && !has_ended; ++i) std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(has_ended);
}

TEST(Sessions, FailWithoutProgressForTheirTimeout) {
  Driven driven(silence);
  DriveOptions options;
  options.timeout = 100ms;
  rollserve::Session session = driven.sampler.drive(options);
  EXPECT_EQ(error_of<rollserve::DeadlineError>([&] { session.step(still); }).reason(), rollserve::reason::NO_PROGRESS);
}

TEST(Sessions, FailForMalformedMessages) {
  const auto text_of_error = [](const std::function<void(Response&)>& spoil) {
    Driven driven([&](const Request* request) -> std::optional<SessionAnswer> {
      if (request == nullptr || !request->has_actions()) return std::nullopt;
      Response response = step_of(1);
      spoil(response);
      return SessionAnswer{{response}, {}};
    });
    rollserve::Session session = driven.sampler.drive();
    return std::string(error_of<ServerError>([&] { session.step(still); }).what());
  };
  const auto second = [](Response& response) { return response.mutable_step()->mutable_workers(1); };
  const std::string malformed = "malformed stream: ";
  EXPECT_EQ(text_of_error([&](Response& response) { second(response)->clear_terminated(); }),
            malformed + "terminated: expected 1 values, got 0");
  EXPECT_EQ(text_of_error([&](Response& response) { second(response)->set_ended_rows(0, 1); }),
            malformed + "ended_rows: expected rows below 1, got 1");
  EXPECT_EQ(text_of_error([&](Response& response) { second(response)->add_rewards(1); }),
            malformed + "rewards: expected 1 values, got 2");
  EXPECT_EQ(text_of_error([&](Response& response) { second(response)->clear_observations(); }),
            malformed + "observations: expected 1 columns in each message, got 0");
  EXPECT_EQ(text_of_error([&](Response& response) { response.mutable_step()->clear_workers(); }),
            malformed + "workers: expected at least one, got none");
  EXPECT_EQ(text_of_error([&](Response& response) { response = round_of(1); }),
            malformed + "round: expected 1 steps, got 0");
}

TEST(Sessions, FailWithoutTheirAccount) {
  Driven driven([](const Request* request) -> std::optional<SessionAnswer> {
    return request == nullptr ? std::optional<SessionAnswer>(SessionAnswer{}) : std::nullopt;
  });
  rollserve::Session session = driven.sampler.drive();
  const auto error = error_of<ServerError>([&] { session.end(); });
  EXPECT_STREQ(error.what(), "malformed stream: the session ended without its account");
}

}  // namespace
