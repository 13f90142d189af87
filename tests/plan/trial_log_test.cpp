#include "plan/search/trial_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "support/errors.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const Trial kRan{.layout = {.tp = 2,
                            .cp = 2,
                            .pp = 4,
                            .context = ContextMethod::Ulysses,
                            .dp = 8,
                            .chunks = 3,
                            .schedule = PipelineKind::Interleaved,
                            .micro_batch = 4,
                            .zero = 1,
                            .shard_group = 4,
                            .ep = 8,
                            .dispatch = Dispatch::AllToAll,
                            .sequence_parallel = true,
                            .recompute = Recompute::Full,
                            .recompute_every = 2},
                 .predicted = 1234,
                 .result = {.tokens_per_s = 1000.5},
                 .seconds = 12.5};
const Trial kFailed{
    .layout = {.dp = 128}, .predicted = 99, .result = {.failure = "it said \"no\", twice"}};

class TrialLogTest : public testing::Test {
 protected:
  std::string content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string error_of(const std::string& text) const {
    std::ofstream(path_, std::ios::binary) << text;
    return user_error_of([&] { TrialLog(path_, "job"); });
  }
  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_ / "trials.csv";
};

TEST_F(TrialLogTest, ReadsWhatItWrote) {
  {
    TrialLog log(path_, "job, of two parts");
    EXPECT_TRUE(log.known().empty());
    log.add(kFailed);
    log.add(kRan);
  }
  TrialLog log(path_, "job, of two parts");
  Trial again = kFailed;
  again.result = {.tokens_per_s = 50};
  ASSERT_EQ(log.known().size(), 2u);
  EXPECT_EQ(log.known()[0].layout, kFailed.layout);
  EXPECT_EQ(log.known()[0].result.failure, kFailed.result.failure);
  EXPECT_EQ(log.known()[1].layout, kRan.layout);
  EXPECT_EQ(log.known()[1].predicted, 1234);
  EXPECT_EQ(log.known()[1].result.tokens_per_s, 1000.5);
  EXPECT_EQ(log.known()[1].seconds, 12.5);
  log.add(again);
  const TrialLog third(path_, "job, of two parts");
  ASSERT_EQ(third.known().size(), 2u);
  EXPECT_EQ(third.known()[1].result.tokens_per_s, 50);
}

TEST_F(TrialLogTest, WithoutAFileNothingIsWritten) {
  TrialLog log("", "job");
  log.add(kRan);
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(TrialLogTest, DamageIsNamed) {
  TrialLog(path_, "job").add(kRan);
  const std::string good = content();
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.rfind(from);
    return text.replace(at, from.size(), to);
  };
  EXPECT_THAT(error_of("a,b\n1,2\n"), HasSubstr("not a trial log"));
  EXPECT_THAT(error_of(good.substr(0, good.size() - 3)), HasSubstr("incomplete line"));
  EXPECT_THAT(error_of(good + "job,1,2\n"), AllOf(HasSubstr("line 3"), HasSubstr("cells")));
  EXPECT_THAT(error_of(changed("interleaved", "sideways")),
              AllOf(HasSubstr("trials.csv line 2"), HasSubstr("schedule")));
  EXPECT_THAT(error_of(changed("1000.5", "fast")), HasSubstr("fast"));
  EXPECT_THAT(error_of(changed("1000.5", "-3")), HasSubstr("above 0"));
  EXPECT_THAT(error_of(changed("1000.5", "")), HasSubstr("neither"));
  EXPECT_THAT(error_of(changed("job,2,", "job,0,")), HasSubstr("'0' as tp"));
  EXPECT_THAT(error_of(changed("job,2,", "job,2.5,")), HasSubstr("an integer"));
  EXPECT_THAT(error_of(changed("job,2,", "other,2,")),
              AllOf(HasSubstr("another job (other; this job is job)"), HasSubstr("--log")));
}

// Any file is either read or refused with an error message.
TEST_F(TrialLogTest, Fuzz) {
  {
    TrialLog log(path_, "job");
    log.add(kFailed);
    log.add(kRan);
  }
  const std::string good = content();
  std::mt19937 random(5);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    std::string text = good;
    for (unsigned n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = random() % text.size();
      if (random() % 4 == 0)
        text.erase(at, random() % 20);
      else
        text[at] = "0129,\"\n-.eENax\xff"[random() % 15];
      if (text.empty()) text = "\n";
    }
    std::ofstream(path_, std::ios::binary) << text;
    try {
      const TrialLog log(path_, "job");
      for (const Trial& trial : log.known()) {
        EXPECT_GE(trial.layout.ranks(), 1);
        EXPECT_NE(trial.result.ran(), trial.result.tokens_per_s == 0);
      }
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace kintsugi
