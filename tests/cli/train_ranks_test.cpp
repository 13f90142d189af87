// `mpirun -np N kintsugi train` gives the same results as one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/mpirun.h"
#include "support/paths.h"
#include "support/small_run.h"
#include "support/temporary_directory.h"
#include "support/token_files.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class TrainOnRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun here";
    std::ofstream(directory_ / "corpus.txt") << small_corpus(600);
    std::ofstream(directory_ / "run.yaml")
        << small_config((directory_ / "corpus.txt").string(), (directory_ / "run").string(),
                        "steps: 6, eval_every: 3, checkpoint_every: 3, precision: fp64, "
                        "dropout: 0.1, log_every: 1");
  }

  // `ranks` 0: without mpirun.
  std::string command(int ranks, const std::string& run, const std::string& sets) const {
    const std::string launch = ranks == 0 ? "" : fmt::format("{}mpirun -np {} ", kOpenMpi, ranks);
    return fmt::format(
        "cd '{}' && {}'{}' train run.yaml --set run.dir={} --set batch.global=12 --set "
        "batch.micro=1 {} > {}.out 2> {}.err < /dev/null",
        directory_.path().string(), launch, kintsugi_binary(), run, sets, run, run);
  }
  int train(int ranks, const std::string& run, const std::string& sets = "") const {
    const int status = std::system(command(ranks, run, sets).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string errors(const std::string& run) const {
    return content_of(directory_ / (run + ".err"));
  }
  std::vector<json> metrics(const std::string& run) const {
    std::ifstream file(directory_ / run / "metrics.jsonl");
    std::vector<json> records;
    for (std::string line; std::getline(file, line);) records.push_back(json::parse(line));
    return records;
  }
  // Loss, gradient norm and held-out loss of every step from `first` on.
  void expect_same(const std::string& run, const std::string& reference, std::size_t first = 0) {
    const std::vector<json> ours = metrics(run), theirs = metrics(reference);
    ASSERT_EQ(ours.size(), theirs.size()) << run << errors(run);
    for (std::size_t i = first; i < ours.size(); ++i)
      for (const char* key : {"loss", "grad_norm", "valid_loss"}) {
        ASSERT_EQ(ours[i].contains(key), theirs[i].contains(key)) << run << " " << key;
        if (!ours[i].contains(key)) continue;
        const double a = ours[i].at(key), b = theirs[i].at(key);
        EXPECT_NEAR(a, b, 1e-10 * b) << run << " step " << i + 1 << " " << key;
      }
  }

  TemporaryDirectory directory_;
};

TEST_F(TrainOnRanks, EveryStageIsTheRunOfOneProcess) {
  ASSERT_EQ(train(0, "alone"), 0) << errors("alone");
  ASSERT_EQ(metrics("alone").size(), 6u);
  EXPECT_EQ(train(2, "two", "--set layout.zero=1"), 0) << errors("two");
  EXPECT_EQ(train(3, "three", "--set layout.zero=3 --set comm.check=true"), 0) << errors("three");
  EXPECT_EQ(train(4, "four", "--set layout.zero=2 --set layout.shard_group=2"), 0)
      << errors("four");
  EXPECT_EQ(train(6, "six", "--set layout.dp=6"), 0) << errors("six");
  for (const char* run : {"two", "three", "four", "six"}) expect_same(run, "alone");
  EXPECT_THAT(content_of(directory_ / "three.out"),
              HasSubstr("layout: 3 ranks = tp 1 × cp 1 × dp 3 × pp 1, ZeRO 3"));
  EXPECT_THAT(content_of(directory_ / "three.out"), HasSubstr("first step"));
  const json step = metrics("four")[1];
  EXPECT_GT(step.at("comm_bytes").get<std::int64_t>(), 0);
  EXPECT_GE(step.at("comm_busy_s").get<double>(), 0);
}

// With sums in rank order every run is bit-identical.
TEST_F(TrainOnRanks, DeterministicRunsAreEqualToTheBit) {
  for (const char* run : {"one", "other"})
    ASSERT_EQ(train(3, run,
                    "--set layout.zero=2 --set train.precision=fp32 --set comm.deterministic=true"),
              0)
        << errors(run);
  const std::vector<json> one = metrics("one"), other = metrics("other");
  ASSERT_EQ(one.size(), 6u);
  ASSERT_EQ(other.size(), 6u);
  for (std::size_t i = 0; i < one.size(); ++i)
    for (const char* key : {"loss", "grad_norm"}) EXPECT_EQ(one[i].at(key), other[i].at(key)) << i;
  EXPECT_EQ(content_of(directory_ / "one/checkpoints/step-00000006/model.safetensors"),
            content_of(directory_ / "other/checkpoints/step-00000006/model.safetensors"));
}

TEST_F(TrainOnRanks, EveryLayoutIsTheRunOfOneProcess) {
  const std::string deep = " --set model.layers=4";
  ASSERT_EQ(train(0, "alone", deep), 0) << errors("alone");
  const std::vector<std::pair<std::string, std::string>> layouts = {
      {"tensor", "--set layout.tp=2 --set layout.pp=2"},
      {"context", "--set layout.cp=2 --set layout.dp=2 --set layout.zero=3"},
      {"ulysses", "--set layout.cp=4 --set layout.context=ulysses --set comm.check=true"},
      {"interleaved",
       "--set layout.tp=2 --set layout.sequence_parallel=true --set layout.pp=2 --set "
       "layout.schedule=interleaved --set layout.chunks=2 --set comm.check=true"},
      {"auto", "--set layout=auto"}};
  for (const auto& [run, layout] : layouts) {
    EXPECT_EQ(train(4, run, layout + deep), 0) << errors(run);
    expect_same(run, "alone");
    const std::vector<json> steps = metrics(run);
    ASSERT_GT(steps.size(), 2u);
    EXPECT_TRUE(steps[2].contains("valid_loss")) << run;
    EXPECT_GT(steps[1].at("comm_bytes").get<std::int64_t>(), 0) << run;
  }
}

// Batches of 4, 4, 8, 12, 12, 12; continued from step 3, in the ramp, on other ranks.
TEST_F(TrainOnRanks, RampsAreTheRunOfOneProcess) {
  const std::string ramp =
      " --set model.layers=4 --set 'batch.ramp={start: 4, increment: 4, samples: 16}'";
  ASSERT_EQ(train(0, "alone", ramp), 0) << errors("alone");
  const std::vector<json> alone = metrics("alone");
  ASSERT_EQ(alone.size(), 6u);
  const std::vector<int> batches = {4, 4, 8, 12, 12, 12};
  int sequences = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    sequences += batches[i];
    EXPECT_EQ(alone[i].at("batch"), batches[i]) << i;
    EXPECT_EQ(alone[i].at("tokens"), 24 * sequences) << i;
  }
  const std::vector<std::pair<std::string, std::string>> layouts = {
      {"data", "--set layout.zero=2"},
      {"pipeline", "--set layout.pp=2 --set layout.zero=1"},
      {"halves", "--set layout.pp=2 --set layout.schedule=zb-h1"},
      {"interleaved",
       "--set layout.pp=2 --set layout.schedule=interleaved --set layout.chunks=2 --set "
       "comm.check=true"}};
  for (const auto& [run, layout] : layouts) {
    EXPECT_EQ(train(4, run, layout + ramp), 0) << errors(run);
    expect_same(run, "alone");
  }
  ASSERT_EQ(train(2, "continued",
                  ramp + " --set layout.pp=2 --set train.steps=6 --set "
                         "train.checkpoint_every=3"),
            0);
  fs::remove(directory_ / "continued/checkpoints/latest");
  fs::create_directory_symlink("step-00000003", directory_ / "continued/checkpoints/latest");
  ASSERT_EQ(train(4, "continued", ramp + " --set layout.zero=3"), 0) << errors("continued");
  const std::vector<json> continued = metrics("continued");
  ASSERT_EQ(continued.size(), 9u);
  for (std::size_t i = 3; i < 6; ++i)
    EXPECT_NEAR(continued[i + 3].at("loss").get<double>(), alone[i].at("loss").get<double>(), 1e-9);
  EXPECT_EQ(train(4, "wrong", ramp + " --set batch.ramp.start=6 --set batch.ramp.increment=6"), 2);
  EXPECT_THAT(errors("wrong"), HasSubstr("batch.ramp.start is 6, which is not a multiple of 4 (dp "
                                         "4 × batch.micro 1): use 4 or 8"));
  EXPECT_FALSE(fs::exists(directory_ / "wrong"));
}

// Rank 0 packs; the others map its file.
TEST_F(TrainOnRanks, PackedRunsAreTheRunOfOneProcess) {
  std::vector<std::vector<std::int32_t>> documents;
  for (int i = 0; i < 200; ++i) {
    auto& document = documents.emplace_back();
    for (int j = 0; j < 3 + i * 7 % 41; ++j) document.push_back((i * 37 + j * 11) % 256);
  }
  write_megatron((directory_ / "store").string(), TokenType::U8, documents);
  const std::string packed =
      " --set 'data.train=[{path: store}]' --set data.packing=best_fit --set "
      "data.document_mask=true --set data.boundary_loss=false --set model.layers=2";
  ASSERT_EQ(train(0, "alone", packed), 0) << errors("alone");
  EXPECT_EQ(train(4, "zero", "--set layout.zero=3" + packed), 0) << errors("zero");
  EXPECT_EQ(train(4, "tensor", "--set layout.tp=2 --set layout.pp=2" + packed), 0)
      << errors("tensor");
  EXPECT_EQ(train(2, "context", "--set layout.cp=2" + packed), 0) << errors("context");
  EXPECT_EQ(train(2, "ulysses", "--set layout.cp=2 --set layout.context=ulysses" + packed), 0)
      << errors("ulysses");
  for (const char* run : {"zero", "tensor", "context", "ulysses"}) {
    expect_same(run, "alone");
    for (std::size_t i = 0; i < 6; ++i)
      EXPECT_EQ(metrics(run)[i].at("targets"), metrics("alone")[i].at("targets")) << run;
    EXPECT_THAT(content_of(directory_ / (std::string(run) + ".out")), HasSubstr("pack documents"));
    for (const auto& entry : fs::directory_iterator(directory_ / run / "packing"))
      EXPECT_EQ(content_of(entry.path()),
                content_of(directory_ / "alone/packing" / entry.path().filename()));
  }
}

TEST_F(TrainOnRanks, ContinuesOnAnyNumberOfRanks) {
  ASSERT_EQ(train(0, "alone"), 0) << errors("alone");
  ASSERT_EQ(train(4, "moved", "--set train.steps=6 --set layout.zero=3"), 0) << errors("moved");
  // Back to the checkpoint of step 3: the last checkpoint is removed.
  fs::remove_all(directory_ / "moved" / "checkpoints" / "step-00000006");
  fs::remove(directory_ / "moved" / "checkpoints" / "latest");
  ASSERT_EQ(train(4, "moved", "--set layout.tp=2 --set layout.pp=2"), 0) << errors("moved");
  EXPECT_THAT(content_of(directory_ / "moved.out"), HasSubstr("(step 3)"));
  const std::vector<json> all = metrics("moved"), alone = metrics("alone");
  ASSERT_EQ(all.size(), 9u);  // 1 … 6 on data ranks, 4 … 6 again with tp 2 and pp 2
  for (std::size_t i = 6; i < 9; ++i)
    EXPECT_NEAR(all[i].at("loss").get<double>(), alone[i - 3].at("loss").get<double>(), 1e-10);
}

TEST_F(TrainOnRanks, MistakesAreReportedOnce) {
  EXPECT_EQ(train(5, "bad"), 2);
  const std::string text = errors("bad");
  const std::string sentence = "error: batch.global is 12, which is not a multiple of 5 data ranks";
  EXPECT_THAT(text, HasSubstr(sentence));
  EXPECT_EQ(text.find(sentence), text.rfind(sentence)) << text;
  EXPECT_FALSE(fs::exists(directory_ / "bad"));
  EXPECT_EQ(train(3, "bad", "--set layout.tp=3"), 2);
  const std::string heads =
      "error: layout.tp is 3, which must divide the model's 4 heads and 48 MLP columns: use 2 or 4";
  EXPECT_THAT(errors("bad"), HasSubstr(heads));
  EXPECT_EQ(errors("bad").find(heads), errors("bad").rfind(heads)) << errors("bad");
  EXPECT_FALSE(fs::exists(directory_ / "bad"));
  EXPECT_EQ(train(3, "bad", "--set data.train=[{path: no.txt}]"), 2);
  EXPECT_THAT(errors("bad"), HasSubstr("no.txt"));
}

// Launchers pass standard input to rank 0 only.
TEST_F(TrainOnRanks, ReadTheConfigurationFromRankZerosPipe) {
  std::string piped = command(3, "piped", "--set train.steps=2 --set train.eval_every=0");
  for (const auto& [from, to] : {std::pair<std::string, std::string>("run.yaml", "/dev/stdin"),
                                 std::pair<std::string, std::string>("/dev/null", "run.yaml")}) {
    const std::size_t at = piped.find(from);
    ASSERT_NE(at, std::string::npos) << piped;
    piped.replace(at, from.size(), to);
  }
  EXPECT_EQ(std::system(piped.c_str()), 0) << errors("piped");
  EXPECT_EQ(metrics("piped").size(), 2u);
}

// An error of a single rank ends the job with that rank's number and exit code: here the rank that
// reads a sample with a token id outside the vocabulary.
TEST_F(TrainOnRanks, AnErrorOfOneRankIsNamed) {
  std::vector<std::int32_t> ids(6000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i % 256);
  ids[3000] = 300;
  write_megatron((directory_ / "store").string(), TokenType::U16, {ids});
  EXPECT_EQ(train(3, "odd",
                  "--set 'data.train=[{path: store}]' --set train.steps=200 --set layout.zero=3 "
                  "--set train.eval_every=0"),
            2)
      << errors("odd");
  const std::string log = content_of(directory_ / "odd" / "log.txt");
  EXPECT_THAT(log, testing::ContainsRegex("error rank [0-2]: .*300"));
  const json status = json::parse(content_of(directory_ / "odd" / "status.json"));
  EXPECT_EQ(status.at("state"), "failed");
  EXPECT_THAT(status.at("message").get<std::string>(), HasSubstr("300"));
}

// A killed rank ends the job, and the log of rank 0 names it.
class KilledRank : public TrainOnRanks {
 protected:
  void expect_named(int ranks, const std::string& layout);
  template <class Happened>
  static bool wait_for(const Happened& happened) {
    for (int i = 0; i < 600 && !happened(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return happened();
  }
  // The process that is this rank of the run in this directory, according to its environment; 0:
  // there is none.
  pid_t process_of(int rank) const {
    const std::string variable = fmt::format("OMPI_COMM_WORLD_RANK={}", rank) + '\0';
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::error_code ignored;
      if (fs::read_symlink(entry.path() / "cwd", ignored) == fs::canonical(directory_.path()) &&
          content_of(entry.path() / "environ").find(variable) != std::string::npos)
        return std::stoi(name);
    }
    return 0;
  }
};

void KilledRank::expect_named(int ranks, const std::string& layout) {
  std::thread job([&] {
    train(ranks, "killed", "--set train.steps=100000 --set train.eval_every=0 " + layout);
  });
  const bool began = wait_for([&] { return metrics("killed").size() >= 3; });
  const pid_t victim = process_of(2);
  if (victim > 0) kill(victim, SIGKILL);
  job.join();  // mpirun ends: no rank hangs
  ASSERT_TRUE(began) << errors("killed");
  ASSERT_GT(victim, 0);
  EXPECT_THAT(content_of(directory_ / "killed" / "log.txt"), HasSubstr("rank 2 was lost"));
  EXPECT_EQ(json::parse(content_of(directory_ / "killed" / "status.json")).at("state"), "failed");
}

TEST_F(KilledRank, AmongDataRanks) { expect_named(3, ""); }
TEST_F(KilledRank, OfATensorPairInAPipeline) {
  expect_named(4, "--set layout.tp=2 --set layout.pp=2");
}

// Rank 1 gives a stopped rank 0 up and ends. When rank 0 continues, it must not blame rank 1.
TEST_F(KilledRank, AStoppedRankZeroBlamesItself) {
  std::thread job([&] {
    train(2, "stopped",
          "--set train.steps=100000 --set train.eval_every=0 --set comm.silence_s=1.5");
  });
  const bool began = wait_for([&] { return metrics("stopped").size() >= 3; });
  const pid_t first = process_of(0);
  if (first > 0) kill(first, SIGSTOP);
  const bool noticed = wait_for([&] {
    return errors("stopped").find("rank 0 was lost: no sign of life") != std::string::npos;
  });
  if (first > 0) kill(first, SIGCONT);
  job.join();
  ASSERT_TRUE(began) << errors("stopped");
  EXPECT_TRUE(noticed) << errors("stopped");
  const std::string log = content_of(directory_ / "stopped" / "log.txt");
  EXPECT_THAT(log, HasSubstr("rank 0 was stopped: rank 1 had no sign of life from it for 2 s"));
  EXPECT_THAT(log, Not(HasSubstr("rank 1 was lost")));
  EXPECT_EQ(json::parse(content_of(directory_ / "stopped" / "status.json")).at("rank"), 0);
}

}  // namespace
}  // namespace kintsugi
