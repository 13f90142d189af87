#include "http/http_message.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace kintsugi {

std::optional<std::string> HttpRequest::parameter(std::string_view name) const {
  for (const auto& [key, value] : query)
    if (key == name) return value;
  return {};
}

std::vector<std::string> HttpRequest::parameters(std::string_view name) const {
  std::vector<std::string> values;
  for (const auto& [key, value] : query)
    if (key == name) values.push_back(value);
  return values;
}

void bad_field(std::string_view field, std::string_view message) {
  throw HttpError(400, "invalid_value", fmt::format("{}: {}", field, message));
}

HttpReply error_reply(const HttpError& error) {
  const char* type = error.status() == 401   ? "authentication_error"
                     : error.status() == 403 ? "permission_error"
                     : error.status() == 404 ? "not_found_error"
                     : error.status() == 429 ? "rate_limit_error"
                     : error.status() >= 500 ? "server_error"
                                             : "invalid_request_error";
  const nlohmann::ordered_json body = {
      {"error", {{"message", error.what()}, {"type", type}, {"code", error.code()}}}};
  HttpReply reply{.status = error.status(),
                  .body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
  if (error.status() == 429 || error.status() == 503) reply.headers = {{"Retry-After", "1"}};
  if (error.status() == 401) reply.headers = {{"WWW-Authenticate", "Bearer"}};
  return reply;
}

}  // namespace kintsugi
