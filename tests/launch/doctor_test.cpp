// The checks on ranks that are threads, with backends and networks that are slow or wrong.
#include "launch/doctor/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "backend/cpu/cpu_backend_impl.h"
#include "comm/exchange.h"
#include "support/temporary_directory.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The time of one rank. Only the backend and the network below advance it, so that rates do not
// depend on the machine that runs the tests.
struct RankClock {
  double seconds = 0;
};

// Computes `flops_per_s`; a wrong one adds 1 to one element of each product.
class TestDevice : public CpuBackend {
 public:
  TestDevice(RankClock& clock, double flops_per_s, bool wrong)
      : CpuBackend(1), clock_(clock), flops_per_s_(flops_per_s), wrong_(wrong) {}
  void do_matmul(Tensor c, Tensor a, Tensor b, const MatmulOptions& options) override {
    CpuBackend::do_matmul(c, a, b, options);
    clock_.seconds += 2.0 * static_cast<double>(c.elements() * a.extent(1)) / flops_per_s_;
    if (wrong_) c.as<float>()[c.elements() / 2] += 1;
  }

 private:
  RankClock& clock_;
  double flops_per_s_;
  bool wrong_;
};

// What the network does to messages between two ranks.
struct Network {
  std::function<double(int a, int b)> bytes_per_s;
  std::function<bool(int from, int to)> damages = [](int, int) { return false; };
  std::function<double(int a, int b)> pause_s = {};  // before the third message of a pair
  double latency_s = 0;
};

class TestLink : public ForwardingCommunicator {
 public:
  TestLink(std::unique_ptr<Communicator> inner, std::vector<int> members, const Network& network,
           RankClock& clock)
      : ForwardingCommunicator(std::move(inner)),
        members_(std::move(members)),
        network_(network),
        clock_(clock) {}
  Work start(const Call& call) override {
    if (call.kind == Collective::AllGather)
      full_ = members_.size() == 2 ? call.destination : Tensor();
    return inner_->start(call);
  }
  void wait(Work work) override {
    inner_->wait(work);
    if (!full_) return;
    const double bytes = static_cast<double>(full_.bytes()) / 2;
    clock_.seconds += network_.latency_s + bytes / network_.bytes_per_s(members_[0], members_[1]);
    if (++messages_ == 3 && network_.pause_s)
      clock_.seconds += network_.pause_s(members_[0], members_[1]);
    const auto self = static_cast<std::size_t>(rank());
    const std::int64_t other = full_.elements() / 2 * (1 - rank());
    if (network_.damages(members_[1 - self], members_[self]))
      full_.as<std::uint8_t>()[other + full_.elements() / 4] ^= 16;
    full_ = {};
  }

 private:
  std::vector<int> members_;
  const Network& network_;
  RankClock& clock_;
  Tensor full_;  // of an all-gather of two ranks
  int messages_ = 0;
};

class TestWorld : public World {
 public:
  TestWorld(World& inner, const Network& network, RankClock& clock)
      : World(inner.place()), inner_(inner), network_(network), clock_(clock) {}
  std::unique_ptr<Communicator> split(const std::string& name, int color, int key) override {
    auto group = inner_.split(name, color, key);
    std::vector<int> members;
    for (const std::string& text : gather_texts(*group, std::to_string(rank())))
      members.push_back(std::stoi(text));
    return std::make_unique<TestLink>(std::move(group), std::move(members), network_, clock_);
  }

 private:
  World& inner_;
  const Network& network_;
  RankClock& clock_;
};

// A job of four nodes with two ranks each.
struct TestJob {
  static constexpr int kRanks = 8;
  std::function<double(int rank)> flops_per_s = [](int) { return 1e9; };
  std::function<bool(int rank)> wrong = [](int) { return false; };
  Network network = {[](int, int) { return 1e9; }};
  std::function<fs::path(int rank)> directory = [](int) { return fs::path(); };
  std::int64_t link_bytes = 1 << 16;
  DoctorOptions options = {};

  Diagnosis diagnose_all() const {
    Diagnosis result;
    run_ranks(kRanks, [&](World& world) {
      RankClock clock;
      const int rank = world.rank();
      TestDevice device(clock, flops_per_s(rank), wrong(rank));
      TestWorld links(world, network, clock);
      DoctorOptions mine = options;
      mine.node = "n" + std::to_string(rank / 2);
      mine.gpu = "gpu" + std::to_string(rank % 2);  // so that rates are compared
      mine.device.size = 32;
      mine.device.memory_bytes = 1 << 16;
      mine.links.bytes = link_bytes;
      mine.hosts = false;
      mine.directory = directory(rank);
      mine.now = [&clock] { return clock.seconds; };
      Diagnosis diagnosis = diagnose(world, links, device, mine);
      EXPECT_EQ(diagnosis.ranks.size(), rank == 0 ? kRanks : 0u);
      if (rank == 0) result = std::move(diagnosis);
    });
    return result;
  }
};

std::vector<std::string> errors_of(const Diagnosis& diagnosis) {
  std::vector<std::string> texts;
  for (const Finding& finding : diagnosis.findings)
    if (finding.severity == Severity::Error) texts.push_back(finding.text);
  return texts;
}

TEST(Doctor, HealthyRanksPass) {
  const Diagnosis diagnosis = TestJob().diagnose_all();
  EXPECT_THAT(errors_of(diagnosis), IsEmpty());
  EXPECT_THAT(diagnosis.bad_nodes(), IsEmpty());
  ASSERT_EQ(diagnosis.ranks.size(), 8u);
  std::size_t inside = 0, between = 0;
  for (const RankFacts& rank : diagnosis.ranks) {
    EXPECT_NEAR(rank.device.flops_per_s, 1e9, 1);
    EXPECT_EQ(rank.device.hash, diagnosis.ranks[0].device.hash);
    for (const PairRate& pair : rank.pairs) {
      ++(pair.between_nodes ? between : inside);
      EXPECT_NEAR(pair.bytes_per_s, 1e9, 1);
      EXPECT_FALSE(pair.wrong);
    }
  }
  EXPECT_EQ(inside, 4u) << "one pair in each node";
  EXPECT_EQ(between, 8u) << "a ring of four nodes, for each of two ranks";
}

// Small messages reach a fraction of the rate of large ones: a pause while the size is chosen, and
// a pair that is slow, change the size for all.
TEST(Doctor, PairsAreComparedWithMessagesOfOneSize) {
  TestJob job;
  job.link_bytes = 1 << 22;
  job.network.latency_s = 1e-3;
  job.network.pause_s = [](int a, int b) { return a == 0 && b == 2 ? 0.5 : 0.0; };
  Diagnosis diagnosis = job.diagnose_all();
  EXPECT_THAT(errors_of(diagnosis), IsEmpty());
  // A probe of 64 KiB takes this long; five messages of a pair may take 50 ms if they scale.
  const double probe_s = 1e-3 + 65536 / 1e9, bytes = std::floor(65536 * 0.05 / 5 / probe_s);
  for (const RankFacts& rank : diagnosis.ranks)
    for (const PairRate& pair : rank.pairs)
      if (pair.between_nodes) {
        EXPECT_NEAR(pair.bytes_per_s, bytes / (1e-3 + bytes / 1e9), 1);
      }
  job.network.bytes_per_s = [](int a, int b) { return a == 2 || b == 2 ? 1e7 : 1e9; };
  diagnosis = job.diagnose_all();
  EXPECT_THAT(diagnosis.bad_nodes(), ElementsAre("n1"));
  EXPECT_THAT(errors_of(diagnosis), ElementsAre(HasSubstr("rank 2 on n1: slow to both")));
}

TEST(Doctor, NamesASlowDevice) {
  TestJob job;
  job.flops_per_s = [](int rank) { return rank == 5 ? 6e8 : 1e9 + 1e7 * rank; };
  const Diagnosis diagnosis = job.diagnose_all();
  EXPECT_THAT(errors_of(diagnosis), ElementsAre(HasSubstr("rank 5 on n2: slow matmul, 600 M")));
  EXPECT_THAT(diagnosis.bad_nodes(), ElementsAre("n2"));
}

TEST(Doctor, NamesADeviceThatComputesWrong) {
  TestJob job;
  job.wrong = [](int rank) { return rank == 3; };
  const Diagnosis diagnosis = job.diagnose_all();
  EXPECT_THAT(errors_of(diagnosis),
              ElementsAre(AllOf(HasSubstr("rank 3 on n1: computes wrong results"),
                                HasSubstr("element (16, 0) of a fp32 matmul"))));
  EXPECT_THAT(diagnosis.bad_nodes(), ElementsAre("n1"));
  const TemporaryDirectory directory;
  const NodeLedger ledger(directory / "nodes.json");
  EXPECT_THAT(exclude_bad_nodes(diagnosis, ledger, 1'772'366'400, 2), ElementsAre("n1"));
  ASSERT_EQ(ledger.entries().size(), 1u);
  EXPECT_EQ(ledger.entries()[0].kind, "sick");
  EXPECT_THAT(ledger.entries()[0].reason, HasSubstr("computes wrong results"));
}

TEST(Doctor, NamesASlowNode) {
  TestJob job;
  job.network.bytes_per_s = [](int a, int b) {
    const bool between = a / 2 != b / 2, node_3 = a / 2 == 3 || b / 2 == 3;
    return between && node_3 ? 2e8 : 1e9;
  };
  const Diagnosis diagnosis = job.diagnose_all();
  EXPECT_THAT(errors_of(diagnosis),
              ElementsAre(HasSubstr("ranks 6-7 on n3: slow to both neighbours in other nodes")));
  EXPECT_THAT(diagnosis.bad_nodes(), ElementsAre("n3"));
}

TEST(Doctor, ASlowLinkBetweenTwoRanksIsAWarning) {
  TestJob job;
  job.network.bytes_per_s = [](int a, int b) { return a == 2 && b == 4 ? 2e8 : 1e9; };
  const Diagnosis diagnosis = job.diagnose_all();
  EXPECT_THAT(errors_of(diagnosis), IsEmpty());
  ASSERT_GE(diagnosis.count(Severity::Warning), 1u);
  EXPECT_THAT(report_text(diagnosis, {}), HasSubstr("ranks 2 (n1) and 4 (n2) exchange 0.2 GB/s"));
}

TEST(Doctor, NamesALinkThatDamagesBytes) {
  TestJob job;
  job.network.damages = [](int from, int to) { return from == 4 && to == 5; };
  EXPECT_THAT(errors_of(job.diagnose_all()),
              ElementsAre(HasSubstr("rank 5 on n2 received other bytes than rank 4 on n2 sent")));
}

TEST(Doctor, DoesNotMeasureLinksWithoutTime) {
  TestJob job;
  job.options.budget_s = 1e-12;
  const Diagnosis diagnosis = job.diagnose_all();
  for (const RankFacts& rank : diagnosis.ranks) EXPECT_THAT(rank.pairs, IsEmpty());
  EXPECT_THAT(report_text(diagnosis, {}), HasSubstr("note: links: not measured"));
}

TEST(Doctor, EveryNodeWritesToTheDirectory) {
  const TemporaryDirectory directory;
  TestJob job;
  // All nodes use the part of rank 0's directory that exists, and leave nothing there.
  job.directory = [&](int rank) { return directory.path() / (rank == 0 ? "runs/a" : "other"); };
  const Diagnosis diagnosis = job.diagnose_all();
  EXPECT_THAT(errors_of(diagnosis), IsEmpty());
  EXPECT_TRUE(fs::is_empty(directory.path()));
  for (const RankFacts& rank : diagnosis.ranks) {
    EXPECT_EQ(rank.directory.checked, rank.rank % 2 == 0);
    if (!rank.directory.checked) continue;
    EXPECT_TRUE(rank.directory.sees_first);
    EXPECT_GT(rank.directory.free_bytes, 0);
  }
  job.directory = [](int) { return fs::path("/proc"); };
  EXPECT_THAT(errors_of(job.diagnose_all()), ElementsAre(HasSubstr("/proc/.kintsugi-doctor-")));
}

TEST(Doctor, AllRanksThrowTheErrorOfRankZero) {
  for (const bool mistake : {false, true})
    run_ranks(3, [&](World& world) {
      const auto group = world.split("all", 0, world.rank());
      Diagnosis diagnosis;
      EXPECT_NO_THROW(refuse_errors(*group, diagnosis, "x: "));
      if (world.rank() == 0)
        diagnosis.findings = {
            {.severity = Severity::Error, .check = "device", .text = "a", .nodes = {"n1"}},
            {.severity = Severity::Error,
             .check = "binding",
             .text = "b",
             .nodes = {},
             .mistake = mistake}};
      try {
        refuse_errors(*group, diagnosis, "x: ");
        ADD_FAILURE() << "no error";
      } catch (const SharedUserError& error) {
        EXPECT_TRUE(mistake);
        EXPECT_STREQ(error.what(), "x: b (and 1 more errors)");
      } catch (const SharedFailure& error) {
        EXPECT_FALSE(mistake);
        EXPECT_STREQ(error.what(), "x: a (and 1 more errors)");
      }
    });
}

TEST(Doctor, ReportsAsTextAndJson) {
  TestJob job;
  job.wrong = [](int rank) { return rank == 3; };
  const Diagnosis diagnosis = job.diagnose_all();
  const std::string text = report_text(diagnosis, {});
  EXPECT_THAT(text, HasSubstr("8 ranks on 4 nodes"));
  EXPECT_THAT(text, HasSubstr("error: device: rank 3 on n1"));
  EXPECT_THAT(text, testing::EndsWith("; exclude n1\n"));
  const nlohmann::json json = nlohmann::json::parse(report_json(diagnosis));
  EXPECT_EQ(json.at("ranks").size(), 8u);
  EXPECT_EQ(json.at("exclude"), nlohmann::json({"n1"}));
  EXPECT_EQ(json.at("findings").at(0).at("severity"), "error");
}

// All precisions hold the operands and the result exactly.
TEST(MeasureDevice, TheMatmulIsExactInEveryPrecision) {
  CpuBackend backend(1);
  for (const DType precision : {DType::F64, DType::F32, DType::BF16, DType::F16})
    for (const std::int64_t depth : {4, 512, 4096}) {
      const DeviceFacts facts = measure_device(backend,
                                               {.precision = precision,
                                                .size = 48,
                                                .depth = depth,
                                                .repetitions = 1,
                                                .memory_bytes = 12345},
                                               steady_seconds);
      EXPECT_EQ(facts.problem, "") << to_string(precision) << " " << depth;
      EXPECT_GT(facts.flops_per_s, 0);
    }
}

class ForgetfulDevice : public CpuBackend {
 public:
  ForgetfulDevice() : CpuBackend(1) {}
  void download(void* destination, Tensor source) override {
    CpuBackend::download(destination, source);
    if (source.dtype() == DType::U8) static_cast<std::uint8_t*>(destination)[77] &= 0x7F;
  }
};

class BrokenDevice : public CpuBackend {
 public:
  BrokenDevice() : CpuBackend(1) {}
  void upload(Tensor, const void*) override { failure("the GPU fell off the bus"); }
};

TEST(MeasureDevice, NoticesBadMemoryAndErrors) {
  ForgetfulDevice forgetful;
  const DeviceLoad load{.size = 16, .memory_bytes = 1 << 16};
  EXPECT_THAT(measure_device(forgetful, load, steady_seconds).problem, HasSubstr("memory"));
  BrokenDevice broken;
  EXPECT_EQ(measure_device(broken, load, steady_seconds).problem,
            "its device does not work: the GPU fell off the bus");
}

TEST(MeasureBinding, FindsTheCoresNearAGpu) {
  const TemporaryDirectory root;
  fs::create_directories(root / "sys/bus/pci/devices/0000:d1:00.0");
  fs::create_directories(root / "sys/devices/system/node/node3");
  std::ofstream(root / "sys/bus/pci/devices/0000:d1:00.0/numa_node") << "3\n";
  std::ofstream(root / "sys/devices/system/node/node3/cpulist") << "48-51,112\n";
  const BindingFacts facts = measure_binding(7, "0000:D1:00.0", root.path());
  EXPECT_THAT(facts.gpu_cores, ElementsAre(48, 49, 50, 51, 112));
  EXPECT_EQ(facts.threads, 7);
  EXPECT_THAT(measure_binding(7, "0000:d2:00.0", root.path()).gpu_cores, IsEmpty());
  std::ofstream(root / "sys/bus/pci/devices/0000:d1:00.0/numa_node") << "-1\n";
  EXPECT_THAT(measure_binding(7, "0000:d1:00.0", root.path()).gpu_cores, IsEmpty());
}

TEST(MeasureBinding, TellsBindingFromTheCoresOfTheJob) {
  const BindingFacts before = measure_binding(1, "");
  ASSERT_FALSE(before.usable.empty());
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(before.usable.back()), &one);
  std::thread([&] {  // its own binding
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    const BindingFacts bound = measure_binding(1, "");
    EXPECT_THAT(bound.cores, ElementsAre(before.usable.back()));
    EXPECT_EQ(bound.usable, before.usable);
    EXPECT_EQ(bound.bound(), before.usable.size() > 1);
    EXPECT_EQ(measure_binding(1, "").cores, bound.cores) << "measuring leaves it alone";
  })
      .join();
}

TEST(NetworkVariables, AreThoseThatRanksShare) {
  const char* environment[] = {"PATH=/bin",
                               "NCCL_NET=OFI",
                               "FI_PROVIDER=cxi",
                               "NCCL_HOSTID=x-3",
                               "OMPI_MCA_btl=self,tcp",
                               "OMPI_MCA_ess_base_vpid=3",
                               "OMPI_COMM_WORLD_RANK=3",
                               nullptr};
  EXPECT_THAT(network_variables(environment),
              ElementsAre(testing::Pair("FI_PROVIDER", "cxi"), testing::Pair("NCCL_NET", "OFI"),
                          testing::Pair("OMPI_MCA_btl", "self,tcp")));
}

TEST(TextsAtFirst, AreInRankOrder) {
  run_ranks(5, [](World& world) {
    const auto group = world.split("all", 0, world.rank());
    const auto texts =
        texts_at_first(*group, std::string(static_cast<std::size_t>(world.rank()), 'x'));
    const std::vector<std::string> all = {"", "x", "xx", "xxx", "xxxx"};
    EXPECT_EQ(texts, world.rank() == 0 ? all : std::vector<std::string>{});
  });
}

}  // namespace
}  // namespace kintsugi
