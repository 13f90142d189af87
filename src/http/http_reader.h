#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/connection.h"
#include "http/http_handler.h"

namespace kintsugi {

// The request line and the header fields.
struct HttpHead {
  std::string method, target;
  bool persistent = true;  // HTTP/1.1, and the client does not ask to close the connection
  bool chunks = true;      // HTTP/1.1: the client can read a reply in chunks
  std::vector<std::pair<std::string, std::string>> fields = {};  // names in lower case

  std::size_t count(std::string_view name) const;
  std::string value(std::string_view name) const;  // of the first; "": none
  bool has_body() const { return count("content-length") + count("transfer-encoding") > 0; }
  // Without the body.
  HttpRequest request() const;
};

// Reads requests of HTTP/1.0 and 1.1. Whatever two readers could understand differently is an
// error: a proxy in front of this server must see the same requests.
class HttpReader {
 public:
  HttpReader(Connection& connection, std::size_t max_body)
      : connection_(connection), max_body_(max_body) {}

  // None: the client has left. HttpError: it is not a valid request, too long or too slow.
  std::optional<HttpHead> head();
  // What is wrong with the fields that describe the body.
  std::optional<HttpError> wrong_body(const HttpHead& head) const;
  // HttpError if it is too long, too slow or incomplete.
  std::string body(const HttpHead& head);

 private:
  std::string line();
  std::vector<std::pair<std::string, std::string>> fields();
  void append(std::string& text, std::size_t count);
  std::string chunks();
  [[noreturn]] void incomplete() const;
  HttpError too_large() const;

  Connection& connection_;
  std::size_t max_body_;  // bytes
  bool in_body_ = false;
};

}  // namespace kintsugi
