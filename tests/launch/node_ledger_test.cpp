#include "launch/node_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "launch/slurm.h"
#include "support/captured_log.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::time_t kNoon = 1'772'366'400;  // 2026-03-01T12:00:00Z
constexpr std::time_t kOneDay = 86'400;

class NodeLedgerTest : public testing::Test {
 protected:
  std::string text() const { return content_of(directory_ / "nodes.json"); }
  void write(const std::string& content) const {
    std::ofstream(directory_ / "nodes.json", std::ios::binary) << content;
  }

  TemporaryDirectory directory_;
  NodeLedger ledger_{directory_ / "nodes.json"};
};

TEST_F(NodeLedgerTest, ExcludesANodeUntilItsTimeIsOver) {
  EXPECT_THAT(ledger_.excluded(kNoon), IsEmpty());
  EXPECT_FALSE(fs::exists(ledger_.path())) << "reading writes nothing";
  ledger_.add("nid002", NodeTrouble::Slow, "matmul 61 % of the median", kNoon, 2);
  ledger_.add("nid001", NodeTrouble::Hung, "no heartbeat", kNoon, 0.5);
  EXPECT_THAT(ledger_.excluded(kNoon), ElementsAre("nid001", "nid002"));
  EXPECT_THAT(ledger_.excluded(kNoon + kOneDay / 2 - 1), ElementsAre("nid001", "nid002"));
  EXPECT_THAT(ledger_.excluded(kNoon + kOneDay / 2), ElementsAre("nid002"));
  EXPECT_THAT(ledger_.excluded(kNoon + 2 * kOneDay), IsEmpty());
  const json node = json::parse(text()).at("nodes").at(0);
  EXPECT_EQ(node, json::parse(R"({"node": "nid002", "kind": "slow", "count": 1,
      "reason": "matmul 61 % of the median", "first": "2026-03-01T12:00:00Z",
      "last": "2026-03-01T12:00:00Z", "until": "2026-03-03T12:00:00Z"})"));
}

TEST_F(NodeLedgerTest, CountsAndNeverShortensAnExclusion) {
  ledger_.add("a", NodeTrouble::User, "by hand", kNoon, 30);
  ledger_.add("a", NodeTrouble::Lost, "killed", kNoon + 60, 1);
  const std::vector<LedgerEntry> entries = ledger_.entries();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].count, 2);
  EXPECT_EQ(entries[0].kind, "lost");
  EXPECT_EQ(entries[0].reason, "killed");
  EXPECT_EQ(entries[0].first, kNoon);
  EXPECT_EQ(entries[0].last, kNoon + 60);
  EXPECT_EQ(entries[0].until, kNoon + 30 * kOneDay);
  // After its end the count goes on; three months later the entry is gone.
  ledger_.add("a", NodeTrouble::Sick, "again", kNoon + 40 * kOneDay, 1);
  EXPECT_EQ(ledger_.entries().at(0).count, 3);
  ledger_.add("b", NodeTrouble::Sick, "another", kNoon + 130 * kOneDay, 1);
  EXPECT_EQ(ledger_.entries().size(), 2u);
  ledger_.add("b", NodeTrouble::Sick, "another", kNoon + 131 * kOneDay, 1);
  ASSERT_EQ(ledger_.entries().size(), 1u);
  EXPECT_EQ(ledger_.entries()[0].node, "b");
}

TEST_F(NodeLedgerTest, ForgetsANode) {
  ledger_.add("a", NodeTrouble::User, "x", kNoon, 1);
  EXPECT_FALSE(ledger_.forget("b"));
  EXPECT_TRUE(ledger_.forget("a"));
  EXPECT_FALSE(ledger_.forget("a"));
  EXPECT_THAT(ledger_.entries(), IsEmpty());
}

TEST_F(NodeLedgerTest, KeepsWhatItDoesNotKnow) {
  write(R"({"site": "LUMI", "nodes": [{"node": "a", "kind": "on fire", "reason": "r",
      "first": "2026-03-01T12:00:00Z", "last": "2026-03-01T12:00:00Z",
      "until": "2026-03-09T12:00:00Z", "count": 4, "ticket": 77}]})");
  EXPECT_THAT(ledger_.excluded(kNoon), ElementsAre("a"));
  ledger_.add("b", NodeTrouble::Slow, "x", kNoon, 1);
  ledger_.add("a", NodeTrouble::Slow, "x", kNoon, 1);
  const json document = json::parse(text());
  EXPECT_EQ(document.at("site"), "LUMI");
  EXPECT_EQ(document.at("nodes").at(0).at("ticket"), 77);
  EXPECT_EQ(document.at("nodes").at(0).at("count"), 5);
}

TEST_F(NodeLedgerTest, SetsADamagedFileAside) {
  int number = 0;
  for (const std::string damaged :
       {"", "{", "[]", "{}", R"({"nodes": 3})", R"({"nodes": [7]})",
        R"({"nodes": [{"node": "a"}]})",
        R"({"nodes": [{"node": "--all", "kind": "slow", "reason": "", "count": 1, "first":
        "2026-03-01T12:00:00Z", "last": "2026-03-01T12:00:00Z", "until": "2027-03-01T12:00:00Z"}]})",
        R"({"nodes": [{"node": "a", "kind": "slow", "reason": "", "count": 1, "first":
        "yesterday", "last": "2026-03-01T12:00:00Z", "until": "2027-03-01T12:00:00Z"}]})"}) {
    write(damaged);
    EXPECT_THROW(parse_node_ledger(damaged), UserError) << damaged;
    CapturedLog log;
    EXPECT_THAT(ledger_.excluded(kNoon), IsEmpty()) << damaged;
    EXPECT_THAT(log.text(), HasSubstr("nodes.json is damaged")) << damaged;
    EXPECT_FALSE(fs::exists(ledger_.path())) << damaged;
    const std::string aside =
        ++number == 1 ? "nodes.json.damaged" : fmt::format("nodes.json.damaged-{}", number);
    EXPECT_EQ(content_of(directory_ / aside), damaged);
    ledger_.add("b", NodeTrouble::Sick, "x", kNoon, 1);
    EXPECT_THAT(ledger_.excluded(kNoon), ElementsAre("b"));
  }
}

TEST_F(NodeLedgerTest, AFileThatCannotBeReadIsAWarning) {
  EXPECT_THAT(NodeLedger(directory_ / "missing" / "nodes.json").excluded(kNoon), IsEmpty());
  fs::create_directory(ledger_.path());
  {
    CapturedLog log;
    EXPECT_THAT(ledger_.excluded(kNoon), IsEmpty());
    EXPECT_THAT(log.text(), HasSubstr("is not used"));
  }
  EXPECT_THROW(ledger_.add("a", NodeTrouble::Slow, "x", kNoon, 1), Failure);
  EXPECT_TRUE(fs::is_directory(ledger_.path())) << "it is not set aside";
}

TEST_F(NodeLedgerTest, RefusesHostileNames) {
  for (const std::string name :
       {"", "-x", "--all", "a b", "a,b", "a;reboot", "nid[1-9]", "../a", "a\n", "\x1b[2J", "ä"})
    EXPECT_THROW(ledger_.add(name, NodeTrouble::Slow, "x", kNoon, 1), UserError) << name;
  EXPECT_THROW(ledger_.add(std::string(300, 'a'), NodeTrouble::Slow, "x", kNoon, 1), UserError);
  for (const double days : {0.0, -1.0, 1e9, std::nan("")})
    EXPECT_THROW(ledger_.add("a", NodeTrouble::Slow, "x", kNoon, days), UserError) << days;
  EXPECT_FALSE(fs::exists(ledger_.path()));
  // The reason may be any bytes.
  ledger_.add("a", NodeTrouble::Slow, "\xff\x1b[2J\n" + std::string(5000, 'x'), kNoon, 1);
  EXPECT_LT(text().size(), 1500u);
  EXPECT_THAT(ledger_.entries().at(0).reason, HasSubstr("\\xff\\x1b[2J x"));
}

TEST_F(NodeLedgerTest, LosesNothingWithEightWriters) {
  constexpr int kWriters = 8, kAdds = 20;
  std::vector<pid_t> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        for (int i = 0; i < kAdds; ++i) {
          ledger_.add("shared", NodeTrouble::Slow, "x", kNoon, 1);
          ledger_.add(fmt::format("n{}-{}", writer, i), NodeTrouble::Lost, "x", kNoon, 1);
        }
      } catch (...) {
        _exit(1);
      }
      _exit(0);
    }
    writers.push_back(child);
  }
  for (const pid_t writer : writers) {
    int status = 0;
    waitpid(writer, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const std::vector<LedgerEntry> entries = ledger_.entries();
  ASSERT_EQ(entries.size(), kWriters * kAdds + 1u);
  for (const LedgerEntry& entry : entries)
    EXPECT_EQ(entry.count, entry.node == "shared" ? kWriters * kAdds : 1) << entry.node;
}

TEST(NodeLedgerPath, IsTheFirstThatIsGiven) {
  ASSERT_EQ(unsetenv("KINTSUGI_NODE_LEDGER"), 0);
  EXPECT_EQ(node_ledger_path("", "runs/a"), "runs/a/nodes.json");
  setenv("KINTSUGI_NODE_LEDGER", "/team/nodes.json", 1);
  EXPECT_EQ(node_ledger_path("", "runs/a"), "/team/nodes.json");
  EXPECT_EQ(node_ledger_path("/mine.json", "runs/a"), "/mine.json");
  unsetenv("KINTSUGI_NODE_LEDGER");
}

TEST(HostList, IsSlurmsForm) {
  EXPECT_EQ(host_list({}), "");
  EXPECT_EQ(host_list({"nid007"}), "nid007");
  EXPECT_EQ(host_list({"nid007", "nid001", "nid003", "nid002"}), "nid[001-003,007]");
  EXPECT_EQ(host_list({"n9", "n10", "n11", "n10"}), "n[9-11]");
  EXPECT_EQ(host_list({"nid098", "nid099", "nid100"}), "nid[098-100]");
  EXPECT_EQ(host_list({"n1", "n01", "n02", "n2"}), "n[01-02],n[1-2]");
  EXPECT_EQ(host_list({"r1-n2", "r1-n3", "r2-n2", "login"}), "login,r1-n[2-3],r2-n2");
  EXPECT_EQ(host_list({"a.b.c"}), "a.b.c");
  EXPECT_EQ(host_list({"0", "1"}), "[0-1]");
  EXPECT_EQ(host_list({"n" + std::string(30, '1')}), "n" + std::string(30, '1'));
}

}  // namespace
}  // namespace kintsugi
