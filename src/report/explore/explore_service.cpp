#include "report/explore/explore_service.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/json_members.h"
#include "core/log.h"
#include "report/explore/page.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

constexpr auto kFresh = std::chrono::seconds(5);

HttpAccess explore_access(const std::string& token) {
  return {.routes = {{"GET", "/", true},  // it has no secrets
                     {"GET", "/api/directories"},
                     {"GET", "/api/overview"},
                     {"GET", "/api/sample"}},
          .key = token,
          .key_in_query = true,
          .wrong_key = HttpError(401, "invalid_token",
                                 "a valid token is required: open the address with ?token=TOKEN, "
                                 "or send the header Authorization: Bearer TOKEN")};
}

HttpReply json_reply(std::string text) {
  return {.body = std::move(text), .headers = {{"Cache-Control", "no-store"}}};
}

std::uint64_t whole_parameter(const HttpRequest& request, const char* name) {
  const std::string text = request.parameter(name).value_or("");
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size())
    bad_field(name, fmt::format("'{}' is not a whole number", printable(text)));
  return value;
}

std::string directories_json(const std::vector<ExploredSource>& sources) {
  Json names = Json::array();
  for (const ExploredSource& source : sources) names.push_back(source.name);
  return compact_json({{"directories", names}});
}

}  // namespace

ExploreService::ExploreService(std::vector<ExploredSource> sources, const std::string& token)
    : HttpHandler(explore_access(token)),
      sources_(std::move(sources)),
      overviews_(sources_.size()) {}

HttpReply ExploreService::handle(const HttpRequest& request, std::function<bool()>) {
  return reply_to(request, [&] { return route(request); });
}

HttpReply ExploreService::route(const HttpRequest& request) {
  if (request.path == "/") return page_reply(explore_page_html());
  if (request.path == "/api/directories") return json_reply(directories_json(sources_));
  const std::uint64_t id = whole_parameter(request, "id");
  if (id >= sources_.size())
    throw HttpError(404, "unknown_directory", fmt::format("there is no directory {}", id));
  if (request.path == "/api/overview") return overview(id);
  const std::uint64_t seed = whole_parameter(request, "seed");
  const std::lock_guard lock(mutex_);
  return json_reply(sources_[id].sample(seed));
}

HttpReply ExploreService::overview(std::size_t id) {
  const std::lock_guard lock(mutex_);
  Overview& overview = overviews_[id];
  if (overview.text.empty() || Clock::now() - overview.made > kFresh)
    overview = {.made = Clock::now(), .text = sources_[id].overview()};
  return json_reply(overview.text);
}

std::string explore_report_data(const std::vector<ExploredSource>& sources, double generated_s,
                                std::uint64_t samples) {
  std::string overviews, drawn;
  for (const ExploredSource& source : sources) {
    overviews += (overviews.empty() ? "" : ",") + source.overview();
    std::string of_source;
    for (std::uint64_t seed = 1; seed <= samples; ++seed)
      of_source += (of_source.empty() ? "" : ",") + source.sample(seed);
    drawn += (drawn.empty() ? "[" : ",[") + of_source + "]";
  }
  return fmt::format("{{\"generated_s\":{:.0f},\"names\":{},\"overview\":[{}],\"sample\":[{}]}}",
                     generated_s, directories_json(sources), overviews, drawn);
}

}  // namespace kintsugi
