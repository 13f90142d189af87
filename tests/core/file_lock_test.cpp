#include "core/file_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::StartsWith;

TEST(FileLock, NamesItsHolder) {
  const TemporaryDirectory directory;
  const fs::path file = directory / ".lock";
  std::string holder;
  auto first = FileLock::try_take(file, holder);
  ASSERT_TRUE(first);
  EXPECT_FALSE(FileLock::try_take(file, holder));
  EXPECT_THAT(holder, StartsWith("process " + std::to_string(::getpid()) + " on "));
  first.reset();
  EXPECT_FALSE(fs::exists(file));
  EXPECT_TRUE(FileLock::try_take(file, holder));
}

// The file of a killed process stays, and locks nothing.
TEST(FileLock, AKilledProcessHoldsNothing) {
  const TemporaryDirectory directory;
  const fs::path file = directory / ".lock";
  std::string holder;
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = FileLock::try_take(file, holder);
    kill(getpid(), SIGKILL);
  }
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(file));
  EXPECT_TRUE(FileLock::try_take(file, holder));
}

// As a supervisor whose launch was killed.
TEST(FileLock, AChildHoldsWhatWasPassedOn) {
  const TemporaryDirectory directory;
  const fs::path file = directory / ".lock";
  std::string holder;
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  auto lock = FileLock::try_take(file, holder);
  const int descriptor = lock->pass_on();
  const pid_t child = fork();
  if (child == 0) {
    close(pipes[1]);
    char byte;
    (void)!read(pipes[0], &byte, 1);
    _exit(FileLock::inherited(file, descriptor) ? 0 : 1);
  }
  close(pipes[0]);
  close(descriptor);  // the end of this process, without destructors
  EXPECT_FALSE(FileLock::try_take(file, holder));
  close(pipes[1]);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(FileLock::try_take(file, holder));
  // Never destroyed: its descriptor may be used by others now.
  [[maybe_unused]] static const FileLock* const kept = lock.release();
}

TEST(FileLock, ALinkIsNotFollowed) {
  const TemporaryDirectory directory;
  const fs::path target = directory.write("data", "of the user");
  fs::create_symlink(target, directory / ".lock");
  std::string holder;
  EXPECT_ANY_THROW(FileLock::try_take(directory / ".lock", holder));
  EXPECT_EQ(fs::file_size(target), 11u);
}

}  // namespace
}  // namespace kintsugi
