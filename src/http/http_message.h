#pragma once

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

}  // namespace kintsugi
