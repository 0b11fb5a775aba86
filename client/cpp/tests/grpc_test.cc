#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/client_interceptor.h>
#include <gtest/gtest.h>
#include <rollserve/grpc.h>

#include <atomic>

#include "scripted_server.h"

namespace {

using rollserve::InvalidArgumentError;

/// An interceptor that counts calls.
class Counting : public grpc::experimental::ClientInterceptorFactoryInterface, grpc::experimental::Interceptor {
 public:
  explicit Counting(std::atomic<int>& count) : count_(count) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo* info) override {
    last_method = info->method();
    return new Counting(count_);
  }
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) ++count_;
    methods->Proceed();
  }

  static std::string last_method;

 private:
  std::atomic<int>& count_;
};

std::string Counting::last_method;

TEST(Channels, OfTheProgramCarryAllCalls) {
  const ScriptedServer server({one_step()});
  std::atomic<int> count{0};
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(std::make_unique<Counting>(count));
  auto channel = grpc::experimental::CreateCustomChannelWithInterceptors(
      server.address(), grpc::InsecureChannelCredentials(), rollserve::channel_arguments(server.address()),
      std::move(interceptors));
  rollserve::Config config;
  config.token = "secret";
  rollserve::Sampler sampler = rollserve::connect(channel, config);
  EXPECT_EQ(rollserve::channel_of(sampler), channel);
  EXPECT_EQ(sampler.obtain_samples(1).num_steps(), 1u);
  EXPECT_EQ(Counting::last_method, "/rollserve.v1.SamplerService/ObtainSamples");
  sampler.status();
  EXPECT_EQ(count, 2);
  EXPECT_EQ(server.metadata.at(0).find("authorization")->second, "Bearer secret");
  config.tls = true;
  EXPECT_EQ(error_of<InvalidArgumentError>([&] { rollserve::connect(channel, config); }).field(), "tls");
}

TEST(Channels, CarryStubsOfTheProgramToo) {
  const ScriptedServer server({});
  rollserve::Config config;
  config.sampler = "name";
  const rollserve::Sampler sampler = server.connect(config);
  const auto stub = v1::SamplerService::NewStub(rollserve::channel_of(sampler));
  grpc::ClientContext context;
  rollserve::prepare(sampler, context);
  v1::GetSamplerResponse response;
  EXPECT_TRUE(stub->GetSampler(&context, {}, &response).ok());
  EXPECT_EQ(response.action_space().discrete().n(), 2);
  EXPECT_EQ(server.metadata.at(0).find("rollserve-sampler")->second, "name");
}

TEST(Calls, ByNameHaveSerializedMessages) {
  ScriptedServer server({});
  rollserve::Sampler sampler = server.connect();
  v1::CallEnvironmentsRequest request;
  request.set_method("level");
  v1::CallEnvironmentsResponse response;
  ASSERT_TRUE(response.ParseFromString(sampler.call("CallEnvironments", request.SerializeAsString())));
  EXPECT_EQ(response.values_json(0), "[1, 2]");
  EXPECT_EQ(server.env_calls.at(0).method(), "level");
  const auto unknown = error_of<InvalidArgumentError>([&] { sampler.call("NoSuchCall", ""); });
  EXPECT_EQ(unknown.code(), rollserve::StatusCode::Unimplemented);
  server.unary = failure(grpc::StatusCode::FAILED_PRECONDITION, "NO_AGENT");
  EXPECT_EQ(error_of<rollserve::PreconditionError>([&] { sampler.call("GetSampler", ""); }).reason(), "NO_AGENT");
}

}  // namespace
