// Telling people about a run: commands, webhooks, stalls, and what must not hurt the run.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/child_output.h"
#include "core/file.h"
#include "http/http_post.h"
#include "support/captured_log.h"
#include "support/errors.h"
#include "support/small_run.h"
#include "train/records/notifier.h"
#include "train/records/run_events.h"
#include "train/records/run_log.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// ---- stalls

TEST(StallDetector, WithoutALimitTheMedianStepDecides) {
  StallDetector detector({}, 0);
  EXPECT_EQ(detector.limit_s(), 1800) << "before the first step";
  for (int i = 0; i < 9; ++i) detector.note_step(10 * i, i < 5 ? 2 : 100);
  EXPECT_EQ(detector.limit_s(), 300) << "20 times the median of 2 s is less";
  for (int i = 0; i < 3; ++i) detector.note_step(100, 100);
  EXPECT_EQ(detector.limit_s(), 2000) << "20 times the median of 100 s";
}

TEST(StallDetector, ReportsAStallOnceUntilSomethingHappens) {
  StallDetector detector(60, 1000);
  EXPECT_FALSE(detector.stalled_s(1060));
  EXPECT_EQ(detector.stalled_s(1061), 61);
  EXPECT_FALSE(detector.stalled_s(2000)) << "reported before";
  detector.note_activity(2000);
  EXPECT_FALSE(detector.stalled_s(2060));
  EXPECT_EQ(detector.stalled_s(2070), 70);
  detector.note_step(2100, 3);
  EXPECT_FALSE(detector.stalled_s(2101));
}

TEST(StallDetector, LongWorkHasALongLimit) {
  StallDetector detector(60, 0);
  detector.begin_long_work(50);
  EXPECT_EQ(detector.limit_s(), 1800);
  EXPECT_FALSE(detector.stalled_s(1850));
  detector.begin_long_work(1851);
  detector.end_long_work(1852);
  EXPECT_FALSE(detector.stalled_s(3652)) << "the outer work goes on";
  EXPECT_EQ(detector.stalled_s(3653), 1801) << "also such work can hang";
  detector.end_long_work(3700);
  EXPECT_EQ(detector.limit_s(), 60);
  EXPECT_FALSE(detector.stalled_s(3760));
  EXPECT_EQ(detector.stalled_s(3761), 61);
  StallDetector slow(7200, 0);
  slow.begin_long_work(0);
  EXPECT_EQ(slow.limit_s(), 7200) << "never less than the usual limit";
}

TEST(StallWatch, CallsFromItsThread) {
  std::atomic<int> reports = 0;
  std::mutex mutex;
  std::condition_variable changed;
  StallWatch watch(0.02, [&](double seconds) {
    EXPECT_GT(seconds, 0.02);
    const std::lock_guard lock(mutex);
    ++reports;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return reports > 0; }));
}

// ---- commands

Notification example_event() { return {"failed", "rank 3 failed: \x1b[31m", "{\"step\":12}"}; }

TEST(Notifier, GivesTheCommandTheEvent) {
  const TemporaryDirectory directory;
  Notifier notifier({.command = "cat > '" + (directory / "stdin").string() +
                                "'; echo \"$KINTSUGI_EVENT|$KINTSUGI_RUN|$KINTSUGI_MESSAGE\" > '" +
                                (directory / "variables").string() + "'",
                     .run = "/runs/a b"});
  notifier.send(example_event());
  notifier.finish();
  EXPECT_EQ(read_text_file(directory / "stdin"), "{\"step\":12}\n");
  EXPECT_EQ(read_text_file(directory / "variables"), "failed|/runs/a b|rank 3 failed: \\x1b[31m\n")
      << "control characters are escaped";
}

TEST(Notifier, TheErrorOfACommandEndsWithoutALineEnd) {
  CapturedLog log;
  Notifier notifier({.command = "echo oh no >&2; exit 3"});
  notifier.send(example_event());
  notifier.finish();
  EXPECT_EQ(log.warnings(), "run.notify.command for event failed failed: exit code 3: oh no\n");
}

TEST(Notifier, AFailingOrMissingCommandIsAWarning) {
  for (const std::string command : {"echo oh no >&2; exit 3", "/no/such/program"}) {
    CapturedLog log;
    Notifier notifier({.command = command});
    notifier.send(example_event());
    notifier.finish();
    EXPECT_NE(log.warnings().find("run.notify.command for event failed failed: exit code "),
              std::string::npos)
        << log.warnings();
  }
}

TEST(Notifier, AHangingCommandIsKilledWithItsChildren) {
  const TemporaryDirectory directory;
  CapturedLog log;
  Notifier notifier({.command = "sleep 1000 & exec >&- 2>&-; wait; echo > '" +
                                (directory / "too-late").string() + "'",
                     .limit_s = 0.2});
  notifier.send(example_event());
  notifier.finish();  // returns
  EXPECT_NE(log.warnings().find("it was killed after 0.2 s"), std::string::npos) << log.warnings();
  EXPECT_FALSE(fs::exists(directory / "too-late"));
}

TEST(Notifier, RunsOneCommandAtATimeAndKeepsTheNewest) {
  const TemporaryDirectory directory;
  const std::string file = (directory / "order").string(), gate = (directory / "gate").string();
  Notifier notifier({.command = "echo begin $KINTSUGI_EVENT >> '" + file + "'; while [ ! -e '" +
                                gate + "' ]; do sleep 0.01; done; echo end >> '" + file + "'",
                     .limit_s = 60});
  notifier.send({"first", "", ""});
  while (!fs::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int i = 0; i < 20; ++i) notifier.send({"event" + std::to_string(i), "", ""});
  notifier.send_last({"finished", "", ""});
  directory.write("gate", "");
  notifier.finish();
  EXPECT_EQ(read_text_file(file), "begin first\nend\nbegin finished\nend\n");
}

// ---- webhooks

// Answers one request with `answer`.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer) : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 1), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answer = std::move(answer)] {
      const int connection = ::accept(listener_, nullptr, nullptr);
      std::array<char, 4096> part;
      while (request_.find("\r\n\r\n{") == std::string::npos || request_.back() != '}') {
        const ssize_t got = ::recv(connection, part.data(), part.size(), 0);
        if (got <= 0) break;
        request_.append(part.data(), static_cast<std::size_t>(got));
      }
      ::send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
      ::close(connection);
    });
  }
  ~OneAnswer() {
    if (thread_.joinable()) thread_.join();
    ::close(listener_);
  }
  int port() const { return port_; }
  std::string request() {
    thread_.join();
    return request_;
  }

 private:
  int listener_, port_ = 0;
  std::string request_;
  std::thread thread_;
};

TEST(HttpPost, SendsTheBodyAndReadsTheStatus) {
  OneAnswer server("HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n");
  const HttpAddress address =
      parse_http_address(fmt::format("http://127.0.0.1:{}/hook?a=1", server.port()));
  EXPECT_EQ(http_post(address, "application/json", "{\"a\":1}", 60), 202);
  const std::string request = server.request();
  EXPECT_TRUE(request.starts_with("POST /hook?a=1 HTTP/1.1\r\n")) << request;
  EXPECT_NE(request.find("\r\nContent-Length: 7\r\n"), std::string::npos) << request;
  EXPECT_NE(request.find(fmt::format("\r\nHost: 127.0.0.1:{}\r\n", server.port())),
            std::string::npos);
  EXPECT_TRUE(request.ends_with("\r\n\r\n{\"a\":1}")) << request;
}

TEST(HttpPost, RefusesAnAnswerThatIsNotHttp) {
  OneAnswer server("220 mail.example ESMTP\r\n");
  const HttpAddress address =
      parse_http_address(fmt::format("http://127.0.0.1:{}/", server.port()));
  EXPECT_THROW(http_post(address, "application/json", "{}", 60), Failure);
}

std::size_t open_descriptors() {
  const fs::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(fs::begin(all), fs::end(all)));
}

TEST(HttpPost, ARequestThatFailsClosesItsSocket) {
  // A listener whose queue is full answers no further connection.
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 0), 0);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  const std::string silent = fmt::format("http://127.0.0.1:{}/", ntohs(address.sin_port));
  const std::size_t before = open_descriptors();
  for (const std::string& url : {silent, std::string("http://127.0.0.1:1/")})
    for (int i = 0; i < 4; ++i)
      EXPECT_THROW(http_post(parse_http_address(url), "application/json", "{}", 0.05), Failure);
  EXPECT_EQ(open_descriptors(), before);
  ::close(listener);
}

TEST(HttpPost, ReadsAddresses) {
  const HttpAddress plain = parse_http_address("http://hooks.example");
  EXPECT_EQ(plain.host, "hooks.example");
  EXPECT_EQ(plain.port, "80");
  EXPECT_EQ(plain.path, "/");
  const HttpAddress v6 = parse_http_address("http://[::1]:8080/a/b");
  EXPECT_EQ(v6.host, "::1");
  EXPECT_EQ(v6.port, "8080");
  EXPECT_EQ(v6.path, "/a/b");
  for (const char* wrong :
       {"", "hooks.example", "ftp://a/", "http://", "http://:80/", "http://a:0/", "http://a:b/",
        "http://a:99999/", "http://a/b c", "http://a/\r\nX: y", "http://me:secret@a/"})
    EXPECT_THROW(parse_http_address(wrong), UserError) << wrong;
  EXPECT_NE(user_error_of([] { parse_http_address("https://a/b"); }).find("curl"),
            std::string::npos);
}

TEST(Notifier, PostsToTheWebhook) {
  OneAnswer server("HTTP/1.1 200 OK\r\n\r\n");
  Notifier notifier({.webhook = fmt::format("http://localhost:{}/", server.port())});
  notifier.send({"finished", "done", "{\"event\":\"finished\"}"});
  notifier.finish();
  EXPECT_TRUE(server.request().ends_with("{\"event\":\"finished\"}"));
}

TEST(Notifier, AWebhookThatIsNotThereIsAWarning) {
  CapturedLog log;
  Notifier notifier({.webhook = "http://127.0.0.1:1/"});
  notifier.send(example_event());
  notifier.finish();
  EXPECT_NE(log.warnings().find("run.notify.webhook for event failed failed"), std::string::npos)
      << log.warnings();
}

// ---- runs

struct NotifiedRun {
  explicit NotifiedRun(const std::string& notify,
                       const std::string& train = "steps: 4, save: false")
      : corpus(directory.write("corpus.txt", small_corpus(200))),
        config(small_config(corpus, directory / "run", train, "threads: 1\n")) {
    const std::size_t at = config.find("seed: 3");
    config.insert(at, "notify: " + notify + ", ");
  }
  TemporaryDirectory directory;
  std::string corpus, config;
};

TEST(NotifiedRuns, TheLastEventIsDeliveredBeforeTheRunReturns) {
  NotifiedRun run("{command: 'cat >> \"$KINTSUGI_RUN/../told\"'}");
  EXPECT_EQ(run_training(run.config), RunOutcome::Finished);
  const auto told = nlohmann::json::parse(read_text_file(run.directory / "told"));
  EXPECT_EQ(told["event"], "finished");
  EXPECT_EQ(told["step"], 4);
  EXPECT_EQ(fs::path(told["run"].get<std::string>()).filename(), "run");
}

TEST(NotifiedRuns, OnlyTheEventsThatAreAskedForAreSent) {
  NotifiedRun run(
      "{command: 'echo $KINTSUGI_EVENT >> \"$KINTSUGI_RUN/../told\"', on: [checkpoint]}",
      "steps: 4, checkpoint_every: 4");
  run_training(run.config);
  EXPECT_EQ(read_text_file(run.directory / "told"), "checkpoint\n");
}

TEST(NotifiedRuns, ACommandThatFailsDoesNotHurtTheRun) {
  NotifiedRun run("{command: 'exit 7'}");
  EXPECT_EQ(run_training(run.config), RunOutcome::Finished);
  EXPECT_NE(read_text_file(run.directory / "run" / "log.txt").find("exit code 7"),
            std::string::npos);
}

TEST(NotifiedRuns, ADivergedRunIsReported) {
  NotifiedRun run("{command: 'echo $KINTSUGI_EVENT >> \"$KINTSUGI_RUN/../told\"'}",
                  "steps: 50, save: false, max_skipped_steps: 1, spikes: {action: stop, window: 2, "
                  "threshold: 0.0001}");
  EXPECT_ANY_THROW(run_training(run.config));
  const std::string told = read_text_file(run.directory / "told");
  EXPECT_TRUE(told.ends_with("diverged\n")) << told;
}

TEST(NotifiedRuns, CheckpointsDoNotContainTheCommand) {
  NotifiedRun run("{command: 'true s3cret'}", "steps: 4, checkpoint_every: 4");
  run_training(run.config);
  EXPECT_NE(read_text_file(run.directory / "run" / "config.yaml").find("s3cret"),
            std::string::npos);
  std::size_t files = 0;
  for (const auto& entry :
       fs::recursive_directory_iterator(run.directory / "run" / "checkpoints")) {
    if (!entry.is_regular_file()) continue;
    ++files;
    EXPECT_EQ(read_text_file(entry.path()).find("s3cret"), std::string::npos) << entry.path();
  }
  EXPECT_GT(files, 3u);
  run.config.replace(run.config.find("steps: 4"), 8, "steps: 6");
  EXPECT_EQ(run_training(run.config), RunOutcome::Finished) << "it continues";
  const std::string log = read_text_file(run.directory / "run" / "log.txt");
  EXPECT_NE(log.find("changed: train.steps"), std::string::npos) << log;
  EXPECT_EQ(log.find("run.notify"), std::string::npos) << log;
}

TEST(NotifyConfig, APublicConfigurationCanBeReadBack) {
  NotifiedRun run("{command: 'true s3cret', webhook: 'http://a/s3cret', on: [failed]}");
  const std::string text = to_public_yaml(parse_run_config(run.config, "a.yaml"));
  EXPECT_EQ(text.find("s3cret"), std::string::npos);
  EXPECT_FALSE(parse_run_config(text, "b.yaml").run.notify.command);
}

// A command that ends once the file "gate" exists.
NotifyConfig gated_command(const TemporaryDirectory& directory) {
  return {.command = fmt::format(
              "while [ ! -e '{0}/gate' ]; do sleep 0.01; done; echo $KINTSUGI_EVENT > '{0}/told'",
              directory.path().string())};
}

RunLog opened_log(const TemporaryDirectory& directory, const NotifyConfig& notify) {
  return RunLog(directory.path(), 10, AttemptClock{0, [] { return 100.0; }}, {}, notify);
}

TEST(FailedRuns, TheOtherRanksDoNotWaitForASlowCommand) {
  const TemporaryDirectory directory;
  RunLog log = opened_log(directory, gated_command(directory));
  log.status({}, StepRecord{.step = 3}, {}, NAN, "");
  const std::function<void()> wait =
      log.fail({.kind = FailureKind::Error, .culprits = {{2}}, .text = "rank 2: it broke"});
  EXPECT_FALSE(fs::exists(directory / "told")) << "fail() does not wait for the command";
  const auto status = nlohmann::json::parse(read_text_file(directory / "status.json"));
  EXPECT_EQ(status["state"], "failed");
  EXPECT_EQ(status["rank"], 2);
  EXPECT_NE(read_text_file(directory / "events.jsonl").find("rank 2: it broke"), std::string::npos);
  directory.write("gate", "");
  ASSERT_TRUE(wait);
  wait();
  EXPECT_EQ(read_text_file(directory / "told"), "failed\n");
}

TEST(FailedRuns, AnErrorOfRankZeroAloneDoesNotWaitEither) {
  const TemporaryDirectory directory;
  {
    RunLog log = opened_log(directory, gated_command(directory));
    log.status({.state = "failed", .exit_code = 1, .shared = false}, {}, {}, NAN, "");
    EXPECT_FALSE(fs::exists(directory / "told"));
    directory.write("gate", "");
  }
  EXPECT_EQ(read_text_file(directory / "told"), "failed\n") << "the destructor waits";
}

TEST(FailedRuns, AfterADeliveryNothingIsWaitedFor) {
  std::function<void()> wait;
  {
    const TemporaryDirectory directory;
    RunLog log = opened_log(directory, {});
    EXPECT_FALSE(log.fail({.text = "before the first status"}));
    wait = log.events().delivery();
  }
  wait();  // returns, although the log is gone
}

TEST(NotifyConfig, IsChecked) {
  const std::string unknown = user_error_of([&] {
    NotifiedRun run("{command: x, on: [done]}");
    parse_run_config(run.config, "a.yaml");
  });
  EXPECT_NE(unknown.find("run.notify.on has 'done'"), std::string::npos) << unknown;
  const std::string https = user_error_of([&] {
    NotifiedRun run("{webhook: 'https://a/b'}");
    parse_run_config(run.config, "a.yaml");
  });
  EXPECT_NE(https.find("run.notify.webhook"), std::string::npos) << https;
  const std::string nobody = user_error_of([&] {
    NotifiedRun run("{on: [failed]}");
    parse_run_config(run.config, "a.yaml");
  });
  EXPECT_NE(nobody.find("does nothing without run.notify.command"), std::string::npos) << nobody;
}

}  // namespace
}  // namespace kintsugi
