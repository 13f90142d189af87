#include "core/host/free_memory.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/file.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// The files in proc and sys of a machine.
class FreeMemoryTest : public testing::Test {
 protected:
  FreeMemoryTest() {
    put("proc/meminfo",
        "MemTotal:       4000 kB\nMemFree:        10 kB\nMemAvailable:   3000 kB\n");
  }
  void put(const std::string& name, const std::string& text) {
    const fs::path path = directory_.path() / name;
    fs::create_directories(path.parent_path());
    write_file_atomically(path, text);
  }
  std::size_t kib() const { return free_memory(directory_.path()) / 1024; }
  static std::string bytes(std::size_t kib) { return std::to_string(kib * 1024) + "\n"; }

  TemporaryDirectory directory_;
};

TEST_F(FreeMemoryTest, IsWhatTheKernelCallsAvailable) { EXPECT_EQ(kib(), 3000u); }

TEST_F(FreeMemoryTest, IsLimitedByTheControlGroup) {
  put("proc/self/cgroup", "0::/job/step\n");
  put("sys/fs/cgroup/job/step/memory.max", bytes(2000));
  put("sys/fs/cgroup/job/step/memory.current", bytes(700));
  EXPECT_EQ(kib(), 1300u);
  // The page cache can be reclaimed.
  put("sys/fs/cgroup/job/step/memory.stat",
      "anon 5\ninactive_file " + bytes(500) + "active_file 7\n");
  EXPECT_EQ(kib(), 1800u);
  put("sys/fs/cgroup/job/memory.max", bytes(1000));
  put("sys/fs/cgroup/job/memory.current", bytes(900));
  EXPECT_EQ(kib(), 100u) << "the limits of parent groups apply, too";
  put("sys/fs/cgroup/job/memory.max", "max\n");
  EXPECT_EQ(kib(), 1800u);
}

TEST_F(FreeMemoryTest, ReadsCgroupV1) {
  put("proc/self/cgroup", "5:cpu:/\n4:memory:/slice/a\n0::/\n");
  put("sys/fs/cgroup/memory/slice/a/memory.limit_in_bytes", bytes(1500));
  put("sys/fs/cgroup/memory/slice/a/memory.usage_in_bytes", bytes(1600));
  put("sys/fs/cgroup/memory/slice/a/memory.stat", "total_inactive_file " + bytes(400));
  EXPECT_EQ(kib(), 300u);
  put("sys/fs/cgroup/memory/slice/a/memory.stat", "total_inactive_file 0\n");
  EXPECT_EQ(kib(), 0u);
  // In a container, the container's own group is the root.
  put("proc/self/cgroup", "4:memory:/docker/elsewhere\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", bytes(900));
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", bytes(100));
  EXPECT_EQ(kib(), 800u);
}

TEST_F(FreeMemoryTest, LimitsOfTheProcess) {
  const auto kib_left = [&] { return free_address_space(directory_.path()) / 1024; };
  put("proc/self/status", "Name:\tx\nVmSize:\t     700 kB\nVmRSS:\t 5 kB\nVmData:\t 200 kB\n");
  EXPECT_EQ(free_address_space(directory_.path()), kUnlimited) << "no limits are known";
  const std::string rest =
      "Max open files            1024                 4096             files\n";
  put("proc/self/limits",
      "Limit                     Soft Limit           Hard Limit           Units     \n" + rest +
          "Max address space         unlimited            unlimited            bytes     \n");
  EXPECT_EQ(free_address_space(directory_.path()), kUnlimited);
  put("proc/self/limits",
      rest + "Max address space         1024000              unlimited  bytes\n");
  EXPECT_EQ(kib_left(), 300u) << "1000 KiB minus 700 KiB that are mapped";
  put("proc/self/limits", "Max data size  256000  unlimited  bytes\n" + rest +
                              "Max address space         1024000              unlimited  bytes\n");
  EXPECT_EQ(kib_left(), 50u);
  put("proc/self/limits", "Max address space         1000              unlimited  bytes\n");
  EXPECT_EQ(kib_left(), 0u);
}

TEST_F(FreeMemoryTest, SurvivesInvalidFiles) {
  put("proc/self/cgroup", ":::\n\n0:\n0::\nabc\n0::/../..\n");
  put("sys/fs/cgroup/memory.max", "many\n");
  put("sys/fs/cgroup/memory.current", "\n");
  EXPECT_EQ(kib(), 3000u);
  EXPECT_EQ(free_memory(directory_.path() / "nowhere"), 0u);
}

}  // namespace
}  // namespace kintsugi
