#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "report/documents/exports.h"
#include "support/errors.h"
#include "support/synthetic_run.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Csv : public testing::Test {
 protected:
  std::vector<std::string> lines_of(const std::vector<CsvRun>& runs) {
    std::string text;
    write_csv(runs, [&](std::string_view part) {
      largest_part_ = std::max(largest_part_, part.size());
      text += part;
    });
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }
  CsvRun run_with(const std::string& name, const std::string& metrics) {
    return {name, directory_.write(name + ".jsonl", metrics)};
  }

  TemporaryDirectory directory_;
  std::size_t largest_part_ = 0;
};

TEST_F(Csv, OneRowPerStepWithAllColumns) {
  EXPECT_THAT(lines_of({run_with("a", R"({"loss":1.50,"step":1,"skipped":"not finite"})"
                                      "\n"
                                      R"({"step":2,"loss":null,"lr":1e-05})"
                                      "\n")}),
              ElementsAre("step,loss,skipped,lr", "1,1.50,not finite,", "2,,,1e-05"));
}

TEST_F(Csv, NestedValuesHaveDottedNames) {
  EXPECT_THAT(
      lines_of({run_with("a", R"({"step":1,"valid":{"fi":{"loss":2.5},"s,v":{"loss":3}},)"
                              R"("eval":[{"task":"t","metric":"acc","value":0.5,"stderr":null}],)"
                              R"("straggler":{"rank":3,"node":"n7","ratio":1.25}})"
                              "\n")}),
      ElementsAre("step,valid.fi.loss,\"valid.s,v.loss\",eval.t.acc,eval.t.acc.stderr,"
                  "straggler.rank,straggler.node,straggler.ratio",
                  "1,2.5,3,0.5,,3,n7,1.25"));
}

// After step 3 the run went back to step 2.
TEST_F(Csv, OfARepeatedStepTheNewestCounts) {
  EXPECT_THAT(lines_of({run_with("a",
                                 "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":2}\n"
                                 "{\"step\":3,\"loss\":3}\n{\"step\":2,\"loss\":20}\n")}),
              ElementsAre("step,loss", "1,1", "2,20"));
}

TEST_F(Csv, DamagedAndUnfinishedLinesAreLeftOut) {
  EXPECT_THAT(lines_of({run_with("a",
                                 "{\"step\":1}\n{\"step\":2,\"x\n[1]\n{\"loss\":5}\n\xFF\n"
                                 "{\"step\":\"3\"}\n{\"step\":4} x\n{\"step\":5}\n{\"step\":6}")}),
              ElementsAre("step", "1", "5"));
}

TEST_F(Csv, SeveralRunsHaveAColumnForTheirNames) {
  EXPECT_THAT(lines_of({run_with("=cmd", "{\"step\":1,\"a\":1}\n"),
                        run_with("b", "{\"step\":1,\"b\":\"@x\"}\n")}),
              ElementsAre("run,step,a,b", "\"'=cmd\",1,1,", "b,1,,\"'@x\""));
}

TEST_F(Csv, NamesOfColumnsAreEscaped) {
  EXPECT_THAT(lines_of({run_with("a", "{\"step\":1,\"=x\":2,\"q\\\"\":3}\n")}),
              ElementsAre("step,\"'=x\",\"q\"\"\"", "1,2,3"));
}

// Closed forms, more than one block of the file and of the output.
TEST_F(Csv, ALongRunIsWrittenInParts) {
  constexpr int kSteps = 20000;
  std::string metrics;
  for (int k = 1; k <= kSteps; ++k) metrics += synthetic_record(k);
  ASSERT_GT(metrics.size(), std::size_t{3} << 20);
  const auto lines = lines_of({run_with("a", metrics)});
  ASSERT_EQ(lines.size(), kSteps + 1u);
  EXPECT_EQ(lines[0],
            "step,seq,tokens,loss,grad_norm,lr,step_time_s,data_wait_s,tokens_per_s,mfu,"
            "mfu_full_attention,energy_j,time_s,valid_loss");
  for (const int k : {1, 2, 4, 5000, kSteps})
    EXPECT_THAT(lines[static_cast<std::size_t>(k)],
                testing::StartsWith(fmt::format("{},{},{},{},{},0.001,0.5,0.125,{},0.5,0.625,,", k,
                                                k - 1, 1000 * k, 1 + 8.0 / k, 1 + k % 4, 100 + k)));
  EXPECT_LT(largest_part_, std::size_t{128} << 10);
}

TEST_F(Csv, Mistakes) {
  EXPECT_THAT(user_error_of([&] {
                lines_of({{"a", directory_ / "none.jsonl"}});
              }),
              HasSubstr("none.jsonl"));
  std::string keys = "{\"step\":1";
  for (int i = 0; i < 3000; ++i) keys += fmt::format(",\"k{}\":1", i);
  EXPECT_THAT(user_error_of([&] { lines_of({run_with("a", keys + "}\n")}); }),
              HasSubstr("different keys"));
}

}  // namespace
}  // namespace kintsugi
