#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>

#include "rollserve/options.h"
#include "rollserve/sampler.h"

/// @file
/// Connections of programs that use gRPC themselves. rollserve.h does not include this header, whose users find and
/// link gRPC on their own.

namespace rollserve {

/// Return what connect() gives to the channel that it makes: sizes of messages, pings and pauses between attempts.
grpc::ChannelArguments channel_arguments(const std::string& target, const Config& config = {});

/// Return a client that calls through a channel with any credentials, arguments and interceptors. The channel has to
/// encrypt what a token is sent with.
///
/// @throws InvalidArgumentError for a configuration that cannot be used, such as one with `tls`, `ca` or `cert`.
Sampler connect(std::shared_ptr<grpc::Channel> channel, const Config& config = {});

/// Return a client's channel, for stubs of the program's own. Sampler::close() does not close it.
std::shared_ptr<grpc::Channel> channel_of(const Sampler& sampler);

/// Add what a client's calls have as metadata to the call of such a stub: the token, and the name of the sampler.
///
/// @throws InvalidArgumentError for a file that has no token any more.
void prepare(const Sampler& sampler, grpc::ClientContext& context);

}  // namespace rollserve
