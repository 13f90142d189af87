// kintsugi serve, as a user starts and ends it.
#include "http/http_server.h"
#include "http/listener.h"
#include "support/program_test.h"
#include "support/served_model.h"

namespace kintsugi {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

class ServeCommand : public ProgramTest {
 protected:
  void SetUp() override { make_served_model(directory_ / "model"); }
  Outcome serve_and_signal(const std::string& options, const std::string& signal) {
    return run_in_shell(
        "rm -f log.txt; touch log.txt\n\"$kintsugi\" serve --checkpoint model --port 0 --threads "
        "1 " +
        options +
        " > log.txt & pid=$!\n"
        "while kill -0 $pid && ! grep -q serving log.txt; do sleep 0.02; done\n"
        "kill -" +
        signal + " $pid; wait $pid");
  }
};

TEST_F(ServeCommand, EndsCleanlyAtASignal) {
  for (const char* signal : {"TERM", "INT"}) {
    const Outcome outcome = serve_and_signal("", signal);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    EXPECT_THAT(outcome.error, HasSubstr("shutting down"));
    EXPECT_THAT(content_of("log.txt"), HasSubstr("serving model at http://127.0.0.1:"));
  }
}

TEST_F(ServeCommand, WarnsIfAnyoneCanUseIt) {
  EXPECT_THAT(serve_and_signal("--host 0.0.0.0", "TERM").error, HasSubstr("--api-key"));
  const Outcome with_key = serve_and_signal("--host 0.0.0.0 --api-key k --name other", "TERM");
  EXPECT_THAT(with_key.error, testing::Not(HasSubstr("--api-key")));
  EXPECT_THAT(content_of("log.txt"), HasSubstr("serving other at"));
}

TEST_F(ServeCommand, NamesItsMistakes) {
  const HttpListener taken("127.0.0.1", 0);
  const auto mistake = [&](const std::string& options) {
    const Outcome outcome = run_kintsugi("serve --threads 1 --checkpoint " + options);
    EXPECT_EQ(outcome.code, 2) << options;
    return outcome.error;
  };
  EXPECT_THAT(mistake("model --port " + std::to_string(taken.port())), HasSubstr("is in use"));
  EXPECT_THAT(mistake("model --port 0 --chat-template nix"), HasSubstr("chatml"));
  EXPECT_THAT(mistake("nowhere"), HasSubstr("nowhere"));
  EXPECT_THAT(mistake("model --write-timeout 2apples"), HasSubstr("--write-timeout"));
}

TEST_F(ServeCommand, TakesTimesAndSizesWithUnits) {
  const Outcome outcome = serve_and_signal(
      "--write-timeout 2s --request-timeout 2min --shutdown-timeout 1h --max-body 4MiB", "TERM");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  const Outcome help = run_kintsugi("serve --help");
  for (const std::string value : {"16MiB", "600s", "30s"})  // CLI11 before 2.4, and since
    EXPECT_THAT(help.out, AnyOf(HasSubstr("=" + value), HasSubstr("[" + value + "]")));
}

}  // namespace
}  // namespace kintsugi
