#include "comm/launch_environment.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace kintsugi {
namespace {

int ranks_with(const std::map<std::string, std::string>& environment) {
  return launched_ranks([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(LaunchEnvironment, ReadsWhatLaunchersSet) {
  EXPECT_EQ(ranks_with({}), 1);
  EXPECT_EQ(ranks_with({{"OMPI_COMM_WORLD_SIZE", "8"}, {"PMIX_RANK", "3"}}), 8);
  EXPECT_EQ(ranks_with({{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}}), 1);
  EXPECT_EQ(ranks_with({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}}), 2);
  EXPECT_EQ(ranks_with({{"SLURM_STEP_NUM_TASKS", "16"}, {"SLURM_PROCID", "5"}}), 16);
  EXPECT_EQ(ranks_with({{"PMIX_RANK", "0"}}), 0);
  // Inside a batch script, outside of srun.
  EXPECT_EQ(ranks_with({{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "16"}, {"SLURM_PROCID", "0"}}), 1);
  EXPECT_EQ(ranks_with({{"PMI_SIZE", ""}}), 1);
}

}  // namespace
}  // namespace kintsugi
