#include "http/http_handler.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.h"
#include "core/log.h"

namespace kintsugi {
namespace {

// The time does not depend on where they differ.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i] ^ secret[i % secret.size()]);
  return difference == 0;
}

// Without the port, in lower case.
std::string host_name(std::string_view host) {
  const std::size_t end = host.starts_with('[') ? host.find(']') : host.find(':');
  std::string name(host.substr(0, host.starts_with('[') && end != host.npos ? end + 1 : end));
  for (char& c : name)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return name;
}

}  // namespace

bool HttpHandler::serves_public_host(const std::string& name) const {
  const bool is_address =
      name.starts_with('[') || name.find_first_not_of("0123456789.") == name.npos;
  return is_address || name == "localhost" ||
         std::any_of(public_hosts_->begin(), public_hosts_->end(),
                     [&](const std::string& own) { return host_name(own) == name; });
}

bool HttpHandler::serves_host(const std::string& host) const {
  if (host.empty()) return true;  // browsers always send one
  const std::string name = host_name(host);
  if (public_hosts_ && access_.key.empty()) return serves_public_host(name);
  if (!local_host_) return true;
  const bool six = local_host_->find(':') != local_host_->npos;
  return name == "localhost" || name == "[::1]" ||
         name == host_name(six ? "[" + *local_host_ + "]" : *local_host_) ||
         (name.starts_with("127.") && name.find_first_not_of("0123456789.") == name.npos);
}

bool HttpHandler::has_key(const HttpRequest& request) const {
  const std::string_view scheme = "Bearer ", given = request.authorization;
  if (given.starts_with(scheme) && same_secret(given.substr(scheme.size()), access_.key))
    return true;
  const auto token = access_.key_in_query ? request.parameter("token") : std::nullopt;
  return token && same_secret(*token, access_.key);
}

void HttpHandler::check_client(const HttpRequest& request, const HttpRoute& route) const {
  if (!serves_host(request.host))
    throw HttpError(
        403, "forbidden_host",
        fmt::format("requests for the host {} are refused: {}", printable(request.host),
                    local_host_ ? "this server is for its own machine; ask for 127.0.0.1, or "
                                  "listen elsewhere with --host"
                                : "this server has no key, and this is neither an address nor the "
                                  "name of its machine; ask for its address, or set a key"));
  // A web page of another site must not use a server that only this machine reaches.
  const bool same_site = request.origin.empty() || request.origin == "http://" + request.host ||
                         request.origin == "https://" + request.host ||
                         access_.cors_origin == "*" || access_.cors_origin == request.origin;
  if (!same_site)
    throw HttpError(403, "forbidden_origin",
                    fmt::format("pages of {} may not use this server{}", printable(request.origin),
                                access_.cors_remedy));
  if (!access_.key.empty() && !route.is_public && !has_key(request)) throw access_.wrong_key;
}

bool HttpHandler::has_route(const std::string& path) const {
  return std::any_of(access_.routes.begin(), access_.routes.end(),
                     [&](const HttpRoute& route) { return path == route.path; });
}

std::optional<HttpReply> HttpHandler::refusal(const HttpRequest& request) const {
  try {
    const auto found =
        std::find_if(access_.routes.begin(), access_.routes.end(),
                     [&](const HttpRoute& route) { return request.path == route.path; });
    if (found == access_.routes.end())
      throw HttpError(404, "not_found", fmt::format("there is no {}", printable(request.path)));
    if (request.method == "OPTIONS" && !access_.cors_origin.empty()) return {};
    check_client(request, *found);
    const std::string needed = found->method;
    if (request.method == needed || (request.method == "HEAD" && needed == "GET")) return {};
    HttpReply reply = error_reply(
        HttpError(405, "method_not_allowed", fmt::format("{} needs {}", request.path, needed)));
    reply.headers.emplace_back("Allow", needed);
    return reply;
  } catch (const HttpError& error) {
    return error_reply(error);
  }
}

HttpReply HttpHandler::reply_to(const HttpRequest& request,
                                const std::function<HttpReply()>& route) const {
  try {
    if (auto refused = refusal(request)) return std::move(*refused);
    return route();
  } catch (const HttpError& error) {
    return error_reply(error);
  } catch (const UserError& error) {
    return error_reply(HttpError(400, "invalid_request", error.what()));
  } catch (const std::exception& error) {
    log_warning("{} {}: {}", printable(request.method), printable(request.path), error.what());
    return error_reply(HttpError(500, "internal_error", error.what()));
  }
}

HttpReply page_reply(std::string_view html) {
  // Scripts and styles run only with this number, so that no text in the page can bring its own.
  std::random_device device;
  const std::string nonce =
      fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
  std::string page(html);
  const std::string_view mark = "NONCE";
  for (std::size_t at = page.find(mark); at != page.npos; at = page.find(mark, at + nonce.size()))
    page.replace(at, mark.size(), nonce);
  return {
      .body = std::move(page),
      .content_type = "text/html; charset=utf-8",
      .headers = {
          {"Content-Security-Policy",
           fmt::format(
               "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; connect-src "
               "'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
               nonce)},
          {"X-Content-Type-Options", "nosniff"},
          {"Referrer-Policy", "no-referrer"},
          {"Cache-Control", "no-store"}}};
}

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
