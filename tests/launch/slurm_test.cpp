#include "launch/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "core/child_output.h"
#include "support/errors.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;

// The forms of Slurm's documentation.
TEST(Slurm, Times) {
  EXPECT_EQ(parse_slurm_time("30"), 1800);
  EXPECT_EQ(parse_slurm_time("30:15"), 1815);
  EXPECT_EQ(parse_slurm_time("23:59:50"), 86390);
  EXPECT_EQ(parse_slurm_time("2-00:00:00"), 172800);
  EXPECT_EQ(parse_slurm_time("1-12"), 129600);
  EXPECT_EQ(parse_slurm_time("1-12:30"), 131400);
  EXPECT_EQ(parse_slurm_time("infinite"), std::nullopt);
  EXPECT_THROW(parse_slurm_time("soon"), Failure);
  EXPECT_THROW(parse_slurm_time(""), Failure);
  EXPECT_THROW(parse_slurm_time("1:2:3:4"), Failure);
}

TEST(Slurm, Partitions) {
  const std::vector<SlurmPartition> all = {{"main*", 7200, 8}, {"long", std::nullopt, 4}};
  EXPECT_NO_THROW(check_partition(all, "", 8, 7200));
  EXPECT_NO_THROW(check_partition(all, "main", 8, 7200));
  EXPECT_NO_THROW(check_partition(all, "long", 4, 1e9));
  const auto wrong = [&](const std::string& name, std::int64_t nodes, double seconds) {
    return user_error_of([&] { check_partition(all, name, nodes, seconds); });
  };
  EXPECT_THAT(wrong("", 9, 60), HasSubstr("9 nodes for the job, but the partition main has 8"));
  EXPECT_THAT(wrong("", 1, 7201), HasSubstr("at most 02:00:00, not 02:00:01"));
  EXPECT_THAT(wrong("lnog", 1, 60), HasSubstr("did you mean 'long'"));
  EXPECT_THAT(user_error_of([] {
                check_partition({{"a", {}, 1}}, "", 1, 1);
              }),
              HasSubstr("no default partition"));
}

TEST(ChildOutput, BothOutputsAndTheCode) {
  const ChildOutput answer = run_captured({"sh", "-c", "echo out; echo error >&2; exit 7"}, 60);
  EXPECT_TRUE(answer.found);
  EXPECT_FALSE(answer.timed_out);
  EXPECT_EQ(answer.code, 7);
  EXPECT_EQ(answer.out, "out\n");
  EXPECT_EQ(answer.error, "error\n");
  EXPECT_EQ(run_captured({"sh", "-c", "kill -KILL $$"}, 60).code, 137);
  EXPECT_FALSE(run_captured({"no-such-program-anywhere"}, 60).found);
  EXPECT_EQ(run_captured({"cat"}, 60).out, "") << "standard input is empty";
}

TEST(ChildOutput, MuchOutputDoesNotBlock) {
  const ChildOutput answer =
      run_captured({"sh", "-c", "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2"}, 60);
  EXPECT_EQ(answer.out.size(), 300000u);
  EXPECT_EQ(answer.error.size(), 300000u);
}

TEST(ChildOutput, AProgramThatHangsIsKilledWithItsChildren) {
  const ChildOutput answer = run_captured({"sh", "-c", "sleep 1000 & sleep 1000"}, 0.2);
  EXPECT_TRUE(answer.timed_out);
  EXPECT_EQ(answer.code, 137);
}

TEST(ChildOutput, LeavesOutVariables) {
  setenv("SBATCH_PARTITION", "wrong", 1);
  setenv("KEPT", "yes", 1);
  EXPECT_EQ(run_captured({"sh", "-c", "echo $SBATCH_PARTITION$KEPT"}, 60, {"SBATCH_"}).out,
            "yes\n");
  unsetenv("SBATCH_PARTITION");
  unsetenv("KEPT");
}

}  // namespace
}  // namespace kintsugi
