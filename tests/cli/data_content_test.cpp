// A run trains on the data that it was started with, and on data that is as it was written.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/mpirun.h"
#include "support/program_test.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class DataContentTest : public ProgramTest {
 protected:
  Outcome train(const std::string& data, const std::string& more = "") {
    directory_.write("run.yaml", small_config(data, directory_ / "run", "steps: 2, eval_every: 0",
                                              "device: cpu\nthreads: 1\n"));
    return run_kintsugi("train run.yaml " + more);
  }
  void put(const std::string& file, std::streamoff at, const std::string& bytes) {
    std::fstream stream(directory_ / file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(at);
    stream << bytes;
  }
  // Makes a file of zeros that takes no room. False if the file system has no such files.
  bool make_zeros(const std::string& file, std::uintmax_t bytes) {
    directory_.write(file, "");
    std::error_code error;
    fs::resize_file(directory_ / file, bytes, error);
    return !error;
  }
  json record() { return json::parse(content_of("run/data.json")); }
};

// Both halves of the middle are exchanged: sizes and ends stay.
TEST_F(DataContentTest, AStoreThatWasDamagedIsNotTrainedOn) {
  directory_.write("corpus.txt", small_corpus(20'000));
  ASSERT_EQ(run_kintsugi("data tokenize --input corpus.txt --tokenizer bytes --output store").code,
            0);
  const std::string good = content_of("store.bin");
  const std::streamoff at = 200'000;
  put("store.bin", at, good.substr(at + 1000, 1000) + good.substr(at, 1000));
  const Outcome damaged = train("store");
  EXPECT_EQ(damaged.code, 2);
  EXPECT_THAT(damaged.error,
              AllOf(HasSubstr("store.bin has another content"), HasSubstr("kintsugi data verify")));
  put("store.bin", at, good.substr(at, 2000));
  const Outcome restored = train("store");
  EXPECT_EQ(restored.code, 0) << restored.error;
  EXPECT_EQ(train("store", "--set train.steps=3").code, 0);
}

// To read all of it takes minutes. The run has finished before, and its record says so.
TEST_F(DataContentTest, AStoreOfOneTerabyteDoesNotDelayTheFirstStep) {
  if (!make_zeros("large.txt", std::uintmax_t{1} << 40)) GTEST_SKIP() << "no sparse files";
  for (const char* steps : {"2", "3"}) {
    const Outcome outcome = train("large.txt", fmt::format("--set train.steps={}", steps));
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    EXPECT_THAT(outcome.out + outcome.error, HasSubstr("were not compared yet"));
    EXPECT_EQ(record()["files"][0]["read"], false);
  }
}

// What differs is found while the resumed run trains, which then ends, long before its last step.
TEST_F(DataContentTest, AChangeInALargeFileEndsTheResumedRun) {
  const std::uintmax_t bytes = (std::uintmax_t{256} << 20) + 4096;
  if (!make_zeros("large.txt", bytes)) GTEST_SKIP() << "no sparse files";
  ASSERT_EQ(train("large.txt", "--set batch.global=4 --set batch.micro=2").code, 0);
  const json before = record();
  put("large.txt", static_cast<std::streamoff>(bytes / 128), "#");  // between two blocks
  json known = before;
  known["files"][0]["hash"] = "0123456789abcdef";  // as if the first start had read all of it
  known["files"][0]["read"] = true;
  directory_.write("run/data.json", known.dump());
  const std::string two_ranks = kOpenMpi + std::string("timeout 60 mpirun -np 2");
  const bool mpirun = std::system("command -v mpirun > /dev/null 2>&1") == 0;
  for (const std::string& launcher : {std::string("timeout 60"), mpirun ? two_ranks : ""}) {
    if (launcher.empty()) continue;
    const Outcome outcome = run_in_shell(
        launcher +
        " \"$kintsugi\" train run.yaml --set train.steps=100000000 --set batch.global=4 --set "
        "batch.micro=2 --set train.checkpoint_every=50000000");
    EXPECT_EQ(outcome.code, 2) << launcher << outcome.error;
    EXPECT_THAT(outcome.error,
                AllOf(HasSubstr("large.txt is not the file that the run was started on"),
                      HasSubstr("steps 3 to ")));
    EXPECT_EQ(record(), known) << "a later start finds it again";
  }
}

}  // namespace
}  // namespace kintsugi
