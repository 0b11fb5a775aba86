#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "errors.h"
#include "rows.h"

namespace rollserve::host {

namespace {

constexpr std::uint32_t protocol_version = 1;
constexpr std::uint32_t max_message_bytes = INT_MAX;  // protobuf's own limit

[[noreturn]] void fail(const char* call) { throw std::system_error(errno, std::generic_category(), call); }

/// Read as many bytes, and return whether they came before the end of the stream.
bool read_bytes(int socket, char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t count = recv(socket, bytes, size, 0);
    if (count == 0) return false;
    if (count < 0 && errno != EINTR) fail("recv");
    if (count < 0) continue;
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

void write_bytes(int socket, const char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t count = send(socket, bytes, size, MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) fail("send");
    if (count < 0) continue;
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
}

/// Read the next message, and return whether one came before the end of the stream.
bool read_message(int socket, std::string& message) {
  unsigned char head[4];
  if (!read_bytes(socket, reinterpret_cast<char*>(head), sizeof head)) return false;
  const std::uint32_t size = head[0] | head[1] << 8 | head[2] << 16 | static_cast<std::uint32_t>(head[3]) << 24;
  expect(size <= max_message_bytes, "length", "at most " + std::to_string(max_message_bytes), std::to_string(size));
  message.resize(size);
  return read_bytes(socket, message.data(), size);
}

template <typename Message>
void write_message(int socket, const Message& message) {
  std::string bytes(4, '\0');
  message.AppendToString(&bytes);
  const std::size_t size = bytes.size() - 4;
  for (std::size_t i = 0; i < 4; ++i) bytes[i] = static_cast<char>(size >> 8 * i & 0xff);
  write_bytes(socket, bytes.data(), bytes.size());
}

/// Serve the worker at the other end of a socket until the connection ends, and return the exit status.
int serve_worker(const Host& host, int socket) {
  try {
    rows::v1::Hello hello;
    hello.set_protocol_version(protocol_version);
    hello.set_name(host.name);
    hello.mutable_versions()->insert(host.versions.begin(), host.versions.end());
    write_message(socket, hello);
    Rows rows(host);
    for (std::string message; read_message(socket, message);) write_message(socket, rows.answer(message));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: the connection ends: %s\n", host.name.c_str(), error.what());
    return 1;
  }
}

/// Return a socket that listens at HOST:PORT.
int listen_at(const std::string& address, std::size_t colon) {
  std::string name = address.substr(0, colon);
  if (name.size() > 1 && name.front() == '[' && name.back() == ']') name = name.substr(1, name.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.c_str(), address.c_str() + colon + 1, &hints, &found);
  expect(error == 0, "--listen", "HOST:PORT", "'" + address + "' (" + gai_strerror(error) + ")");
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  const int socket = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (socket < 0) fail("socket");
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(socket, found->ai_addr, found->ai_addrlen) != 0) fail("bind");
  if (::listen(socket, SOMAXCONN) != 0) fail("listen");
  return socket;
}

std::uint16_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) fail("getsockname");
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

/// Serve each worker that connects in a process of its own: environments may have global state, or crash.
[[noreturn]] void serve_all(const Host& host, const std::string& address) {
  const std::size_t colon = address.rfind(':');
  expect(colon != std::string::npos, "--listen", "HOST:PORT", "'" + address + "'");
  const int listener = listen_at(address, colon);
  std::printf("listening on %s:%u\n", address.substr(0, colon).c_str(), unsigned{port_of(listener)});
  std::fflush(stdout);
  std::signal(SIGCHLD, SIG_IGN);  // nobody waits for the processes
  for (;;) {
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (socket < 0) fail("accept");
    const pid_t process = fork();
    if (process < 0) fail("fork");
    if (process == 0) {
      close(listener);
      std::signal(SIGCHLD, SIG_DFL);
      const int on = 1;
      setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      std::exit(serve_worker(host, socket));
    }
    close(socket);
  }
}

}  // namespace

int serve(const Host& host, int argc, char** argv) {
  try {
    const char* descriptor = std::getenv("ROLLSERVE_ROWS_FD");
    if (argc == 1 && descriptor != nullptr) return serve_worker(host, std::stoi(descriptor));
    if (argc == 3 && std::strcmp(argv[1], "--listen") == 0) serve_all(host, argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", host.name.c_str(), error.what());
    return 2;
  }
  std::fprintf(stderr, "usage: %s --listen HOST:PORT, or ROLLSERVE_ROWS_FD=DESCRIPTOR %s\n", argv[0], argv[0]);
  return 2;
}

}  // namespace rollserve::host
