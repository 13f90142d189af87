#include "report/profile/profile_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/gzip.h"
#include "report/profile/profile_output.h"
#include "support/errors.h"
#include "support/profile_spans.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Profile written_profile() {
  Profile profile{.facts = {.first_step = 20,
                            .last_step = 21,
                            .step_s = {0.5, 0.25},
                            .ranks = 8,
                            .device = "cpu: \"odd\"",
                            .precision = "bf16",
                            .peak_flops = 1e12,
                            .memory_bytes_per_s = 2e9,
                            .multiprocessors = 132,
                            .config = "run: {dir: x}\n",
                            .stage = 1}};
  TraceSpan matmul = spans::operation(7, "matmul 2x3x4", 100.25, 100.5, "forward 0", "layer 1");
  matmul.work = WorkKind::Matmul;
  matmul.flops = 48;
  matmul.bytes = 52;
  matmul.dtype = "bf16";
  TraceSpan kernel = spans::caused(SpanKind::Kernel, 7, "gemm", 100.3, 100.4);
  kernel.blocks = 9;
  TraceSpan overlapping = spans::communication("pp < 1", 100.1, 100.4, "a 1");
  overlapping.bytes = 16;
  profile.ranks = {{3,
                    "tp 0 cp 0 dp 3 pp 0",
                    {spans::step(20, 100, 101), matmul, kernel, overlapping,
                     spans::communication("pp < 1", 100.2, 100.6, "a 2"),
                     spans::of(SpanKind::Data, "data wait", 100.7, 100.75)}},
                   {5, "tp 0 cp 0 dp 5 pp 0", {}}};
  return profile;
}

std::string text_of(const Profile& profile) {
  return chrome_trace(profile, step_exposures(profile.ranks));
}

// Times are kept to a nanosecond, from the first span on.
TEST(ProfileFile, IsReadBackAsWritten) {
  const Profile before = written_profile(), after = parse_profile(text_of(before), "test");
  const ProfileFacts &a = before.facts, &b = after.facts;
  EXPECT_EQ(std::tie(a.first_step, a.last_step, a.step_s, a.ranks, a.device, a.precision),
            std::tie(b.first_step, b.last_step, b.step_s, b.ranks, b.device, b.precision));
  EXPECT_EQ(std::tie(a.peak_flops, a.memory_bytes_per_s, a.multiprocessors, a.config, a.stage),
            std::tie(b.peak_flops, b.memory_bytes_per_s, b.multiprocessors, b.config, b.stage));
  ASSERT_EQ(after.ranks.size(), 2u);
  EXPECT_EQ(after.ranks[0].rank, 3);
  EXPECT_EQ(after.ranks[0].coordinates, "tp 0 cp 0 dp 3 pp 0");
  EXPECT_TRUE(after.ranks[1].spans.empty());
  ASSERT_EQ(after.ranks[0].spans.size(), before.ranks[0].spans.size());
  for (const TraceSpan& x : before.ranks[0].spans) {
    const auto found =
        std::find_if(after.ranks[0].spans.begin(), after.ranks[0].spans.end(),
                     [&](const TraceSpan& y) { return x.name == y.name && x.call == y.call; });
    ASSERT_NE(found, after.ranks[0].spans.end()) << x.name;
    const TraceSpan& y = *found;
    EXPECT_NEAR(y.begin_s, x.begin_s - 100, 1e-9);
    EXPECT_NEAR(y.end_s, x.end_s - 100, 1e-9);
    EXPECT_EQ(std::tie(x.kind, x.lane, x.bytes, x.operation, x.work, x.flops, x.dtype, x.phase),
              std::tie(y.kind, y.lane, y.bytes, y.operation, y.work, y.flops, y.dtype, y.phase));
    EXPECT_EQ(std::tie(x.layer, x.blocks), std::tie(y.layer, y.blocks));
  }
}

TEST(ProfileFile, MayBeCompressed) {
  const TemporaryDirectory directory;
  directory.write("plain.json", text_of(written_profile()));
  directory.write("packed.json.gz", gzipped(text_of(written_profile())));
  EXPECT_EQ(read_profile(directory / "plain.json").ranks[0].spans.size(), 6u);
  EXPECT_EQ(read_profile(directory / "packed.json.gz").ranks[0].spans.size(), 6u);
  directory.write("cut.gz", gzipped(text_of(written_profile())).substr(0, 100));
  EXPECT_THROW(read_profile(directory / "cut.gz"), UserError);
  EXPECT_THROW(read_profile(directory / "missing.json"), UserError);
  EXPECT_THROW(read_profile(directory.path()), UserError);
}

// Whatever the file is called: 100 MB of spaces are 100 kB when packed.
TEST(ProfileFile, TheLimitIsOfTheUnpackedBytes) {
  const TemporaryDirectory directory;
  const std::string text = text_of(written_profile());
  directory.write("plain.json", text);
  directory.write("packed.json", gzipped(text));
  for (const char* name : {"plain.json", "packed.json"}) {
    EXPECT_NO_THROW(read_profile(directory / name, {.bytes = text.size()}));
    EXPECT_THAT(user_error_of([&] {
                  read_profile(directory / name, {.bytes = text.size() - 1, .remedy = "pack it"});
                }),
                testing::AllOf(HasSubstr(name), HasSubstr("has more than"), HasSubstr("pack it")));
  }
  directory.write("bomb.json", gzipped(text + std::string(100 << 20, ' ')));
  EXPECT_THAT(user_error_of([&] { profile_page_json(directory / "bomb.json"); }),
              HasSubstr("has more than 64 MiB when unpacked: too much for a page"));
}

TEST(ProfileFile, ForeignEventsAreIgnored) {
  json file = json::parse(text_of(written_profile()));
  for (const char* event :
       {R"({"ph":"X","cat":"cpu_op","name":"aten::mm","pid":3,"tid":1,"ts":-5})",
        R"({"ph":"X","cat":"kernel","name":"x","pid":"gpu","tid":7,"ts":0,"dur":1})",
        R"({"ph":"X","cat":"kernel","name":"of another rank","pid":4,"tid":7,"ts":0,"dur":1})",
        R"({"ph":"C","name":"watts","pid":3,"tid":1,"ts":1,"args":{"W":300}})", R"({"ph":7})",
        R"({})", R"({"ph":"M","name":"thread_name","pid":3})", R"(17)", R"([{"ph":"X"}])"})
    file["traceEvents"].push_back(json::parse(event));
  EXPECT_EQ(parse_profile(file.dump(), "test").ranks[0].spans.size(), 6u);
}

// Deep values would take the stack of the server that shows the file.
TEST(ProfileFile, DeepValuesAreRefused) {
  const auto nested = [](int levels) {
    const auto depth = static_cast<std::size_t>(levels);
    return std::string(depth, '[') + std::string(depth, ']');
  };
  const std::string text = text_of(written_profile());
  const auto with = [&](const std::string& member) { return "{" + member + "," + text.substr(1); };
  EXPECT_EQ(parse_profile(with("\"other\":" + nested(60)), "test").ranks.size(), 2u);
  EXPECT_THROW(
      parse_profile("{\"otherData\":{\"kintsugi_profile\":" + nested(1'000'000) + "}}", "test"),
      UserError);
  try {
    parse_profile(with("\"other\":" + nested(65)), "steps.json");
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("steps.json is damaged: it is nested more than 64 levels"));
  }
}

TEST(ProfileFile, IsRefusedWithItsName) {
  const auto complaint = [](const std::string& text) {
    try {
      parse_profile(text, "steps.json");
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  for (const char* other : {"", "[]", "{", "{}", "{\"traceEvents\": []}", "{\"otherData\": 7}",
                            "{\"otherData\": {}}", "nothing"})
    EXPECT_THAT(complaint(other), HasSubstr("steps.json")) << other;
  EXPECT_THAT(complaint("{\"otherData\": {}}"), HasSubstr("kintsugi train --profile"));
  const auto changed = [&](const char* pointer, const json& value) {
    json file = json::parse(text_of(written_profile()));
    file[json::json_pointer(pointer)] = value;
    return complaint(file.dump());
  };
  EXPECT_THAT(changed("/otherData/kintsugi_profile", 2), HasSubstr("another version (2)"));
  EXPECT_THAT(changed("/otherData/kintsugi_profile", "beta"), HasSubstr("another version (beta)"));
  EXPECT_THAT(changed("/otherData/kintsugi_profile", {{"a", 1}}),
              HasSubstr("another version (unknown)"));
  EXPECT_THAT(changed("/otherData/steps", 3), HasSubstr("\"steps\" in otherData is not a list"));
  EXPECT_THAT(changed("/otherData/steps", {1, -2}), HasSubstr("\"steps\""));
  EXPECT_THAT(changed("/otherData/step_seconds", {"a"}), HasSubstr("\"step_seconds\""));
  EXPECT_THAT(changed("/otherData/ranks", 18446744073709551615u), HasSubstr("\"ranks\""));
  EXPECT_THAT(changed("/otherData/recorded", {1}), HasSubstr("\"recorded\""));
  EXPECT_THAT(changed("/otherData/peak_flops", -1), HasSubstr("\"peak_flops\""));
  EXPECT_THAT(changed("/otherData/device", 1), HasSubstr("\"device\""));
  json file = json::parse(text_of(written_profile()));
  for (json& event : file["traceEvents"])
    if (event["ph"] == "X") {
      json before = event;
      event.erase("ts");
      EXPECT_THAT(complaint(file.dump()), HasSubstr("\"ts\" of an event is missing"));
      event = before;
      event["dur"] = -1;
      EXPECT_THAT(complaint(file.dump()), HasSubstr("\"dur\" of an event is not in its range"));
      event = before;
      event["args"] = 5;
      EXPECT_THAT(complaint(file.dump()), HasSubstr("\"args\""));
      event = before;
    }
}

}  // namespace
}  // namespace kintsugi
