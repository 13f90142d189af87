#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {

// Runs the program as a user does, in a temporary directory.
class ProgramTest : public testing::Test {
 protected:
  struct Outcome {
    int code;
    std::string out, error;
  };

  // `arguments` are parsed by the shell.
  Outcome run_kintsugi(const std::string& arguments, const std::string& input = "") {
    directory_.write("in.txt", input);
    const std::string command = "cd '" + directory_.path().string() + "' && '" + kintsugi_binary() +
                                "' " + arguments + " <in.txt >out.txt 2>error.txt";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content_of("out.txt"),
            content_of("error.txt")};
  }
  // Runs a shell command in which "$kintsugi" is the program, for redirections and limits.
  Outcome run_in_shell(const std::string& command) {
    const std::string whole = "cd '" + directory_.path().string() + "' && kintsugi='" +
                              kintsugi_binary() + "' && export kintsugi && { " + command +
                              "\n} </dev/null >out.txt 2>error.txt";
    const int status = std::system(whole.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content_of("out.txt"),
            content_of("error.txt")};
  }
  std::string content_of(const std::string& name) {
    std::ifstream file(directory_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TemporaryDirectory directory_;
};

// kintsugi plan.
class PlanCommandTest : public ProgramTest {
 protected:
  Outcome run(const std::string& arguments) { return run_kintsugi("plan " + arguments); }
  std::string mistake(const std::string& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_THAT(outcome.error, testing::StartsWith("error: "));
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  }
};

}  // namespace kintsugi
