#include "train/records/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/captured_log.h"
#include "support/event_file_reader.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Pair;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

// Bytes that TensorBoard's own writer makes of these events.
TEST(TensorBoard, RecordsAreThoseOfItsOwnWriter) {
  EXPECT_EQ(version_record(1.0), from_hex("1800000000000000a37f4b22"
                                          "09000000000000f03f1a0d") +
                                     "brain.Event:2" + from_hex("86bf577a"));
  EXPECT_EQ(scalars_record(2.0, 300, {{"loss", 2.5}}), from_hex("1b000000000000001a0d9e13"
                                                                "090000000000000040"
                                                                "10ac022a0d0a0b0a04") +
                                                           "loss" + from_hex("1500002040de65814e"));
  EXPECT_EQ(restart_record(4.0, 250), from_hex("100000000000000095fbfe18"
                                               "090000000000001040"
                                               "10fa013a020801817e4584"));
}

TEST(TensorBoard, TheReaderOfTheseTestsKnowsTheChecksum) {
  EXPECT_EQ(bitwise_crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(bitwise_crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string bytes = scalars_record(1, 1, {{"a", 1}});
  bytes[20] ^= 1;
  EXPECT_THROW(parse_event_file(bytes), std::runtime_error);
}

TEST(TensorBoard, LargeStepsAndNumbersThatAreNotFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto events = parse_event_file(scalars_record(
      1.5e9 + 0.25, std::int64_t{1} << 40,
      {{"nan", NAN}, {"inf", kInfinity}, {"low", -kInfinity}, {"big", 1e300}, {"x", -0.1}}));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].step, std::int64_t{1} << 40);
  EXPECT_EQ(events[0].wall_time_s, 1.5e9 + 0.25);
  ASSERT_EQ(events[0].values.size(), 5u);
  EXPECT_TRUE(std::isnan(events[0].values[0].second));
  EXPECT_EQ(events[0].values[1].second, std::numeric_limits<float>::infinity());
  EXPECT_EQ(events[0].values[2].second, -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isinf(events[0].values[3].second));
  EXPECT_EQ(events[0].values[4].second, -0.1f);
}

TEST(TensorBoard, TagsAreValidTextOnOneLine) {
  const auto events = parse_event_file(
      scalars_record(1, 1, {{"valid/\xff\xfe", 1}, {"a\nb\tc\x1b[31m", 2}, {"ä/文", 3}}));
  EXPECT_THAT(events.at(0).values, ElementsAre(Pair("valid/\\xff\\xfe", 1.0f),
                                               Pair("a b c\\x1b[31m", 2.0f), Pair("ä/文", 3.0f)));
}

class EventFiles : public testing::Test {
 protected:
  std::unique_ptr<EventFile> open(const std::string& host = "n7") {
    return std::make_unique<EventFile>(events_, host, [this] { return now_s_; });
  }
  std::vector<std::int64_t> steps_of(const std::string& tag) const {
    std::vector<std::int64_t> steps;
    EventSeries series = read_event_series(events_);
    for (const auto& [step, value] : series[tag]) steps.push_back(step);
    return steps;
  }

  TemporaryDirectory directory_;
  fs::path events_ = directory_ / "tensorboard";
  double now_s_ = 1700000000.5;
};

TEST_F(EventFiles, NothingIsCreatedWithoutPoints) {
  open();
  EXPECT_FALSE(fs::exists(events_));
}

TEST_F(EventFiles, PointsAreWrittenAtIntervalsAndAtTheEnd) {
  auto file = open();
  file->add(1, {{"a", 1}});
  EXPECT_THAT(steps_of("a"), ElementsAre(1));
  file->add(2, {{"a", 2}});
  now_s_ += 4.9;
  file->add(3, {{"a", 3}});
  EXPECT_THAT(steps_of("a"), ElementsAre(1));
  now_s_ += 0.2;
  file->add(4, {{"a", 4}});
  EXPECT_THAT(steps_of("a"), ElementsAre(1, 2, 3, 4));
  file->add(5, {{"a", 5}});
  file.reset();
  EXPECT_THAT(steps_of("a"), ElementsAre(1, 2, 3, 4, 5));
  ASSERT_EQ(event_files(events_).size(), 1u);
  EXPECT_THAT(event_files(events_)[0].filename().string(),
              MatchesRegex("events\\.out\\.tfevents\\.1700000000\\.n7\\.[0-9]+\\.0"));
}

TEST_F(EventFiles, ManyPointsAreWrittenBeforeTheInterval) {
  const auto file = open();
  for (int step = 1; step <= 4000; ++step) file->add(step, {{"a", 1}});
  EXPECT_GT(steps_of("a").size(), 1500u);
}

TEST_F(EventFiles, AResumeAndARewindDiscardTheStepsAfterIt) {
  auto first = open();
  for (int step = 1; step <= 6; ++step) first->add(step, {{"a", static_cast<double>(step)}});
  first.reset();
  now_s_ = 1600000000;  // the clock was set back: the name must still sort after the first
  auto second = open("../up\n");
  second->add(4, {{"a", 40}});
  second->add(5, {{"a", 50}});
  second->add(5, {{"a", 51}});  // a rewind by one step
  second.reset();
  const auto files = event_files(events_);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_THAT(files[1].filename().string(), HasSubstr("tfevents.1700000001.---up-."));
  EXPECT_THAT(
      read_event_series(events_)["a"],
      ElementsAre(Pair(1, 1.0f), Pair(2, 2.0f), Pair(3, 3.0f), Pair(4, 40.0f), Pair(5, 51.0f)));
}

TEST_F(EventFiles, ATruncatedRecordLeavesTheRestReadable) {
  open()->add(1, {{"a", 1}});
  auto file = open();
  file->add(2, {{"a", 2}});
  file->add(3, {{"a", 3}});
  file.reset();
  const fs::path last = event_files(events_).back();
  const std::string bytes = read_text_file(last);
  const std::size_t whole = bytes.size() - scalars_record(1, 3, {{"a", 3}}).size();
  for (std::size_t size = whole; size < bytes.size(); ++size) {
    bool truncated = false;
    const auto events = parse_event_file(bytes.substr(0, size), &truncated);
    ASSERT_EQ(events.size(), 3u) << size;  // version, restart, step 2
    EXPECT_EQ(truncated, size > whole);
  }
  fs::resize_file(last, bytes.size() - 3);
  open()->add(3, {{"a", 30}});
  EXPECT_THAT(read_event_series(events_)["a"],
              ElementsAre(Pair(1, 1.0f), Pair(2, 2.0f), Pair(3, 30.0f)));
}

TEST_F(EventFiles, AFailedWriteIsOneWarningAndIsTriedAgain) {
  directory_.write("tensorboard", "in the way");
  const CapturedLog log;
  const auto file = open();
  for (int step = 1; step <= 3; ++step, now_s_ += 10)
    file->add(step, {{"a", static_cast<double>(step)}});
  EXPECT_THAT(log.warnings(), MatchesRegex("cannot create [^\n]*tensorboard: [^\n]*: the run "
                                           "continues, but points may be missing in "
                                           "TensorBoard\n"));
  fs::remove(events_);
  file->add(4, {{"a", 4}});
  EXPECT_THAT(steps_of("a"), ElementsAre(1, 2, 3, 4));
}

TEST_F(EventFiles, MemoryIsBoundedIfNothingCanBeWritten) {
  directory_.write("tensorboard", "in the way");
  const CapturedLog log;
  const auto file = open();
  const std::string tag(1 << 20, 't');
  for (int step = 1; step <= 12; ++step) file->add(step, {{tag, static_cast<double>(step)}});
  fs::remove(events_);
  file->flush();
  EXPECT_LT(fs::file_size(event_files(events_).at(0)), 6u << 20);
  EXPECT_EQ(steps_of(tag).back(), 12);
}

TEST_F(EventFiles, ARemovedFileIsStartedAgain) {
  const auto file = open();
  file->add(1, {{"a", 1}});
  fs::remove_all(events_);
  file->add(2, {{"a", 2}});
  file->flush();
  EXPECT_THAT(steps_of("a"), ElementsAre(2));
}

// Names of other programs must not make ours unreadable.
TEST_F(EventFiles, OtherFilesInTheDirectory) {
  fs::create_directories(events_);
  for (const char* name : {"events.out.tfevents.99999999999999999999.x", "notes.txt",
                           "events.out.tfevents.9999999999.x", "events.out.tfevents.", "events"})
    directory_.write(std::string("tensorboard/") + name, "");
  open()->add(1, {{"a", 1}});
  std::size_t ours = 0;
  for (const fs::path& file : event_files(events_))
    if (file.filename().string().starts_with("events.out.tfevents.1700000000.n7.")) ++ours;
  EXPECT_EQ(ours, 1u);
}

}  // namespace
}  // namespace kintsugi
