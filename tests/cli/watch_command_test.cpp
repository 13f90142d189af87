// kintsugi watch: frames, lines for pipes, and the terminal after it. Frames are tested in
// tests/report.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>

#include "report/watch/canvas.h"
#include "support/program_test.h"
#include "support/synthetic_run.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class WatchCommand : public ProgramTest {
 protected:
  WatchCommand() { write_synthetic_run(directory_ / "runs/a", {}); }
  std::string once(const std::string& arguments, int columns = 80, int rows = 24) {
    const Outcome outcome = run_in_shell(
        fmt::format("COLUMNS={} LINES={} \"$kintsugi\" watch {} --once", columns, rows, arguments));
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    return outcome.out;
  }
};

TEST_F(WatchCommand, OneFrame) {
  const std::string frame = once("runs/a");
  EXPECT_THAT(frame, AllOf(StartsWith("a "), HasSubstr("finished\n"), HasSubstr("step 100/100"),
                           HasSubstr("loss 1.0800  validation 2.0800  lr 1.00e-03"),
                           HasSubstr("200 tokens/s  MFU 50.0 %")));
  // The gradient norm is 1 + k mod 4; the last step is a multiple of 4.
  EXPECT_THAT(frame, AllOf(HasSubstr("norm 1.000  "), HasSubstr("▃▆█▁\n"),
                           HasSubstr("goodput 71.4 %"), HasSubstr("startup 10 s"),
                           HasSubstr("       9 "), HasSubstr("    1.08 "), HasSubstr("step 100\n"),
                           HasSubstr("first line\nlast line\n"), Not(HasSubstr("\x1b"))));
}

TEST_F(WatchCommand, FramesFitTheWidth) {
  write_synthetic_run(directory_ / "runs/second", {.state = "failed", .message = "it broke"});
  for (const int columns : {20, 40, 80, 120, 250}) {
    std::istringstream lines(once("runs", columns, 30));
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count)
      EXPECT_LE(display_width(line), columns) << line;
    EXPECT_LE(count, 30);
  }
  const std::string wide = once("runs", 120);
  const std::string first = wide.substr(0, wide.find('\n'));
  EXPECT_THAT(first, AllOf(HasSubstr("a "), HasSubstr("second"), HasSubstr("failed")));
  EXPECT_THAT(wide, HasSubstr("it broke"));
}

TEST_F(WatchCommand, TextOfFilesIsMadePrintable) {
  write_synthetic_run(directory_ / "evil", {.log = "\x1b]0;title\x07\x1b[31mred\n"});
  EXPECT_THAT(once("evil"),
              AllOf(HasSubstr("\\x1b]0;title\\x07\\x1b[31mred"), Not(HasSubstr("\x1b"))));
}

TEST_F(WatchCommand, Mistakes) {
  EXPECT_EQ(run_kintsugi("watch nowhere").code, 2);
  std::filesystem::create_directories(directory_ / "empty");
  const Outcome empty = run_kintsugi("watch empty --once");
  EXPECT_EQ(empty.code, 2);
  EXPECT_THAT(empty.error, HasSubstr("no run in empty"));
  EXPECT_EQ(run_kintsugi("watch runs/a --every 0s").code, 2);
  EXPECT_EQ(run_kintsugi("watch runs/a --once --every 5s").code, 2);
}

TEST_F(WatchCommand, WithoutATerminalALinePerRun) {
  write_synthetic_run(directory_ / "runs/b",
                      {.steps = 30, .state = "failed", .message = "it broke"});
  const Outcome outcome = run_kintsugi("watch runs");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_EQ(outcome.out,
            "a  finished  step 100/100  loss 1.0800  validation 2.0800  200 tokens/s  MFU 50.0 %\n"
            "b  failed  step 30/100  loss 1.2667  validation 2.2667  130 tokens/s  MFU 50.0 %  it "
            "broke\n");
}

// It prints each change and ends when the run does, however long that takes.
TEST_F(WatchCommand, WithoutATerminalItFollowsARun) {
  const std::filesystem::path run = directory_ / "live";
  write_synthetic_run(run, {.steps = 10, .total_steps = 20, .state = "running"});
  // The run goes on once the first line is there, and ends once the second one is.
  const auto next = [&](int steps, const char* state) {
    write_synthetic_run(directory_ / ("next-" + std::to_string(steps)),
                        {.steps = steps, .total_steps = 20, .state = state});
    return fmt::format(
        "cp next-{0}/metrics.jsonl live/metrics.jsonl; cp next-{0}/status.json "
        "live/status.tmp; mv live/status.tmp live/status.json; ",
        steps);
  };
  const std::string wait = "while ! grep -q 'step {}/20' lines.txt; do sleep 0.05; done; ";
  const std::string command =
      "\"$kintsugi\" watch live --every 0.1s > lines.txt & " + fmt::format(fmt::runtime(wait), 10) +
      next(15, "running") + fmt::format(fmt::runtime(wait), 15) + next(20, "finished") + "wait $!";
  const Outcome outcome = run_in_shell(command);
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  const std::string lines = content_of("lines.txt");
  EXPECT_THAT(lines, AllOf(HasSubstr("running  step 10/20"), HasSubstr("running  step 15/20"),
                           HasSubstr("finished  step 20/20")));
}

// A terminal of the test's own, with the program on its other side.
class WatchTerminal : public WatchCommand {
 protected:
  ~WatchTerminal() override {
    if (process_ > 0) ::kill(process_, SIGKILL);
    if (terminal_ >= 0) ::close(terminal_);
    if (other_side_ >= 0) ::close(other_side_);
  }

  void start() {
    terminal_ = ::posix_openpt(O_RDWR | O_NOCTTY);
    ASSERT_GE(terminal_, 0);
    ASSERT_EQ(::grantpt(terminal_), 0);
    ASSERT_EQ(::unlockpt(terminal_), 0);
    const std::string name = ::ptsname(terminal_);
    other_side_ = ::open(name.c_str(), O_RDWR | O_NOCTTY);
    ASSERT_GE(other_side_, 0);
    set_size(100, 30);
    ASSERT_EQ(::tcgetattr(other_side_, &before_), 0);
    const std::string program = kintsugi_binary(), runs = (directory_ / "runs").string();
    process_ = ::fork();
    ASSERT_GE(process_, 0);
    if (process_ != 0) return;
    ::setsid();
    ::ioctl(other_side_, TIOCSCTTY, 0);
    for (const int descriptor : {0, 1, 2}) ::dup2(other_side_, descriptor);
    ::setenv("TERM", "xterm", 1);
    ::execl(program.c_str(), program.c_str(), "watch", runs.c_str(), "--every", "1h", nullptr);
    ::_exit(127);
  }
  void set_size(unsigned short columns, unsigned short rows) {
    const winsize size{.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(::ioctl(terminal_, TIOCSWINSZ, &size), 0);
  }
  void type(const std::string& keys) {
    ASSERT_EQ(::write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  bool has_ended() const {
    siginfo_t state{};
    return ::waitid(P_PID, static_cast<id_t>(process_), &state, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           state.si_pid == process_;
  }
  bool has_output(int timeout_ms) const {
    pollfd reads{.fd = terminal_, .events = POLLIN, .revents = 0};
    return ::poll(&reads, 1, timeout_ms) > 0;
  }
  // Reads what the program shows until `text` is in it. This process has the terminal open too, so
  // the end of the program is not the end of what can be read.
  void read_until(const std::string& text) {
    shown_.clear();
    std::array<char, 4096> some;
    while (shown_.find(text) == std::string::npos) {
      while (!has_output(100))
        ASSERT_FALSE(has_ended() && !has_output(0)) << "the program ended; it showed: " << shown_;
      const ssize_t bytes = ::read(terminal_, some.data(), some.size());
      ASSERT_GT(bytes, 0) << shown_;
      shown_.append(some.data(), static_cast<std::size_t>(bytes));
    }
  }
  // Waits for its end and returns the status; the terminal is as it was before.
  int end() {
    read_until("\x1b[?1049l");
    int status = 0;
    EXPECT_EQ(::waitpid(process_, &status, 0), process_);
    process_ = 0;
    termios after{};
    EXPECT_EQ(::tcgetattr(other_side_, &after), 0);
    EXPECT_EQ(after.c_lflag, before_.c_lflag);
    EXPECT_THAT(shown_, HasSubstr("\x1b[?25h"));  // the cursor is back
    return status;
  }

  int terminal_ = -1, other_side_ = -1;
  pid_t process_ = 0;
  termios before_{};
  std::string shown_;
};

TEST_F(WatchTerminal, KeysAndSizes) {
  write_synthetic_run(directory_ / "runs/b", {.log = "log of b\n"});
  start();
  read_until("q quit");
  EXPECT_THAT(shown_,
              AllOf(HasSubstr("\x1b[?1049h"), HasSubstr("last line"), Not(HasSubstr("log of b"))));
  type("\t");
  read_until("log of b");
  type("\x1b[A");
  read_until("last line");
  set_size(60, 20);  // too small for two panels: a list
  read_until("a  finished  step 100/100");
  type("xq");
  const int status = end();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(WatchTerminal, SignalsRestoreTheTerminal) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    start();
    read_until("q quit");
    ::kill(process_, signal);
    const int status = end();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << signal;
    ::close(terminal_);
    ::close(other_side_);
  }
  start();
  read_until("q quit");
  ::kill(process_, SIGABRT);
  const int status = end();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

TEST_F(WatchTerminal, CtrlZGivesTheTerminalBack) {
  start();
  read_until("q quit");
  ::kill(process_, SIGTSTP);
  read_until("\x1b[?1049l");
  int status = 0;
  ASSERT_EQ(::waitpid(process_, &status, WUNTRACED), process_);
  ASSERT_TRUE(WIFSTOPPED(status));
  ::kill(process_, SIGCONT);
  read_until("q quit");
  EXPECT_THAT(shown_, HasSubstr("\x1b[?1049h"));
  type("q");
  status = end();
  EXPECT_TRUE(WIFEXITED(status));
}

}  // namespace
}  // namespace kintsugi
