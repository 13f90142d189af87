// The lists of packages: what CMake looks for, what scripts/install_packages.sh installs, what the
// container recipes install and what docs/install.md says must agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/paths.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = source_directory();

struct Dependency {
  std::string need, debian, rhel;
};

std::map<std::string, Dependency> dependencies() {
  std::map<std::string, Dependency> result;
  std::istringstream lines(content_of(kRoot / "cmake/dependencies.txt"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string name;
    Dependency d;
    if (line.starts_with("#") || !(fields >> name >> d.need >> d.debian >> d.rhel)) continue;
    result[name] = d;
  }
  return result;
}

// The output of a shell command; fails the test if it fails.
std::string output_of(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  std::array<char, 4096> buffer;
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe))
    output.append(buffer.data(), got);
  const int status = pclose(pipe);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command << "\n" << output;
  return output;
}

std::set<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::set<std::string> words;
  for (std::string word; in >> word;) words.insert(word);
  return words;
}

TEST(Packaging, CmakeLooksForEveryDependency) {
  const auto listed = dependencies();
  ASSERT_GT(listed.size(), 20u);
  std::set<std::string> looked_for;
  std::string cmake;
  for (const auto& entry : fs::directory_iterator(kRoot / "cmake"))
    if (entry.path().extension() == ".cmake") cmake += content_of(entry.path());
  const std::regex need("kintsugi_(?:need|want)\\(([^ ]+) |APPEND KINTSUGI_MISSING ([a-z]+)\\)");
  for (std::sregex_iterator it(cmake.begin(), cmake.end(), need), end; it != end; ++it) {
    const std::string name = (*it)[1].matched ? (*it)[1].str() : (*it)[2].str();
    if (name != "${name}") looked_for.insert(name);
  }
  for (const std::string& name : looked_for) EXPECT_TRUE(listed.contains(name)) << name;
  // The compiler, CMake and the threads of the C library are needed to get as far as that.
  for (const auto& [name, dependency] : listed)
    if ((dependency.need == "required" || dependency.need == "test") && name != "compiler" &&
        name != "cmake" && name != "threads") {
      EXPECT_TRUE(looked_for.contains(name)) << name;
    }
}

TEST(Packaging, TheScriptInstallsTheListedPackages) {
  std::set<std::string> expected;
  for (const auto& [name, dependency] : dependencies())
    if (dependency.need == "required" || dependency.need == "optional")
      expected.insert(dependency.debian);
  EXPECT_EQ(words_of(output_of((kRoot / "scripts/install_packages.sh").string() +
                               " --list required optional")),
            expected);
}

TEST(Packaging, TheInstallationPageNamesEveryPackage) {
  const std::string page = content_of(kRoot / "docs/install.md");
  for (const auto& [name, dependency] : dependencies())
    if (dependency.need == "required" || dependency.need == "optional") {
      EXPECT_THAT(page, testing::HasSubstr(dependency.debian)) << name;
      EXPECT_THAT(page, testing::HasSubstr(dependency.rhel)) << name;
    }
}

// Libraries that the program loads at run time are in no list of what it is linked with.
TEST(Packaging, TheInstallationPageNamesTheLibrariesThatAreLoaded) {
  const std::string page = content_of(kRoot / "docs/install.md");
  for (const char* name : {"libnccl2", "libnccl.so.2", "libduckdb.so"}) EXPECT_THAT(page, testing::HasSubstr(name));
}

// libasan, libtsan and libubsan: what a build for make sanitize loads besides.
bool is_of_a_sanitizer(const std::string& package) {
  return std::regex_match(package, std::regex("lib(a|l|t|ub)san[0-9]+"));
}

// The packages of the libraries that the binary loads, as Debian names them.
std::set<std::string> loaded_packages() {
  std::set<std::string> packages;
  std::istringstream lines(output_of("ldd " + kintsugi_binary()));
  const std::string needed = output_of("readelf -d " + kintsugi_binary());
  const std::regex loaded("\\s*(\\S+) => (\\S+) .*");
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (!std::regex_match(line, match, loaded)) continue;
    if (needed.find("[" + match[1].str() + "]") == std::string::npos) continue;  // indirect
    const std::string file = fs::canonical(match[2].str()).string();
    // dpkg knows files of /usr/lib by the name /lib on systems where one links to the other.
    const std::string owner =
        output_of("dpkg -S " + file + " 2>/dev/null || dpkg -S " +
                  (file.starts_with("/usr") ? file.substr(4) : file) + " 2>/dev/null || true");
    packages.insert(owner.substr(0, owner.find(':')));
  }
  return packages;
}

TEST(Packaging, ContainersInstallWhatTheBinaryLoads) {
  const std::string debian = content_of("/etc/os-release");
  if (debian.find("VERSION_CODENAME=bookworm") == std::string::npos)
    GTEST_SKIP() << "the containers are Debian 12";
  std::set<std::string> expected = {"openmpi-bin"};
  for (const std::string& package : loaded_packages())
    if (!package.empty() && !is_of_a_sanitizer(package) &&
        package.find("cud") == std::string::npos && package != "libc6" && package != "libstdc++6" &&
        package != "libgcc-s1")  // of the base image, or of CUDA
      expected.insert(package == "libopenblas0-openmp" ? "libopenblas0-pthread" : package);
  for (const char* recipe : {"container/Dockerfile", "container/kintsugi.def"}) {
    const std::string text = content_of(kRoot / recipe);
    const std::size_t last = text.rfind("--no-install-recommends \\\n");
    ASSERT_NE(last, std::string::npos) << recipe;
    const std::size_t begin = text.find('\n', last) + 1;
    EXPECT_EQ(words_of(text.substr(begin, text.find_first_of("\\\n", begin) - begin)), expected)
        << recipe;
    EXPECT_THAT(text, testing::HasSubstr("install PREFIX=")) << recipe << " builds with make";
  }
}

// What configuring reports and what the program says later.
TEST(Packaging, TheProgramSaysWhatWasLeftOut) {
  const std::string table = content_of(fs::path(kintsugi_binary()).parent_path() / "features.txt");
  for (const char* part :
       {"SentencePiece", "xz", "CUDA, cuDNN", "MPI", "NCCL", "dlib", "hwloc", "SimGrid"})
    EXPECT_THAT(table, testing::HasSubstr("\n  " + std::string(part) + " "));
  std::string left_out;
  std::istringstream rows(table);
  for (std::string row; std::getline(rows, row);)
    if (row.size() > 20 && row.substr(17, 3) == "NO ") {
      const std::string name = row.substr(2, 15);
      left_out += (left_out.empty() ? "" : ", ") + name.substr(0, name.find_last_not_of(' ') + 1);
    }
  EXPECT_THAT(output_of("\"" + kintsugi_binary() + "\" --version"),
              testing::EndsWith("\nleft out: " + (left_out.empty() ? "nothing" : left_out) + "\n"));
}

TEST(Packaging, ShellCompletion) {
  const std::string program = kintsugi_binary();
  output_of("\"" + program + "\" completion bash | bash -n");
  const auto completed = [&](const std::string& words, int index) {
    return words_of(output_of("bash -c 'source <(\"" + program +
                              "\" completion bash); COMP_WORDS=(" + words +
                              "); COMP_CWORD=" + std::to_string(index) +
                              "; _kintsugi; printf \"%s\\n\" \"${COMPREPLY[@]}\"'"));
  };
  using testing::Contains;
  using testing::Not;
  EXPECT_THAT(completed("kintsugi da", 1), Contains("data"));
  EXPECT_THAT(completed("kintsugi da", 1), Not(Contains("train")));
  EXPECT_THAT(completed("kintsugi data tok", 2), Contains("tokenize"));
  EXPECT_THAT(completed("kintsugi data tokenize --sha", 3), Contains("--shard-size"));
  EXPECT_THAT(completed("kintsugi train run.yaml --resume n", 4), Contains("never"));
  EXPECT_THAT(completed("kintsugi plan --machine lumi", 3), Contains("lumi-g"));
  EXPECT_THAT(completed("kintsugi model llama-8", 2), Contains("llama-8b"));
  EXPECT_THAT(completed("kintsugi model me", 2), Contains("merge"));
  EXPECT_THAT(completed("kintsugi model merge a b --dt", 5), Contains("--dtype"));
  EXPECT_THAT(completed("kintsugi model merge a b --dtype b", 6), Contains("bf16"));
  if (std::system("command -v zsh > /dev/null") == 0)
    output_of("\"" + program + "\" completion zsh | zsh -n");
}

TEST(Packaging, TheManPageHasEveryCommand) {
  const std::string page = output_of("\"" + kintsugi_binary() + "\" completion man");
  EXPECT_TRUE(page.starts_with(".TH KINTSUGI 1"));
  for (const char* text :
       {".SS kintsugi train\n", ".SS kintsugi data tokenize\n", "\\-\\-shard\\-size",
        ".SH EXIT STATUS\n", "kintsugi plan \\-\\-model gpt\\-175b"})
    EXPECT_THAT(page, testing::HasSubstr(text));
  if (std::system("command -v man > /dev/null && command -v groff > /dev/null") == 0) {
    EXPECT_EQ(output_of("\"" + kintsugi_binary() +
                        "\" completion man | man --warnings -l - 2>&1 > /dev/null"),
              "");
  }
}

// The measurements that make plan-accuracy reads are part of the project, with their sources.
TEST(Packaging, PlanAccuracyReadsFilesOfTheProject) {
  const std::string makefile = content_of(kRoot / "Makefile");
  const std::regex rows("\\n(MEMORY_)?ROWS \\?= ([^\\n]+)");
  int files = 0;
  for (auto found = std::sregex_iterator(makefile.begin(), makefile.end(), rows);
       found != std::sregex_iterator(); ++found, ++files) {
    const fs::path file = (*found)[2].str();
    EXPECT_FALSE(file.string().starts_with("..")) << file;
    const std::string text = content_of(kRoot / file);
    EXPECT_THAT(text.substr(0, text.find('\n')), testing::HasSubstr("source")) << file;
    EXPECT_GT(std::count(text.begin(), text.end(), '\n'), 400) << file;
  }
  EXPECT_EQ(files, 2);
}

}  // namespace
}  // namespace kintsugi
