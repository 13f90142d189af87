// Energy in training: one reader per node, and the sum over all attempts of an interrupted run.
#include "train/job_energy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "comm/exchange.h"
#include "core/file.h"
#include "support/fake_tree.h"
#include "support/program_test.h"
#include "support/small_run.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

using EnergyJson = nlohmann::json;

void wait_until_metered(JobEnergy& energy) {
  while (energy.own()[EnergyLevel::Node].covered_s < 0.05)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// Four ranks on two nodes of 500 W each.
TEST(JobEnergy, OneRankOfEachNodeReadsItsMeters) {
  const TemporaryDirectory nothing;
  run_ranks(4, [&](World& world) {
    const auto group = world.split("energy", 0, world.rank());
    const std::string node = world.rank() < 2 ? "n1" : "n2";
    JobEnergy energy(*group, {.search = {.root = nothing.path(), .node_w = 500},
                              .sample_s = 0.05,
                              .node = node,
                              .gpu = ""});
    EXPECT_EQ(energy.nodes(), 2);
    EXPECT_EQ(energy.gpus(), 0);
    EXPECT_EQ(energy.best_level(), EnergyLevel::Node);
    const bool reads = world.rank() % 2 == 0;
    if (reads) wait_until_metered(energy);
    const LevelEnergy own = energy.own()[EnergyLevel::Node];
    if (reads)
      EXPECT_NEAR(own.total_j, 500 * own.covered_s, 1e-6 * own.total_j);
    else
      EXPECT_EQ(own, LevelEnergy{});
    const std::vector<NodeReading> readings = energy.gather_readings(*group);
    ASSERT_EQ(readings.size(), world.rank() == 0 ? 2u : 0u);
    if (world.rank() > 0) return;
    EXPECT_EQ(readings[0].name, "n1");
    EXPECT_EQ(readings[1].name, "n2");
    EXPECT_GT(readings[1].levels[EnergyLevel::Node].joules, 0);
    EXPECT_EQ(energy.source(EnergyLevel::Node).kind, MeterKind::Estimate);
    EXPECT_EQ(energy.nodes_with(EnergyLevel::Node), 2);
    EXPECT_EQ(energy.source(EnergyLevel::Gpu).reason, "node n1: the run uses no GPU");
  });
}

TEST(JobEnergy, ChargesPhases) {
  const TemporaryDirectory nothing;
  run_ranks(1, [&](World& world) {
    const auto group = world.split("energy", 0, world.rank());
    JobEnergy energy(*group, {.search = {.root = nothing.path(), .node_w = 100},
                              .sample_s = 0.05,
                              .node = "n",
                              .gpu = ""});
    wait_until_metered(energy);
    const double before = energy.own()[EnergyLevel::Node].total_j;
    {
      const EnergySpan step(&energy, RunPhase::Steps);
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      const EnergySpan save(&energy, RunPhase::Checkpoint);  // a save that a step waits for
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
    }
    const LevelEnergy now = energy.own()[EnergyLevel::Node];
    EXPECT_GT(now.steps_j, 0);
    EXPECT_GT(now.checkpoint_j, 0);
    EXPECT_EQ(now.validation_j, 0);
    EXPECT_LE(now.steps_j + now.checkpoint_j, now.total_j - before + 1e-9);
  });
}

// Without any meter a run trains and says why.
TEST(JobEnergy, NothingIsMeteredWithoutMeters) {
  const TemporaryDirectory nothing;
  run_ranks(2, [&](World& world) {
    const auto group = world.split("energy", 0, world.rank());
    JobEnergy energy(*group, {.search = {.root = nothing.path()}, .node = "n", .gpu = ""});
    EXPECT_FALSE(energy.best_level());
    EXPECT_EQ(energy.own(), EnergyTotals{});
    if (world.rank() > 0) return;
    EXPECT_THAT(energy.description(), testing::StartsWith("energy: no meter on this node: "));
  });
}

// A run on the CPUs of a node with GPUs.
TEST(JobEnergy, ARunWithoutGpusDoesNotMeterThoseOfItsNode) {
  FakeTree tree("nvml", "usr/lib64/libnvidia-ml.so.1");
  tree.set("pci0", "0000:10:00.0");
  tree.set("energy0", "1000");
  run_ranks(1, [&](World& world) {
    const auto group = world.split("energy", 0, world.rank());
    for (const char* gpu : {"", "0000:10:00.0"}) {
      JobEnergy energy(*group, {.search = tree.search(),
                                .node = "n",
                                .gpu = gpu,
                                .gpu_model = *gpu == 0 ? "" : "NVIDIA H200"});
      EXPECT_EQ(energy.best_level().has_value(), *gpu != 0);
      EXPECT_EQ(energy.source(EnergyLevel::Gpu).reason, *gpu != 0 ? "" : "the run uses no GPU");
      EXPECT_EQ(energy.gpu_model(), *gpu != 0 ? "NVIDIA H200" : "");
    }
  });
}

// Both dies of an MI250X, which AMD SMI and the files know: RCCL forbids the first.
TEST(JobEnergy, TwoRanksOnAModuleReadItsPowerOnce) {
  FakeTree tree("amdsmi", "opt/rocm/lib/libamd_smi.so");
  const char* dies[] = {"0000:c1:00.0", "0000:c6:00.0"};
  for (int i = 0; i < 2; ++i) {
    tree.set("pci" + std::to_string(i), dies[i]);
    tree.set("count" + std::to_string(i), i == 0 ? "1000000000" : "0");
    const auto device = tree.root() / ("sys/class/drm/card" + std::to_string(i)) / "device";
    std::filesystem::create_directories(device / "hwmon/hwmon0");
    std::ofstream(device / "vendor") << "0x1002\n";
    std::ofstream(device / "uevent") << "PCI_SLOT_NAME=" << dies[i] << "\n";
    std::ofstream(device / "hwmon/hwmon0/power1_average") << (i == 0 ? "500000000\n" : "0\n");
  }
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](World& world) {
      const auto group = world.split("energy", 0, world.rank());
      JobEnergy energy(*group, {.search = tree.search(), .node = "n", .gpu = dies[world.rank()]});
      if (world.rank() > 0) return;
      EXPECT_EQ(energy.source(EnergyLevel::Gpu).source, "amdsmi");
      EXPECT_EQ(energy.source(EnergyLevel::Gpu).reason, "");
      EXPECT_EQ(energy.source(EnergyLevel::Gpu).kind,
                ranks == 1 ? MeterKind::Counter : MeterKind::Power);
    });
}

// The counter of Slurm says nothing about single steps.
TEST(JobEnergy, ASlowLevelCountsOnlyIfThereIsNoOther) {
  MeteredNode first{.name = "n1"};
  first.levels[EnergyLevel::Node] = {.source = "slurm", .slow = true};
  EXPECT_EQ(best_level_of({first}), EnergyLevel::Node);
  first.levels[EnergyLevel::Cpu] = {.source = "rapl"};
  EXPECT_EQ(best_level_of({first}), EnergyLevel::Cpu);
  first.levels[EnergyLevel::Gpu] = {.source = "nvml"};
  EXPECT_EQ(best_level_of({first}), EnergyLevel::Gpu);
  MeteredNode second = first;
  second.levels[EnergyLevel::Gpu] = {};
  EXPECT_EQ(best_level_of({first, second}), EnergyLevel::Cpu);
  first.levels[EnergyLevel::Node].slow = false;
  EXPECT_EQ(best_level_of({first}), EnergyLevel::Node);
  EXPECT_EQ(best_level_of({first, second}), EnergyLevel::Cpu) << "one slow node is enough";
  EXPECT_EQ(best_level_of({}), std::nullopt);
  EXPECT_EQ(parse_metered_node(to_json_text(second)).levels, second.levels);
}

// Two nodes with one rank and one GPU each.
class PowerOfJob : public testing::Test {
 protected:
  struct Node {
    Node() {
      tree.set("pci0", "0000:10:00.0");
      tree.set("limit0", "650000");
    }
    FakeTree tree{"nvml", "usr/lib64/libnvidia-ml.so.1"};
  };
  JobEnergy::Options options(int rank) {
    return {.search = {.root = nodes_[rank].tree.root()},
            .node = rank == 0 ? "n1" : "n2",
            .gpu = "0000:10:00.0",
            .power = {.power_limit_w = 500, .baseline_steps = 0}};
  }
  std::string limit(int node) { return nodes_[node].tree.get("limit0"); }
  Node nodes_[2];
};

TEST_F(PowerOfJob, IsSetOnAllNodes) {
  run_ranks(2, [&](World& world) {
    const auto group = world.split("energy", 0, world.rank());
    JobEnergy energy(*group, options(world.rank()));
    const std::string line = energy.after_step(1, 100, 1, 5.0);
    EXPECT_EQ(line, world.rank() == 0 ? "energy: power limit 500 W from step 2 on" : "");
    EXPECT_EQ(limit(world.rank()), "500000");
    if (world.rank() == 1) energy.power_restorer()();  // as before an exit without destructors
    if (world.rank() == 1) {
      EXPECT_EQ(limit(1), "650000");
    }
  });
  EXPECT_EQ(limit(0), "650000");
}

TEST_F(PowerOfJob, IsSetOnNoNodeIfOneRefuses) {
  nodes_[1].tree.set("permission", "no");
  run_ranks(2, [&](World& world) {
    const auto group = world.split("energy", 0, world.rank());
    JobEnergy energy(*group, options(world.rank()));
    const std::string line = energy.after_step(1, 100, 1, 5.0);
    EXPECT_EQ(limit(world.rank()), "650000");
    ASSERT_TRUE(energy.power_effect());
    EXPECT_THAT(energy.power_effect()->refused,
                testing::AllOf(testing::HasSubstr("node n2"),
                               testing::HasSubstr("Insufficient Permissions")));
    EXPECT_EQ(line.empty(), world.rank() != 0) << "one line for all ranks";
    EXPECT_EQ(energy.after_step(2, 100, 1, 5.0), "");
  });
  EXPECT_EQ(nodes_[0].tree.get("history"), ",500000,650000");
}

TEST_F(PowerOfJob, NeedsNoRestorerWithoutSettings) {
  run_ranks(1, [&](World& world) {
    const auto group = world.split("energy", 0, world.rank());
    JobEnergy::Options without = options(0);
    without.power = {};
    EXPECT_FALSE(JobEnergy(*group, without).power_restorer());
  });
}

class EnergyOfRun : public ProgramTest {
 protected:
  // Starts the program, waits until it has done `step`, and kills it.
  void train_and_kill_after(int step) {
    const Outcome outcome = run_in_shell(fmt::format(
        "\"$kintsugi\" train run.yaml & pid=$!\n"
        "while ! grep -q '\"step\":{},' run/metrics.jsonl 2>/dev/null; do sleep 0.02; done\n"
        "kill -9 $pid; wait $pid 2>/dev/null; exit 0",
        step));
    EXPECT_EQ(outcome.code, 0) << outcome.error;
  }
  EnergyJson json_of(const std::string& name) { return EnergyJson::parse(content_of(name)); }
};

// Three kills and four attempts; a node of 1 kW. Every second that was metered is 1 kJ.
TEST_F(EnergyOfRun, CountsAllAttemptsAndTheLostPart) {
  directory_.write("corpus.txt", small_corpus(400));
  directory_.write("run.yaml",
                   small_config("corpus.txt", "run",
                                "steps: 400, checkpoint_every: 50, eval_every: 200, log_every: 100",
                                "energy: {root: ., node_w: 1000, sample_s: 0.05}\n"));
  for (const int step : {70, 160, 270}) train_and_kill_after(step);
  const Outcome last = run_kintsugi("train run.yaml");
  ASSERT_EQ(last.code, 0) << last.error;
  const EnergyJson energy = json_of("run/energy.json");
  const EnergyJson& node = energy["levels"]["node"];
  EXPECT_EQ(node["kind"], "estimate");
  ASSERT_EQ(energy["attempts"].size(), 4u);
  double attempts = 0, phases = 0, lost = 0;
  for (const EnergyJson& attempt : energy["attempts"]) {
    attempts += attempt["joules"]["node"].get<double>();
    lost += attempt["lost_joules"]["node"].get<double>();
    EXPECT_LE(attempt["joules"]["node"].get<double>(),
              1000 * attempt["seconds"].get<double>() * 1.05 + 100);
  }
  for (const auto& [name, phase] : energy["phases"].items())
    phases += phase["joules"]["node"].get<double>();
  const double total = node["joules"];
  EXPECT_GT(total, 0);
  EXPECT_NEAR(attempts, total, 1e-6 * total);
  EXPECT_NEAR(phases, total, 1e-6 * total);
  EXPECT_NEAR(energy["phases"]["lost"]["joules"]["node"].get<double>(), lost, 1e-6 * total);
  EXPECT_GT(lost, 0);
  EXPECT_LT(lost, total / 2);
  EXPECT_EQ(energy["steps"], 400);
  EXPECT_EQ(energy["tokens"], 400 * 6 * 24);
  EXPECT_NEAR(node["mean_w_per_node"].get<double>(), 1000, 1) << "of killed attempts too";
  EXPECT_GT(node["time_measured"].get<double>(), 0.8);
  EXPECT_TRUE(energy["levels"]["gpu"]["joules"].is_null());
  EXPECT_NE(energy["levels"]["gpu"]["reason"], nullptr);
  EXPECT_THAT(last.out, testing::HasSubstr("J/token"));
}

// The steps of a stage are not charged to the start of the next one.
TEST_F(EnergyOfRun, ChargesTheStepsOfAllStages) {
  directory_.write("corpus.txt", small_corpus(400));
  directory_.write(
      "run.yaml",
      "run: {dir: run, seed: 3}\nmodel: {family: llama, vocab_size: 256, hidden_size: "
      "32, layers: 2, heads: 4, kv_heads: 2, ffn_size: 48, max_positions: 64}\n"
      "energy: {root: ., node_w: 1000, sample_s: 0.05}\n"
      "stages:\n" +
          [](std::string all) {
            for (const char* name : {"a", "b"})
              all += fmt::format(
                  "  - name: {}\n    steps: 150\n    data: {{train: [{{path: "
                  "corpus.txt}}], sequence_length: 24}}\n    batch: {{global: 6, "
                  "micro: 2}}\n    optimizer: {{warmup_steps: 2}}\n",
                  name);
            return all;
          }(""));
  const Outcome outcome = run_kintsugi("train run.yaml");
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  std::istringstream lines(content_of("run/metrics.jsonl"));
  double steps_s = 0;
  for (std::string line; std::getline(lines, line);)
    steps_s += EnergyJson::parse(line)["step_time_s"].get<double>();
  const EnergyJson energy = json_of("run/energy.json");
  EXPECT_NEAR(energy["phases"]["compute"]["seconds"].get<double>(), steps_s, 1e-3 * steps_s);
  EXPECT_NEAR(energy["phases"]["compute"]["joules"]["node"].get<double>(), 1000 * steps_s,
              0.05 * 1000 * steps_s + 100);
}

// The energies of the steps add up to that of the phase.
TEST_F(EnergyOfRun, StepsAddUp) {
  directory_.write("corpus.txt", small_corpus(400));
  directory_.write("run.yaml", small_config("corpus.txt", "run", "steps: 200, log_every: 100",
                                            "energy: {root: ., node_w: 700, sample_s: 0.05}\n"));
  ASSERT_EQ(run_kintsugi("train run.yaml").code, 0);
  std::istringstream lines(content_of("run/metrics.jsonl"));
  double steps_j = 0, last_total = 0;
  for (std::string line; std::getline(lines, line);) {
    const EnergyJson record = EnergyJson::parse(line);
    steps_j += record["energy_j"].is_null() ? 0 : record["energy_j"].get<double>();
    if (!record["energy_j"].is_null()) {
      EXPECT_EQ(record["energy_scope"], "node");
    }
    if (record["energy_since_launch"].contains("node"))
      last_total = record["energy_since_launch"]["node"]["j"];
  }
  const EnergyJson energy = json_of("run/energy.json");
  // Steps are charged at other moments than the phase: a busy machine may lie between the two. 20
  // ms of 700 W in 200 steps are allowed, so a part of each step that is missing or doubled is
  // found.
  EXPECT_NEAR(steps_j, energy["phases"]["compute"]["joules"]["node"].get<double>(),
              2e-3 * steps_j + 0.02 * 700);
  EXPECT_LE(steps_j, last_total);
  EXPECT_GT(steps_j, 0);
}

// Power is not integrated over more than 3 s.
TEST_F(EnergyOfRun, IsSampledAtLeastEveryTwoSeconds) {
  directory_.write("corpus.txt", small_corpus(200));
  directory_.write("run.yaml", small_config("corpus.txt", "run", "steps: 5"));
  const Outcome outcome = run_kintsugi("train run.yaml --set energy.sample_s=3");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.error, testing::HasSubstr("sample_s"));
}

TEST_F(EnergyOfRun, IsNullWithAReasonWithoutMeters) {
  directory_.write("corpus.txt", small_corpus(200));
  directory_.write("run.yaml",
                   small_config("corpus.txt", "run", "steps: 5", "energy: {root: .}\n"));
  const Outcome outcome = run_kintsugi("train run.yaml");
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, testing::HasSubstr("energy: no meter on this node"));
  const EnergyJson energy = json_of("run/energy.json");
  EXPECT_TRUE(energy["levels"]["node"]["joules"].is_null());
  EXPECT_TRUE(energy["levels"]["node"]["reason"].is_string());
}

}  // namespace
}  // namespace kintsugi
