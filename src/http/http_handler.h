#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kintsugi {

// A request and its reply, apart from the socket.
struct HttpRequest {
  std::string method, path, body = {};
  std::string authorization = {}, origin = {}, host = {};             // headers
  std::vector<std::pair<std::string, std::string>> query = {};        // decoded
  std::optional<std::string> parameter(std::string_view name) const;  // the first of the query
  std::vector<std::string> parameters(std::string_view name) const;   // all of them
};

struct HttpReply {
  // Sends one piece of a stream. False: the client is gone or reads too slowly.
  using Write = std::function<bool(std::string_view)>;

  int status = 200;
  std::string body = {}, content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::function<void(const Write&)> stream = {};  // instead of the body
};

// Becomes a reply {"error": {"message", "type", "code"}}.
class HttpError : public std::runtime_error {
 public:
  HttpError(int status, std::string code, const std::string& message)
      : std::runtime_error(message), status_(status), code_(std::move(code)) {}
  int status() const { return status_; }
  const std::string& code() const { return code_; }

 private:
  int status_;
  std::string code_;
};
// 400, with the field in front of the message.
[[noreturn]] void bad_field(std::string_view field, std::string_view message);

HttpReply error_reply(const HttpError& error);

struct HttpRoute {
  const char* method;
  const char* path;
  bool is_public = false;  // needs no key
};

// Who may ask a service for what.
struct HttpAccess {
  std::vector<HttpRoute> routes = {};
  std::string key = {};  // empty: none is needed
  // A query may have the key, as token=KEY, for clients that cannot send headers.
  bool key_in_query = false;
  std::string cors_origin = {};  // other sites whose pages may use the service; empty: none
  HttpError wrong_key{401, "invalid_api_key",
                      "a valid API key is required: send the header Authorization: Bearer KEY"};
  std::string cors_remedy = {};  // ends the message to pages of other sites
};

// A service that answers HTTP requests, apart from sockets. Thread-safe.
class HttpHandler {
 public:
  explicit HttpHandler(HttpAccess access) : access_(std::move(access)) {}
  virtual ~HttpHandler() = default;
  HttpHandler(const HttpHandler&) = delete;
  HttpHandler& operator=(const HttpHandler&) = delete;

  // Never throws. `gone` says whether the client has left; it is called now and then while the
  // reply is computed, also by the stream of the reply.
  virtual HttpReply handle(const HttpRequest& request, std::function<bool()> gone) = 0;

  // The reply to a request that can be refused without its body: wrong path, method, key or site.
  std::optional<HttpReply> refusal(const HttpRequest& request) const;

  void drain() { draining_ = true; }  // refuse new work; what runs goes on
  void abort() { aborting_ = true; }  // end what runs, with an error
  bool draining() const { return draining_; }
  // The server listens on this name or address of the machine itself: refuse requests for other
  // hosts. Otherwise a web page could have its own name resolved to this machine.
  void set_local_host(std::string host) { local_host_ = std::move(host); }
  // The server listens on an address that other machines reach. Without a key it answers requests
  // for addresses and for these names only: a web page can have its own name resolved to this
  // machine, but has no key.
  void set_public_hosts(std::vector<std::string> names) { public_hosts_ = std::move(names); }
  void set_connections(std::function<std::int64_t()> count) { connections_ = std::move(count); }

 protected:
  // The refusal, or what `route` returns; exceptions become error replies.
  HttpReply reply_to(const HttpRequest& request, const std::function<HttpReply()>& route) const;
  bool has_route(const std::string& path) const;
  const std::atomic<bool>& aborting() const { return aborting_; }
  std::int64_t connections() const { return connections_(); }

 private:
  void check_client(const HttpRequest& request, const HttpRoute& route) const;
  bool serves_host(const std::string& host) const;
  bool serves_public_host(const std::string& name) const;
  bool has_key(const HttpRequest& request) const;

  HttpAccess access_;
  std::function<std::int64_t()> connections_ = [] { return 0; };
  std::optional<std::string> local_host_;
  std::optional<std::vector<std::string>> public_hosts_;
  std::atomic<bool> draining_ = false, aborting_ = false;
};

// A page, with headers that keep it from loading anything or being framed. "NONCE" in it becomes a
// new number: only scripts and styles with that number run.
HttpReply page_reply(std::string_view html);

}  // namespace kintsugi
