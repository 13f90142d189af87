#include "energy/energy_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "core/file.h"
#include "support/errors.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

LevelJoules gpu_and_node(double gpu, double node) {
  LevelJoules joules;
  joules[EnergyLevel::Gpu] = gpu;
  joules[EnergyLevel::Node] = node;
  return joules;
}

// Two nodes of four GPUs for 1,000 s: 1 kW per GPU and 5 kW per node if 8 MJ and 10 MJ.
EnergyReport measured_run() {
  EnergyReport r{.run = "run7", .run_id = "a1", .timestamp = "2026-11-16T12:00:00"};
  r.gpu_model = "NVIDIA H100";
  r.nodes = 2;
  r.gpus = 8;
  r.seconds = 1000;
  r.node_seconds = 2000;
  r.steps = 100;
  r.tokens = 1e6;
  r.phase(EnergyPhase::Compute) = {600, gpu_and_node(5e6, 6e6)};
  r.phase(EnergyPhase::Communication) = {100, gpu_and_node(1e6, 1.2e6)};
  r.phase(EnergyPhase::Checkpoint) = {50, gpu_and_node(0.2e6, 0.3e6)};
  r.phase(EnergyPhase::Validation) = {50, gpu_and_node(0.4e6, 0.5e6)};
  r.phase(EnergyPhase::Startup) = {80, gpu_and_node(0.3e6, 0.5e6)};
  r.phase(EnergyPhase::Other) = {20, gpu_and_node(0.1e6, 0.5e6)};
  r.phase(EnergyPhase::Lost) = {100, gpu_and_node(1e6, 1e6)};
  r.source(EnergyLevel::Gpu) = {.source = "nvml", .nodes = 2, .covered_s = 2000};
  r.source(EnergyLevel::Node) = {.source = "pm_counters", .nodes = 2, .covered_s = 2000};
  r.source(EnergyLevel::Cpu) = {.reason = "rapl: permission denied"};
  r.attempts = {{.last_step = 40, .seconds = 400, .state = "lost"},
                {.first_step = 30, .last_step = 100, .seconds = 600, .state = "finished"}};
  r.attempts[0].joules = gpu_and_node(3e6, 4e6);
  r.attempts[1].joules = gpu_and_node(5e6, 6e6);
  r.attempts[1].lost = gpu_and_node(1e6, 1e6);
  r.machine = "mine";
  r.facility = {
      .pue = 1.2, .kg_co2_per_kwh = 0.36, .kg_co2_per_kwh_market = 0, .co2_source = "Utopia 2026"};
  return r;
}

TEST(EnergyReport, EachJouleIsInOnePhase) {
  const EnergyReport r = measured_run();
  EXPECT_NEAR(r.total()[EnergyLevel::Gpu].value(), 8e6, 1e-3);
  EXPECT_NEAR(r.total()[EnergyLevel::Node].value(), 10e6, 1e-3);
  EXPECT_FALSE(r.total()[EnergyLevel::Cpu]) << "never measured";
  EXPECT_EQ(r.productive().seconds, 700);
  EXPECT_NEAR(r.productive().joules[EnergyLevel::Gpu].value(), 6e6, 1e-3);
}

TEST(EnergyReport, JsonHasAllFigures) {
  const json j = json::parse(to_json(measured_run()));
  const json& gpu = j["levels"]["gpu"];
  EXPECT_NEAR(gpu["joules"].get<double>(), 8e6, 1e-3);
  EXPECT_NEAR(gpu["kwh"].get<double>(), 8 / 3.6, 1e-9);
  EXPECT_NEAR(gpu["joules_per_token"].get<double>(), 8, 1e-9);
  EXPECT_NEAR(gpu["joules_per_step"].get<double>(), 8e4, 1e-6);
  EXPECT_NEAR(gpu["mean_w_per_node"].get<double>(), 4000, 1e-6);
  EXPECT_NEAR(gpu["mean_w_per_gpu"].get<double>(), 1000, 1e-6);
  EXPECT_EQ(gpu["source"], "nvml");
  EXPECT_EQ(gpu["kind"], "counter");
  EXPECT_EQ(gpu["nodes_measured"], 2);
  EXPECT_EQ(gpu["time_measured"], 1.0);
  EXPECT_TRUE(j["levels"]["cpu"]["joules"].is_null());
  EXPECT_EQ(j["levels"]["cpu"]["reason"], "rapl: permission denied");
  EXPECT_NEAR(j["facility"]["joules"].get<double>(), 12e6, 1e-3);
  EXPECT_EQ(j["co2e"]["of"], "nodes with PUE");
  EXPECT_NEAR(j["co2e"]["location_based"]["kg"].get<double>(), 1.2, 1e-9);  // 12/3.6 kWh x 0.36
  EXPECT_EQ(j["co2e"]["market_based"]["kg"], 0.0);
  EXPECT_EQ(j["co2e"]["source"], "Utopia 2026");
  EXPECT_EQ(j["phases"]["lost"]["joules"]["gpu"], 1e6);
  EXPECT_EQ(j["phases"]["communication"]["seconds"], 100);
  EXPECT_EQ(j["attempts"].size(), 2u);
  EXPECT_EQ(j["attempts"][1]["lost_joules"]["node"], 1e6);
}

TEST(EnergyReport, WhatIsMissingIsNullWithAReason) {
  EnergyReport r = measured_run();
  r.facility = {};
  for (PhaseEnergy& phase : r.phases) phase.joules[EnergyLevel::Node].reset();
  json j = json::parse(to_json(r));
  EXPECT_TRUE(j["facility"]["joules"].is_null());
  EXPECT_THAT(j["facility"]["reason"].get<std::string>(), HasSubstr("energy.pue"));
  EXPECT_TRUE(j["co2e"]["location_based"]["kg"].is_null());
  EXPECT_THAT(j["co2e"]["market_based"]["reason"].get<std::string>(),
              HasSubstr("energy.kg_co2_per_kwh_market"));
  r.facility.pue = 1.2;
  j = json::parse(to_json(r));
  EXPECT_THAT(j["facility"]["reason"].get<std::string>(), HasSubstr("not whole nodes"));
  for (PhaseEnergy& phase : r.phases) phase.joules = {};
  j = json::parse(to_json(r));
  EXPECT_TRUE(j["co2e"]["of"].is_null());
  EXPECT_EQ(j["facility"]["reason"], "no energy was measured");
  EXPECT_TRUE(j["plan"]["gpu"].is_null());
  EXPECT_EQ(j["plan"]["reason"], "energy.machine is not set");
}

// Nodes of which 10 % of the time is missing: joules are those of the measured time.
TEST(EnergyReport, PartOfTheTimeIsALowerLimit) {
  EnergyReport r = measured_run();
  r.source(EnergyLevel::Node).covered_s = 1800;
  r.source(EnergyLevel::Node).nodes = 2;
  EXPECT_NEAR(r.coverage(EnergyLevel::Node), 0.9, 1e-12);
  EXPECT_NEAR(r.node_watts(EnergyLevel::Node).value(), 10e6 / 1800, 1e-6);
  EXPECT_THAT(to_text(r), AllOf(HasSubstr("at least 2.78 kWh (10 MJ): pm_counters counter, 2 of 2 "
                                          "nodes, 90.0 % of the time"),
                                HasSubstr("at least 3.33 kWh with PUE 1.2")));
}

TEST(EnergyReport, TextHasEachLevelAndBothKindsOfCo2) {
  const std::string text = to_text(measured_run());
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("Energy of 100 steps, 1 M tokens"), HasSubstr("in 2 attempts on 2 nodes"),
            HasSubstr("2.22 kWh (8 MJ): nvml counter, 2 of 2 nodes, 100.0 % of the time"),
            HasSubstr("not measured: rapl: permission denied"), HasSubstr("1 kW per GPU"),
            HasSubstr("5 kW per node"), HasSubstr("8 J in GPUs, 10 J in nodes"),
            HasSubstr("compute 60.0 %, communication 12.0 %"), HasSubstr("lost 10.0 %"),
            HasSubstr("1.2 kg location-based (0.36 kg/kWh), 0 kg market-based (0 kg/kWh), for the "
                      "nodes with PUE"),
            HasSubstr("as much as 3 km by car at 0.35 kg/km"),  // 1.2 / 0.35
            HasSubstr("Utopia 2026"), HasSubstr("no prediction: energy.machine is not set")));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 16);
}

TEST(EnergyReport, CountersThatDisagreeWithPowerAreDoubtful) {
  EnergyReport r = measured_run();
  r.source(EnergyLevel::Gpu).counter_j = 8e6;
  r.source(EnergyLevel::Gpu).integral_j = 8e6 / 1.04;
  EXPECT_FALSE(json::parse(to_json(r))["levels"]["gpu"]["check"]["doubtful"].get<bool>());
  EXPECT_THAT(to_text(r), Not(HasSubstr("doubtful")));
  r.source(EnergyLevel::Gpu).integral_j = 10e6;
  const json check = json::parse(to_json(r))["levels"]["gpu"]["check"];
  EXPECT_TRUE(check["doubtful"].get<bool>());
  EXPECT_NEAR(check["difference"].get<double>(), -0.2, 1e-12);
  EXPECT_THAT(to_text(r), HasSubstr("differ by -20.0 %"));
}

// Stages of 60 and 40 steps: 60 x 5e4 + 40 x 6e4 = 5.4 MJ in GPUs, 60 x 6 + 40 x 8 = 680 s.
TEST(EnergyReport, ComparesTheSameStepsWithThePlan) {
  EnergyReport r = measured_run();
  EnergyContext context{.machine = "mine", .facility = r.facility};
  context.planned = {{.seconds = 6, .gpu_j = 5e4, .node_j = 7e4, .within = 1.1},
                     {.seconds = 8, .gpu_j = 6e4, .node_j = 7.5e4, .within = 1.2},
                     {.seconds = 9, .gpu_j = 9e4}};
  add_context(context, {60, 40}, r);
  const PlanComparison comparison = compare_with_plan(r);
  ASSERT_TRUE(comparison.gpu && comparison.node);
  EXPECT_NEAR(comparison.gpu->predicted.joules_per_token, 5.4, 1e-9);
  EXPECT_NEAR(comparison.gpu->predicted.watts, 5.4e6 / 680, 1e-6);
  EXPECT_NEAR(comparison.gpu->measured.joules_per_token, 6, 1e-9) << "without lost work";
  EXPECT_NEAR(comparison.gpu->measured.watts, 6e6 / 700, 1e-6);
  EXPECT_NEAR(comparison.node->predicted.joules_per_token, 7.2, 1e-9);
  EXPECT_NEAR(comparison.node->measured.joules_per_token, 7.2, 1e-9);
  EXPECT_THAT(to_text(r), HasSubstr("GPUs: 6 J per token and 8.57 kW, predicted 5.4 J ± 15 %"));
  // The mean by time of the steps: (360 x 1.1 + 320 x 1.2) / 680.
  EXPECT_NEAR(r.planned->within, 1.147, 1e-3);
  EXPECT_THAT(to_text(r), HasSubstr("(+11.1 %, +7.9 %)"));
  // Half of the time, of which 80 s of startup on two nodes are left out first: the rest is alike.
  r.source(EnergyLevel::Gpu).covered_s = 1000;
  EXPECT_NEAR(compare_with_plan(r).gpu->measured.joules_per_token, 6 * (2000 - 160) / 1000.0, 1e-9);
  context.planned[1].node_j.reset();
  add_context(context, {60, 40}, r);
  EXPECT_FALSE(compare_with_plan(r).node) << "a stage without a prediction";
  add_context(context, {1, 1, 1, 1}, r);
  EXPECT_FALSE(r.planned);
  EXPECT_THAT(to_text(r), HasSubstr("no prediction: the plan does not have all stages"));
  add_context({.machine = "x", .no_plan = "it has 4 GPUs"}, {100}, r);
  EXPECT_EQ(json::parse(to_json(r))["plan"]["reason"], "it has 4 GPUs");
}

TEST(EnergyReport, SaysWhatAPowerLimitDid) {
  EnergyReport r = measured_run();
  r.power_setting = PowerSettingEffect{
      .setting = "power limit 500 W", .before = {1000, 0.7}, .after = {950, 0.56}};
  EXPECT_THAT(to_text(r),
              HasSubstr("power limit 500 W: 1000 -> 950 tokens/s (-5.0 %), 700 mJ -> 560 mJ per "
                        "token in GPUs (-20.0 %)"));
  EXPECT_EQ(json::parse(to_json(r))["power_setting"]["after"]["joules_per_token"], 0.56);
}

// ---- CodeCarbon

std::map<std::string, std::string> cells(const std::string& header, const std::string& line) {
  std::map<std::string, std::string> row;
  std::istringstream names(header), values(line + ",");
  for (std::string name, value; std::getline(names, name, ',');) {
    EXPECT_TRUE(std::getline(values, value, ',')) << name;
    row[name] = value;
  }
  EXPECT_TRUE(values.peek() == EOF) << "more cells than columns";
  return row;
}

TEST(CodeCarbon, HasItsColumnsAndUnits) {
  EXPECT_THAT(codecarbon_header(),
              AllOf(testing::StartsWith("timestamp,project_name,run_id,experiment_id,duration,"),
                    testing::EndsWith(",on_cloud,pue,wue")));
  auto row = cells(codecarbon_header(), to_codecarbon_csv(measured_run()));
  EXPECT_EQ(row.size(), 38u);
  EXPECT_EQ(row["project_name"], "run7");
  EXPECT_EQ(row["duration"], "1000");
  EXPECT_NEAR(std::stod(row["emissions"]), 1.2, 1e-9);
  EXPECT_NEAR(std::stod(row["emissions_rate"]), 1.2e-3, 1e-12);
  EXPECT_NEAR(std::stod(row["gpu_energy"]), 8 / 3.6 * 1.2, 1e-6) << "with PUE, as CodeCarbon";
  EXPECT_NEAR(std::stod(row["energy_consumed"]), 10 / 3.6 * 1.2, 1e-6) << "whole nodes";
  EXPECT_NEAR(std::stod(row["gpu_power"]), 8000, 1e-6) << "of all nodes, without PUE";
  EXPECT_EQ(row["cpu_energy"], "");
  EXPECT_EQ(row["ram_power"], "");
  EXPECT_EQ(row["gpu_count"], "8");
  EXPECT_EQ(row["gpu_model"], "8 x NVIDIA H100");
  EXPECT_EQ(row["pue"], "1.2");
}

TEST(CodeCarbon, UnknownIsEmpty) {
  EnergyReport r;
  const std::map<std::string, std::string> row = cells(codecarbon_header(), to_codecarbon_csv(r));
  for (const char* column : {"emissions", "emissions_rate", "energy_consumed", "gpu_energy", "pue"})
    EXPECT_EQ(row.at(column), "") << column;
}

TEST(CodeCarbon, HasOneLinePerRunAlsoInFilesOfOtherVersions) {
  const TemporaryDirectory directory;
  EnergyReport r = measured_run();
  EnergyReport first = r, other_run = r;
  first.seconds = 1;  // of the same run, before
  other_run.run_id = "b";
  write_codecarbon(directory / "new.csv", first);
  write_codecarbon(directory / "new.csv", other_run);
  write_codecarbon(directory / "new.csv", r);
  EXPECT_EQ(read_text_file(directory / "new.csv"), codecarbon_header() + "\n" +
                                                       to_codecarbon_csv(other_run) + "\n" +
                                                       to_codecarbon_csv(r) + "\n");
  // Fewer columns in another order, one unknown, and a last line without an end.
  const std::string old = directory.write("old.csv", "run_id,energy_consumed,colour\r\nb,1,red");
  write_codecarbon(old, r);
  EXPECT_EQ(read_text_file(old), "run_id,energy_consumed,colour\nb,1,red\na1,3.333333333,\n");
  const std::string other = directory.write("other.csv", "a,b\n1,2\n");
  EXPECT_THAT(user_error_of([&] { write_codecarbon(other, r); }),
              HasSubstr("other.csv is not an emissions.csv"));
  EXPECT_EQ(read_text_file(other), "a,b\n1,2\n");
}

TEST(CodeCarbon, QuotesNames) {
  EnergyReport r = measured_run();
  r.run = "a,\"b\"\nc";
  EXPECT_THAT(to_codecarbon_csv(r, "project_name,run_id"), "\"a,\"\"b\"\" c\",a1");
}

}  // namespace
}  // namespace kintsugi
