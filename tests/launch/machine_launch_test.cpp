// The launch sections of the built-in machines, and what --explain says of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>

#include "launch/job_launcher.h"
#include "plan/machines/comments.h"
#include "support/errors.h"
#include "support/temporary_directory.h"

namespace kintsugi::machine_launch {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr double kHour = 3600;
const JobPaths kPaths = {.run_dir = "/scratch/project/runs/demo",
                         .program = "/opt/kintsugi/bin/kintsugi",
                         .working_directory = "/scratch/project"};

std::string script_for(const Machine& machine, LaunchOptions options) {
  options.name = "demo";
  return job_script(machine, options, kPaths, describe_job(machine, options, kPaths));
}

std::string script_for(const std::string& name, const LaunchOptions& options) {
  return script_for(load_machine(name), options);
}

std::vector<std::string> launcher_for(const std::string& name, LaunchOptions options) {
  options.name = "demo";
  return describe_job(load_machine(name), options, kPaths).launcher;
}

void expect_bash_reads(const std::string& script) {
  const TemporaryDirectory directory;
  directory.write("job.sh", script);
  EXPECT_EQ(std::system(("bash -n " + (directory.path() / "job.sh").string()).c_str()), 0)
      << script;
}

const std::vector<std::string> kSites = {"alps",         "frontier",      "juwels-booster",
                                         "jupiter",      "leonardo",      "lumi-g",
                                         "marenostrum5", "snellius-a100", "snellius-h100"};

// Lines that users of these machines need, from their guides and published scripts.
TEST(MachineLaunch, SitesHaveTheirLines) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> wanted = {
      {"leonardo",
       {"#SBATCH --partition=boost_usr_prod\n", "#SBATCH --gres=gpu:4\n", "#SBATCH --exclusive\n",
        "#SBATCH --cpus-per-task=8\n", "#SBATCH --time=1-00:00:00\n"}},
      {"jupiter",
       {"#SBATCH --partition=booster\n", "#SBATCH --cpus-per-task=72\n",
        "#SBATCH --threads-per-core=1\n", "export NCCL_SOCKET_IFNAME=\"ib0\"\n",
        "export NCCL_IB_HCA=\"mlx5_0,mlx5_1,mlx5_2,mlx5_3\"\n"}},
      {"juwels-booster", {"#SBATCH --hint=nomultithread\n", "export NCCL_IB_RETRY_CNT=\"20\"\n"}},
      {"marenostrum5",
       {"#SBATCH --partition=acc\n", "#SBATCH --qos=acc_ehpc\n", "#SBATCH --cpus-per-task=20\n",
        "export NCCL_NET=\"IB\"\n", "export NCCL_IB_HCA=\"mlx5_0,mlx5_1,mlx5_4,mlx5_5\"\n"}},
      {"alps",
       {"#SBATCH --partition=normal\n", "#SBATCH --gpus-per-task=1\n",
        "#SBATCH --constraint=thp_never&nvidia_vboost_enabled\n",
        "export NCCL_NET=\"AWS Libfabric\"\n", "export FI_MR_CACHE_MONITOR=\"userfaultfd\"\n"}},
      {"lumi-g", {"#SBATCH --mem=480G\n", "export HSA_ENABLE_SDMA=\"0\"\n"}},
      {"frontier", {"#SBATCH --network=disable_rdzv_get\n", "export NCCL_NET=\"OFI\"\n"}},
      {"snellius-h100", {"export NCCL_SOCKET_IFNAME=\"eno2np0\"\n"}},
      {"snellius-a100", {"#SBATCH --partition=gpu_a100\n", "#SBATCH --ear=on\n"}}};
  for (const auto& [name, lines] : wanted)
    for (const std::string& line : lines)
      EXPECT_THAT(script_for(name, {.nodes = 2, .account = "a"}), HasSubstr("\n" + line)) << name;
  EXPECT_THAT(script_for("alps", {.nodes = 1, .account = "a"}), Not(HasSubstr("NCCL_NET=")));
  EXPECT_THAT(script_for("leonardo", {.nodes = 2, .account = "a"}), Not(HasSubstr("--qos")));
}

TEST(MachineLaunch, EverySiteIsComplete) {
  for (const std::string& name : kSites) {
    const Machine machine = load_machine(name);
    EXPECT_TRUE(machine.launch.partition) << name;
    EXPECT_FALSE(machine.launch.limits.empty()) << name;
    EXPECT_GT(machine.launch.cpus_per_task, 0) << name;
    expect_bash_reads(script_for(machine, {.nodes = 2, .account = "a"}));
    if (machine.topology.empty()) continue;
    EXPECT_EQ(parse_topology(machine.topology, name).gpus(), machine.node.gpus) << name;
  }
}

// CINECA: a job of 65 to 256 nodes needs another QoS. The first limit that fits is used.
TEST(MachineLaunch, LimitsNameTheirQosAndPartition) {
  const auto hours = [](const char* name, const LaunchOptions& options) {
    return time_limit_s(load_machine(name), options).value_or(0) / kHour;
  };
  EXPECT_EQ(hours("leonardo", {.nodes = 2}), 24);
  EXPECT_EQ(hours("leonardo", {.nodes = 2, .qos = "boost_qos_lprod"}), 96);
  EXPECT_EQ(hours("leonardo", {.nodes = 2, .qos = "another"}), 0) << "unknown";
  EXPECT_EQ(hours("lumi-g", {.nodes = 2}), 48);
  EXPECT_EQ(hours("lumi-g", {.nodes = 2, .partition = "standard-g"}), 48);
  EXPECT_EQ(hours("lumi-g", {.nodes = 2, .partition = "dev-g"}), 3);
  EXPECT_EQ(hours("lumi-g", {.nodes = 2, .partition = "another"}), 48);
  EXPECT_EQ(hours("alps", {.nodes = 4, .partition = "debug"}), 0.375);
  EXPECT_EQ(hours("frontier", {.nodes = 64, .partition = "extended"}), 24);
  EXPECT_THAT(script_for("leonardo", {.nodes = 64, .spare_nodes = 1, .account = "a"}),
              HasSubstr("#SBATCH --qos=boost_qos_bprod\n"));
  EXPECT_THAT(
      script_for("marenostrum5", {.nodes = 1, .account = "a", .qos = "acc_debug"}),
      AllOf(HasSubstr("#SBATCH --qos=acc_debug\n"), HasSubstr("#SBATCH --time=02:00:00\n")));
  const auto wrong = [](const char* name, const LaunchOptions& options) {
    return user_error_of([&] { script_for(name, options); });
  };
  EXPECT_THAT(wrong("leonardo", {.nodes = 257, .account = "a"}), HasSubstr("at most 256 nodes"));
  EXPECT_THAT(wrong("lumi-g", {.nodes = 5, .account = "a", .partition = "small-g"}),
              HasSubstr("5 nodes for one job, but LUMI-G has jobs of at most 4 nodes"));
  EXPECT_THAT(wrong("leonardo", {.account = "a", .qos = "x\n#SBATCH --y"}), HasSubstr("--qos"));
}

TEST(MachineLaunch, LimitsAreInOrder) {
  const auto wrong = [](std::vector<JobLimit> limits) {
    LaunchSpec spec;
    spec.limits = std::move(limits);
    return user_error_of([&] { check_launch(spec, "m.yaml"); });
  };
  EXPECT_THAT(wrong({{8, 1}, {4, 2}}), HasSubstr("m.yaml: launch.limits[1].nodes is 4"));
  EXPECT_THAT(wrong({{8, 1, "p"}, {4, 2, "q"}, {8, 2, "p"}}), HasSubstr("launch.limits[2].nodes"));
  EXPECT_THAT(wrong({{8, 1, "a b"}}), HasSubstr("launch.limits: 'a b'"));
  EXPECT_THAT(wrong({{8, 1, "", "a;b"}}), HasSubstr("launch.limits: 'a;b'"));
  LaunchSpec other;
  other.limits = {{8, 1}, {4, 2, "", "q"}, {2, 3, "p"}};
  EXPECT_NO_THROW(check_launch(other, "m.yaml"));
}

TEST(MachineLaunch, Containers) {
  EXPECT_THAT(
      launcher_for("alps", {.nodes = 2, .account = "a", .container = "/img/k.toml"}),
      AllOf(Contains("--environment=/img/k.toml"), Contains("--mpi=pmix"), Not(Contains("exec"))));
  EXPECT_THAT(launcher_for("alps", {.nodes = 2, .account = "a"}),
              AllOf(Contains("--gpus-per-task=1"), Not(Contains("--mpi=pmix"))));
  EXPECT_THAT(script_for("alps", {.nodes = 2, .account = "a", .container = "/img/k.toml"}),
              HasSubstr("export PMIX_MCA_psec=^munge"));
  EXPECT_THAT(launcher_for("marenostrum5", {.account = "a", .container = "/img/k.sif"}),
              AllOf(Contains("singularity"), Contains("--nv"), Contains("--gpu-bind=none"),
                    Contains("/gpfs,/scratch/project,/scratch/project/runs/demo")));
  Machine machine = load_machine("marenostrum5");
  machine.launch.container = {.runtime = ContainerRuntime::Pyxis, .binds = {"/gpfs"}};
  const LaunchOptions options{.account = "a", .container = "/img/k.sqsh", .name = "demo"};
  EXPECT_THAT(describe_job(machine, options, kPaths).launcher,
              AllOf(Contains("--container-image=/img/k.sqsh"),
                    Contains("--container-mounts=/gpfs:/gpfs,/scratch/project:/scratch/project,"
                             "/scratch/project/runs/demo:/scratch/project/runs/demo"),
                    Contains("--container-workdir=/scratch/project")));
  machine.launch.container.runtime = ContainerRuntime::Edf;
  EXPECT_THAT(user_error_of([&] { check_launch(machine.launch, "m.yaml"); }),
              HasSubstr("m.yaml: launch.container.binds"));
}

std::string without_reasons(const std::string& text) {
  std::string script;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (!line.starts_with(kReasonStart)) script += line + "\n";
  return script;
}

// The explained script is the script with comments: also of hostile values.
TEST(Explain, IsTheScriptWithReasons) {
  for (const std::string& name : machine_names()) {
    const Machine machine = load_machine(name);
    for (LaunchOptions options :
         {LaunchOptions{.nodes = 1, .account = "a"},
          LaunchOptions{.nodes = 1, .time_s = 400 * kHour, .account = "a", .container = "/k.sif"},
          LaunchOptions{.nodes = 1, .time_s = kHour, .account = "a", .requeue = true}}) {
      options.name = "demo";
      const JobDescription job = describe_job(machine, options, kPaths);
      const ScriptParts parts = job_script_parts(machine, options, kPaths, job);
      const std::string text = explained(parts, machine_comments(name));
      EXPECT_EQ(without_reasons(text), job_script(machine, options, kPaths, job)) << name;
      expect_bash_reads(text);
      for (const ScriptPart& part : parts)
        EXPECT_TRUE(!part.key.empty() || !part.reason.empty() || part.text.starts_with("#!"))
            << name << ": " << part.text;
    }
  }
}

TEST(Explain, EachValueOfASiteHasItsSource) {
  for (const std::string& name : kSites) {
    const Machine machine = load_machine(name);
    LaunchOptions options{.nodes = 2, .account = "a", .name = "demo"};
    const JobDescription job = describe_job(machine, options, kPaths);
    const MachineComments comments = machine_comments(name);
    ScriptParts parts = job_script_parts(machine, options, kPaths, job);
    for (ScriptPart& word : launcher_parts(machine, options, job, kPaths)) {
      word.text += "\n";
      parts.push_back(word);
    }
    for (const ScriptPart& part : parts) {
      if (part.key.empty() || !comments.contains(part.key)) continue;
      EXPECT_THAT(explained({part}, comments), HasSubstr(kReasonStart + part.key + ": "))
          << name << ": " << part.text;
    }
  }
}

TEST(Explain, NamesFileOptionAndDefault) {
  const Machine machine = load_machine("leonardo");
  const LaunchOptions options{
      .nodes = 128, .spare_nodes = 1, .account = "a", .name = "demo", .cpu_bind = "none"};
  const JobDescription job = describe_job(machine, options, kPaths);
  const MachineComments comments = machine_comments("leonardo");
  const std::string text = explained(job_script_parts(machine, options, kPaths, job), comments);
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("#SBATCH --nodes=129\n#   <- --nodes 128 and --spare-nodes 1\n"),
            HasSubstr("#SBATCH --qos=boost_qos_bprod\n#   <- launch.limits[1]: CINECA"),
            HasSubstr("#SBATCH --exclusive\n#   <- launch.exclusive: CINECA user guide: nodes are"),
            HasSubstr("#SBATCH --signal=USR1@300\n#   <- launch.signal_s: the default; ")));
  const std::string words =
      explained_words(launcher_parts(machine, options, job, kPaths), comments);
  EXPECT_THAT(words, AllOf(HasSubstr("#   --cpu-bind=none\n#   <- --cpu-bind\n"),
                           HasSubstr("#   srun\n#   <- launch.launcher: the default\n")));
}

TEST(MachineComments, AreThoseBehindTheValues) {
  const MachineComments comments = parse_comments(
      "name: \"a # b\"  # its name\n"
      "url: http://x/#y\n"
      "quote: it's  # an apostrophe\n"
      "escaped: \"a \\\" # b\" # end\n"
      "launch:  # all\n"
      "  limits:\n"
      "    - {nodes: 1}  # one\n"
      "    - nodes: 2  #two\n"
      "  list: ['x # y', z]  ##  both\n"
      "# a line\n"
      "  empty: 1 #\n",
      "m.yaml");
  EXPECT_EQ(comments.at("name"), "its name");
  EXPECT_EQ(comments.at("url"), "");
  EXPECT_EQ(comments.at("quote"), "an apostrophe");
  EXPECT_EQ(comments.at("escaped"), "end");
  EXPECT_EQ(comments.at("launch"), "all");
  EXPECT_EQ(comments.at("launch.limits"), "");
  EXPECT_EQ(comments.at("launch.limits[0]"), "one");
  EXPECT_EQ(comments.at("launch.limits[0].nodes"), "one");
  EXPECT_EQ(comments.at("launch.limits[1]"), "two");
  EXPECT_EQ(comments.at("launch.list[1]"), "both");
  EXPECT_EQ(comments.at("launch.empty"), "");
  EXPECT_FALSE(comments.contains("launch.limits[2]"));
  EXPECT_THAT(user_error_of([] { parse_comments("a: [", "m.yaml"); }), HasSubstr("m.yaml"));
}

class SiteMachinesTest : public testing::Test {
 protected:
  ~SiteMachinesTest() override {
    unsetenv("KINTSUGI_MACHINES");
    if (config_)
      setenv("XDG_CONFIG_HOME", config_->c_str(), 1);
    else
      unsetenv("XDG_CONFIG_HOME");
  }
  void site(const std::string& text) {
    std::filesystem::create_directories(directory_.path() / "kintsugi");
    directory_.write("kintsugi/machines.yaml", text);
    setenv("XDG_CONFIG_HOME", directory_.path().c_str(), 1);
  }

  TemporaryDirectory directory_;
  std::optional<std::string> config_ =
      std::getenv("XDG_CONFIG_HOME") ? std::optional<std::string>(std::getenv("XDG_CONFIG_HOME"))
                                     : std::nullopt;
};

TEST_F(SiteMachinesTest, KeysReplaceThoseOfABuiltInMachine) {
  const Machine before = load_machine("leonardo"), other = load_machine("alps");
  site(
      "leonardo:\n  gpu: {tdp_w: 441}\n  launch:\n    partition: mine  # by mail\n"
      "    environment: {A: b}\n");
  const Machine machine = load_machine("leonardo");
  EXPECT_EQ(machine.launch.partition, "mine");
  EXPECT_EQ(machine.launch.environment, (LaunchSpec::Variables{{"A", "b"}}));
  EXPECT_EQ(machine.launch.limits, before.launch.limits);
  EXPECT_EQ(machine.gpu.tdp_w, 441);
  EXPECT_EQ(machine.gpu.memory_gb, before.gpu.memory_gb);
  EXPECT_EQ(load_machine("alps").launch, other.launch);
  const std::string file = (directory_.path() / "kintsugi/machines.yaml").string();
  EXPECT_EQ(machine_comments("leonardo").at("launch.partition"), file + ": by mail");
  EXPECT_EQ(machine_comments("leonardo").at("launch.environment.A"), file);
  EXPECT_THAT(machine_comments("alps").at("launch.partition"), HasSubstr("CSCS"));
  // KINTSUGI_MACHINES is used instead of it.
  directory_.write("other.yaml", "leonardo: {nodes: 7}\n");
  setenv("KINTSUGI_MACHINES", (directory_.path() / "other.yaml").c_str(), 1);
  EXPECT_EQ(load_machine("leonardo").nodes, 7);
  EXPECT_EQ(load_machine("leonardo").launch.partition, before.launch.partition);
}

TEST_F(SiteMachinesTest, SaysWhatIsWrong) {
  const auto wrong = [&](const std::string& text) {
    site(text);
    return user_error_of([] { load_machine("leonardo"); });
  };
  EXPECT_THAT(wrong("leonrado: {nodes: 7}\n"),
              AllOf(HasSubstr("machines.yaml line 1"), HasSubstr("leonrado")));
  EXPECT_THAT(wrong("leonardo:\n  launch: {partitoin: x}\n"),
              AllOf(HasSubstr("machines.yaml line 2"), HasSubstr("partitoin")));
  EXPECT_THAT(wrong("leonardo:\n  launch: {partition: 'a b'}\n"),
              AllOf(HasSubstr("machines.yaml: leonardo: launch.partition"), HasSubstr("'a b'")));
  EXPECT_THAT(wrong("leonardo: ["), HasSubstr("machines.yaml"));
  setenv("KINTSUGI_MACHINES", "/nowhere/m.yaml", 1);
  EXPECT_THAT(user_error_of([] { load_machine("leonardo"); }),
              HasSubstr("KINTSUGI_MACHINES: there is no file '/nowhere/m.yaml'"));
}

// A machine file may come from anywhere: no text of it becomes a line of the script.
TEST(MachineLaunch, HostileTextsStayInTheirLines) {
  Machine machine = load_machine("leonardo");
  machine.name = "x\nrm -rf /\x1b[2J";
  const std::string script = script_for(machine, {.nodes = 1, .account = "a"});
  EXPECT_THAT(script, AllOf(HasSubstr("on x rm -rf / [2J: 1 node"), Not(HasSubstr("\nrm -rf"))));
  const MachineComments comments = parse_comments("launch:\n  partition: p # \x1b]0;x\a\r\n", "m");
  EXPECT_EQ(explained({from_machine("p\n", "launch.partition")}, comments),
            "p\n#   <- launch.partition:  ]0;x  \n");
  for (const char* option : {"--x=a b", "--x=$(y)", "--x=;y", "--x=a\nb", "x"}) {
    LaunchSpec spec;
    spec.slurm_options = {option};
    EXPECT_THAT(user_error_of([&] { check_launch(spec, "m.yaml"); }),
                HasSubstr("m.yaml: launch.slurm_options"))
        << option;
  }
  LaunchSpec spec;
  spec.container.mpi = "pmix;x";
  EXPECT_THAT(user_error_of([&] { check_launch(spec, "m.yaml"); }), HasSubstr("container.mpi"));
}

}  // namespace
}  // namespace kintsugi::machine_launch
