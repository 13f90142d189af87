#include "launch/job_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/errors.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

JobDescription two_nodes() {
  return {.name = "demo",
          .run_dir = "/scratch/runs/demo",
          .config = "/scratch/runs/demo/launch/config.yaml",
          .program = "/opt/kintsugi",
          .machine = "LUMI-G",
          .ranks_per_node = 8,
          .nodes = 2,
          .spare_nodes = 1,
          .min_nodes = 1,
          .launcher = {"srun", "--nodes={nodes}", "--ntasks={ranks}", "--exclude={exclude}",
                       "--nodelist={nodelist}"},
          .environment = {{"B", "2"}, {"A", "a b\n\"c\""}},
          .requeue = true,
          .chain = 3,
          .submitted_s = 1790000000,
          .job_ids = {"17", "18"}};
}

TEST(JobDescription, JsonAndBack) {
  const JobDescription job = two_nodes();
  EXPECT_EQ(job_from_json(to_json(job), "job.json"), job);
  const auto json = nlohmann::json::parse(to_json(job));
  EXPECT_EQ(json["launcher"][1], "--nodes={nodes}");
  EXPECT_EQ(json["environment"]["A"], "a b\n\"c\"");
  EXPECT_EQ(json["submitted_s"], 1790000000);
}

TEST(JobDescription, Command) {
  const JobDescription job = two_nodes();
  EXPECT_THAT(rank_command(job, {.nodes = 2}, {"train", "c.yaml"}),
              ElementsAre("srun", "--nodes=2", "--ntasks=16", "/opt/kintsugi", "train", "c.yaml"));
  EXPECT_THAT(rank_command(job, {.nodes = 1, .exclude = {"n7", "n9"}}, {}),
              ElementsAre("srun", "--nodes=1", "--ntasks=8", "--exclude=n7,n9", "/opt/kintsugi"));
  EXPECT_THAT(rank_command(job, {.nodes = 1, .nodelist = {"n1"}}, {}),
              ElementsAre("srun", "--nodes=1", "--ntasks=8", "--nodelist=n1", "/opt/kintsugi"));
}

TEST(JobDescription, NamesTheKeyThatIsWrong) {
  const auto changed = [](const char* key, nlohmann::json value) {
    auto json = nlohmann::json::parse(to_json(two_nodes()));
    if (value.is_null())
      json.erase(key);
    else
      json[key] = value;
    return user_error_of([&] { job_from_json(json.dump(), "x/job.json"); });
  };
  EXPECT_THAT(changed("nodes", nullptr), AllOf(HasSubstr("x/job.json"), HasSubstr("nodes")));
  EXPECT_THAT(changed("nodes", "two"), HasSubstr("nodes is not a whole number"));
  EXPECT_THAT(changed("nodes", 0), HasSubstr("between 1 and"));
  EXPECT_THAT(changed("min_nodes", 3), HasSubstr("min_nodes 3 is more than nodes 2"));
  EXPECT_THAT(changed("job_ids", {"7", "--user=all"}), HasSubstr("'--user=all'"));
  EXPECT_THAT(changed("launcher", {"srun", 3}), HasSubstr("launcher is not a list of texts"));
  EXPECT_THAT(changed("environment", {{"A", 1}}), HasSubstr("environment is not a map"));
  EXPECT_THAT(user_error_of([] { job_from_json("{", "x/job.json"); }),
              HasSubstr("x/job.json is no job description"));
}

TEST(JobDescription, ADirectoryThatWasNotLaunched) {
  const TemporaryDirectory directory;
  EXPECT_THAT(user_error_of([&] { load_job(directory.path()); }),
              HasSubstr("was not started by kintsugi launch"));
}

}  // namespace
}  // namespace kintsugi
