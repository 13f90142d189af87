// Energy of facilities and CO2e, with the figures of published runs.
#include "energy/carbon.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace kintsugi {
namespace {

TEST(Carbon, Units) {
  EXPECT_EQ(to_kwh(3.6e6), 1);
  EXPECT_EQ(to_mwh(3.6e9), 1);
  EXPECT_EQ(to_mwh(from_mwh(4902.8)), 4902.8);
}

TEST(Carbon, PueAndFactorsMultiply) {
  const EnergyOf nodes{.joules = 3.6e9, .what = "nodes", .whole_nodes = true};
  const CarbonFootprint all =
      carbon_of(nodes, {.pue = 1.5, .kg_co2_per_kwh = 0.1, .kg_co2_per_kwh_market = 0});
  EXPECT_DOUBLE_EQ(all.facility_j.value(), 5.4e9);
  EXPECT_DOUBLE_EQ(all.kg_co2.value(), 150);
  EXPECT_EQ(all.kg_co2_market, 0) << "a factor of 0 is known";
  EXPECT_EQ(all.of, "nodes with PUE");
}

TEST(Carbon, NothingIsInvented) {
  const EnergyOf gpus{.joules = 3.6e9, .what = "GPUs"};
  const CarbonFootprint none = carbon_of(gpus, {});
  EXPECT_FALSE(none.facility_j || none.kg_co2 || none.kg_co2_market);
  EXPECT_EQ(none.of, "GPUs without PUE");
  const CarbonFootprint with_pue = carbon_of(gpus, {.pue = 1.2, .kg_co2_per_kwh = 0.5});
  EXPECT_FALSE(with_pue.facility_j) << "the rest of the nodes is not known";
  EXPECT_DOUBLE_EQ(with_pue.kg_co2.value(), 600);
  EXPECT_EQ(with_pue.of, "GPUs with PUE");
  EXPECT_FALSE(with_pue.kg_co2_market);
}

TEST(Carbon, TextsHaveAUnitThatFits) {
  EXPECT_EQ(energy_text(1800), "1.8 kJ");
  EXPECT_EQ(energy_text(45e6), "12.5 kWh");
  EXPECT_EQ(energy_text(4.94e9), "1.37 MWh");
  EXPECT_EQ(energy_text(284e9), "78.9 MWh");
  EXPECT_EQ(energy_text(17.65e12), "4902.8 MWh");
  EXPECT_EQ(joules_text(284e9), "284 GJ");
  EXPECT_EQ(joules_text(17.65e12), "17.65 TJ");
  EXPECT_EQ(joules_text(662e12), "662 TJ");
  EXPECT_EQ(joules_text(999.9e3), "1 MJ");
  EXPECT_EQ(joules_text(0), "0 J");
  EXPECT_EQ(mass_text(0), "0 kg");
  EXPECT_EQ(mass_text(0.0312), "31.2 g");
  EXPECT_EQ(mass_text(14000), "14.0 t");
  EXPECT_EQ(power_text(635), "635 W");
  EXPECT_EQ(power_text(22400), "22.4 kW");
  EXPECT_EQ(per_token_text(0.083), "83 mJ");
  EXPECT_EQ(per_token_text(5.042), "5.04 J");
}

// The table in OLMo's report (arXiv 2402.00838): tonnes = MWh of the GPUs x PUE x factor. All rows
// follow from their own inputs. The factor of OLMo-7B is that of a contract (market-based), those
// of the others are of grids.
struct PublishedRun {
  const char* model;
  double mwh, pue, factor, tonnes;
};
const std::vector<PublishedRun> kPublished = {
    {"Gopher-280B", 1066, 1.08, 0.330, 380}, {"BLOOM-176B", 433, 1.2, 0.057, 30},
    {"OPT-175B", 324, 1.1, 0.231, 82},       {"T5-11B", 77, 1.12, 0.545, 47},
    {"LLaMA-7B", 33, 1.1, 0.385, 14},        {"LLaMA2-7B", 74, 1.1, 0.385, 31},
    {"OLMo-7B", 135, 1.1, 0.000, 0}};

TEST(Seeds, CarbonOfPublishedRuns) {
  for (const PublishedRun& run : kPublished) {
    const CarbonFootprint footprint = carbon_of({.joules = from_mwh(run.mwh), .what = "GPUs"},
                                                {.pue = run.pue, .kg_co2_per_kwh = run.factor});
    EXPECT_EQ(std::round(footprint.kg_co2.value() / 1000), run.tonnes) << run.model;
  }
}

// OLMo-7B on LUMI with both kinds of factor: Finland's grid of 2023 had 79.2 g/kWh.
TEST(Seeds, OlmoByContractAndByGrid) {
  const CarbonFootprint lumi =
      carbon_of({.joules = from_mwh(135), .what = "GPUs"},
                {.pue = 1.1, .kg_co2_per_kwh = 0.0792, .kg_co2_per_kwh_market = 0});
  EXPECT_EQ(lumi.kg_co2_market, 0);
  EXPECT_NEAR(lumi.kg_co2.value(), 11761, 1);
}

// energy.csv: BLOOM's own report has 24.7 t for the same 433 MWh, because it applies no PUE.
TEST(Seeds, BloomReportsItsEnergyWithoutPue) {
  const CarbonFootprint without =
      carbon_of({.joules = from_mwh(433.2), .what = "GPUs"}, {.kg_co2_per_kwh = 0.057});
  EXPECT_NEAR(without.kg_co2.value(), 24700, 50);
  EXPECT_EQ(without.of, "GPUs without PUE");
  const CarbonFootprint idle =
      carbon_of({.joules = from_mwh(256.6), .what = "nodes"}, {.kg_co2_per_kwh = 0.057});
  EXPECT_NEAR(idle.kg_co2.value(), 14600, 50);
}

// Seed 001 prints joules, energy.csv the same in MWh.
TEST(Seeds, FrontierInMegawattHours) {
  EXPECT_NEAR(to_mwh(284e9), 78.9, 0.05);
  EXPECT_NEAR(to_mwh(17.65e12), 4902.8, 0.05);
  EXPECT_NEAR(to_mwh(662e12), 183888.9, 0.05);
  EXPECT_NEAR(284e9 / 440e9 * 1e6, 645454.5, 0.1) << "J per million tokens";
  EXPECT_NEAR(17.65e12 / 3500e9 * 1e6, 5042857.1, 0.1);
  EXPECT_NEAR(662e12 / 20000e9 * 1e6, 33100000.0, 0.1);
}

}  // namespace
}  // namespace kintsugi
