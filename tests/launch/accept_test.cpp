// The acceptance test of a machine: what it measures on ranks that are threads, with wrong groups
// and slow links, and what it concludes from facts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "backend/cpu/cpu_backend_impl.h"
#include "launch/accept/cases.h"
#include "launch/accept/judge.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Ranks = std::vector<int>;

// ---- groups on threads

// What is wrong with the network. The clock of a rank advances in its collectives only.
struct NetworkFaults {
  std::function<int(const std::string& name, int rank, int color)> color =
      [](const std::string&, int, int color) { return color; };
  // Of an all-reduce in a group with this name: whether the contribution of a rank is lost.
  std::function<bool(const std::string& name, int rank)> loses = [](const std::string&, int) {
    return false;
  };
  std::function<double(int rank)> bytes_per_s = [](int) { return 1e9; };
};

class FaultyGroup : public ForwardingCommunicator {
 public:
  FaultyGroup(std::unique_ptr<Communicator> inner, int world_rank, const NetworkFaults& faults,
              double& clock)
      : ForwardingCommunicator(std::move(inner)),
        world_rank_(world_rank),
        faults_(faults),
        clock_(clock) {}
  Work start(const Call& call) override {
    if (call.kind == Collective::AllReduce && call.source.dtype() == DType::F32 &&
        faults_.loses(name(), world_rank_))
      std::fill_n(call.source.as<float>(), call.source.elements(), 0.0f);
    bytes_ += ring_bytes(call.kind, static_cast<double>(call.whole().bytes()), size());
    return inner_->start(call);
  }
  void wait(Work work) override {
    inner_->wait(work);
    clock_ += bytes_ / faults_.bytes_per_s(world_rank_);
    bytes_ = 0;
  }

 private:
  int world_rank_;
  const NetworkFaults& faults_;
  double& clock_;
  double bytes_ = 0;
};

class FaultyWorld : public World {
 public:
  FaultyWorld(World& inner, const NetworkFaults& faults, double& clock)
      : World(inner.place()), inner_(inner), faults_(faults), clock_(clock) {}
  std::unique_ptr<Communicator> split(const std::string& name, int color, int key) override {
    return std::make_unique<FaultyGroup>(
        inner_.split(name, faults_.color(name, rank(), color), key), rank(), faults_, clock_);
  }

 private:
  World& inner_;
  const NetworkFaults& faults_;
  double& clock_;
};

// Eight ranks on two nodes, with GPUs, so that their rates are judged.
std::vector<ProbeFacts> probe(const std::vector<Grid>& grids, const NetworkFaults& faults) {
  constexpr int kRanks = 8;
  std::vector<ProbeFacts> all(kRanks);
  run_ranks(kRanks, [&](World& world) {
    double clock = 0;
    CpuBackend backend(1);
    FaultyWorld devices(world, faults, clock);
    const ProbeLoad load{.bytes = {1 << 10, 1 << 14}, .repetitions = 2, .seconds = 1e9};
    ProbeFacts& facts = all[static_cast<std::size_t>(world.rank())];
    facts.rank = {.rank = world.rank(), .node = world.rank() < 4 ? "n0" : "n1"};
    facts.rank.binding.gpu = "gpu" + std::to_string(world.rank());
    facts.groups = measure_groups(world, devices, backend, grids, load, [&clock] { return clock; });
  });
  return all;
}

AcceptChecks failures(const AcceptChecks& checks) {
  AcceptChecks failed;
  for (const AcceptCheck& one : checks)
    if (one.verdict == Verdict::Fail) failed.push_back(one);
  return failed;
}

TEST(AcceptGroups, GoodOnesPassInEveryGrid) {
  const std::vector<ProbeFacts> facts = probe(probed_grids(8, 4), {});
  const AcceptChecks members = judge_members(facts);
  ASSERT_EQ(members.size(), 1u);
  EXPECT_EQ(members[0].verdict, Verdict::Pass);
  for (const char* kind : {"tp", "cp", "pp", "shard", "replica", "experts", "world", "tied"})
    EXPECT_THAT(members[0].text, HasSubstr(kind));
  EXPECT_THAT(failures(judge_bandwidths(facts, {})), IsEmpty());
  for (const GroupBandwidth& one : bandwidths_of(facts))
    EXPECT_NEAR(one.lowest, 1e9, 1e4) << "what the stand-in of the network gives";
}

TEST(AcceptGroups, ARankInAWrongGradientGroupIsNamed) {
  NetworkFaults faults;
  faults.color = [](const std::string& name, int rank, int color) {
    return name == "shard" && rank == 5 ? 0 : color;
  };
  const AcceptChecks failed = failures(judge_members(probe({{.dp = 8, .shard_group = 4}}, faults)));
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].group, "shard");
  EXPECT_EQ(failed[0].ranks, Ranks{5});
  EXPECT_THAT(failed[0].nodes, ElementsAre("n1"));
  EXPECT_THAT(failed[0].text, HasSubstr("rank 5 meets ranks 0 1 2 3 5 instead of 4 5 6 7"));
  EXPECT_FALSE(failed[0].remedy.empty());
}

TEST(AcceptGroups, RanksThatHaveChangedPlacesAreNamed) {
  NetworkFaults faults;
  faults.color = [](const std::string& name, int rank, int color) {
    if (name != "replica") return color;
    return rank == 1 ? 2 : rank == 2 ? 1 : color;
  };
  const AcceptChecks failed = failures(judge_members(probe({{.dp = 8, .shard_group = 4}}, faults)));
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].group, "replica");
  EXPECT_THAT(failed[0].ranks, AllOf(Contains(1), Contains(2)));
}

TEST(AcceptGroups, ALostContributionIsNamed) {
  NetworkFaults faults;
  faults.loses = [](const std::string& name, int rank) { return name == "tp" && rank == 6; };
  const AcceptChecks failed = failures(judge_members(probe({{.tp = 4, .dp = 2}}, faults)));
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].group, "tp");
  EXPECT_EQ(failed[0].ranks, Ranks{6});
  EXPECT_THAT(failed[0].text, HasSubstr("do not have the numbers of rank 6"));
}

TEST(AcceptGroups, AGroupWithALinkOfATenthIsNamed) {
  NetworkFaults faults;
  faults.bytes_per_s = [](int rank) { return rank == 3 ? 1e8 : 1e9; };
  const AcceptChecks failed = failures(judge_bandwidths(probe({{.tp = 2, .dp = 4}}, faults), {}));
  ASSERT_EQ(failed.size(), 2u) << "the tensor and the data group of rank 3";
  EXPECT_EQ(failed[0].group, "shard");
  EXPECT_EQ(failed[0].ranks, (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(failed[1].group, "tp");
  EXPECT_EQ(failed[1].ranks, (Ranks{2, 3}));
  EXPECT_THAT(failed[1].text, HasSubstr("0.1 GB/s"));
}

TEST(AcceptGroups, FactsSurviveTheirFile) {
  std::vector<ProbeFacts> facts = probe({{.tp = 2, .dp = 4}}, {});
  facts[1].overlap = {.compute_s = 1, .communication_s = 2, .both_s = 2.25};
  const std::vector<ProbeFacts> read = probe_facts_of(to_json_text(facts), "probe.json");
  ASSERT_EQ(read.size(), 8u);
  EXPECT_EQ(read[3].rank.node, "n0");
  EXPECT_EQ(read[3].groups.size(), facts[3].groups.size());
  EXPECT_EQ(read[3].groups[0].expected, facts[3].groups[0].expected);
  EXPECT_EQ(read[3].groups.back().rates.size(), facts[3].groups.back().rates.size());
  EXPECT_DOUBLE_EQ(read[1].overlap.hidden(), 0.75);
  EXPECT_THROW(probe_facts_of("[{}]", "probe.json"), UserError);
  EXPECT_THROW(probe_facts_of("nothing", "probe.json"), UserError);
}

TEST(AcceptGroups, EveryKindHasSeveralRanksInSomeGrid) {
  for (const auto& [ranks, node] : {std::pair(4, 4), {8, 4}, {16, 8}, {6, 3}, {12, 4}}) {
    std::set<GroupKind> seen;
    for (const Grid& grid : probed_grids(ranks, node)) {
      EXPECT_NO_THROW(check_grid(grid, ranks)) << grid_text(grid);
      for (const GroupSpec& spec : group_specs())
        for (int rank = 0; rank < ranks; ++rank)
          if (group_members(grid, spec.kind, rank).size() > 1) seen.insert(spec.kind);
    }
    for (const GroupSpec& spec : group_specs())
      EXPECT_TRUE(ranks % 4 != 0 || seen.contains(spec.kind)) << spec.name << " of " << ranks;
  }
}

// ---- cases

TEST(AcceptCases, EveryPairOfFeaturesMeets) {
  for (const int ranks : {2, 4, 8}) {
    const std::vector<LossCase> groups = group_cases(ranks, ranks);
    std::vector<LossCase> all = groups;
    for (LossCase& one : pair_cases(ranks, groups)) all.push_back(std::move(one));
    const PairCount pairs = count_pairs(ranks, all);
    EXPECT_GT(pairs.possible, 50u);
    EXPECT_EQ(pairs.covered, pairs.possible) << ranks << " ranks";
    EXPECT_LT(all.size(), 60u) << "each is a launch";
    std::set<std::string> names;
    for (const LossCase& one : all) {
      EXPECT_EQ(one.layout.ranks(), ranks) << one.name;
      EXPECT_TRUE(names.insert(one.name).second) << one.name << " twice";
    }
    // An independent look at some pairs: of ZeRO 3 with each other kind of parallelism.
    const auto has = [&](const auto& wanted) {
      return std::any_of(all.begin(), all.end(), [&](const LossCase& one) {
        return one.layout.zero == 3 && wanted(one.layout);
      });
    };
    EXPECT_TRUE(has([](const Layout& l) { return l.cp > 1; })) << ranks;
    if (ranks == 2) continue;
    EXPECT_TRUE(has([](const Layout& l) { return l.tp > 1; })) << ranks;
    EXPECT_TRUE(has([](const Layout& l) { return l.pp > 1; })) << ranks;
    EXPECT_TRUE(has([](const Layout& l) { return l.expert_ranks() > 1; })) << ranks;
  }
}

TEST(AcceptCases, GroupCasesHaveEachKindOfGroup) {
  std::set<std::string> kinds;
  for (const LossCase& one : group_cases(8, 4)) kinds.insert(one.group);
  EXPECT_EQ(kinds, (std::set<std::string>{"shard", "tp", "cp", "pp", "experts", "replica"}));
  EXPECT_THAT(group_cases(1, 1), IsEmpty());
  for (const LossCase& one : group_cases(3, 3)) EXPECT_EQ(one.group, "shard") << one.name;
}

// ---- verdicts

TEST(AcceptVerdicts, ARankOnTheWrongCoreIsNamed) {
  std::vector<RankFacts> ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    RankFacts& one = ranks[static_cast<std::size_t>(rank)];
    one = {.rank = rank, .node = "n0"};
    one.binding = {.cores = {rank == 2 ? 1 : rank}, .usable = {0, 1, 2}};
  }
  const AcceptChecks failed = failures(judge_doctor(judge_binding(ranks, false)));
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].ranks, (Ranks{1, 2}));
  EXPECT_THAT(failed[0].text, HasSubstr("give each rank its own cores"));
}

TEST(AcceptVerdicts, ASlowLinkIsNamedWithItsRank) {
  std::vector<RankFacts> ranks(8);
  for (int rank = 0; rank < 8; ++rank) {
    RankFacts& one = ranks[static_cast<std::size_t>(rank)];
    one = {.rank = rank, .node = "n" + std::to_string(rank)};
    one.binding.gpu = "gpu";
    const int next = (rank + 1) % 8;
    one.pairs = {{.first = std::min(rank, next),
                  .second = std::max(rank, next),
                  .between_nodes = true,
                  .bytes_per_s = rank == 5 || next == 5 ? 2e9 : 2e10}};
  }
  ranks[0].pairs.push_back(ranks[7].pairs[0]);  // the lower rank of a pair reports it
  ranks[7].pairs.clear();
  const AcceptChecks failed = failures(judge_doctor(judge_links(ranks, {}, {})));
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].ranks, Ranks{5});
  EXPECT_THAT(failed[0].nodes, ElementsAre("n5"));
}

TEST(AcceptVerdicts, OtherLossesFailWithTheirGroup) {
  const RunSteps one_rank{.loss = {5, 4, 3}, .norm = {1, 0.9, 0.8}};
  RunSteps steps = one_rank;
  EXPECT_EQ(judge_losses("dp 4", "shard", steps, one_rank, {}).verdict, Verdict::Pass);
  steps.norm[0] = 0.95;  // as without the gradient of a rank
  const AcceptCheck norm = judge_losses("dp 4", "shard", steps, one_rank, {});
  EXPECT_EQ(norm.verdict, Verdict::Fail);
  EXPECT_EQ(norm.group, "shard");
  EXPECT_THAT(norm.text, HasSubstr("5.0e-02"));
  steps = one_rank;
  steps.loss[2] = NAN;
  EXPECT_EQ(judge_losses("dp 4", "shard", steps, one_rank, {}).verdict, Verdict::Fail);
  steps = one_rank;
  steps.loss.pop_back();
  EXPECT_EQ(judge_losses("dp 4", "shard", steps, one_rank, {}).verdict, Verdict::Fail);
  EXPECT_EQ(judge_losses("dp 4", "shard", {}, {}, {}).verdict, Verdict::Fail) << "no steps at all";
}

TEST(AcceptVerdicts, StepTimesAreJudgedByThePlanOnGpusOnly) {
  const auto verdict = [](double measured, double planned, bool gpus) {
    SpeedFacts facts{.model = "m", .layout = "l", .step_s = measured, .planned_s = planned};
    return judge_speed({facts}, gpus, {}).front().verdict;
  };
  EXPECT_EQ(verdict(1.1, 1, true), Verdict::Pass);
  EXPECT_EQ(verdict(1.3, 1, true), Verdict::Fail);
  EXPECT_EQ(verdict(0.7, 1, true), Verdict::Fail);
  EXPECT_EQ(verdict(1.3, 1, false), Verdict::Noted);
  SpeedFacts left{.model = "m", .layout = "l", .why_not = "needs 4 ranks"};
  EXPECT_EQ(judge_speed({left}, true, {}).front().verdict, Verdict::NotMeasured);
  const SpeedFacts half{.comm_busy_s = 2, .comm_wait_s = 0.5};
  EXPECT_DOUBLE_EQ(half.overlap().value(), 0.75);
  EXPECT_FALSE(SpeedFacts{}.overlap().has_value());
}

TEST(AcceptVerdicts, RecoveryMustNameTheKilledRankAndEndWithTheSameBits) {
  RecoveryFacts facts{.killed = 3, .restarted = true};
  facts.noticed = RunEnd{.failure = {.kind = FailureKind::Lost, .culprits = {{3, "n1"}}}};
  facts.undisturbed = facts.recovered = {.step = 40, .bytes = 8, .hashes = {{"model", "1"}}};
  EXPECT_THAT(failures(judge_recovery(facts)), IsEmpty());
  const auto names = [](const AcceptChecks& checks) {
    std::vector<std::string> list;
    for (const AcceptCheck& one : failures(checks)) list.push_back(one.name);
    return list;
  };
  RecoveryFacts other = facts;
  other.noticed->failure.culprits = {{2, "n0"}};
  EXPECT_THAT(names(judge_recovery(other)), ElementsAre("named"));
  other = facts;
  other.noticed.reset();
  EXPECT_THAT(names(judge_recovery(other)), ElementsAre("noticed", "named"));
  other = facts;
  other.recovered.hashes[0].second = "2";
  EXPECT_THAT(names(judge_recovery(other)), ElementsAre("same bits"));
  other = facts;
  other.recovered.hashes.clear();
  other.undisturbed.hashes.clear();
  EXPECT_THAT(names(judge_recovery(other)), ElementsAre("same bits")) << "nothing was compared";
  other = facts;
  other.restarted = false;
  EXPECT_THAT(names(judge_recovery(other)), ElementsAre("restarted"));
  other = {.why_not = "needs several ranks"};
  EXPECT_EQ(judge_recovery(other).front().verdict, Verdict::NotMeasured);
}

TEST(AcceptVerdicts, EnergyCountersMustFitEachOther) {
  const GpuSpec gpu{.tdp_w = 700, .idle_w = 70};
  const auto judge = [&](double gpu_j, double node_j) {
    RunSteps steps{.step_s = {1, 1}, .gpu_j = {gpu_j / 2, gpu_j / 2}, .node_j = {node_j, 0}};
    return judge_energy("speed", steps, 2, gpu);
  };
  EXPECT_THAT(failures(judge(2000, 3000)), IsEmpty());  // 500 W each
  EXPECT_EQ(failures(judge(4000, 3000)).size(), 2u);    // more than the nodes, 1000 W each
  EXPECT_EQ(failures(judge(100, 3000)).size(), 1u);     // 25 W each
  EXPECT_THAT(failures(judge(NAN, 3000)), IsEmpty());
  EXPECT_EQ(judge(NAN, NAN).front().verdict, Verdict::NotMeasured);
}

// From the collectives of links of 40 GB/s and 3 us, each up to 2 % slower, these are found.
TEST(Accept, FitsLinksToCollectives) {
  for (const GroupSpread group : {GroupSpread{.size = 8}, GroupSpread{.size = 32}}) {
    Machine known = load_machine("dgx-h100");
    const bool inside = group.size == 8;
    (inside ? known.node.link_gb_s : known.network.gb_s) = 40;
    (inside ? known.node.latency_us : known.network.latency_us) = 3;
    std::vector<CollectiveRate> rates;
    double more = 1;
    for (const double bytes : {65536.0, 1048576.0, 268435456.0})
      for (const Collective kind :
           {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter})
        rates.push_back(
            {kind, bytes,
             (more = 1.02 - more / 100) * collective_s(links_of(known, group), kind, bytes)});
    Machine found = load_machine("dgx-h100");
    // Messages that are three times as slow do not change the fit, and are seen.
    rates.push_back({Collective::Send, 268435456.0,
                     3 * collective_s(links_of(known, group), Collective::Send, 268435456.0)});
    std::vector<double> ratios = fit_links(found, group, rates);
    EXPECT_NEAR(ratios.back(), 1 / 3.0, 0.02);
    ratios.pop_back();
    for (const double ratio : ratios) EXPECT_NEAR(ratio, 1, 0.04);
    EXPECT_NEAR(inside ? found.node.link_gb_s : found.network.gb_s, 40, 2);
    EXPECT_NEAR(inside ? found.node.latency_us : found.network.latency_us, 3, 0.3);
    EXPECT_EQ(
        inside ? found.network.gb_s : found.node.link_gb_s,
        inside ? load_machine("dgx-h100").network.gb_s : load_machine("dgx-h100").node.link_gb_s);
  }
}

}  // namespace
}  // namespace kintsugi
