// Runs the commands of README.md and docs/*.md as a reader would, and compares what they print with
// what the documents show. docs/contributing.md tells writers how blocks are marked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "support/markdown_document.h"
#include "support/paths.h"
#include "support/sanitizers.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = source_directory();

struct Outcome {
  int code;            // 124 after the time limit
  std::string output;  // stdout and stderr, as a terminal shows them
};

void write_file(const fs::path& path, const std::string& content) {
  if (path.has_parent_path()) fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

// What the commands see: the program in the path, one thread of computation, more ranks than cores,
// and nothing of the user's own files and jobs.
std::string environment_of(const fs::path& directory) {
  const std::string home = directory.string();
  return "for name in ${!SLURM_@} ${!KINTSUGI_@} NO_COLOR SSH_CONNECTION XDG_CACHE_HOME XDG_CONFIG_HOME; do unset "
         "$name; done\n"
         "export HOME='" +
         home + "' PATH='" + home +
         "/build':$PATH TERM=dumb COLUMNS=80\n"
         "curl() { command curl -fsS \"$@\"; }\n"  // fails if the server answers with an error
         "export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1\n"
         "export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1\n"
         "export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none\n";
}

Outcome run_commands(const fs::path& directory, const std::string& commands) {
  const fs::path script = directory / "build/commands.sh", output = directory / "build/output.txt";
  write_file(script, environment_of(directory) + "set -e -o pipefail\n" + commands + "\n");
  const int status = std::system(("cd '" + directory.string() + "' && timeout -k 5 60 bash '" +
                                  script.string() + "' </dev/null >'" + output.string() + "' 2>&1")
                                     .c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content_of(output)};
}

int free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  socklen_t size = sizeof address;
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const bool bound = bind(descriptor, any, size) == 0 && getsockname(descriptor, any, &size) == 0;
  close(descriptor);
  if (!bound) throw std::runtime_error("no free port");
  return ntohs(address.sin_port);
}

// Few tokens per step, so that the examples take seconds, and no threads that wait for each other
// on a busy machine.
void make_examples_small(const fs::path& examples) {
  static const std::regex size("\\b(global|micro): [0-9]+");
  for (const auto& entry : fs::directory_iterator(examples))
    if (entry.path().extension() == ".yaml")
      write_file(entry.path(),
                 std::regex_replace(content_of(entry.path()), size, "$1: 1") + "\nthreads: 1\n");
}

// A checkout in which `make build` was run, as far as readers of the documents use it, with a
// configuration and chats of their own.
void make_checkout(const fs::path& directory) {
  fs::create_directories(directory / "build");
  fs::create_symlink(kintsugi_binary(), directory / "build/kintsugi");
  for (const char* name : {"README.md", "examples", "scripts"})
    fs::copy(kRoot / name, directory / name, fs::copy_options::recursive);
  make_examples_small(directory / "examples");
  for (const char* name : {"run.yaml", "chats.jsonl"})
    fs::copy(kRoot / "tests/documents" / name, directory / name);
  fs::create_directories(directory / "tests");
  for (const char* name : {"bench", "tests/data"})  // too large to copy; nothing writes to them
    fs::create_directory_symlink(kRoot / name, directory / name);
}

// A checkout in which `make demo` was run, made once per binary, beside this program, and shared
// by all documents.
class Demo {
 public:
  Demo() : directory_(fs::read_symlink("/proc/self/exe").parent_path() / "documents-demo") {
    Lock lock(directory_.string() + ".lock");
    const fs::path binary = fs::canonical(kintsugi_binary());
    const std::string stamp =
        binary.string() + " " +
        std::to_string(fs::last_write_time(binary).time_since_epoch().count()) + "\n" +
        content_of(kRoot / "scripts/demo.sh") + content_of(kRoot / "examples/demo.yaml");
    if (content_of(directory_ / "stamp") == stamp) return;
    fs::remove_all(directory_);
    make_checkout(directory_);
    const Outcome made = run_commands(directory_, "scripts/demo.sh");
    if (made.code != 0) throw std::runtime_error("scripts/demo.sh failed:\n" + made.output);
    write_file(directory_ / "runs/demo.out", made.output);
    write_file(directory_ / "stamp", stamp);
  }

  void copy_to(const fs::path& directory) const {
    make_checkout(directory);
    fs::copy(directory_ / "runs", directory / "runs",
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  }

 private:
  class Lock {
   public:
    explicit Lock(const std::string& file)
        : descriptor_(open(file.c_str(), O_CREAT | O_RDWR, 0644)) {
      if (descriptor_ < 0 || flock(descriptor_, LOCK_EX) != 0)
        throw std::runtime_error("cannot lock " + file);
    }
    ~Lock() { close(descriptor_); }

   private:
    int descriptor_;
  };

  fs::path directory_;
};

class DocumentTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (kThreadSanitizer || kAddressSanitizer)
      GTEST_SKIP() << "the commands are slow under sanitizers, and have tests of their own";
    if (std::system("command -v bible >/dev/null 2>&1") != 0)
      GTEST_SKIP() << "the text of the demo is not installed: see scripts/corpora.sh";
    Demo().copy_to(directory_.path());
  }
  void TearDown() override {
    for (const pid_t server : servers_) kill(server, SIGTERM);
  }

  // Before all commands, because documents show a command first and then the file that it reads.
  void write_files(const MarkdownDocument& document) {
    for (const CodeBlock& block : document.blocks)
      if (const BlockMark* file = block.mark("file"))
        write_file(directory_ / file->text, block.text());
  }

  void run_block(const CodeBlock& block) {
    if (block.mark("not run") != nullptr) {
      left_out_ += static_cast<int>(block.commands().size());
      return;
    }
    if (const BlockMark* before = block.mark("before")) {
      const Outcome outcome = run(before->text);
      ASSERT_EQ(outcome.code, 0) << place(before->line) << before->text << "\n" << outcome.output;
    }
    if (const BlockMark* source = block.mark("output of"))
      compare({source->line, source->text, block.lines}, run(source->text).output, block);
    for (const ShownCommand& command : block.commands())
      if (block.mark("server") != nullptr && command.line == block.commands().front().line)
        start_server(command);
      else
        run_command(command, block);
  }

  int run_ = 0, left_out_ = 0;

 private:
  static std::string place(int line) {
    return GetParam() + ", line " + std::to_string(line) + ": ";
  }

  Outcome run(const std::string& commands) {
    return run_commands(directory_.path(), exports_ + with_free_ports(commands));
  }

  // A command with an error in its output must fail, and every other one succeed.
  void run_command(const ShownCommand& command, const CodeBlock& block) {
    if (is_missing(command.text)) {
      ++left_out_;
      return;
    }
    ++run_;
    if (command.text.starts_with("export ")) exports_ += command.text + "\n";
    const Outcome outcome = run(command.text);
    const bool fails = std::any_of(command.output.begin(), command.output.end(),
                                   [](const std::string& l) { return l.starts_with("error: "); });
    const BlockMark* differs = block.mark("exits with 1");
    const bool one = differs != nullptr && command.text.starts_with(differs->text);
    EXPECT_TRUE(fails ? outcome.code == 1 || outcome.code == 2 : outcome.code == (one ? 1 : 0))
        << place(command.line) << command.text << "\nexit code " << outcome.code << "\n"
        << outcome.output;
    if (block.mark("output not compared") == nullptr && !command.output.empty())
      compare(command, outcome.output, block);
  }

  // Whether it needs a program or a library that need not be installed where the tests run.
  bool is_missing(const std::string& command) const {
    const auto installed = [](const std::string& program) {
      return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
    };
    if (command.starts_with("mpirun ") || command.find(" --ranks ") != std::string::npos)
      return !installed("mpirun");
    return command.starts_with("curl ") && !installed("curl");
  }

  void compare(const ShownCommand& command, const std::string& output, const CodeBlock& block) {
    const Numbers numbers = block.mark("numbers vary") != nullptr ? Numbers::Vary : Numbers::Same;
    std::string shown;
    for (const std::string& line : command.output) shown += line + "\n";
    EXPECT_TRUE(output_matches(command.output, output, numbers))
        << place(command.line) << command.text << "\nshown:\n"
        << shown << "printed:\n"
        << output;
  }

  // Starts the command and waits until it prints the address that it listens on.
  void start_server(const ShownCommand& command) {
    ++run_;
    const Outcome started = run("timeout 60 " + command.text +
                                " > build/server.log 2>&1 &\n"
                                "echo $! > build/server.pid\n"
                                "until grep -q http:// build/server.log; do\n"
                                "  kill -0 $! 2>/dev/null || exit 1\n"
                                "  sleep 0.1\n"
                                "done");
    servers_.push_back(std::stoi(content_of(directory_ / "build/server.pid")));
    const std::string log = content_of(directory_ / "build/server.log");
    ASSERT_EQ(started.code, 0) << place(command.line) << command.text << "\n" << log;
  }

  // The documents use the default ports; the tests may run beside other servers.
  std::string with_free_ports(std::string text) {
    static const std::regex default_port("\\b(8000|8080)\\b");
    if (!std::regex_search(text, default_port)) return text;
    if (port_ == 0) port_ = free_port();
    return std::regex_replace(text, default_port, std::to_string(port_));
  }

  TemporaryDirectory directory_;
  std::string exports_;  // what commands have exported, for those after them
  std::vector<pid_t> servers_;
  int port_ = 0;
};

TEST_P(DocumentTest, DoesWhatItShows) {
  const MarkdownDocument& document = markdown_document(GetParam());
  write_files(document);
  for (const CodeBlock& block : document.blocks) run_block(block);
  std::printf("%s: %d commands run, %d not run\n", GetParam().c_str(), run_, left_out_);
}

std::string test_name(const testing::TestParamInfo<std::string>& document) {
  std::string name = fs::path(document.param).stem().string();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Documents, DocumentTest, testing::ValuesIn(markdown_documents()),
                         test_name);

}  // namespace
}  // namespace kintsugi
