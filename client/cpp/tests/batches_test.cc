#include <gtest/gtest.h>
#include <lz4.h>
#include <zstd.h>

#include <cmath>
#include <limits>
#include <optional>

#include "scripted_server.h"

namespace {

using rollserve::DataType;
using rollserve::EpisodeBatch;
using rollserve::ServerError;
using rollserve::Shape;

template <class T>
using Values = std::vector<T>;

TEST(Batches, EpisodesAreJoinedOverMessages) {
  auto first = batch_of({{4, 0, 2, true}, {5, 0, 3, false}});
  add(*first.mutable_episode_infos(), "level", tensor<std::int64_t>(v1::DATA_TYPE_INT64, {40, 50}, {2}));
  auto second = batch_of({{5, 3, 1, false}});
  add(*second.mutable_episode_infos(), "level", tensor<std::int64_t>(v1::DATA_TYPE_INT64, {50}, {1}));
  auto third = batch_of({{5, 4, 2, true}, {6, 0, 1, true}});
  add(*third.mutable_episode_infos(), "level", tensor<std::int64_t>(v1::DATA_TYPE_INT64, {50, 60}, {2}));
  const EpisodeBatch batch = obtain(3, 9, {first, second, third});
  EXPECT_EQ(batch.lengths, (Values<std::int64_t>{2, 6, 1}));
  EXPECT_EQ(batch.terminated, (std::vector<bool>{true, true, true}));
  EXPECT_EQ(batch.first_steps, (Values<std::uint64_t>{0, 0, 0}));
  EXPECT_EQ(batch.env_seeds, (Values<std::uint32_t>{1004, 1005, 1006}));
  EXPECT_EQ(values<float>(batch.last_observations.at("")), (Values<float>{402, 506, 601}));
  EXPECT_EQ(values<std::int64_t>(batch.episode_infos.at("level")), (Values<std::int64_t>{40, 50, 60}));
  EXPECT_EQ(batch.returns(), (Values<double>{1, 15, 0}));
  EXPECT_TRUE(batch.worker_indices.empty() && batch.row_indices.empty());
  EXPECT_EQ(batch.account->num_steps, 9u);

  EpisodeBatch middle = batch.segment(1);
  EXPECT_EQ(values<float>(middle.observations.at("")), (Values<float>{500, 501, 502, 503, 504, 505}));
  EXPECT_EQ(middle.observations.at("").shape(), (Shape{6, 1}));
  middle.observations.mutable_values<float>()[0] = -1;
  EXPECT_EQ(batch.observations.values<float>()[2], -1);  // shared memory
  EXPECT_EQ(batch.split().size(), 3u);
}

/// Return a batch of one segment whose raw rewards are the rewards plus 0.25, with a value and a state at its end.
v1::EpisodeBatch with_end(const Segment& segment, double returns_before, float value) {
  auto batch = batch_of({segment});
  Values<double> raw;
  for (std::uint32_t i = 0; i < segment.length; ++i) raw.push_back(static_cast<double>(segment.first_step + i) + 0.25);
  *batch.mutable_raw_rewards() = tensor(v1::DATA_TYPE_FLOAT64, raw, {segment.length});
  *batch.mutable_last_values() = tensor<float>(v1::DATA_TYPE_FLOAT32, {value}, {1});
  add(*batch.mutable_last_states(), "h", tensor<float>(v1::DATA_TYPE_FLOAT32, {value, -value}, {1, 2}));
  if (segment.first_step > 0) batch.add_returns_before(returns_before);
  return batch;
}

TEST(Batches, EndsOfSegmentsComeFromTheirLastParts) {
  const EpisodeBatch batch = obtain(
      2, 5, {with_end({4, 0, 2, false}, 0, 1), with_end({4, 2, 2, true}, 1.5, 2), with_end({5, 0, 1, true}, 0, 3)});
  EXPECT_EQ(batch.lengths, (Values<std::int64_t>{4, 1}));
  EXPECT_EQ(values<float>(batch.last_values.value()), (Values<float>{2, 3}));
  EXPECT_EQ(values<float>(batch.last_states.at("h")), (Values<float>{2, -2, 3, -3}));
  EXPECT_EQ(batch.returns_before, (Values<double>{0, 0}));
  EXPECT_EQ(batch.raw_returns(), (Values<double>{7, 0.25}));
  EXPECT_EQ(batch.returns(), (Values<double>{6, 0}));

  const EpisodeBatch last = batch.segment(1);
  EXPECT_EQ(values<float>(last.last_values.value()), (Values<float>{3}));
  EXPECT_EQ(values<float>(last.last_states.at("h")), (Values<float>{3, -3}));
  EXPECT_EQ(values<double>(last.raw_rewards.value()), (Values<double>{0.25}));
}

TEST(Batches, ReturnsOfEpisodesHaveTheStepsOfEarlierCalls) {
  const auto part = with_end({4, 3, 2, false}, 10, 0);
  auto silent = part;
  silent.clear_returns_before();
  EXPECT_EQ(obtain(0, 2, {part}).episode_returns(), (Values<double>{17.5}));
  const EpisodeBatch batch = obtain(1, 3, {silent, batch_of({{5, 0, 1, true}})});  // an older server does not tell
  EXPECT_TRUE(std::isnan(batch.returns_before[0]) && std::isnan(batch.episode_returns()[0]));
  EXPECT_EQ(batch.returns_before[1], 0);
  EpisodeBatch own = batch.segment(1);
  own.returns_before.clear();
  EXPECT_EQ(own.episode_returns(), (Values<double>{0}));
  EXPECT_EQ(EpisodeBatch::concatenate({own, own}).returns_before, (Values<double>{0, 0}));
}

TEST(Batches, RewardsAndActionsOfTheEnvironmentAreTheAgentsWhereMessagesLackThem) {
  auto first = with_end({4, 0, 2, true}, 0, 1);
  add(*first.mutable_environment_actions(), "", tensor<std::int64_t>(v1::DATA_TYPE_INT64, {7, 8}, {2}));
  const auto second = batch_of({{5, 0, 2, true}});
  for (const bool is_first : {true, false}) {
    const EpisodeBatch batch = is_first ? obtain(2, 4, {first, second}) : obtain(2, 4, {second, first});
    const EpisodeBatch parts[] = {batch.segment(is_first ? 0 : 1), batch.segment(is_first ? 1 : 0)};
    EXPECT_EQ(values<double>(parts[0].raw_rewards.value()), (Values<double>{0.25, 1.25}));
    EXPECT_EQ(values<double>(parts[1].raw_rewards.value()), (Values<double>{0, 1}));
    EXPECT_EQ(values<std::int64_t>(parts[0].env_actions.at("")), (Values<std::int64_t>{7, 8}));
    EXPECT_EQ(values<std::int64_t>(parts[1].env_actions.at("")), (Values<std::int64_t>{0, 1}));
    EXPECT_FALSE(batch.last_values);
    EXPECT_EQ(batch.last_states.mask("h")[is_first ? 1 : 0], false);
  }
  const EpisodeBatch plain = obtain(2, 4, {second, batch_of({{6, 0, 2, true}})});
  EXPECT_TRUE(!plain.raw_rewards && plain.env_actions.empty());
}

TEST(Batches, NumbersAreLittleEndianAndAligned) {
  const std::string one_and_a_half("\x00\x00\xc0\x3f", 4);
  for (const std::int64_t num_segments : {1, 7}) {  // short data is within its string, long data is not
    Values<Segment> segments;
    for (std::int64_t i = 0; i < num_segments; ++i) segments.push_back({static_cast<std::uint64_t>(i), 0, 1, true});
    auto message = batch_of(segments);
    v1::Tensor& last = *message.mutable_last_values();
    last.set_data_type(v1::DATA_TYPE_FLOAT32);
    last.add_shape(num_segments);
    for (std::int64_t i = 0; i < num_segments; ++i) *last.mutable_data() += one_and_a_half;
    const auto count = static_cast<std::uint64_t>(num_segments);
    const EpisodeBatch batch = obtain(count, count, {message});
    EXPECT_EQ(values<float>(batch.last_values.value()), Values<float>(count, 1.5f));
    for (const auto* array : {&batch.last_values.value(), &batch.rewards, &batch.actions.at("")}) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array->bytes().data()) % rollserve::size_of(array->data_type()), 0u);
    }
  }
}

TEST(Batches, TextsAmongInfosHaveTheirBytes) {
  auto message = batch_of({{4, 0, 3, true}});
  const std::string column(
      "h\xc3\xb6\0"
      "\0\0\0\0"
      "goal",
      12);
  auto& infos = *message.mutable_environment_infos();
  add(infos, "text/event", tensor(v1::DATA_TYPE_UINT8, Values<char>(column.begin(), column.end()), {3, 4}));
  add(infos, "_text/event", tensor<std::uint8_t>(v1::DATA_TYPE_BOOL, {1, 0, 1}, {3}));
  add(infos, "json/none", tensor(v1::DATA_TYPE_UINT8, Values<char>(), {3, 0}));
  const rollserve::Columns read = obtain(1, 3, {message}).env_infos;
  using Texts = Values<std::optional<std::string>>;
  EXPECT_EQ(read.texts("text/event"), (Texts{"h\xc3\xb6", std::nullopt, "goal"}));
  EXPECT_EQ(read.texts("json/none"), (Texts{"", "", ""}));
  for (const char* name : {"_text/event", "event"}) {
    EXPECT_EQ(error_of<rollserve::InvalidArgumentError>([&] { read.texts(name); }).field(), "name");
  }
}

TEST(Batches, InfosGetMasksWhereMessagesLackThem) {
  auto first = batch_of({{4, 0, 2, true}});
  add(*first.mutable_environment_infos(), "gap", tensor<std::uint8_t>(v1::DATA_TYPE_UINT8, {7, 0}, {2}));
  add(*first.mutable_environment_infos(), "_gap", tensor<std::uint8_t>(v1::DATA_TYPE_BOOL, {1, 0}, {2}));
  auto third = batch_of({{6, 0, 1, true}});
  add(*third.mutable_environment_infos(), "gap", tensor<float>(v1::DATA_TYPE_FLOAT32, {0.5f}, {1}));
  const EpisodeBatch batch = obtain(3, 4, {first, batch_of({{5, 0, 1, true}}), third});
  EXPECT_EQ(values<float>(batch.env_infos.at("gap")), (Values<float>{7, 0, 0, 0.5f}));
  const auto mask = batch.env_infos.mask("gap");
  EXPECT_EQ(std::vector<bool>(mask.begin(), mask.end()), (std::vector<bool>{true, false, false, true}));
}

TEST(Batches, InfosOfSeveralTypesGetTheOneThatHoldsThemAll) {
  struct Case {
    v1::DataType a, b;
    DataType joined;
  };
  for (const auto& [a, b, type] : {Case{v1::DATA_TYPE_BOOL, v1::DATA_TYPE_INT8, DataType::Int8},
                                   Case{v1::DATA_TYPE_INT8, v1::DATA_TYPE_UINT8, DataType::Int16},
                                   Case{v1::DATA_TYPE_UINT64, v1::DATA_TYPE_INT64, DataType::UInt64},
                                   Case{v1::DATA_TYPE_FLOAT16, v1::DATA_TYPE_INT8, DataType::Float16},
                                   Case{v1::DATA_TYPE_INT16, v1::DATA_TYPE_FLOAT16, DataType::Float32},
                                   Case{v1::DATA_TYPE_FLOAT32, v1::DATA_TYPE_UINT32, DataType::Float64}}) {
    auto first = batch_of({{4, 0, 1, true}});
    auto second = batch_of({{5, 0, 1, true}});
    const auto add_zero = [](v1::EpisodeBatch& batch, v1::DataType of) {
      const auto size = rollserve::size_of(static_cast<DataType>(of));
      add(*batch.mutable_environment_infos(), "x", tensor(of, Values<char>(size), {1}));
    };
    add_zero(first, a);
    add_zero(second, b);
    EXPECT_EQ(obtain(2, 2, {first, second}).env_infos.at("x").data_type(), type) << a << " and " << b;
  }
  auto first = batch_of({{4, 0, 2, true}});
  add(*first.mutable_environment_infos(), "x", tensor<std::int8_t>(v1::DATA_TYPE_INT8, {-128, 3}, {2}));
  auto second = batch_of({{5, 0, 1, true}});
  add(*second.mutable_environment_infos(), "x", tensor<std::uint16_t>(v1::DATA_TYPE_FLOAT16, {0xfbff}, {1}));
  const auto halves = values<rollserve::Float16>(obtain(2, 3, {first, second}).env_infos.at("x"));
  EXPECT_EQ(static_cast<float>(halves[0]), -128);
  EXPECT_EQ(static_cast<float>(halves[1]), 3);
  EXPECT_EQ(static_cast<float>(halves[2]), -65504);
}

TEST(Batches, InfosOfOtherShapesAreDroppedAndCounted) {
  auto first = batch_of({{4, 0, 1, true}});
  add(*first.mutable_environment_infos(), "x", tensor<std::int64_t>(v1::DATA_TYPE_INT64, {1}, {1}));
  auto second = batch_of({{5, 0, 2, true}});
  add(*second.mutable_environment_infos(), "x", tensor<std::int64_t>(v1::DATA_TYPE_INT64, {1, 2, 3, 4}, {2, 2}));
  const EpisodeBatch batch = obtain(2, 3, {first, second});
  EXPECT_EQ(values<std::int64_t>(batch.env_infos.at("x")), (Values<std::int64_t>{1, 0, 0}));
  EXPECT_EQ(batch.account->dropped_infos, (std::map<std::string, std::uint64_t>{{"x", 2}}));
}

TEST(Batches, FramesThatComeOnceMakeTheSameStacks) {
  auto message = batch_of({{4, 0, 2, true}, {5, 0, 1, true}});
  message.clear_observations();
  message.clear_last_observations();
  v1::FrameStack& stack = *message.add_frame_stacks();
  stack.set_name("camera");
  stack.set_frame_count(3);
  *stack.mutable_frames() = tensor<std::uint8_t>(v1::DATA_TYPE_UINT8, {1, 2, 3, 4, 5, 11, 12, 13, 14}, {9, 1});
  const EpisodeBatch batch = obtain(2, 3, {message});
  const auto& stacks = batch.observations.at("camera");
  EXPECT_EQ(stacks.shape(), (Shape{3, 3, 1}));
  EXPECT_EQ(values<std::uint8_t>(stacks), (Values<std::uint8_t>{1, 2, 3, 2, 3, 4, 11, 12, 13}));
  EXPECT_EQ(values<std::uint8_t>(batch.last_observations.at("camera")), (Values<std::uint8_t>{3, 4, 5, 12, 13, 14}));

  *stack.mutable_frames() = tensor(v1::DATA_TYPE_UINT8, Values<std::uint8_t>(8), {8, 1});
  const auto error = error_of<ServerError>([&] { obtain(2, 3, {message}); });
  EXPECT_NE(std::string(error.what()).find("expected 9 frames"), std::string::npos) << error.what();
}

/// Check a type as a column of a message, whose values do not change, and that other types refuse it.
template <class T>
void expect_exact(v1::DataType type, const Values<T>& numbers) {
  auto message = batch_of({{4, 0, static_cast<std::uint32_t>(numbers.size()), true}});
  add(*message.mutable_agent_infos(), "x", tensor(type, numbers, {static_cast<std::int64_t>(numbers.size())}));
  const EpisodeBatch batch = obtain(1, numbers.size(), {message});
  EXPECT_EQ(values<T>(batch.agent_infos.at("x")), numbers) << type;
  EXPECT_EQ(static_cast<int>(batch.agent_infos.at("x").data_type()), static_cast<int>(type));
  if constexpr (!std::is_same_v<T, double>) {
    EXPECT_THROW(batch.agent_infos.values<double>("x"), rollserve::InvalidArgumentError);
  }
}

template <class T>
Values<T> limits() {
  return {std::numeric_limits<T>::lowest(), std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
}

TEST(Batches, EveryDataTypeHasItsType) {
  expect_exact(v1::DATA_TYPE_INT8, limits<std::int8_t>());
  expect_exact(v1::DATA_TYPE_INT16, limits<std::int16_t>());
  expect_exact(v1::DATA_TYPE_INT32, limits<std::int32_t>());
  expect_exact(v1::DATA_TYPE_INT64, limits<std::int64_t>());
  expect_exact(v1::DATA_TYPE_UINT8, limits<std::uint8_t>());
  expect_exact(v1::DATA_TYPE_UINT16, limits<std::uint16_t>());
  expect_exact(v1::DATA_TYPE_UINT32, limits<std::uint32_t>());
  expect_exact(v1::DATA_TYPE_UINT64, limits<std::uint64_t>());
  expect_exact(v1::DATA_TYPE_FLOAT32, limits<float>());
  expect_exact(v1::DATA_TYPE_FLOAT64, limits<double>());
  auto message = batch_of({{4, 0, 2, true}});
  add(*message.mutable_agent_infos(), "x", tensor<std::uint8_t>(v1::DATA_TYPE_BOOL, {1, 0}, {2}));
  add(*message.mutable_agent_infos(), "y", tensor<std::uint16_t>(v1::DATA_TYPE_FLOAT16, {0x3c00, 1}, {2}));
  const EpisodeBatch batch = obtain(1, 2, {message});
  EXPECT_EQ(values<bool>(batch.agent_infos.at("x")), (std::vector<bool>{true, false}));
  const auto halves = batch.agent_infos.values<rollserve::Float16>("y");
  EXPECT_EQ(static_cast<float>(halves[0]), 1);
  EXPECT_EQ(static_cast<float>(halves[1]), 1.0f / (1 << 24));
}

TEST(Batches, MalformedOnesAreServerErrors) {
  using Spoil = std::function<void(v1::EpisodeBatch&)>;
  const std::vector<std::pair<std::string, Spoil>> cases = {
      {"rewards: expected 2 steps", [](auto& b) { b.set_lengths(0, 2); }},
      {"lengths: expected at least 1", [](auto& b) { b.set_lengths(0, 0); }},
      {"lengths: expected at least one segment", [](auto& b) { b.clear_lengths(); }},
      {"terminated: expected 1 values", [](auto& b) { b.clear_terminated(); }},
      {"truth values of 0 or 1",
       [](auto& b) { *b.mutable_actions(0)->mutable_tensor() = tensor<std::uint8_t>(v1::DATA_TYPE_BOOL, {2}, {1}); }},
      {"data: expected 8 bytes", [](auto& b) { b.mutable_rewards()->mutable_data()->pop_back(); }},
      {"product is at most 2^59",
       [](auto& b) {
         b.mutable_rewards()->set_shape(0, std::int64_t{1} << 31);
         b.mutable_rewards()->add_shape(std::int64_t{1} << 31);
       }},
      {"data_type: expected a member", [](auto& b) { b.mutable_rewards()->set_data_type(v1::DataType(99)); }},
      {"this name twice", [](auto& b) { *b.add_actions() = v1::NamedTensor(b.actions(0)); }},
      {"rows as in observations",
       [](auto& b) {
         *b.mutable_last_observations(0)->mutable_tensor() = tensor<std::int8_t>(v1::DATA_TYPE_INT8, {1}, {1});
       }},
      {"compression: expected a member", [](auto& b) { b.mutable_rewards()->set_compression(v1::Compression(99)); }},
      {"returns_before: expected 1 values", [](auto& b) { b.mutable_returns_before()->Resize(2, 0); }},
      {"raw_rewards: expected as rewards",
       [](auto& b) {
         *b.mutable_raw_rewards() = tensor<double>(v1::DATA_TYPE_FLOAT64, {1, 2}, {2});
       }},
      {"raw_rewards: expected as rewards",
       [](auto& b) { *b.mutable_raw_rewards() = tensor<float>(v1::DATA_TYPE_FLOAT32, {1}, {1}); }},
      {"raw_rewards.data: expected 8 bytes",
       [](auto& b) { *b.mutable_raw_rewards() = tensor<float>(v1::DATA_TYPE_FLOAT64, {1}, {1}); }},
      {"env_actions['']: expected 1 rows",
       [](auto& b) {
         add(*b.mutable_environment_actions(), "", tensor<std::int64_t>(v1::DATA_TYPE_INT64, {1, 2}, {2}));
       }},
      {"last_values: expected shape (1,)",
       [](auto& b) {
         *b.mutable_last_values() = tensor<float>(v1::DATA_TYPE_FLOAT32, {1}, {1, 1});
       }},
      {"last_values.shape: expected sizes whose product is at most 2^59",
       [](auto& b) {
         *b.mutable_last_values() = tensor<float>(v1::DATA_TYPE_FLOAT32, {}, {0, std::int64_t{1} << 60, 16});
       }},
      {"last_values.shape: expected sizes of at least 0",
       [](auto& b) {
         *b.mutable_last_values() = tensor<float>(v1::DATA_TYPE_FLOAT32, {1}, {-1, -1});
       }},
      {"last_states['h']: expected 1 rows",
       [](auto& b) {
         add(*b.mutable_last_states(), "h", tensor<float>(v1::DATA_TYPE_FLOAT32, {1, 2}, {2}));
       }},
      {"enough bytes for 268435448",
       [](auto& b) {
         b.mutable_rewards()->set_compression(v1::COMPRESSION_LZ4);
         b.mutable_rewards()->set_shape(0, (1 << 25) - 1);
       }},
  };
  for (const auto& [text, spoil] : cases) {
    auto message = batch_of({{4, 0, 1, true}});
    spoil(message);
    const auto error = error_of<ServerError>([&, &spoilt = message] { obtain(1, 1, {spoilt}); });
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << text << ": " << error.what();
  }
  const auto error = error_of<ServerError>([] { obtain(2, 1, {batch_of({{4, 0, 1, true}})}); });
  EXPECT_NE(std::string(error.what()).find("account: expected"), std::string::npos) << error.what();
}

TEST(Batches, CompressedColumnsAreTheSame) {
  auto message = batch_of({{4, 0, 4000, true}});
  v1::Tensor& column = *message.mutable_observations(0)->mutable_tensor();
  const std::string plain = column.data();
  std::string lz4(static_cast<std::size_t>(LZ4_compressBound(static_cast<int>(plain.size()))), '\0');
  lz4.resize(static_cast<std::size_t>(
      LZ4_compress_default(plain.data(), lz4.data(), static_cast<int>(plain.size()), static_cast<int>(lz4.size()))));
  std::string zstd(ZSTD_compressBound(plain.size()), '\0');
  zstd.resize(ZSTD_compress(zstd.data(), zstd.size(), plain.data(), plain.size(), 1));
  for (const auto& [compression, data] : {std::pair{v1::COMPRESSION_LZ4, lz4}, std::pair{v1::COMPRESSION_ZSTD, zstd}}) {
    column.set_compression(compression);
    column.set_data(data);
    const EpisodeBatch batch = obtain(1, 4000, {message});
    EXPECT_EQ(batch.observations.values<float>()[3999], 4399);
    for (const std::string& spoilt : {data.substr(0, data.size() / 2), data + "abc"}) {
      column.set_data(spoilt);
      const auto error = error_of<ServerError>([&] { obtain(1, 4000, {message}); });
      EXPECT_NE(std::string(error.what()).find("data: expected 16000 bytes"), std::string::npos) << error.what();
    }
  }
}

TEST(Batches, ConcatenationNamesWhatDoesNotFit) {
  const EpisodeBatch batch = obtain(1, 1, {batch_of({{4, 0, 1, true}})});
  EpisodeBatch other = batch;
  other.actions = rollserve::Columns{{"", rollserve::Array(std::vector<float>{1})}};
  EXPECT_EQ(EpisodeBatch::concatenate({batch, batch}).num_steps(), 2u);
  const auto error = error_of<rollserve::InvalidArgumentError>([&] { EpisodeBatch::concatenate({batch, other}); });
  EXPECT_NE(std::string(error.what()).find("actions['']"), std::string::npos) << error.what();
  EXPECT_THROW(EpisodeBatch::concatenate({}), rollserve::InvalidArgumentError);
}

}  // namespace
