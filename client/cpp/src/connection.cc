#include "connection.h"

#include <arpa/inet.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <sstream>
#include <utility>

#include "failures.h"
#include "rollserve/grpc.h"

namespace rollserve {

namespace internal {

namespace {

constexpr std::uint32_t max_message_limit = 256u << 20;  // the wire contract has no larger messages
constexpr int min_received_bytes = 4 << 20;  // gRPC's own limit, which messages that are not streamed may have

bool is_encrypted(const Config& config) {
  return config.tls || !(config.ca.empty() && config.cert.empty() && config.key.empty());
}

bool has_token(const Config& config) { return !(config.token.empty() && config.token_file.empty()); }

bool has_prefix(const std::string& text, const std::string& prefix) { return text.rfind(prefix, 0) == 0; }

bool is_socket_path(const std::string& target) {
  return has_prefix(target, "unix:") || has_prefix(target, "unix-abstract:");
}

/// Return the host of a target in small letters, such as `localhost` or `[::1]`, without a scheme and the port.
std::string host_of(std::string target) {
  for (const char* scheme : {"dns:", "ipv4:", "ipv6:"}) {
    if (has_prefix(target, scheme)) {
      target.erase(0, std::string(scheme).size());
      break;
    }
  }
  if (has_prefix(target, "//"))
    target.erase(0, std::min(target.find('/', 2), target.size() - 1) + 1);  // of the resolver
  const auto colon = target.rfind(':');
  if (colon != std::string::npos && target.find(']', colon) == std::string::npos) target.erase(colon);
  std::transform(target.begin(), target.end(), target.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return target;
}

/// Whether a target is on this machine, so that nobody in the network reads what is sent there.
bool is_local(const std::string& target) {
  if (is_socket_path(target)) return true;
  const std::string host = host_of(target);
  if (host == "localhost" || host == "[::1]") return true;
  in_addr address{};  // names can begin with 127., too
  return has_prefix(host, "127.") && inet_pton(AF_INET, host.c_str(), &address) == 1;
}

/// Return the first of some environment variables that is set; nullptr if none is.
const char* first_set(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return name;
  }
  return nullptr;
}

/// Return the environment variable with the proxy that gRPC takes on the way to a target; empty for none.
std::string proxy_variable_of(const std::string& target) {
  const char* const proxy = first_set({"grpc_proxy", "https_proxy", "http_proxy"});
  if (proxy == nullptr || is_local(target)) return "";
  const char* const exceptions = first_set({"no_grpc_proxy", "no_proxy"});
  std::istringstream suffixes(exceptions == nullptr ? "" : std::getenv(exceptions));
  const std::string host = host_of(target);
  for (std::string suffix; std::getline(suffixes, suffix, ',');) {
    suffix = host_of(suffix);
    if (suffix.size() <= host.size() && host.compare(host.size() - suffix.size(), suffix.size(), suffix) == 0)
      return "";
  }
  return proxy;
}

std::string read_file(const char* field, const std::string& path, const char* expected) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (file) content << file.rdbuf();
  if (!file) raise_invalid(field, expected, path + ", which cannot be read");
  return content.str();
}

/// Return what is in PEM format: a text as it is, or the content of the file at a path. Errors do not show it.
std::string read_pem(const char* field, const std::string& source, const char* label, const char* expected) {
  if (source.empty()) return "";
  const bool is_text = source.find("-----BEGIN ") != std::string::npos;
  std::string content = is_text ? source : read_file(field, source, expected);
  if (content.find(std::string(label) + "-----") == std::string::npos) {
    raise_invalid(field, expected, is_text ? "another text in PEM format" : source);
  }
  return content;
}

/// Return the token for a call; errors do not show it.
std::string token_of(const Config& config) {
  const char* const field = config.token_file.empty() ? "token" : "token_file";
  std::string token = config.token;
  if (!config.token_file.empty()) {
    token = read_file(field, config.token_file, "a file with a token");
    const char* const blanks = " \t\r\n";
    token.erase(0, std::min(token.find_first_not_of(blanks), token.size()));
    token.erase(token.find_last_not_of(blanks) + 1);
  }
  const bool is_printable = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (token.empty() || !is_printable) {
    raise_invalid(field, "a token: printable characters of ASCII without blanks",
                  token.empty() ? "nothing" : "another text");
  }
  return token;
}

void warn_on_standard_error(const std::string& warning) { std::cerr << "rollserve: " << warning << '\n'; }

void check(const Config& config) {
  if (config.timeout <= Milliseconds::zero()) {
    raise_invalid("timeout", "a positive time", text_of(config.timeout));
  }
  if (config.max_message_bytes == 0 || config.max_message_bytes > max_message_limit) {
    raise_invalid("max_message_bytes", "from 1 to 256 MiB", std::to_string(config.max_message_bytes));
  }
  if (!config.token.empty() && !config.token_file.empty()) {
    raise_invalid("token", "either token or token_file", "both");
  }
  if (config.cert.empty() != config.key.empty()) {
    raise_invalid(config.cert.empty() ? "cert" : "key", "both cert and key, or neither", "one of them");
  }
  if (has_token(config)) token_of(config);
}

void check(const std::string& target, const Config& config) {
  if (target.empty()) raise_invalid("target", "HOST:PORT, such as 127.0.0.1:50051", "nothing");
  check(config);
  if (has_token(config) && !is_encrypted(config) && !is_local(target)) {
    raise_invalid("token",
                  "an encrypted connection, because others in the network could read the token (give tls or ca)",
                  "none to " + target);
  }
}

std::shared_ptr<grpc::ChannelCredentials> credentials_of(const Config& config) {
  if (!is_encrypted(config)) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = read_pem("ca", config.ca, "CERTIFICATE", "certificates in PEM format");
  options.pem_cert_chain = read_pem("cert", config.cert, "CERTIFICATE", "a certificate in PEM format");
  options.pem_private_key = read_pem("key", config.key, "PRIVATE KEY", "a private key in PEM format");
  return grpc::SslCredentials(options);
}

}  // namespace

Connection::Connection(const std::string& target, const Config& config)
    : config_(config), own_versions_(config.shared) {
  check(target, config);
  if (!config_.warn) config_.warn = warn_on_standard_error;
  contact_.proxy_variable = proxy_variable_of(target);
  channel_ = grpc::CreateCustomChannel(target, credentials_of(config), channel_arguments(target, config));
}

Connection::Connection(std::shared_ptr<grpc::Channel> channel, const Config& config)
    : config_(config), channel_(std::move(channel)), own_versions_(config.shared) {
  check(config);
  if (is_encrypted(config)) raise_invalid("tls", "no TLS beside a channel, which has its own credentials", "some");
  if (!config_.warn) config_.warn = warn_on_standard_error;
}

std::shared_ptr<CallControl> Connection::open_call(const std::optional<Cancellation>& cancellation) {
  auto control = std::make_shared<CallControl>();
  calls_.add(control);
  if (cancellation) cancellation->calls_->add(control);
  return control;
}

void Connection::prepare(grpc::ClientContext& context) const {
  if (has_token(config_)) context.AddMetadata("authorization", "Bearer " + token_of(config_));
  if (!config_.sampler.empty()) context.AddMetadata("rollserve-sampler", config_.sampler);
}

Milliseconds Connection::timeout_of(std::optional<Milliseconds> timeout) const {
  if (timeout && *timeout <= Milliseconds::zero()) raise_invalid("timeout", "a positive time", text_of(*timeout));
  return timeout.value_or(config_.timeout);
}

void Connection::receive_answer(const std::string& name, const std::string& request, const CallOptions& options,
                                Milliseconds work, const std::function<Rpc::Outcome(Rpc&)>& read) {
  const Milliseconds timeout = timeout_of(options.timeout);
  const bool has_work = !options.timeout && timeout < Milliseconds::max() - work;
  const TimeLimits limits(timeout, has_work ? timeout + work : timeout);
  const auto control = open_call(options.cancellation);
  Interruptions interruptions(contact_, limits);
  while (true) {
    Rpc rpc(*this, *control, limits.until, name, request);
    const bool has_answer = read(rpc) == Rpc::Outcome::Message;
    if (has_answer && read(rpc) == Rpc::Outcome::Message) throw Malformed("answer", "one", "several");
    if (rpc.is_ok()) {
      if (!has_answer) throw Malformed("answer", "one", "none");
      contact_.was_made = true;
      return;
    }
    if (control->is_cancelled()) control->raise_cancelled();
    const Failure failure = rpc.failure();
    if (failure.details.code == StatusCode::DeadlineExceeded && failure.details.reason.empty()) {
      if (interruptions.last()) raise(*interruptions.last());  // the last attempt had only the rest of the time
      raise({"timeout: no answer for " + text_of(*limits.deadline), {StatusCode::DeadlineExceeded, "", "timeout", ""}});
    }
    interruptions.pause(*control, failure, false, false);
  }
}

}  // namespace internal

grpc::ChannelArguments channel_arguments(const std::string& target, const Config& config) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(
      std::max(static_cast<int>(config.max_message_bytes), internal::min_received_bytes));
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit, because a long update brings no data
  // A server that is back should be noticed soon; gRPC's own pauses grow to two minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // Another connection of this process to a server that was away would otherwise share the pause before the next
  // attempt.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (internal::is_local(target))
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // which has another loopback address
  return arguments;
}

Sampler connect(std::shared_ptr<grpc::Channel> channel, const Config& config) {
  return Sampler(std::make_shared<internal::Connection>(std::move(channel), config));
}

std::shared_ptr<grpc::Channel> channel_of(const Sampler& sampler) { return sampler.connection().channel(); }

void prepare(const Sampler& sampler, grpc::ClientContext& context) { sampler.connection().prepare(context); }

}  // namespace rollserve
