#include "comm/launch_environment.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "comm/socket.h"

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
  // In a batch script, without srun.
  EXPECT_EQ(ranks_with({{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "16"}, {"SLURM_PROCID", "0"}}), 1);
  EXPECT_EQ(ranks_with({{"PMI_SIZE", ""}}), 1);
}

bool silent_with(const std::map<std::string, std::string>& environment) {
  return another_rank_reports([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(LaunchEnvironment, TheFirstRankOfACommandReports) {
  EXPECT_FALSE(silent_with({}));
  EXPECT_FALSE(silent_with({{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_RANK", "0"}}));
  EXPECT_TRUE(silent_with({{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_RANK", "3"}}));
  EXPECT_TRUE(silent_with({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}));
  EXPECT_TRUE(silent_with({{"SLURM_STEP_NUM_TASKS", "16"}, {"SLURM_PROCID", "5"}}));
  EXPECT_FALSE(silent_with({{"SLURM_NTASKS", "16"}, {"SLURM_PROCID", "0"}}));
  // mpirun -np 2 a : -np 2 b
  for (const char* rank : {"0", "1", "2", "3"})
    EXPECT_EQ(silent_with({{"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_RANK", rank},
                           {"OMPI_FIRST_RANKS", "0 2"}}),
              rank == std::string("1") || rank == std::string("3"))
        << rank;
}

TEST(LaunchEnvironment, TheNodeHasTheNameThatTheSchedulerKnows) {
  const auto named = [](const char* name) { return node_name([&](const char*) { return name; }); };
  EXPECT_EQ(named("nid000012"), "nid000012");
  EXPECT_EQ(named(nullptr), host_name());
  EXPECT_EQ(named(""), host_name());
}

}  // namespace
}  // namespace kintsugi
