// kintsugi dashboard, as a user starts and ends it.
#include "http/http_server.h"
#include "http/listener.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;
using testing::Not;

class DashboardCommand : public ProgramTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(directory_ / "runs/a");
    directory_.write("runs/a/status.json", R"({"state": "finished", "step": 3})");
  }
  Outcome show_and_signal(const std::string& options, const std::string& signal) {
    return run_in_shell(
        "unset KINTSUGI_DASHBOARD_TOKEN; export SSH_CONNECTION=x\n"
        "rm -f log.txt; touch log.txt\n\"$kintsugi\" dashboard runs --port 0 " +
        options +
        " > log.txt & pid=$!\n"
        "while kill -0 $pid && ! grep -q http log.txt; do sleep 0.02; done\n"
        "kill -" +
        signal + " $pid; wait $pid");
  }
};

TEST_F(DashboardCommand, EndsCleanlyAtASignal) {
  directory_.write("runs/status.json", "{}");
  for (const char* signal : {"TERM", "INT"}) {
    const Outcome outcome = show_and_signal("", signal);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    EXPECT_THAT(content_of("log.txt"), HasSubstr("1 run: http://127.0.0.1:"));
    EXPECT_THAT(content_of("log.txt"), HasSubstr("ssh -L "));
    EXPECT_THAT(outcome.error, HasSubstr("runs/status.json: is not the status of a run"));
  }
}

TEST_F(DashboardCommand, WarnsIfAnyoneCanRead) {
  EXPECT_THAT(show_and_signal("--host 0.0.0.0", "TERM").error, HasSubstr("--token"));
  const Outcome outcome = show_and_signal("--host 0.0.0.0 --token hidden", "TERM");
  EXPECT_THAT(outcome.error, Not(HasSubstr("--token")));
  EXPECT_THAT(content_of("log.txt"), HasSubstr("?token=TOKEN"));
  EXPECT_THAT(content_of("log.txt"), Not(HasSubstr("hidden"))) << "a log is no place for secrets";
}

TEST_F(DashboardCommand, NamesItsMistakes) {
  const HttpListener taken("127.0.0.1", 0);
  const auto mistake = [&](const std::string& options) {
    const Outcome outcome = run_kintsugi("dashboard " + options);
    EXPECT_EQ(outcome.code, 2) << options;
    return outcome.error;
  };
  EXPECT_THAT(mistake("runs --port " + std::to_string(taken.port())), HasSubstr("is in use"));
  EXPECT_THAT(mistake("nowhere"), HasSubstr("nowhere does not exist"));
  EXPECT_THAT(mistake("runs --port 70000"), HasSubstr("--port"));
  EXPECT_THAT(mistake("--token= runs"), HasSubstr("--token is empty"));
}

}  // namespace
}  // namespace kintsugi
