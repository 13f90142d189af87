// The dashboard: its routes without sockets, and live events over a real one.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "http/http_server.h"
#include "report/dashboard/dashboard_service.h"
#include "report/prometheus.h"
#include "support/http_client.h"
#include "support/prometheus_parser.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class Dashboard : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text, bool append = false) const {
    const fs::path path = directory_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, append ? std::ios::app : std::ios::trunc) << text;
  }
  static std::string record(int step) {
    return fmt::format("{{\"step\":{},\"tokens\":{},\"loss\":{},\"time_s\":{}}}\n", step, 64 * step,
                       10.0 / step, 1.7e9 + step);
  }
  void write_run(const std::string& name, int steps) const {
    write(name + "/status.json", R"({"state":"finished","step":3,"total_steps":9})");
    write(name + "/config.yaml", "run: {name: " + name + "}\n");
    std::string text;
    for (int step = 1; step <= steps; ++step) text += record(step);
    write(name + "/metrics.jsonl", text);
  }
  void start(DashboardOptions options = {}) {
    options.folders = {directory_.path()};
    options.interval_s = 0.01;
    service_ = std::make_unique<DashboardService>(std::move(options));
  }
  using Query = std::vector<std::pair<std::string, std::string>>;
  HttpReply ask(const std::string& path, Query query = {}) const {
    return service_->handle({.method = "GET", .path = path, .query = std::move(query)},
                            [] { return false; });
  }
  json get(const std::string& path, Query query = {}, int status = 200) const {
    const HttpReply reply = ask(path, std::move(query));
    EXPECT_EQ(reply.status, status) << reply.body;
    return json::parse(reply.body);
  }

  TemporaryDirectory directory_;
  std::unique_ptr<DashboardService> service_;
};

TEST_F(Dashboard, ListsRuns) {
  write_run("a", 5);
  write_run("sweep/<script>alert(1)</script>", 5);
  write("half/status.json", "{");
  start();
  const json list = get("/api/runs");
  ASSERT_EQ(list["runs"].size(), 2u);
  EXPECT_EQ(list["runs"][0]["id"], "a");
  EXPECT_EQ(list["runs"][0]["step"], 5);
  EXPECT_EQ(list["runs"][1]["id"], "sweep/<script>alert(1)</script>");
  ASSERT_EQ(list["skipped"].size(), 1u);
  EXPECT_THAT(list["skipped"][0]["path"], HasSubstr("half/status.json"));
  EXPECT_EQ(list["folders"][0], directory_.path().string());
}

TEST_F(Dashboard, ShowsARun) {
  write_run("a b/ä", 5);
  start();
  const json run = get("/api/run", {{"id", "a b/ä"}});
  EXPECT_EQ(run["summary"]["state"], "finished");
  EXPECT_EQ(run["keys"], json({"loss"}));
  EXPECT_EQ(get("/api/run", {}, 400)["error"]["code"], "invalid_value");
}

TEST_F(Dashboard, NoPathOfAClientReachesTheFileSystem) {
  write_run("a", 5);
  write("secret/status.json.txt", "secret");
  start();
  for (const char* id : {"..", "/", "a/", "a/..", "./a", "secret", "/etc", "a/checkpoints", ""})
    for (const char* path : {"/api/run", "/api/series", "/api/compare", "/api/profile"}) {
      const HttpReply reply = ask(path, {{"id", id}, {"keys", "loss"}, {"name", "x.json"}});
      EXPECT_TRUE(reply.status == 404 || reply.status == 400) << path << " " << id;
    }
  write("a/profiles/steps-1-2.json", "{}");
  for (const char* name :
       {"../metrics.jsonl", "/etc/passwd", "steps-1-2", "../profiles/steps-1-2.json"})
    EXPECT_EQ(ask("/api/profile", {{"id", "a"}, {"name", name}}).status, 404) << name;
}

TEST_F(Dashboard, GivesSeriesWithinBounds) {
  write_run("a", 10'000);
  start();
  const json all = get("/api/series", {{"id", "a"}, {"keys", "loss,none"}, {"points", "200"}});
  EXPECT_EQ(all["rows"], 10'000);
  EXPECT_EQ(all["last_step"], 10'000);
  EXPECT_EQ(all["keys"].size(), 1u);
  EXPECT_EQ(all["keys"]["loss"]["x"].size(), 200u);
  EXPECT_EQ(all["keys"]["loss"]["low"].size(), 200u);
  const json part = get("/api/series", {{"id", "a"},
                                        {"keys", "loss"},
                                        {"axis", "tokens"},
                                        {"from", "640"},
                                        {"to", "1280"},
                                        {"points", "1e9"}});
  EXPECT_EQ(part["keys"]["loss"]["x"].size(), 11u) << "steps 10 to 20";
  const json most = get("/api/series", {{"id", "a"}, {"keys", "loss"}, {"points", "1000000"}});
  EXPECT_LE(most["keys"]["loss"]["x"].size(), 4000u);
  const json least = get("/api/series", {{"id", "a"}, {"keys", "loss"}, {"points", "-3"}});
  EXPECT_EQ(least["keys"]["loss"]["x"].size(), 50u);
  for (const auto& [name, value] :
       Query{{"axis", "hour"}, {"from", "x"}, {"points", "1x"}, {"to", "nan"}})
    EXPECT_THAT(
        get("/api/series", {{"id", "a"}, {"keys", "loss"}, {name, value}}, 400)["error"]["message"]
            .get<std::string>(),
        HasSubstr(name));
  std::string many = "loss";
  for (int i = 0; i < 100; ++i) many += ",loss";
  get("/api/series", {{"id", "a"}, {"keys", many}}, 400);
}

TEST_F(Dashboard, ThePayloadDoesNotGrowWithTheRun) {
  const auto bytes = [&] {
    return ask("/api/series", {{"id", "a"}, {"keys", "loss"}, {"points", "1500"}}).body.size();
  };
  write_run("a", 3'000);
  start();
  const std::size_t small = bytes();
  write_run("a", 60'000);
  EXPECT_LT(bytes(), small * 3 / 2);
  EXPECT_LT(bytes(), 1500u * 60);
}

TEST_F(Dashboard, ComparesRuns) {
  write_run("a", 5);
  write_run("b", 5);
  start();
  const json compared = get("/api/compare", {{"id", "b"}, {"id", "a"}});
  EXPECT_EQ(compared["ids"], json({"b", "a"}));
  EXPECT_EQ(compared["configuration"], json::parse(R"([{"key":"run.name","values":["b","a"]}])"));
  get("/api/compare", {{"id", "a"}, {"id", "c"}}, 404);
  get("/api/compare", Query(17, {"id", "a"}), 400);
}

TEST_F(Dashboard, ShowsProfiles) {
  write_run("a", 5);
  write("a/profiles/steps-1-2.json", "{}");
  start({.folders = {}, .profile_json = [](const fs::path& file) {
           return json{{"file", file.filename().string()}}.dump();
         }});
  EXPECT_EQ(get("/api/profile", {{"id", "a"}, {"name", "steps-1-2.json"}})["file"],
            "steps-1-2.json");
  EXPECT_EQ(get("/api/run", {{"id", "a"}})["profiles"], json({"steps-1-2.json"}));
}

TEST_F(Dashboard, ReadsAProfileOnceUntilItChanges) {
  write_run("a", 5);
  write("a/profiles/one.json", "{}");
  write("a/profiles/two.json", "{}");
  int reads = 0;
  start({.folders = {}, .profile_json = [&](const fs::path& file) {
           ++reads;
           return json{{"file", file.filename().string()}, {"bytes", fs::file_size(file)}}.dump();
         }});
  const auto bytes_of = [&](const char* name) {
    const json reply = get("/api/profile", {{"id", "a"}, {"name", name}});
    EXPECT_EQ(reply["file"], name);
    return reply["bytes"];
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(bytes_of("one.json"), 2);
  EXPECT_EQ(reads, 1);
  EXPECT_EQ(bytes_of("two.json"), 2);
  EXPECT_EQ(reads, 2);
  write("a/profiles/two.json", "{} ");
  EXPECT_EQ(bytes_of("two.json"), 3);
  EXPECT_EQ(reads, 3);
}

TEST_F(Dashboard, NeedsItsToken) {
  write_run("a", 5);
  start({.folders = {}, .token = "secret"});
  EXPECT_EQ(ask("/").status, 200) << "the page has no secrets";
  for (const char* path : {"/api/runs", "/api/run", "/api/events", "/metrics"}) {
    EXPECT_EQ(ask(path, {{"id", "a"}}).status, 401) << path;
    EXPECT_EQ(ask(path, {{"id", "a"}, {"token", "secre"}}).status, 401) << path;
    EXPECT_EQ(ask(path, {{"id", "a"}, {"token", "secret"}}).status, 200) << path;
  }
  const HttpReply reply =
      service_->handle({.method = "GET", .path = "/api/runs", .authorization = "Bearer secret"},
                       [] { return false; });
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(service_
                ->handle({.method = "POST", .path = "/api/runs", .authorization = "Bearer secret"},
                         [] { return false; })
                .status,
            405)
      << "it only reads";
}

TEST_F(Dashboard, MergesPrometheusFiles) {
  for (const char* run : {"a", "b"}) {
    write_run(run, 5);
    write(std::string(run) + "/metrics.prom",
          fmt::format("# HELP kintsugi_loss Loss.\n# TYPE kintsugi_loss gauge\n"
                      "kintsugi_loss{{run=\"{}\"}} 2.5\n"
                      "kintsugi_loss{{run=\"copied\"}} 1\n",
                      run));
  }
  write_run("hostile", 5);
  write("hostile/metrics.prom",
        "# TYPE kintsugi_loss counter\nkintsugi_loss{run=\"x\"} 7\nnonsense\n"
        "# HELP other Text.\n# TYPE other gauge\nother{a=\"b\" 3\nother{a=\"}\"} 4\nother 5 "
        "x\nother{} abc\n"
        "# TYPE kintsugi_dashboard_runs gauge\nkintsugi_dashboard_runs 5\n");
  start();
  const HttpReply reply = ask("/metrics");
  EXPECT_EQ(reply.body,
            "# HELP kintsugi_loss Loss.\n# TYPE kintsugi_loss gauge\n"
            "kintsugi_loss{run=\"a\"} 2.5\nkintsugi_loss{run=\"copied\"} 1\n"
            "kintsugi_loss{run=\"b\"} 2.5\n"
            "# HELP other Text.\n# TYPE other gauge\nother{a=\"}\"} 4\n"
            "# HELP kintsugi_dashboard_runs Runs below the folders, by state.\n"
            "# TYPE kintsugi_dashboard_runs gauge\n"
            "kintsugi_dashboard_runs{state=\"finished\"} 3\n");
}

TEST_F(Dashboard, ThePageHasItsOwnNonce) {
  start();
  const HttpReply reply = ask("/");
  EXPECT_THAT(reply.content_type, HasSubstr("text/html"));
  EXPECT_THAT(reply.headers[0].second, HasSubstr("default-src 'none'"));
  EXPECT_THAT(reply.body, Not(HasSubstr("NONCE")));
  EXPECT_THAT(reply.body, Not(HasSubstr("<!-- s"))) << "styles and scripts are joined";
}

// ---- live

// Follows events. What arrives behind an awaited text is kept for the next one.
class EventClient {
 public:
  EventClient(int port, const std::string& query) : client_(port) {
    client_.send(http_text("GET", "/api/events" + query));
  }
  // Everything up to and with the text; a failure if the stream ends before, or after many events.
  std::string until(const std::string& text) {
    std::size_t at;
    for (int parts = 0; (at = buffer_.find(text)) == buffer_.npos; ++parts) {
      const std::string part = parts < 200 ? client_.receive() : "";
      if (part.empty()) {
        ADD_FAILURE() << "no " << text << " in " << buffer_;
        return "";
      }
      buffer_ += part;
    }
    const std::string result = buffer_.substr(0, at + text.size());
    buffer_.erase(0, result.size());
    return result;
  }
  void read_to_the_end() { client_.receive_all(); }

 private:
  RawClient client_;
  std::string buffer_;
};

class LiveDashboard : public Dashboard {
 protected:
  void SetUp() override { write_run("a", 30); }
  void listen(HttpServerOptions options = {}) {
    start();
    options.port = 0;
    server_ = std::make_unique<HttpServer>(*service_, options);
  }
  void wait_until_empty() const {
    for (int i = 0; i < 60000 && server_->connections() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(server_->connections(), 0);
  }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(LiveDashboard, SendsWhatChanges) {
  write("a/log.txt", "old line\n");
  listen();
  EventClient client(server_->port(), "?id=a&id=unknown");
  EXPECT_THAT(client.until("event: runs\n"), HasSubstr("text/event-stream"));
  EXPECT_THAT(client.until("event: points\n"), HasSubstr("data: {\"runs\":[{\"id\":\"a\""));
  EXPECT_THAT(client.until("\n\n"), HasSubstr("\"x\":[21,22,23,24,25,26,27,28,29,30]"))
      << "the last rows at once";
  client.until("event: log\n");
  EXPECT_THAT(client.until("\n\n"),
              HasSubstr("{\"id\":\"a\",\"lines\":[\"old line\"],\"replace\":true}"))
      << "lines may have been written after the client asked for the run";
  write("a/metrics.jsonl", record(31) + record(32), true);
  client.until("event: points\n");
  EXPECT_THAT(client.until("\n\n"), HasSubstr("{\"id\":\"a\",\"keys\":{\"loss\":{\"x\":[31,32],"));
  write("a/log.txt", "<b>new</b>\n", true);
  client.until("event: log\n");
  EXPECT_THAT(client.until("\n\n"), HasSubstr("{\"id\":\"a\",\"lines\":[\"<b>new</b>\"]}"));
  write("a/metrics.jsonl", record(20), true);
  EXPECT_THAT(client.until("event: reload"), Not(HasSubstr("event: points")))
      << "a rewind: the client asks for the series again";
  write_run("a", 3);
  client.until("event: reload");
}

TEST_F(LiveDashboard, EndsWithTheClient) {
  listen();
  EventClient(server_->port(), "?id=a").until("event: points");
  wait_until_empty();
}

TEST_F(LiveDashboard, EndsWithTheServer) {
  listen();
  EventClient client(server_->port(), "?id=a");
  client.until("event: points");
  EXPECT_TRUE(server_->shutdown(60)) << "streams end before the time is over";
  client.read_to_the_end();
}

TEST_F(LiveDashboard, AnswersDecodedQueries) {
  write_run("a b&c=d/ä", 5);
  listen();
  const HttpAnswer answer =
      http_get(server_->port(), "/api/series?id=a%20b%26c%3Dd%2F%C3%A4&keys=loss&axis=step");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(json::parse(answer.body)["rows"], 5);
  EXPECT_EQ(http_get(server_->port(), "/api/run?id=..%2F..%2Fetc%2Fpasswd").status, 404);
  EXPECT_EQ(http_get(server_->port(), "/api/runs", "Origin: http://evil.example\r\n").status, 403);
}

}  // namespace
}  // namespace kintsugi
