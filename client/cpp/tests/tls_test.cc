#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "scripted_server.h"

namespace {

namespace fs = std::filesystem;
using rollserve::InvalidArgumentError;

std::string content_of(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

/// A folder with the certificate of a server at 127.0.0.1, which is its own authority.
class Certificate {
 public:
  Certificate() {
    std::string name = ::testing::TempDir() + "rollserve-tls-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        "-subj /CN=test -addext subjectAltName=IP:127.0.0.1 -keyout '" +
        key().string() + "' -out '" + ca().string() + "' 2>/dev/null";
    is_made_ = std::system(command.c_str()) == 0;
  }
  ~Certificate() { fs::remove_all(folder_); }

  bool is_made() const { return is_made_; }
  fs::path ca() const { return folder_ / "ca.pem"; }
  fs::path key() const { return folder_ / "key.pem"; }
  std::shared_ptr<grpc::ServerCredentials> credentials() const {
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back({content_of(key()), content_of(ca())});
    return grpc::SslServerCredentials(options);
  }

 private:
  fs::path folder_;
  bool is_made_ = false;
};

TEST(Tls, ConnectsToKnownServersOnly) {
  const Certificate own;
  const Certificate other;
  if (!own.is_made() || !other.is_made()) GTEST_SKIP() << "the command openssl makes no certificate here";
  const ScriptedServer encrypted({one_step(), one_step()}, own.credentials());
  const ScriptedServer plain({});
  const auto call = [](const std::string& target, const fs::path& ca) {
    rollserve::Config config;
    config.ca = ca;
    rollserve::connect(target, config).obtain_samples(1);
  };
  EXPECT_NO_THROW(call(encrypted.address(), own.ca()));
  EXPECT_NO_THROW(call(encrypted.address(), content_of(own.ca())));
  const std::string by_name = "localhost" + encrypted.address().substr(encrypted.address().find(':'));
  struct Wrong {
    std::string target;
    fs::path ca;
    std::string field;
  };
  for (const auto& [target, ca, field] :
       {Wrong{encrypted.address(), other.ca(), "ca"}, Wrong{by_name, own.ca(), "target"},
        Wrong{plain.address(), own.ca(), "target"}}) {
    const auto error = error_of<InvalidArgumentError>([&, &t = target, &c = ca] { call(t, c); });
    EXPECT_EQ(error.field(), field) << target << ": " << error.what();
    EXPECT_EQ(error.reason(), rollserve::reason::TLS_FAILED) << target << ": " << error.what();
  }
  const auto error = error_of<rollserve::UnavailableError>([&] { encrypted.connect().obtain_samples(1); });
  EXPECT_NE(std::string(error.what()).find("give `ca`"), std::string::npos) << error.what();
}

TEST(Tls, TakesTheAuthoritiesOfTheSystem) {
  const Certificate own;
  if (!own.is_made()) GTEST_SKIP() << "the command openssl makes no certificate here";
  const ScriptedServer encrypted({one_step()}, own.credentials());
  ::setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", own.ca().c_str(),
           1);  // read once by a process, and tests have their own
  rollserve::Config config;
  config.tls = true;
  config.token = "secret";
  EXPECT_NO_THROW(encrypted.connect(config).obtain_samples(1));
  EXPECT_NO_THROW(rollserve::connect("server.lab:50051", config));
}

TEST(Tls, RefusesFilesThatItCannotUse) {
  const auto field = [](rollserve::Config config) {
    return error_of<InvalidArgumentError>([&] { rollserve::connect("127.0.0.1:1", config); }).field();
  };
  rollserve::Config config;
  config.ca = "/no/such/file";
  EXPECT_EQ(field(config), "ca");
  config.ca = ROLLSERVE_PROTOS "/rollserve/v1/tensor.proto";
  EXPECT_EQ(field(config), "ca");
  config.ca = "-----BEGIN PRIVATE KEY-----";
  const auto shown = error_of<InvalidArgumentError>([&] { rollserve::connect("127.0.0.1:1", config); });
  EXPECT_EQ(shown.field(), "ca");
  EXPECT_EQ(std::string(shown.what()).find("PRIVATE"), std::string::npos) << shown.what();
  config = {};
  config.cert = "client.pem";
  EXPECT_EQ(field(config), "key");
}

}  // namespace
