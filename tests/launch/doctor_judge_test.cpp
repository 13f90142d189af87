// Verdicts on recorded values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "launch/doctor/judge.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<int> from_to(int first, int last) {
  std::vector<int> numbers(static_cast<std::size_t>(last - first + 1));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

// Healthy ranks on nodes n0, n1, … with 64 cores, each bound to its own 64 / `per_node`.
std::vector<RankFacts> healthy(int nodes, int per_node) {
  std::vector<RankFacts> ranks;
  const int cores = 64 / per_node;
  for (int rank = 0; rank < nodes * per_node; ++rank) {
    const int local = rank % per_node;
    RankFacts& facts = ranks.emplace_back();
    facts.rank = rank;
    facts.node = "n" + std::to_string(rank / per_node);
    facts.binding = {.cores = from_to(local * cores, local * cores + cores - 1),
                     .usable = from_to(0, 63),
                     .threads = cores,
                     .gpu = "0000:0" + std::to_string(local) + ":00.0",
                     .gpu_cores = {}};
    facts.device = {.name = "gpu",
                    .problem = "",
                    .hash = "abc",
                    .free_bytes = 80e9,
                    .flops_per_s = 400e12 * (1 + 0.01 * (rank % 5))};  // up to 4 % apart
    facts.directory.checked = local == 0;
    facts.directory.free_bytes = 1e15;
  }
  return ranks;
}

// Rates of the pairs of the ring of nodes with one rank each, by lower rank; the last pair closes
// the ring.
void set_ring(std::vector<RankFacts>& ranks, const std::vector<double>& gb_s) {
  const int n = static_cast<int>(ranks.size());
  for (int i = 0; i < n; ++i) {
    const int a = i, b = (i + 1) % n;
    ranks[static_cast<std::size_t>(std::min(a, b))].pairs.push_back(
        {.first = std::min(a, b),
         .second = std::max(a, b),
         .between_nodes = true,
         .bytes_per_s = gb_s[static_cast<std::size_t>(i)] * 1e9});
  }
}

TEST(JudgeBinding, HealthyRanksHaveNoFindings) {
  EXPECT_THAT(judge_binding(healthy(2, 8), false), IsEmpty());
}

// Published masks of a job script for LUMI-G, whose first mask is there twice.
TEST(JudgeBinding, NamesRanksThatShareCores) {
  std::vector<RankFacts> ranks = healthy(1, 8);
  const std::vector<int> first = {49, 49, 17, 25, 1, 9, 33, 41};
  std::vector<int> usable;
  for (int core = 0; core < 64; ++core)
    if (core % 8 != 0) usable.push_back(core);  // low-noise mode: 56 cores
  for (std::size_t i = 0; i < 8; ++i)
    ranks[i].binding = {.cores = from_to(first[i], first[i] + 6),
                        .usable = usable,
                        .threads = 7,
                        .gpu = "",
                        .gpu_cores = {}};
  const Findings findings = judge_binding(ranks, false);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::Error);
  EXPECT_TRUE(findings[0].mistake);
  EXPECT_THAT(findings[0].nodes, IsEmpty()) << "the node is healthy";
  EXPECT_THAT(findings[0].text,
              HasSubstr("ranks 0 and 1 on n0 share cores 49-55 while cores 57-63 are idle"));
  ranks[1].binding.cores = from_to(57, 63);
  EXPECT_THAT(judge_binding(ranks, false), IsEmpty());
}

TEST(JudgeBinding, RanksThatShareASocketAreNoError) {
  std::vector<RankFacts> ranks = healthy(1, 4);
  for (int i = 0; i < 4; ++i) {
    ranks[static_cast<std::size_t>(i)].binding.cores = i < 2 ? from_to(0, 31) : from_to(32, 63);
    ranks[static_cast<std::size_t>(i)].binding.threads = 16;
  }
  EXPECT_THAT(judge_binding(ranks, false), IsEmpty());
  // Half of the node is idle, but each thread has a core.
  std::vector<RankFacts> half(ranks.begin(), ranks.begin() + 2);
  ASSERT_EQ(judge_binding(half, false).size(), 1u);
  EXPECT_EQ(judge_binding(half, false)[0].severity, Severity::Warning);
}

TEST(JudgeBinding, UnboundAndOversubscribedRanksAreNoError) {
  std::vector<RankFacts> ranks = healthy(1, 8);
  for (RankFacts& rank : ranks) rank.binding.cores = rank.binding.usable = {0, 1};
  for (RankFacts& rank : ranks) rank.binding.threads = 1;
  const Findings findings = judge_binding(ranks, false);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].severity, Severity::Warning);
  EXPECT_THAT(findings[0].text, HasSubstr("8 ranks with 8 threads on 2 cores"));
  EXPECT_EQ(findings[1].severity, Severity::Note);
  EXPECT_THAT(findings[1].text, HasSubstr("not bound"));
  EXPECT_TRUE(oversubscribed(ranks, "n0"));
}

TEST(JudgeBinding, NamesRanksThatShareAGpu) {
  std::vector<RankFacts> ranks = healthy(2, 4);
  ranks[6].binding.gpu = ranks[5].binding.gpu;
  const Findings findings = judge_binding(ranks, false);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::Error);
  EXPECT_THAT(findings[0].text, HasSubstr("ranks 5 and 6 on n1 both use GPU 0000:01:00.0"));
  EXPECT_THAT(judge_binding(ranks, true), IsEmpty());
}

TEST(JudgeBinding, WarnsOfCoresFarFromTheGpu) {
  std::vector<RankFacts> ranks = healthy(1, 2);
  ranks[0].binding.gpu_cores = from_to(0, 15);
  ranks[1].binding.gpu_cores = from_to(0, 15);
  const Findings findings = judge_binding(ranks, false);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::Warning);
  EXPECT_THAT(findings[0].text, AllOf(HasSubstr("rank 1 on n0"), HasSubstr("near cores 0-15")));
}

TEST(JudgeDevices, SmallDifferencesAreNoFindings) {
  EXPECT_THAT(judge_devices(healthy(4, 4), {}, {}), IsEmpty());
}

TEST(JudgeDevices, NamesSlowRanksByNode) {
  std::vector<RankFacts> ranks = healthy(4, 4);
  for (RankFacts& rank : ranks) rank.device.flops_per_s = 400e12;
  ranks[9].device.flops_per_s = 300e12;
  ranks[10].device.flops_per_s = 320e12;
  ranks[2].device.flops_per_s = 345e12;  // 86 %
  const Findings findings = judge_devices(ranks, {}, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::Error);
  EXPECT_EQ(findings[0].kind, NodeTrouble::Slow);
  EXPECT_THAT(findings[0].nodes, ElementsAre("n2"));
  EXPECT_THAT(findings[0].text, AllOf(HasSubstr("ranks 9-10 on n2"), HasSubstr("75 %")));
  EXPECT_EQ(judge_devices(ranks, {.failed = 0.5}, {})[0].severity, Severity::Warning);
  EXPECT_THAT(judge_devices(ranks, {.slow = 0.7, .failed = 0.7}, {}), IsEmpty());
}

TEST(JudgeDevices, DoesNotCompareOversubscribedProcessors) {
  std::vector<RankFacts> ranks = healthy(1, 4);
  for (RankFacts& rank : ranks) rank.binding.gpu.clear();
  ranks[1].device.flops_per_s = 1e12;
  ASSERT_EQ(judge_devices(ranks, {}, {}).size(), 1u);
  for (RankFacts& rank : ranks) rank.binding.usable = {0, 1};
  EXPECT_THAT(judge_devices(ranks, {}, {}), IsEmpty());
}

TEST(JudgeDevices, NamesWrongResults) {
  std::vector<RankFacts> ranks = healthy(2, 4);
  ranks[5].device.problem = "computes wrong results: element (0, 0)";
  ranks[6].device.hash = "abd";
  const Findings findings = judge_devices(ranks, {}, {});
  ASSERT_EQ(findings.size(), 2u);
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.severity, Severity::Error);
    EXPECT_EQ(finding.kind, NodeTrouble::Sick);
    EXPECT_FALSE(finding.mistake);
    EXPECT_THAT(finding.nodes, ElementsAre("n1"));
  }
  EXPECT_THAT(findings[0].text, HasSubstr("rank 5 on n1: computes wrong"));
  EXPECT_THAT(findings[1].text, AllOf(HasSubstr("rank 6 on n1"), HasSubstr("abd")));
}

TEST(JudgeDevices, ComparesWithTheMachineAndFreeMemory) {
  std::vector<RankFacts> ranks = healthy(1, 4);
  ranks[3].device.free_bytes = 60e9;
  Findings findings = judge_devices(ranks, {}, {.flops_per_s = 700e12});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].text, HasSubstr("rank 3 on n0: GPU 0000:03:00.0 has 55.88 GiB free"));
  findings = judge_devices(ranks, {}, {.flops_per_s = 900e12});
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_THAT(findings[1].text, HasSubstr("machine description"));
}

TEST(JudgeLinks, TwoSlowPairsNameTheirCommonNode) {
  for (const int nodes : {3, 4, 5, 16}) {
    for (int slow = 0; slow < nodes; ++slow) {
      std::vector<RankFacts> ranks = healthy(nodes, 1);
      std::vector<double> gb_s(static_cast<std::size_t>(nodes), 25.0);
      gb_s[static_cast<std::size_t>(slow)] = 6;                            // slow, slow + 1
      gb_s[static_cast<std::size_t>((slow + nodes - 1) % nodes)] = 7;      // slow - 1, slow
      gb_s[static_cast<std::size_t>((slow + nodes / 2) % nodes)] *= 0.95;  // a small difference
      set_ring(ranks, gb_s);
      const Findings findings = judge_links(ranks, {}, {});
      ASSERT_EQ(findings.size(), 1u) << nodes << " nodes, " << slow;
      EXPECT_EQ(findings[0].severity, Severity::Error);
      EXPECT_THAT(findings[0].nodes, ElementsAre("n" + std::to_string(slow)));
      EXPECT_EQ(findings[0].kind, NodeTrouble::Slow);
    }
  }
}

TEST(JudgeLinks, OneSlowPairNamesBothEnds) {
  std::vector<RankFacts> ranks = healthy(5, 1);
  set_ring(ranks, {25, 6, 25, 25, 25});
  const Findings findings = judge_links(ranks, {}, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::Warning);
  EXPECT_THAT(findings[0].nodes, IsEmpty());
  EXPECT_THAT(findings[0].text, HasSubstr("ranks 1 (n1) and 2 (n2) exchange 6 GB/s"));
}

TEST(JudgeLinks, ComparesWithTheMachine) {
  std::vector<RankFacts> ranks = healthy(2, 1);
  ranks[0].pairs = {{.first = 0, .second = 1, .between_nodes = true, .bytes_per_s = 5.4e9}};
  EXPECT_THAT(judge_links(ranks, {}, {}), IsEmpty());
  const Findings findings = judge_links(ranks, {}, {.network_bytes_per_s = 25e9});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].text, AllOf(HasSubstr("5.4 GB/s"), HasSubstr("25 GB/s")));
}

// Links inside a node may differ by design: each is compared with the same one of other nodes.
TEST(JudgeLinks, ComparesLinksInsideNodesByTheirPlace) {
  std::vector<RankFacts> ranks = healthy(4, 4);
  for (int node = 0; node < 4; ++node)
    for (const auto& [a, b, gb_s] : std::vector<std::tuple<int, int, double>>{
             {0, 1, 200}, {1, 2, 50}, {2, 3, 200}, {0, 3, 50}}) {
      const int first = 4 * node + a;
      ranks[static_cast<std::size_t>(first)].pairs.push_back({.first = first,
                                                              .second = 4 * node + b,
                                                              .between_nodes = false,
                                                              .bytes_per_s = gb_s * 1e9});
    }
  EXPECT_THAT(judge_links(ranks, {}, {}), IsEmpty());
  ranks[4].pairs[0].bytes_per_s = 20e9;  // 4, 5
  ranks[5].pairs[0].bytes_per_s = 20e9;  // 5, 6
  const Findings findings = judge_links(ranks, {}, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].nodes, ElementsAre("n1"));
  EXPECT_THAT(findings[0].text, HasSubstr("rank 5 on n1: slow to both neighbours"));
}

TEST(JudgeLinks, NamesWrongBytes) {
  std::vector<RankFacts> ranks = healthy(2, 1);
  ranks[1].pairs = {
      {.first = 0, .second = 1, .between_nodes = true, .bytes_per_s = 25e9, .wrong = true}};
  const Findings findings = judge_links(ranks, {}, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::Error);
  EXPECT_THAT(findings[0].text, HasSubstr("rank 1 on n1 received other bytes than rank 0 on n0"));
}

TEST(JudgeNetwork, TcpIsAMistake) {
  EXPECT_THAT(judge_network(std::nullopt, false), IsEmpty());
  ASSERT_EQ(judge_network("Socket", false).size(), 1u);
  EXPECT_EQ(judge_network("Socket", false)[0].severity, Severity::Error);
  EXPECT_TRUE(judge_network("Socket", false)[0].mistake);
  EXPECT_EQ(judge_network("Socket", true)[0].severity, Severity::Note);
  EXPECT_EQ(judge_network("IB", false)[0].severity, Severity::Note);
  EXPECT_EQ(judge_network("", false)[0].severity, Severity::Warning);
}

TEST(JudgeDirectory, NamesNodesThatCannotWriteOrSee) {
  std::vector<RankFacts> ranks = healthy(3, 2);
  EXPECT_THAT(judge_directory(ranks, "/run", 1e9, 1e9), IsEmpty());
  ranks[4].directory.problem = "cannot write: Input/output error";
  Findings findings = judge_directory(ranks, "/run", 0, 0);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::Error);
  EXPECT_THAT(findings[0].nodes, ElementsAre("n2"));
  // A full disk is not the fault of the nodes.
  for (RankFacts& rank : ranks) rank.directory.problem = "cannot write: No space left on device";
  findings = judge_directory(ranks, "/run", 0, 0);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].nodes, IsEmpty());
  EXPECT_FALSE(findings[0].mistake);
  // A directory that only rank 0 sees is the user's mistake; one blind node is the node's.
  ranks = healthy(3, 2);
  ranks[2].directory.sees_first = false;
  EXPECT_THAT(judge_directory(ranks, "/run", 0, 0).at(0).nodes, ElementsAre("n1"));
  ranks[4].directory.sees_first = false;
  EXPECT_TRUE(judge_directory(ranks, "/run", 0, 0).at(0).mistake);
}

TEST(JudgeDirectory, ComparesFreeSpaceWithCheckpoints) {
  std::vector<RankFacts> ranks = healthy(1, 2);
  ranks[0].directory.free_bytes = 10.0 * (1 << 30);
  EXPECT_THAT(judge_directory(ranks, "/run", 5e9, 10e9), IsEmpty());
  EXPECT_EQ(judge_directory(ranks, "/run", 5e9, 15e9).at(0).severity, Severity::Warning);
  const Findings full = judge_directory(ranks, "/run", 20.0 * (1 << 30), 60e9);
  ASSERT_EQ(full.size(), 1u);
  EXPECT_EQ(full[0].severity, Severity::Error);
  EXPECT_THAT(full[0].text,
              HasSubstr("/run has 10 GiB free, and the next checkpoint needs 20 GiB"));
}

TEST(JudgeHosts, WarnsOfClocksSharedMemoryAndLimits) {
  std::vector<RankFacts> ranks = healthy(3, 2);
  for (RankFacts& rank : ranks)
    rank.host = {.wall_clock_s = 1.77e9, .shared_memory_free = 8e9, .open_files = 4096};
  ranks[2].host.clock_offset_s = 0.2;
  EXPECT_THAT(judge_hosts(ranks, {}), IsEmpty());
  ranks[2].host.clock_offset_s = 2.5;
  ranks[4].host = {.wall_clock_s = 86400,
                   .shared_memory_free = 1e6,
                   .old_shared_memory = 5e9,
                   .open_files = 256};
  const Findings findings = judge_hosts(ranks, {});
  std::vector<std::string> texts;
  for (const Finding& finding : findings) texts.push_back(finding.text);
  EXPECT_THAT(texts, ElementsAre(HasSubstr("clock of n1 is 2.5 s behind that of n0"),
                                 HasSubstr("clock of n2 is wrong"), HasSubstr("/dev/shm of n2 has"),
                                 HasSubstr("older than an hour"), HasSubstr("ulimit -n")));
}

TEST(RingRounds, CoverEveryNeighbourOnceInDisjointPairs) {
  for (int n = 1; n <= 9; ++n) {
    std::vector<int> pairs_of(static_cast<std::size_t>(n), 0);
    int pairs = 0;
    for (const auto& round : ring_rounds(n)) {
      std::vector<bool> used(static_cast<std::size_t>(n), false);
      for (const auto& [a, b] : round) {
        EXPECT_TRUE(b == a + 1 || (a == 0 && b == n - 1)) << n;
        for (const int member : {a, b}) {
          EXPECT_FALSE(used[static_cast<std::size_t>(member)]) << n;
          used[static_cast<std::size_t>(member)] = true;
          ++pairs_of[static_cast<std::size_t>(member)];
        }
        ++pairs;
      }
    }
    EXPECT_EQ(pairs, n == 1 ? 0 : n == 2 ? 1 : n);
    for (const int count : pairs_of) EXPECT_EQ(count, n == 1 ? 0 : n == 2 ? 1 : 2) << n;
  }
}

TEST(RankFactsText, IsReadBack) {
  std::vector<RankFacts> ranks = healthy(2, 2);
  ranks[3].device.problem = "\xff broken";
  ranks[3].pairs = {
      {.first = 1, .second = 3, .between_nodes = true, .bytes_per_s = 7, .wrong = true}};
  const RankFacts read = facts_of(to_json_text(ranks[3]));
  EXPECT_EQ(read.rank, 3);
  EXPECT_EQ(read.node, "n1");
  EXPECT_EQ(read.binding.cores, from_to(32, 63));
  EXPECT_EQ(read.binding.usable, from_to(0, 63));
  EXPECT_EQ(read.device.problem, "\\xff broken");
  EXPECT_EQ(read.device.flops_per_s, ranks[3].device.flops_per_s);
  ASSERT_EQ(read.pairs.size(), 1u);
  EXPECT_TRUE(read.pairs[0].wrong);
  EXPECT_EQ(number_list({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
  EXPECT_THAT(parse_number_list("0-2,5,7-8\n"), ElementsAre(0, 1, 2, 5, 7, 8));
  for (const char* text : {"", "x", "3-1", "0-99999999999", "1;2"})
    EXPECT_THAT(parse_number_list(text), IsEmpty()) << text;
}

}  // namespace
}  // namespace kintsugi
