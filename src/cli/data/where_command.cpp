#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/table.h"
#include "data/provenance/trace.h"
#include "train/run_data.h"
#include "train/run_history.h"

namespace kintsugi {
namespace {

// The tokens of a sample that come from one document.
struct DocumentRange {
  const TokenShard* shard;
  std::int64_t token;     // the first one, within the shard
  std::int64_t document;  // within the shard
  std::int64_t offset;    // of the first token within the document
  std::int64_t count;
};

std::vector<DocumentRange> documents_of(const std::vector<TokenRange>& ranges) {
  std::vector<DocumentRange> documents;
  for (const TokenRange& range : ranges) {
    const std::int64_t end = range.first + range.count;
    for (std::int64_t token = range.first; token < end;) {
      const std::int64_t document = range.shard->document_of(token);
      const std::int64_t stop = std::min(end, range.shard->document_begin(document + 1));
      KINTSUGI_CHECK(stop > token, "document {} of {} ends before its token {}", document,
                     range.shard->name(), token);
      documents.push_back({range.shard, token, document,
                           token - range.shard->document_begin(document), stop - token});
      token = stop;
    }
  }
  return documents;
}

struct WhereArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::optional<std::int64_t> step, sample;
  std::string stage;
  std::optional<std::int64_t> token, document;
  bool records = false, json = false;
};
constexpr std::size_t kShownText = 2000;  // bytes of an original record

// The samples [first, end) of a stage.
struct Asked {
  LineageStage stage;
  std::int64_t first = 0, end = 0;
};

const LineageStage& stage_of_step(const std::vector<LineageStage>& stages, std::int64_t step) {
  for (const LineageStage& one : stages)
    if (one.first_step <= step && step <= one.last_step) return one;
  user_error("--step is {}, but the run has steps {} to {}", step, stages.front().first_step,
             stages.back().last_step);
}

// By name or, counted from 1 over all stages of the run and of the runs before it, by number.
const LineageStage& stage_named(const std::vector<LineageStage>& stages, const std::string& name) {
  std::vector<std::string> known;
  std::vector<const LineageStage*> found;
  // Older versions allowed numbers as names.
  const bool is_number = name.find_first_not_of("0123456789") == std::string::npos;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    known.push_back(fmt::format("{}: {}", i + 1, stages[i].description()));
    if (!name.empty() && (is_number ? std::to_string(i + 1) : stages[i].name) == name)
      found.push_back(&stages[i]);
  }
  if (found.size() == 1) return *found.front();
  if (!found.empty())
    user_error("--stage {}: there are several; give its number: {}", name, fmt::join(known, ", "));
  if (name.empty())
    user_error("--sample needs --stage, because every stage counts its samples from 0: {}",
               fmt::join(known, ", "));
  user_error("--stage {}: there is no such stage; there are {}", name, fmt::join(known, ", "));
}

Asked find_samples(const WhereArguments& arguments, const std::vector<LineageStage>& stages) {
  if (arguments.step.has_value() == arguments.sample.has_value())
    user_error("give --step or --sample");
  if (!arguments.stage.empty() && arguments.step)
    user_error("--stage has no effect with --step, which counts over all stages: remove it");
  if (arguments.step) {
    const LineageStage& stage = stage_of_step(stages, *arguments.step);
    const BatchSchedule batches = stage.config().batches();
    const std::int64_t step = *arguments.step - stage.first_step + 1;
    const std::int64_t first = data_position(stage.skipped, batches.first_sample(step));
    return {stage, first, first + batches.sequences(step)};
  }
  const LineageStage& stage = stages.size() == 1 && arguments.stage.empty()
                                  ? stages.front()
                                  : stage_named(stages, arguments.stage);
  const std::int64_t end = data_position(stage.skipped, stage.samples);
  if (*arguments.sample < 0 || *arguments.sample >= end)
    user_error("--sample is {}, but {} has samples 0 to {}", *arguments.sample, stage.description(),
               end - 1);
  return {stage, *arguments.sample, *arguments.sample + 1};
}

RunData open_data(const LineageStage& stage, RunConfig& config) {
  config.train.eval_every = 0;               // the validation data is not needed
  RunData data(config, PackingFiles::Read);  // a query changes no run
  if (const std::string other = data.difference_from(stage.order); !other.empty())
    user_error(
        "the data of {} is no longer the data that was trained on ({}): restore its files and "
        "settings",
        stage.description(), other);
  return data;
}

nlohmann::ordered_json sample_json(const LineageStage& stage, std::int64_t sample,
                                   const std::string& source, std::int64_t epoch,
                                   const std::vector<DocumentRange>& documents,
                                   DocumentTracer* tracer) {
  nlohmann::ordered_json json = {{"sample", sample}, {"source", source}, {"epoch", epoch}};
  json["run"] = stage.run;
  json["stage"] = stage.name;
  for (const DocumentRange& range : documents) {
    json["documents"].push_back({{"shard", range.shard->name()},
                                 {"first_token", range.token},
                                 {"tokens", range.count},
                                 {"document", range.document},
                                 {"offset", range.offset}});
    if (tracer != nullptr)
      json["documents"].back()["origin"] = json_of(tracer->trace(*range.shard, range.document));
  }
  return json;
}

// The document of a store, or the one that a token of it belongs to, counted over all shards.
void show_document(const WhereArguments& arguments) {
  if (arguments.token.has_value() == arguments.document.has_value())
    user_error("of a token store, give --token or --document");
  const auto shards = open_token_store(arguments.config);
  std::int64_t number = arguments.token ? *arguments.token : *arguments.document;
  for (const TokenShard& shard : shards) {
    const std::int64_t count = arguments.token ? shard.tokens() : shard.documents();
    if (number >= count) {
      number -= count;
      continue;
    }
    const std::int64_t document = arguments.token ? shard.document_of(number) : number;
    const std::int64_t begin = shard.document_begin(document);
    const DocumentTrace trace = DocumentTracer().trace(shard, document);
    const std::int64_t tokens = shard.document_begin(document + 1) - begin;
    if (arguments.json)
      return fmt::print("{}", json_lines({{"shard", shard.name()},
                                          {"document", document},
                                          {"first_token", begin},
                                          {"tokens", tokens},
                                          {"origin", json_of(trace)}}));
    return fmt::print("{} document {}: tokens {} to {}\n{}", shard.name(), document, begin,
                      begin + tokens - 1, to_string(trace, kShownText));
  }
  user_error("{} has fewer {}", arguments.config,
             arguments.token ? "tokens than --token" : "documents than --document");
}

void show(const WhereArguments& arguments) {
  if (arguments.token || arguments.document) return show_document(arguments);
  const auto stages = lineage_of(load_run_config(arguments.config, arguments.overrides));
  const Asked asked = find_samples(arguments, stages);
  RunConfig config = asked.stage.config();
  const RunData data = open_data(asked.stage, config);
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  if (stages.size() > 1 && !arguments.json) fmt::print("{}\n", asked.stage.description());
  std::vector<TokenRange> ranges;
  std::optional<DocumentTracer> tracer;
  if (arguments.records) tracer.emplace();
  for (std::int64_t k = asked.first; k < asked.end; ++k) {
    ranges.clear();
    const SampleOrder::Origin origin = data.order().locate(k, ranges);
    const auto documents = documents_of(ranges);
    const std::string& name = data.sources()[origin.source].name;
    if (arguments.json) {
      all.push_back(
          sample_json(asked.stage, k, name, origin.epoch, documents, tracer ? &*tracer : nullptr));
      continue;
    }
    fmt::print("sample {}: {}, epoch {}\n", k, name, origin.epoch);
    for (const DocumentRange& range : documents) {
      fmt::print("  {} token {}, {} tokens: document {} from its token {}\n", range.shard->name(),
                 range.token, range.count, range.document, range.offset);
      if (tracer)
        fmt::print("{}", to_string(tracer->trace(*range.shard, range.document), kShownText));
    }
  }
  if (arguments.json) fmt::print("{}", json_lines(all));
}

}  // namespace

void add_data_where(CLI::App& data) {
  const auto arguments = std::make_shared<WhereArguments>();
  CLI::App* command =
      data.add_subcommand("where",
                          "Show which documents the samples of a training step come from, back to "
                          "the original records");
  const AddOption add(*command);
  add("config", arguments->config,
      "Configuration of the run; with --token or --document a token store", kRequired);
  add("--step", arguments->step,
      "The step, counted from 1 as in metrics.jsonl, over all stages of the run and of the runs "
      "that it continues (run.from)",
      whole_number({}));
  add("--sample", arguments->sample, "Instead of a step: one sample, counted from 0 in its stage",
      whole_number(at_least(0)));
  add("--stage", arguments->stage,
      "With --sample: name or number of the stage, if there are several");
  CLI::Option* token =
      add("--token", arguments->token, "Of a token store: the original record of this token",
          whole_number(at_least(0)));
  CLI::Option* document = add("--document", arguments->document,
                              "Of a token store: that of this document", whole_number(at_least(0)));
  for (CLI::Option* option : {token, document})
    for (const char* other : {"--step", "--sample", "--stage"})
      option->excludes(command->get_option(other));
  add("--records", arguments->records,
      "Follow each document back to the file and line where it was first: through tokenization, "
      "deduplication and curation; with its text, address, source and licence");
  add("--set", arguments->overrides, "Override a value: --set run.seed=2 (repeatable)",
      TypeName{"KEY=VALUE"}, kRepeatable);
  add("--json", arguments->json, "Print JSON");
  command->footer(
      "Epochs, tokens, documents and offsets count from 0. A sample has one token more than\n"
      "data.sequence_length: the last one is only a target. With data.packing best_fit, this "
      "holds\n"
      "where a document continues; other samples are padded. What earlier stages and runs have\n"
      "read is taken from the latest checkpoint of the run.\n"
      "\n"
      "Examples:\n"
      "  kintsugi data where runs/demo/config.yaml --step 1234\n"
      "  kintsugi data where runs/demo/config.yaml --step 1234 --records\n"
      "  kintsugi data where tokens/fi --token 1000000\n"
      "  kintsugi data where runs/demo/config.yaml --stage anneal --sample 0");
  command->callback([arguments] { show(*arguments); });
}

}  // namespace kintsugi
