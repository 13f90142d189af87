// The page of `data explore`: its routes without sockets, and the page without a server.
#include "report/explore/explore_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "report/documents/html.h"
#include "report/explore/page.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kAttack = "</script><img src=x onerror=alert(1)>";

class ExplorePage : public testing::Test {
 protected:
  std::vector<ExploredSource> sources() {
    return {{.name = kAttack,
             .overview =
                 [this] {
                   ++read_;
                   return json{{"kind", "curation"}, {"text", kAttack}}.dump();
                 },
             .sample =
                 [](std::uint64_t seed) {
                   return json{{"seed", seed}}.dump();
                 }},
            {.name = "damaged",
             .overview = []() -> std::string { user_error("curation.json is damaged"); },
             .sample = [](std::uint64_t) -> std::string { user_error("gone"); }}};
  }
  using Query = std::vector<std::pair<std::string, std::string>>;
  HttpReply ask(const std::string& path, Query query = {}, const std::string& key = "") {
    return service_.handle({.method = "GET",
                            .path = path,
                            .authorization = key.empty() ? "" : "Bearer " + key,
                            .query = std::move(query)},
                           [] { return false; });
  }
  int read_ = 0;
  ExploreService service_{sources(), ""};
};

TEST_F(ExplorePage, AnswersByNumber) {
  EXPECT_EQ(json::parse(ask("/api/directories").body),
            (json{{"directories", {kAttack, "damaged"}}}));
  EXPECT_EQ(json::parse(ask("/api/overview", {{"id", "0"}}).body)["kind"], "curation");
  ask("/api/overview", {{"id", "0"}});
  EXPECT_EQ(read_, 1) << "not again at once";
  EXPECT_EQ(json::parse(ask("/api/sample", {{"id", "0"}, {"seed", "18446744073709551615"}}).body),
            (json{{"seed", UINT64_MAX}}));
}

TEST_F(ExplorePage, RefusesWhatIsNotThere) {
  const auto status = [&](const std::string& path, Query query = {}) {
    return ask(path, std::move(query)).status;
  };
  EXPECT_EQ(status("/api/overview"), 400);
  EXPECT_EQ(status("/api/overview", {{"id", "2"}}), 404);
  EXPECT_EQ(status("/api/sample", {{"id", "0"}, {"seed", "-1"}}), 400);
  EXPECT_EQ(status("/api/sample", {{"id", "0"}, {"seed", "1x"}}), 400);
  EXPECT_EQ(status("/api/sample", {{"id", "99999999999999999999"}, {"seed", "1"}}), 400);
  EXPECT_EQ(status("/etc/passwd"), 404);
  const HttpReply damaged = ask("/api/overview", {{"id", "1"}});
  EXPECT_EQ(damaged.status, 400);
  EXPECT_THAT(damaged.body, HasSubstr("curation.json is damaged"));
}

TEST_F(ExplorePage, ATokenGuardsAllButThePage) {
  ExploreService service(sources(), "secret");
  for (const char* path : {"/api/directories", "/api/overview", "/api/sample"}) {
    const auto status = [&](const std::string& key) {
      return service
          .handle({.method = "GET",
                   .path = path,
                   .authorization = "Bearer " + key,
                   .query = {{"id", "0"}, {"seed", "1"}}},
                  [] { return false; })
          .status;
    };
    EXPECT_EQ(status("wrong"), 401);
    EXPECT_EQ(status("secret"), 200);
  }
  const HttpReply page = service.handle({.method = "GET", .path = "/"}, [] { return false; });
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.body, AllOf(HasSubstr("Kintsugi data"), Not(HasSubstr("NONCE"))));
  bool has_policy = false;
  for (const auto& [name, value] : page.headers)
    has_policy |= name == "Content-Security-Policy" && value.starts_with("default-src 'none'");
  EXPECT_TRUE(has_policy);
}

TEST_F(ExplorePage, TheFileHasItsDataAsData) {
  auto first = sources();
  first.pop_back();
  const std::string data = explore_report_data(first, 1700000000, 2);
  EXPECT_EQ(json::parse(data), (json{{"generated_s", 1700000000},
                                     {"names", {{"directories", {kAttack}}}},
                                     {"overview", {{{"kind", "curation"}, {"text", kAttack}}}},
                                     {"sample", {{{{"seed", 1}}, {{"seed", 2}}}}}}));
  const std::string html = html_report(explore_page_html(), data);
  EXPECT_TRUE(html.starts_with(kHtmlBeginning));
  EXPECT_THAT(html, AllOf(Not(HasSubstr("<img")), HasSubstr("default-src 'none'")));
  EXPECT_THROW(explore_report_data(sources(), 0, 1), UserError);
}

// Nothing in the page makes elements of text.
TEST_F(ExplorePage, NoScriptParsesHtml) {
  const std::string page(explore_page_html());
  for (const char* danger : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                             "eval(", "createContextualFragment", "DOMParser"})
    EXPECT_THAT(page, Not(HasSubstr(danger)));
}

}  // namespace
}  // namespace kintsugi
