// The files of a run for its viewers: layout.json, ranks.json, events.jsonl and metrics' time_s.
#include "train/records/run_files.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "backend/cpu/cpu_backend.h"
#include "core/file.h"
#include "support/captured_log.h"
#include "support/rank_trainers.h"
#include "train/startup.h"

namespace kintsugi {
namespace {

using ViewerJson = nlohmann::json;

std::vector<ViewerJson> json_lines(const std::filesystem::path& path) {
  std::vector<ViewerJson> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(ViewerJson::parse(line));
  return lines;
}

std::vector<std::string> names_of_events(const std::filesystem::path& run) {
  std::vector<std::string> names;
  for (const ViewerJson& line : json_lines(run / "events.jsonl")) names.push_back(line["event"]);
  return names;
}

std::vector<std::string> node_names(int ranks) {
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank)
    names.push_back(fmt::format("rack-{:04}.cluster.example", rank / 8));
  return names;
}

// ---- pipelines: forward 1, backward 2

TEST(PipelineJson, HasTheTimesOfTheClosedForm) {
  const int stages = 4, micro_batches = 8;
  const ViewerJson json = pipeline_json({.kind = PipelineKind::OneForwardOneBackward,
                                         .stages = stages,
                                         .micro_batches = micro_batches});
  EXPECT_EQ(json["schedule"], "1f1b");
  EXPECT_EQ(json["shown_micro_batches"], micro_batches);
  EXPECT_DOUBLE_EQ(json["makespan"], 3.0 * (micro_batches + stages - 1));
  EXPECT_DOUBLE_EQ(json["bubble"], (stages - 1.0) / (micro_batches + stages - 1));
  ASSERT_EQ(json["actions"].size(), 2u * stages * micro_batches);
  double busy = 0;
  for (const ViewerJson& action : json["actions"]) {
    const double seconds = action["end"].get<double>() - action["begin"].get<double>();
    EXPECT_DOUBLE_EQ(seconds, action["kind"] == "forward" ? 1 : 2);
    busy += seconds;
  }
  EXPECT_DOUBLE_EQ(busy, 3.0 * stages * micro_batches);
}

TEST(PipelineJson, ALongStepIsDrawnInPart) {
  const int stages = 8, micro_batches = 4096;
  const ViewerJson json = pipeline_json(
      {.kind = PipelineKind::GPipe, .stages = stages, .micro_batches = micro_batches});
  const int shown = json["shown_micro_batches"];
  EXPECT_LT(shown, 200);
  EXPECT_GE(shown, stages);
  EXPECT_EQ(json["micro_batches"], micro_batches);
  EXPECT_EQ(json["actions"].size(), 2u * stages * static_cast<std::size_t>(shown));
  EXPECT_DOUBLE_EQ(json["makespan"], 3.0 * (shown + stages - 1)) << "of what is shown";
  EXPECT_NEAR(json["bubble"], (stages - 1.0) / (micro_batches + stages - 1), 1e-12)
      << "of the whole step";
}

TEST(PipelineJson, NamesTheHalvesOfABackwardAndTheChunks) {
  const ViewerJson halves =
      pipeline_json({.kind = PipelineKind::ZeroBubbleH1, .stages = 2, .micro_batches = 4});
  std::map<std::string, int> kinds;
  for (const ViewerJson& action : halves["actions"]) ++kinds[action["kind"]];
  EXPECT_EQ(kinds["forward"], 8);
  EXPECT_EQ(kinds["backward_input"] + kinds["backward"], 8);
  EXPECT_GT(kinds["backward_weight"], 0);
  const ViewerJson chunks = pipeline_json(
      {.kind = PipelineKind::Interleaved, .stages = 2, .micro_batches = 4, .chunks = 2});
  EXPECT_EQ(chunks["actions"].size(), 2u * 2 * 4 * 2);
  EXPECT_TRUE(pipeline_json({.stages = 1}).is_null());
}

TEST(PipelineJson, APipelineTooLargeToDrawHasNoActions) {
  for (const int chunks : {1, 8}) {
    const PipelineShape shape{
        .kind = chunks == 1 ? PipelineKind::OneForwardOneBackward : PipelineKind::Interleaved,
        .stages = 128,
        .micro_batches = 128,
        .chunks = chunks};
    const ViewerJson json = pipeline_json(shape);
    EXPECT_EQ(json["shown_micro_batches"], 0);
    EXPECT_TRUE(json["actions"].is_array());
    EXPECT_TRUE(json["actions"].empty());
    EXPECT_NEAR(json["bubble"], 127.0 / (128 * chunks + 127), 1e-9) << "of the whole step";
  }
}

TEST(PipelineJson, NeverDrawsMoreThanTheLimit) {
  for (const PipelineKind kind : {PipelineKind::GPipe, PipelineKind::OneForwardOneBackward,
                                  PipelineKind::Interleaved, PipelineKind::ZeroBubbleH1})
    for (const int stages : {2, 3, 16, 64})
      for (const int chunks : {1, 8}) {
        if ((kind == PipelineKind::Interleaved) != (chunks > 1)) continue;
        const ViewerJson json = pipeline_json(
            {.kind = kind, .stages = stages, .micro_batches = 4 * stages, .chunks = chunks});
        EXPECT_LE(json["actions"].size(), static_cast<std::size_t>(kMostDrawnActions));
      }
}

TEST(LayoutJson, OfManyRanksFitsItsReaders) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(200));
  RunConfig config =
      parse_run_config(small_config(corpus, directory / "run", "steps: 4", ""), "run.yaml");
  config.layout.schedule = PipelineKind::Interleaved;
  config.layout.chunks = 8;
  config.layout.micro_batch = 1;
  config.batch.global = 128 * 128;
  const Grid grid{.tp = 1, .cp = 1, .dp = 128, .pp = 128};
  PlanningAllocator allocator;
  const Arena arena(allocator);
  const auto backend = make_cpu_backend(1);
  const std::string text = layout_json({.config = config,
                                        .grid = grid,
                                        .arena = arena,
                                        .backend = *backend,
                                        .nodes = node_names(grid.world())});
  EXPECT_LT(text.size(), 2u << 20) << "readers take 4 MiB";
  EXPECT_EQ(ViewerJson::parse(text)["node_of_rank"].size(), 16384u);
}

// ---- memory

TEST(LayoutMemory, ListsTheLargestAndSumsTheRestOfEachRegion) {
  PlanningAllocator allocator;
  Arena arena(allocator);
  std::int64_t all = 0;
  for (int i = 0; i < 250; ++i) {
    const Region region = i % 2 == 0 ? Region::Weights : Region::Gradients;
    arena.allocate(region, "layer " + std::to_string(i), DType::U8, {1000 + i});
    all += 1000 + i;
  }
  arena.allocate(Region::Weights, "layer 249", DType::U8, {5000});
  arena.allocate(Region::Optimizer, "on the host", DType::F32, {10}, Side::Host);
  const ViewerJson listed = allocations_json(arena, Side::Device);
  ASSERT_EQ(listed.size(), kMostListed + 2);
  EXPECT_EQ(listed[0]["name"], "layer 249");
  EXPECT_EQ(listed[0]["region"], "weights");
  std::int64_t sum = 0, others = 0;
  for (const ViewerJson& one : listed) {
    sum += one["bytes"].get<std::int64_t>();
    if (one["name"] == "other") others += one["bytes"].get<std::int64_t>();
  }
  EXPECT_EQ(sum, all + 5000);
  // 251 entries, of which the 51 smallest have 1000, …, 1050 bytes.
  EXPECT_EQ(others, 51 * 1025);
  const ViewerJson host = allocations_json(arena, Side::Host);
  ASSERT_EQ(host.size(), 1u);
  EXPECT_EQ(host[0]["bytes"], 40);
}

// ---- failures

TEST(RunFiles, AFileThatCannotBeWrittenIsOneWarning) {
  const TemporaryDirectory directory;
  CapturedLog log;
  RunFiles files(directory / "missing");
  files.add_event("{}\n");
  files.add_event("{}\n");
  files.write_layout("{}");
  const std::string warnings = log.warnings();
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 2) << warnings;
  EXPECT_NE(warnings.find("events.jsonl is incomplete"), std::string::npos) << warnings;
}

TEST(RunFiles, RemovesAPartialLine) {
  const TemporaryDirectory directory;
  directory.write("events.jsonl", "{\"event\":\"resumed\"}\n{\"ev");
  RunFiles files(directory.path());
  files.add_event("{\"event\":\"finished\"}\n");
  EXPECT_EQ(names_of_events(directory.path()), (std::vector<std::string>{"resumed", "finished"}));
}

TEST(RunFiles, SamplesKeepTextsThatAreNotUtf8) {
  const TemporaryDirectory directory;
  RunFiles files(directory.path());
  files.add_samples(7, 12.5, {{"a \"quoted\"\nprompt", "\xFFtext"}});
  const auto lines = json_lines(directory / "samples.jsonl");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["step"], 7);
  EXPECT_EQ(lines[0]["prompt"], "a \"quoted\"\nprompt");
  EXPECT_EQ(lines[0]["text"], "\xEF\xBF\xBDtext");
  EXPECT_EQ(lines[0]["time_s"], 12.5);
}

// ---- runs

TEST(ViewerFiles, ARunWritesThemAndAContinuedRunAddsToThem) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(400));
  const auto config = [&](int steps) {
    return small_config(corpus, directory / "run",
                        fmt::format("steps: {}, checkpoint_every: 3", steps), "threads: 1\n");
  };
  const double before = unix_time_s();
  run_training(config(6));
  run_training(config(8));
  const double after = unix_time_s();
  double last = before;
  const auto metrics = json_lines(directory / "run" / "metrics.jsonl");
  ASSERT_EQ(metrics.size(), 8u);
  for (const ViewerJson& line : metrics) {
    EXPECT_GE(line["time_s"], last);
    last = line["time_s"];
  }
  EXPECT_LE(last, after);
  EXPECT_EQ(names_of_events(directory / "run"),
            (std::vector<std::string>{"checkpoint", "checkpoint", "finished", "resumed",
                                      "checkpoint", "finished"}));
  const auto events = json_lines(directory / "run" / "events.jsonl");
  EXPECT_EQ(events[0]["step"], 3);
  EXPECT_EQ(events[1]["step"], 6);
  EXPECT_EQ(events[3]["step"], 6);
  EXPECT_EQ(events[5]["step"], 8);
  const ViewerJson layout = ViewerJson::parse(read_text_file(directory / "run" / "layout.json"));
  EXPECT_EQ(layout["ranks"], 1);
  EXPECT_EQ(layout["node_of_rank"], ViewerJson::array({0}));
  EXPECT_TRUE(layout["pipeline"].is_null());
  EXPECT_EQ(layout["model"]["family"], "llama");
  EXPECT_EQ(layout["precision"], "fp32");
  // 256 x 32 embedding and head; per layer attention 32 x (32 + 16 + 16 + 32), MLP 3 x 32 x 48,
  // two norms of 32; the last norm.
  const std::int64_t layers = 2 * (32 * 96 + 3 * 32 * 48 + 64);
  const std::int64_t parameters = layout["model"]["parameters"];
  EXPECT_TRUE(parameters == layers + 32 + 2 * 256 * 32 || parameters == layers + 32 + 256 * 32)
      << parameters;
  std::int64_t sum = 0;
  for (const ViewerJson& one : layout["memory"]["device"]) sum += one["bytes"].get<std::int64_t>();
  EXPECT_EQ(sum, layout["memory"]["device_total"]);
  EXPECT_FALSE(std::filesystem::exists(directory / "run" / "ranks.json")) << "one rank";
}

TEST(ViewerFiles, SeveralRanksHaveTheirGridPipelineAndTimes) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(400));
  const CapturedLog log;
  train_on_ranks(4,
                 small_config(corpus, directory / "run", "steps: 10, log_every: 1, save: false",
                              "layout: {pp: 2, dp: 2}\n"),
                 {"batch.global=8"});
  const ViewerJson layout = ViewerJson::parse(read_text_file(directory / "run" / "layout.json"));
  EXPECT_EQ(layout["ranks"], 4);
  EXPECT_EQ(layout["grid"], (ViewerJson{{"tp", 1}, {"cp", 1}, {"dp", 2}, {"pp", 2}}));
  EXPECT_EQ(layout["order"], ViewerJson::array({"tp", "cp", "dp", "pp"}));
  EXPECT_EQ(layout["nodes"].size(), 1u);
  EXPECT_EQ(layout["node_of_rank"], ViewerJson::array({0, 0, 0, 0}));
  EXPECT_EQ(layout["pipeline"]["stages"], 2);
  EXPECT_EQ(layout["pipeline"]["micro_batches"], 2) << "8 sequences, 2 data ranks, 2 per batch";
  const ViewerJson ranks = ViewerJson::parse(read_text_file(directory / "run" / "ranks.json"));
  EXPECT_EQ(ranks["step"], 10);
  ASSERT_EQ(ranks["seconds"].size(), 4u);
  for (const ViewerJson& seconds : ranks["seconds"]) EXPECT_GT(seconds, 0);
}

}  // namespace
}  // namespace kintsugi
