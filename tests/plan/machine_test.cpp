#include "plan/machines/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <regex>
#include <string>

#include "core/file.h"
#include "support/errors.h"
#include "support/paths.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::filesystem::path kFolder = std::filesystem::path(source_directory()) / "machines";

constexpr const char* kSmall = R"(name: mine
nodes: 4
gpu:
  bf16_tflops: 312
  memory_gb: 80
  memory_gb_s: 2039
  tdp_w: 400
node:
  gpus: 8
  link_gb_s: 300
network:
  gb_s: 25
)";

TEST(Machine, TwentyLinesAreEnough) {
  const Machine machine = parse_machine(kSmall, "mine.yaml");
  EXPECT_EQ(machine.gpus(), 32);
  EXPECT_EQ(machine.gpu.tflops(DType::BF16), 312);
  EXPECT_EQ(machine.gpu.tflops(DType::F16), 312);
  EXPECT_EQ(machine.network.gb_s, 25);
}

TEST(Machine, PeaksInFp8) {
  for (const char* hopper : {"dgx-h100", "dgx-h200", "h200", "jupiter", "alps", "snellius-h100"}) {
    const GpuSpec gpu = load_machine(hopper).gpu;
    EXPECT_NEAR(gpu.tflops(DType::F8), 1979, 1) << hopper;
    EXPECT_NEAR(gpu.tflops(DType::F8) / gpu.tflops(DType::BF16), 2, 0.01) << hopper;
  }
  EXPECT_EQ(load_machine("mi300x").gpu.tflops(DType::F8), 2610);
  for (const char* without : {"dgx-a100", "leonardo", "jean-zay", "frontier", "lumi-g", "laptop"})
    EXPECT_EQ(load_machine(without).gpu.tflops(DType::F8), 0) << without;
}

TEST(Machine, BuiltInOnesHaveSaneFigures) {
  const auto names = machine_names();
  for (const char* wanted :
       {"frontier", "lumi-g", "juwels-booster", "snellius-h100", "snellius-a100", "jean-zay",
        "dgx-a100", "dgx-h100", "dgx-h200", "jupiter", "h200", "laptop"})
    EXPECT_THAT(names, testing::Contains(wanted));
  for (const std::string& name : names) {
    const Machine machine = load_machine(name);
    EXPECT_FALSE(machine.name.empty()) << name;
    EXPECT_GT(machine.gpu.tdp_w, machine.gpu.idle_w) << name;
    EXPECT_LE(machine.gpu.busy_w(), machine.gpu.tdp_w) << name;
    EXPECT_GE(machine.node.link_gb_s, machine.network.gb_s) << name;
    EXPECT_GT(machine.facility.kg_co2_per_kwh, 0) << name;
    EXPECT_FALSE(machine.facility.co2_source.empty()) << name;
    EXPECT_GE(machine.gpu.waiting_w(), machine.gpu.idle_w) << name;
    EXPECT_LE(machine.gpu.waiting_w(), machine.gpu.busy_w()) << name;
  }
  // OLCF user guide of 2026; the others: bench/published/machines.csv
  EXPECT_EQ(load_machine("frontier").gpus(), 9856 * 8);
  EXPECT_EQ(load_machine("lumi-g").nodes, 2978);
  EXPECT_EQ(load_machine("jean-zay").facility.kg_co2_per_kwh, 0.057);
  EXPECT_EQ(load_machine("lumi-g").facility.kg_co2_per_kwh_market, 0);
  EXPECT_EQ(load_machine("snellius-h100").facility.kg_co2_per_kwh_market, -1) << "unknown";
}

// A GCD is a GPU: half of a module, with an eighth of the node's four network cards of 25 GB/s.
TEST(Machine, TheGpuOfAnMi250xIsOneGcd) {
  for (const char* name : {"lumi-g", "frontier"}) {
    const Machine machine = load_machine(name);
    EXPECT_EQ(machine.gpu.vendor, GpuVendor::Amd) << name;
    EXPECT_EQ(machine.gpu.name, "MI250X GCD") << name;
    EXPECT_EQ(machine.gpu.bf16_tflops, 383.0 / 2) << name;
    EXPECT_EQ(machine.gpu.fp8_tflops, 0) << name;
    EXPECT_EQ(machine.gpu.multiprocessors, 110) << name;
    EXPECT_NEAR(machine.gpu.memory_gb, 64 * 1.073741824, 0.03) << name;  // 64 GiB
    EXPECT_EQ(machine.gpu.memory_gb_s, 1600) << name;
    EXPECT_EQ(machine.gpu.tdp_w, 560 / 2) << name;
    EXPECT_EQ(machine.node.gpus, 8) << name;
    EXPECT_EQ(machine.node.module_gpus, 2) << name;
    EXPECT_LE(machine.node.module_gb_s, 200) << name;
    EXPECT_LE(machine.node.link_gb_s, 100) << name;
    EXPECT_LE(machine.network.gb_s, 4 * 25.0 / 8) << name;
    EXPECT_GT(machine.node.module_gb_s, machine.node.link_gb_s) << name;
    EXPECT_GT(machine.node.link_gb_s, machine.network.gb_s) << name;
  }
}

TEST(Machine, EveryValueNamesItsSource) {
  const std::regex value("^ *[a-z_0-9]+: +[^ #].*"), sourced("^.*[^ ] +# .+");
  int values = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      if (!std::regex_match(line, value)) continue;
      ++values;
      EXPECT_TRUE(std::regex_match(line, sourced)) << entry.path() << ": " << line;
    }
  }
  EXPECT_GT(values, 200);
}

// Planned layouts leave a margin; a given one may use it.
TEST(Machine, LeavesAMargin) {
  Machine machine = load_machine("dgx-h100");
  EXPECT_NEAR(machine.gpu.usable_bytes() / (1 << 30), 0.98 * 79.1, 0.02);
  EXPECT_EQ(machine.gpu.memory_text(), "79.1 GiB, less 2 % as a margin");
  machine.gpu.margin = 0;
  EXPECT_EQ(machine.gpu.usable_bytes(), machine.gpu.memory_gb * 1e9);
  EXPECT_EQ(machine.gpu.memory_text(), "79.1 GiB");
  std::string text = kSmall;
  text.insert(text.find("  memory_gb:"), "  margin: 0.6\n");
  EXPECT_THAT(user_error_of([&] { parse_machine(text, "mine.yaml"); }), HasSubstr("gpu.margin"));
}

// What one job writes at: the storage, or what its nodes can send.
TEST(Machine, NodesLimitTheStorage) {
  Machine machine = load_machine("frontier");
  EXPECT_NEAR(storage_of(machine, 32).gb_s, 32 * 0.1 * 8 * 11, 1e-9);  // a tenth of their network
  EXPECT_TRUE(storage_of(machine, 32).assumed);
  EXPECT_EQ(storage_of(machine, 1000).gb_s, 500);
  EXPECT_TRUE(storage_of(machine, 1000).assumed);  // its own key
  machine.assumed.clear();
  EXPECT_FALSE(storage_of(machine, 1000).assumed);
  machine.node.storage_gb_s = 2;
  EXPECT_EQ(storage_of(machine, 32).gb_s, 64);
  EXPECT_FALSE(storage_of(machine, 32).assumed);
  machine.storage_gb_s = 0;
  EXPECT_EQ(storage_of(machine, 32).gb_s, 0);
  const auto refused = [](const std::string& more) {
    return user_error_of([&] { parse_machine(kSmall + more, "mine.yaml"); });
  };
  EXPECT_THAT(refused("\nassumed: [storage]\n"),
              HasSubstr("assumed has 'storage', which is not storage_gb_s"));
  EXPECT_THAT(refused("\nassumed: [storage_gb_s]\n"), HasSubstr("storage_gb_s has no value"));
}

TEST(Machine, SaysWhatIsMissing) {
  const auto without = [](const std::string& key) {
    std::string text = kSmall;
    const std::size_t at = text.find("  " + key), end = text.find('\n', at);
    text.erase(at, end - at + 1);
    return user_error_of([&] { parse_machine(text, "mine.yaml"); });
  };
  EXPECT_THAT(without("bf16_tflops"), HasSubstr("mine.yaml: gpu.bf16_tflops is missing"));
  EXPECT_THAT(without("memory_gb_s"), HasSubstr("gpu.memory_gb_s is missing"));
  EXPECT_THAT(without("tdp_w"), HasSubstr("gpu.tdp_w is missing"));
  EXPECT_THAT(without("link_gb_s"), HasSubstr("node.link_gb_s is missing"));
  EXPECT_THAT(user_error_of([] {
                std::string text = kSmall;
                parse_machine(text.substr(0, text.find("network:")), "mine.yaml");
              }),
              AllOf(HasSubstr("network.gb_s is missing"), HasSubstr("between nodes")));
  EXPECT_THAT(user_error_of([] {
                std::string text = kSmall;
                const std::size_t at = text.find("  bf16_tflops: ");
                text.replace(at, text.find('\n', at) - at, "  bf16_tflops: 0");
                parse_machine(text, "mine.yaml");
              }),
              HasSubstr("gpu.bf16_tflops is missing or 0, and must be above 0: "));
}

TEST(Machine, RefusesWhatItDoesNotKnow) {
  const auto with = [](const std::string& line) {
    return user_error_of([&] { parse_machine(kSmall + line, "mine.yaml"); });
  };
  EXPECT_THAT(with("  gb: 5\n"), AllOf(HasSubstr("network.gb"), HasSubstr("gb_s")));
  EXPECT_THAT(with("colour: red\n"), HasSubstr("colour"));
  EXPECT_THAT(with("  latency_us: fast\n"), HasSubstr("line 13"));
  EXPECT_THAT(with("  crowding: -1\n"), HasSubstr("network.crowding"));
  EXPECT_THAT(with("facility:\n  pue: 0.5\n"), HasSubstr("facility.pue"));
  std::string warm = kSmall;
  warm.replace(warm.find("  tdp_w"), 0, "  idle_w: 900\n");
  EXPECT_THAT(user_error_of([&] { parse_machine(warm, "mine.yaml"); }),
              HasSubstr("gpu.idle_w 900 is more than the 400 W"));
  std::string waits = kSmall;
  waits.replace(waits.find("  tdp_w"), 0, "  wait_w: 401\n");
  EXPECT_THAT(user_error_of([&] { parse_machine(waits, "mine.yaml"); }),
              HasSubstr("gpu.wait_w 401 is not between the 0 W"));
  EXPECT_THAT(user_error_of([] { load_machine("frontir"); }), HasSubstr("'frontier'"));
}

TEST(Machine, SaysWhatIsWrongWithItsLaunchSection) {
  const auto with = [](const std::string& line) {
    return user_error_of([&] { parse_machine(kSmall + ("launch:\n  " + line + "\n"), "m.yaml"); });
  };
  EXPECT_THAT(with("partiton: x"), AllOf(HasSubstr("line 14"), HasSubstr("launch.partition")));
  EXPECT_THAT(with("cpu_binding: maks"), HasSubstr("masks, cores, none or slurm"));
  EXPECT_THAT(with("environment: {A-B: x}"), HasSubstr("'A-B' is no name of a variable"));
  EXPECT_THAT(with("environment: {A: [1]}"), HasSubstr("launch.environment.A: a string"));
  EXPECT_THAT(with("environment: [A]"), HasSubstr("launch.environment: a map"));
  EXPECT_THAT(with("modules: [\"a; rm\"]"), HasSubstr("launch.modules: 'a; rm'"));
  EXPECT_THAT(with("modules: rocm"), HasSubstr("a list of strings is expected"));
  EXPECT_THAT(with("slurm_options: [ear]"), HasSubstr("starts with --"));
  EXPECT_THAT(with("limits: [{nodes: 8, time_h: 2}, {nodes: 4, time_h: 4}]"),
              HasSubstr("launch.limits[1].nodes is 4"));
  EXPECT_THAT(with("limits: [{nodes: 8}]"), HasSubstr("needs nodes and time_h"));
  EXPECT_THAT(with("signal_s: 70000"), HasSubstr("at most 65535"));
}

TEST(Machine, TheLaunchSectionIsWrittenToo) {
  const Machine machine = load_machine("frontier");
  EXPECT_EQ(machine.launch.environment.front().first, "NCCL_SOCKET_IFNAME");
  const Machine again = parse_machine(to_yaml(machine), "again");
  EXPECT_EQ(again.launch, machine.launch);
  EXPECT_EQ(again.topology, machine.topology);
}

TEST(Machine, SurvivesMutations) {
  std::mt19937 random(20);
  std::vector<std::string> texts;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder))
    texts.push_back(read_text_file(entry.path()));
  const std::string letters = "0123456789.-:#\n \t[]{}\"'&*abcxyz\xff";
  int read = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string text = texts[random() % texts.size()];
    for (unsigned change = random() % 6; change > 0 && !text.empty(); --change) {
      const std::size_t at = random() % text.size();
      if (random() % 3 == 0)
        text.erase(at, random() % 40);
      else
        text[at] = letters[random() % letters.size()];
    }
    try {
      const Machine machine = parse_machine(text, "mutated");
      EXPECT_GT(machine.gpu.bf16_tflops, 0);
      EXPECT_GE(machine.gpus(), 1);
      ++read;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("mutated"));
    }
  }
  EXPECT_GT(read, 50);  // many mutations change only comments
}

}  // namespace
}  // namespace kintsugi
