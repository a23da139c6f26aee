#include "page_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera {
namespace {

class Socket {
 public:
  explicit Socket(int handle) : handle_(handle) {}
  ~Socket() {
    if (handle_ >= 0) ::close(handle_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int handle() const { return handle_; }

 private:
  int handle_;
};

// Up to the end of the header; whoever sends more, or nothing for seconds, is hung up on.
std::string request_of(int handle) {
  constexpr std::size_t longest = 16384;
  std::string text;
  char buffer[2048];
  while (text.size() < longest && text.find("\r\n\r\n") == std::string::npos) {
    const ssize_t got = ::recv(handle, buffer, sizeof buffer, 0);
    if (got <= 0) break;
    text.append(buffer, static_cast<std::size_t>(got));
  }
  return text;
}

void send_all(int handle, const std::string& text) {
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t now = ::send(handle, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (now <= 0) return;  // the browser has gone
    sent += static_cast<std::size_t>(now);
  }
}

std::string answer(const char* status, const char* type, const std::string& body) {
  return concat("HTTP/1.1 ", status, "\r\nContent-Type: ", type, "; charset=utf-8\r\nContent-Length: ", body.size(),
                "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n", body);
}

// Pages of other sites may make a browser ask us, under their own name.
bool asks_this_machine(const std::string& request) {
  for (const char* host : {"\r\nHost: 127.0.0.1:", "\r\nHost: localhost:"})
    if (request.find(host) != std::string::npos) return true;
  return false;
}

}  // namespace

void serve_page(int port, const std::function<void(int)>& started, const std::function<std::string()>& make_page) {
  const Socket listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(listener.handle(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  require(::bind(listener.handle(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
              ::listen(listener.handle(), 8) == 0 &&
              ::getsockname(listener.handle(), reinterpret_cast<sockaddr*>(&address), &length) == 0,
          "--port ", port, ": ", std::strerror(errno), "; choose another one, or 0 for any that is free");
  started(ntohs(address.sin_port));
  for (;;) {
    const Socket client(::accept4(listener.handle(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client.handle() < 0) continue;
    const timeval patience{.tv_sec = 5, .tv_usec = 0};
    ::setsockopt(client.handle(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(client.handle(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    const std::string request = request_of(client.handle());
    if (!request.starts_with("GET / ") || !asks_this_machine(request)) {
      send_all(client.handle(), answer("404 Not Found", "text/plain", "there is one page here: /\n"));
      continue;
    }
    try {
      send_all(client.handle(), answer("200 OK", "text/html", make_page()));
    } catch (const Error& error) {  // the log may just be moving
      send_all(client.handle(), answer("503 Service Unavailable", "text/plain", concat(error.what(), "\n")));
    }
  }
}

}  // namespace tessera
