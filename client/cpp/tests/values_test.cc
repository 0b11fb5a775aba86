#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "rollserve/v1/errors.pb.h"
#include "scripted_server.h"

namespace {

// Whether a member of a T is there; a deleted one is not. A T is a temporary, a T& has a name.
#define ROLLSERVE_HAS(name, member)                                                     \
  template <class T, class = void>                                                      \
  constexpr bool has_##name = false;                                                    \
  template <class T>                                                                    \
  constexpr bool has_##name<T, std::void_t<decltype(std::declval<T>().member)>> = true; \
  template <class T>                                                                    \
  constexpr bool only_if_named_##name = has_##name<T&> && !has_##name<T>;

ROLLSERVE_HAS(bytes, bytes())
ROLLSERVE_HAS(mutable_bytes, mutable_bytes())
ROLLSERVE_HAS(values, template values<float>())
ROLLSERVE_HAS(mutable_values, template mutable_values<float>())
ROLLSERVE_HAS(find, find("x"))
ROLLSERVE_HAS(mask, mask("x"))
ROLLSERVE_HAS(begin, begin())
ROLLSERVE_HAS(account, account())
ROLLSERVE_HAS(warnings, warnings())
ROLLSERVE_HAS(arrow, operator->())

static_assert(only_if_named_bytes<rollserve::Array> && only_if_named_mutable_bytes<rollserve::Array>);
static_assert(only_if_named_values<rollserve::Array> && only_if_named_mutable_values<rollserve::Array>);
static_assert(only_if_named_values<rollserve::Columns> && only_if_named_mutable_values<rollserve::Columns>);
static_assert(only_if_named_find<rollserve::Columns> && only_if_named_mask<rollserve::Columns>);
static_assert(only_if_named_begin<rollserve::Columns> && only_if_named_begin<rollserve::Stream>);
static_assert(only_if_named_account<rollserve::Stream> && only_if_named_warnings<rollserve::Stream>);
static_assert(only_if_named_arrow<rollserve::Optional<rollserve::EpisodeBatch>>);
static_assert(only_if_named_arrow<rollserve::Stream::Iterator>);
// These have values of temporaries, and no references into them.
static_assert(std::is_same_v<decltype(std::declval<rollserve::Columns>().at("")), rollserve::Array>);
static_assert(std::is_same_v<decltype(std::declval<rollserve::Array>().shape()), rollserve::Shape>);
static_assert(std::is_same_v<decltype(std::declval<rollserve::Error>().reason()), std::string>);
static_assert(std::is_same_v<decltype(*std::declval<rollserve::Stream::Iterator>()), rollserve::EpisodeBatch>);

using rollserve::Array;
using rollserve::DataType;
using rollserve::Head;
using rollserve::InvalidArgumentError;
using rollserve::MlpAgent;
using rollserve::Shape;
using rollserve::Space;

/// Return the agent that an update sends.
v1::Agent sent(const rollserve::AgentUpdate& agent) {
  ScriptedServer server({});
  server.connect().update_agent(agent);
  return server.agents.at(0).all_workers().agent();
}

Space box(const Shape& shape) {
  return {rollserve::BoxSpace{DataType::Float32, shape, Array::scalar(0.0f), Array::scalar(1.0f)}};
}

TEST(Mlps, DescribeTheirParameters) {
  const Space pair{rollserve::DictSpace{{{"a", box({2, 3})}, {"b", {rollserve::DiscreteSpace{4}}}}}};
  MlpAgent agent = MlpAgent::initial(pair, box({2, 3}), {8}, 1);
  v1::MlpAgent mlp = sent(agent).mlp();
  EXPECT_EQ(std::vector<unsigned>(mlp.layer_sizes().begin(), mlp.layer_sizes().end()),
            (std::vector<unsigned>{10, 8, 6}));
  EXPECT_FALSE(mlp.diagonal_gaussian().predicted_log_std());
  EXPECT_EQ(mlp.activation(), v1::ACTIVATION_TANH);
  EXPECT_EQ(mlp.parameters().tensors(0).name(), "0/weight");
  EXPECT_EQ(mlp.parameters().tensors(0).tensor().data().size(), 8u * 10u * 4u);
  agent.parameters.take("log_std");
  EXPECT_TRUE(sent(agent).mlp().diagonal_gaussian().predicted_log_std());

  agent.parameters.set("core/weight_hh", Array::zeros(DataType::Float32, {16, 4}));
  agent.parameters.set("value/0/weight", Array::zeros(DataType::Float32, {5, 10}));
  agent.parameters.set("value/1/weight", Array::zeros(DataType::Float32, {1, 5}));
  agent.parameters.set("0/norm/weight", Array::zeros(DataType::Float32, {8}));
  mlp = sent(agent).mlp();
  EXPECT_EQ(mlp.lstm().size(), 4u);
  EXPECT_EQ(mlp.separate_value().hidden_sizes(0), 5u);
  EXPECT_TRUE(mlp.has_layer_norm() && !mlp.layer_norm().has_epsilon());
}

TEST(Mlps, RefuseWhatTheyCannotSend) {
  MlpAgent agent;
  EXPECT_EQ(error_of<InvalidArgumentError>([&] { sent(agent); }).field(), "parameters");
  agent.parameters.set("0/weight", Array::zeros(DataType::Float32, {3}));
  EXPECT_EQ(error_of<InvalidArgumentError>([&] { sent(agent); }).field(), "parameters['0/weight']");
  agent.parameters.set("0/weight", Array::zeros(DataType::Float32, {3, 2}));
  agent.temperature = 2;
  EXPECT_EQ(error_of<InvalidArgumentError>([&] { sent(agent); }).field(), "temperature");
  agent.head = Head::Boltzmann;
  EXPECT_EQ(sent(agent).mlp().boltzmann().temperature(), 2);
  EXPECT_THROW(MlpAgent::initial(box({1}), {rollserve::DictSpace{}}), InvalidArgumentError);
}

TEST(Mlps, NormalizeByTheirMoments) {
  MlpAgent agent = MlpAgent::initial(box({2}), {rollserve::DiscreteSpace{2}});
  EXPECT_FALSE(sent(agent).mlp().has_normalization());
  agent.normalization_clip = 5;
  EXPECT_EQ(error_of<InvalidArgumentError>([&] { sent(agent); }).field(), "normalization_clip");
  agent.parameters.set("observation/mean", Array::zeros(DataType::Float64, {2}));
  agent.parameters.set("observation/variance", Array::zeros(DataType::Float64, {2}));
  const v1::ObservationNormalization normalization = sent(agent).mlp().normalization();
  EXPECT_EQ(normalization.clip(), 5);
  EXPECT_FALSE(normalization.has_epsilon());
  agent.normalization_epsilon = 0.5;
  EXPECT_EQ(sent(agent).mlp().normalization().epsilon(), 0.5);
}

TEST(Agents, HaveActionMasks) {
  const rollserve::ActionMask info = rollserve::InfoMask{"legal"};
  EXPECT_EQ(sent(rollserve::RandomAgent{info}).random().action_mask().info(), "legal");
  const rollserve::ConstantAgent constant{{{"", Array::scalar(std::int64_t{1})}}, info};
  EXPECT_EQ(sent(constant).constant().action_mask().info(), "legal");
  rollserve::OnnxAgent onnx;
  EXPECT_FALSE(sent(onnx).onnx().has_action_mask());
  onnx.action_mask = info;
  EXPECT_EQ(sent(onnx).onnx().action_mask().info(), "legal");
  rollserve::PythonAgent python;
  python.action_mask = info;
  EXPECT_EQ(sent(python).python().action_mask().info(), "legal");
  MlpAgent mlp = MlpAgent::initial(box({2}), {rollserve::DiscreteSpace{2}});
  mlp.action_mask = rollserve::ObservationMask{"mask"};
  EXPECT_EQ(sent(mlp).mlp().action_mask().observation(), "mask");
}

TEST(Agents, AreChangedByPartsOfTheirSettings) {
  ScriptedServer server({});
  server.connect().update_agent(rollserve::AgentChange{"{\"gain\": 2}", {}});
  server.connect().update_agent(rollserve::AgentChange{{}, {{"w", Array::scalar(1.5)}}});
  const auto& settings = server.agents.at(0).all_workers().change();
  EXPECT_EQ(settings.kwargs_json(), "{\"gain\": 2}");
  EXPECT_FALSE(settings.has_parameters());
  EXPECT_EQ(server.agents.at(1).all_workers().change().parameters().tensors(0).name(), "w");
}

TEST(Environments, HaveTheirTransforms) {
  rollserve::EnvSpec env("CartPole-v1");
  env.text_info_bytes = 64;
  env.transforms = {rollserve::SignRewards{},
                    rollserve::ClipRewards{{}, 2},
                    rollserve::ScaleRewards{3, 4},
                    rollserve::RescaleActions{-5, {}},
                    rollserve::ClipActions{},
                    rollserve::CastObservations{DataType::Float64, {"a"}},
                    rollserve::ScaleObservations{6, 7, {"b"}},
                    rollserve::RescaleObservations{8, 9, {"c", "d"}},
                    rollserve::CropObservations{1, 2, 3, 4, true, {"e"}},
                    rollserve::ResizeObservations{5, 6, true, {"f"}},
                    rollserve::GrayscaleObservations{true, false, {"g"}},
                    rollserve::FlattenObservations{}};
  std::vector<v1::Transform> expected(12);
  expected[0].mutable_sign_rewards();
  expected[1].mutable_clip_rewards()->set_high(2);
  expected[2].mutable_scale_rewards()->set_factor(3);
  expected[2].mutable_scale_rewards()->set_offset(4);
  expected[3].mutable_rescale_actions()->set_low(-5);
  expected[4].mutable_clip_actions();
  expected[5].mutable_cast_observations()->set_data_type(v1::DATA_TYPE_FLOAT64);
  expected[5].mutable_cast_observations()->add_leaves("a");
  expected[6].mutable_scale_observations()->set_factor(6);
  expected[6].mutable_scale_observations()->set_offset(7);
  expected[6].mutable_scale_observations()->add_leaves("b");
  expected[7].mutable_rescale_observations()->set_low(8);
  expected[7].mutable_rescale_observations()->set_high(9);
  expected[7].mutable_rescale_observations()->add_leaves("c");
  expected[7].mutable_rescale_observations()->add_leaves("d");
  v1::CropObservations& crop = *expected[8].mutable_crop_observations();
  crop.set_top(1);
  crop.set_left(2);
  crop.set_height(3);
  crop.set_width(4);
  crop.set_channels_first(true);
  crop.add_leaves("e");
  v1::ResizeObservations& resize = *expected[9].mutable_resize_observations();
  resize.set_height(5);
  resize.set_width(6);
  resize.set_channels_first(true);
  resize.add_leaves("f");
  expected[10].mutable_grayscale_observations()->set_keep_channel(true);
  expected[10].mutable_grayscale_observations()->add_leaves("g");
  expected[11].mutable_flatten_observations();
  ScriptedServer server({});
  rollserve::Sampler sampler = server.connect();
  sampler.update_env(env);
  sampler.update_env(sampler.status().envs.at(0));  // what the server has tells of the same transforms
  for (const v1::UpdateEnvRequest& request : server.envs) {
    const v1::Environment& sent_env = request.all_workers().environment();
    EXPECT_EQ(sent_env.text_info_bytes(), 64u);
    ASSERT_EQ(static_cast<std::size_t>(sent_env.transforms_size()), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(sent_env.transforms(static_cast<int>(i)).SerializeAsString(), expected[i].SerializeAsString()) << i;
    }
  }
}

TEST(Agents, AreSentWithAllTheirFields) {
  rollserve::OnnxAgent onnx;
  onnx.model = "model";
  onnx.head = rollserve::OnnxHead::Actions;
  onnx.inputs = {{"observation", "x"}};
  onnx.infos = {"hidden"};
  const v1::OnnxAgent model = sent(onnx).onnx();
  EXPECT_TRUE(model.has_actions() && model.model() == "model" && model.infos(0) == "hidden");
  EXPECT_EQ(model.inputs().at("observation"), "x");
  rollserve::PythonAgent python;
  python.name = "mine";
  python.kwargs_json = "{}";
  python.parameters.set("w", Array(std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(sent(python).python().parameters().tensors(0).tensor().data_type(), v1::DATA_TYPE_INT32);
  const rollserve::ConstantAgent constant{{{"a/0", Array::scalar(std::int64_t{1})}}};
  EXPECT_EQ(sent(constant).constant().action(0).name(), "a/0");
  EXPECT_EQ(sent(constant).constant().action(0).tensor().shape_size(), 0);
}

TEST(Arrays, RefuseShapesThatDoNotFit) {
  EXPECT_THROW(Array(std::vector<float>(6), Shape{2, 2}), InvalidArgumentError);
  EXPECT_THROW(Array(std::vector<float>(4), Shape{-2, -2}), InvalidArgumentError);
  EXPECT_THROW(Array(std::vector<float>(), Shape{std::int64_t{1} << 62, 4, 0}), InvalidArgumentError);
  const Array array(std::vector<float>{0, 1, 2, 3, 4, 5}, {3, 2});
  EXPECT_EQ(values<float>(array.slice(1, 3)), (std::vector<float>{2, 3, 4, 5}));
  EXPECT_EQ(values<float>(array.gather({2, 0})), (std::vector<float>{4, 5, 0, 1}));
  EXPECT_EQ(array.text(), "float32 (3, 2)");
  EXPECT_THROW(array.slice(2, 4), InvalidArgumentError);
  EXPECT_THROW(array.gather({3}), InvalidArgumentError);
  EXPECT_THROW(Array::scalar(1.0).slice(0, 1), InvalidArgumentError);
  EXPECT_EQ(values<bool>(Array(std::vector<bool>{true, false})), (std::vector<bool>{true, false}));
}

TEST(Arrays, HalvesAreTheSameInSinglePrecision) {
  const auto single = [](std::uint16_t bits) { return static_cast<float>(rollserve::Float16{bits}); };
  EXPECT_EQ(single(0x3c00), 1);
  EXPECT_EQ(single(0xfbff), -65504);
  EXPECT_EQ(single(0x0001), 1.0f / (1 << 24));
  EXPECT_TRUE(single(0x8000) == 0 && std::signbit(single(0x8000)));
  EXPECT_TRUE(std::isinf(single(0x7c00)) && std::isnan(single(0x7e00)));
}

TEST(Spaces, HaveTheFlatSizeOfGymnasium) {
  const rollserve::MultiDiscreteSpace multi{DataType::Int32, Array(std::vector<std::int32_t>{3, 4}),
                                            Array(std::vector<std::int32_t>{0, 0})};
  const Space tuple{rollserve::TupleSpace{{{multi}, {rollserve::MultiBinarySpace{{2, 2}}}, box({5})}}};
  EXPECT_EQ(tuple.flat_size(), 16);
}

TEST(Reasons, AreThoseOfTheProtos) {
  std::ifstream header(ROLLSERVE_INCLUDE "/rollserve/reasons.h");
  std::stringstream text;
  text << header.rdbuf();
  for (int i = v1::ErrorReason_MIN; i <= v1::ErrorReason_MAX; ++i) {
    if (!v1::ErrorReason_IsValid(i)) continue;
    const std::string name(v1::ErrorReason_Name(i), std::string("ERROR_REASON_").size());
    const bool is_there = text.str().find(name + " = \"" + name + "\";") != std::string::npos;
    EXPECT_EQ(is_there, name != "UNSPECIFIED") << name;
  }
}

}  // namespace
