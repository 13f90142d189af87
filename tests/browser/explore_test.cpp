// The page of `data explore` in a browser, with a curation of hostile documents.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/json_members.h"
#include "data/curation/curate_job.h"
#include "data/explore/explored_directory.h"
#include "http/http_server.h"
#include "http/listener.h"
#include "report/documents/html.h"
#include "report/explore/explore_service.h"
#include "report/explore/page.h"
#include "support/browser.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kAttack = "<img src=x onerror=\"document.title='owned'\">";

class ExploreInBrowser : public testing::Test {
 protected:
  void SetUp() override {
    if (!Browser::installed())
      GTEST_SKIP()
          << "chromium and chromedriver are not installed (Debian: chromium, chromium-driver)";
    directory_.write("words.txt", "idiot\n");
    std::string lines;
    for (int i = 0; i < 30; ++i) {
      const std::string text = i % 3 == 0 ? fmt::format("idiot {} {}", i, kAttack)
                               : i % 3 == 1
                                   ? fmt::format("ask someone{}@example.com, please", i)
                                   : fmt::format("plain \u202e{}\u202c \u0007 {}", i, kAttack);
      lines += nlohmann::json{{"text", text}, {"language", i % 2 == 0 ? "fi" : "sv"}}.dump() + "\n";
    }
    directory_.write("a.jsonl", lines);
    CurateOptions options;
    options.recipe = read_recipe(
        fmt::format("examples: 6\nsteps:\n  - words: {{lists: ['{}']}}\n  - personal_data:\n",
                    (directory_ / "words.txt").string()),
        "recipe.yaml");
    options.inputs = {directory_ / "a.jsonl"};
    options.output = directory_ / "out";
    curate(options, [](const CurateProgress&) { return true; });
    const int free_port = HttpListener("127.0.0.1", 0).port();
    browser_ = std::make_unique<Browser>(free_port);
    browser_->set_window(1300, 1000);
  }
  void TearDown() override {
    if (!HasFailure() || !browser_) return;
    const fs::path picture = fs::path(testing::TempDir()) / "explore-failure.png";
    browser_->screenshot(picture);
    std::cerr << "what the browser showed: " << picture << "\n";
  }
  std::vector<ExploredSource> sources() {
    const fs::path out = directory_ / "out";
    return {{.name = kAttack,
             .overview = [=] { return compact_json(explored_overview(out)); },
             .sample =
                 [=](std::uint64_t seed) { return compact_json(explored_sample(out, seed, 5)); }}};
  }
  nlohmann::json evaluate(const std::string& expression) {
    return browser_->script("return " + expression);
  }
  std::vector<std::string> texts(const std::string& kind) {
    return evaluate("[...document.querySelectorAll('[data-kind=" + kind +
                    "] .text')].map((each) => each.textContent)");
  }
  void click_rule(const std::string& rule) {
    browser_->script("document.querySelector('[data-rule=\"" + rule + "\"]').click()");
  }
  // What the page shows of the curation.
  void expect_examples() {
    EXPECT_TRUE(browser_->wait_for("document.querySelectorAll('[data-kind=sample]').length == 5"));
    EXPECT_EQ(evaluate("kintsugiPage.kind"), "curation");
    EXPECT_THAT(evaluate("document.getElementById('rule-table').textContent"),
                HasSubstr("words.listed"));
    click_rule("removed words.listed");
    EXPECT_EQ(texts("removed").size(), 4u);  // of six
    EXPECT_EQ(texts("kept").size(), 4u);
    browser_->script("document.querySelector('#example-list .quiet').click()");
    EXPECT_EQ(texts("removed").size(), 6u);
    for (const std::string& one : texts("removed"))
      EXPECT_THAT(one, testing::AllOf(StartsWith("idiot "), HasSubstr(kAttack)));
    for (const std::string& one : texts("kept")) EXPECT_THAT(one, Not(HasSubstr("idiot")));
    click_rule("changed personal_data");
    EXPECT_TRUE(texts("removed").empty());
    ASSERT_EQ(texts("before").size(), 4u);
    for (const std::string& one : texts("before"))
      EXPECT_THAT(one, HasSubstr("@example.com, please"));
    for (const std::string& one : texts("after")) EXPECT_EQ(one, "ask <email-pii>, please");
    EXPECT_EQ(evaluate("document.querySelector('[data-kind=after] mark').textContent"),
              "<email-pii>");
    EXPECT_THAT(evaluate("document.querySelector('[data-kind=before] mark').textContent"),
                HasSubstr("@example.com"));
    EXPECT_EQ(evaluate("document.querySelectorAll('#section-masked .spans tbody tr').length"), 6);
  }
  // No text became an element, a script or a change of direction.
  void expect_harmless() {
    EXPECT_EQ(evaluate("document.querySelectorAll('img').length"), 0);
    EXPECT_THAT(evaluate("document.title"), Not(HasSubstr("owned\"")));
    EXPECT_EQ(evaluate("/[\\u0007\\u202a-\\u202e]/.test(document.body.innerText)"), false);
    EXPECT_EQ(evaluate("[...document.querySelectorAll('.code')].some("
                       "(each) => each.textContent == 'U+202E')"),
              true);
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Browser> browser_;
};

// One test, because a browser takes seconds to start.
TEST_F(ExploreInBrowser, ShowsExamplesAsText) {
  ExploreService service(sources(), "secret");
  const HttpServer server(service, {.port = 0});
  const std::string address = "http://" + server.address() + "/";
  browser_->open(address);
  EXPECT_TRUE(browser_->wait_for("!document.getElementById('notice').hidden"));
  EXPECT_THAT(evaluate("document.getElementById('notice').textContent"), HasSubstr("token"));
  browser_->open(address + "?token=secret");
  expect_examples();
  expect_harmless();
  EXPECT_THAT(evaluate("location.href"), Not(HasSubstr("secret")));

  const auto first = texts("sample");
  browser_->click("other-sample");
  EXPECT_TRUE(browser_->wait_for("kintsugiPage.seed == 2"));
  EXPECT_NE(texts("sample"), first);
  // The bars of one language only.
  browser_->script(
      "const select = document.getElementById('length-language'); select.value = '=sv';"
      "select.dispatchEvent(new Event('change'))");
  EXPECT_THAT(evaluate("location.hash"), HasSubstr("language=sv"));
  EXPECT_GT(evaluate("document.querySelectorAll('#section-lengths .after').length"), 1);
  for (const auto& source :
       evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)"))
    EXPECT_THAT(source.get<std::string>(), AnyOf(StartsWith(address), StartsWith("data:")));
  // Nothing is wider than a phone.
  browser_->set_window(500, 900);
  EXPECT_TRUE(browser_->wait_for(
      "document.documentElement.scrollWidth <= document.documentElement.clientWidth"));

  // The same from a file.
  directory_.write("page.html",
                   html_report(explore_page_html(), explore_report_data(sources(), 1.7e9, 2)));
  browser_->open("file://" + (directory_ / "page.html").string());
  expect_examples();
  expect_harmless();
}

}  // namespace
}  // namespace kintsugi
