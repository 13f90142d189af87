#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/data/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "train/run_data.h"

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
  std::int64_t step = 0;
  bool json = false;
};

void show(const WhereArguments& arguments) {
  RunConfig config = load_run_config(arguments.config, arguments.overrides);
  if (arguments.step < 1 || arguments.step > config.total_steps())
    user_error("--step is {}, but the run has steps 1 to {}", arguments.step, config.total_steps());
  config.train.eval_every = 0;  // the validation data is not needed
  const RunData data(config);
  const BatchSchedule batches = config.batches();
  const std::int64_t first = batches.first_sample(arguments.step),
                     end = first + batches.sequences(arguments.step);
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  std::vector<TokenRange> ranges;
  for (std::int64_t k = first; k < end; ++k) {
    ranges.clear();
    const SampleOrder::Origin origin = data.order().locate(k, ranges);
    const auto documents = documents_of(ranges);
    const std::string& name = data.sources()[origin.source].name;
    if (arguments.json) {
      nlohmann::ordered_json sample = {{"sample", k}, {"source", name}, {"epoch", origin.epoch}};
      for (const DocumentRange& range : documents)
        sample["documents"].push_back({{"shard", range.shard->name()},
                                       {"first_token", range.token},
                                       {"tokens", range.count},
                                       {"document", range.document},
                                       {"offset", range.offset}});
      all.push_back(std::move(sample));
      continue;
    }
    fmt::print("sample {}: {}, epoch {}\n", k, name, origin.epoch);
    for (const DocumentRange& range : documents)
      fmt::print("  {} token {}, {} tokens: document {} from its token {}\n", range.shard->name(),
                 range.token, range.count, range.document, range.offset);
  }
  if (arguments.json) fmt::print("{}\n", all.dump(2));
}

}  // namespace

void add_data_where(CLI::App& data) {
  const auto arguments = std::make_shared<WhereArguments>();
  CLI::App* command =
      data.add_subcommand("where", "Show which documents the samples of a training step come from");
  command->add_option("config", arguments->config, "Configuration of the run")->required();
  command->add_option("--step", arguments->step, "The step, counted from 1 as in metrics.jsonl")
      ->transform(whole_number({}))
      ->required();
  command
      ->add_option("--set", arguments->overrides, "Override a value: --set run.seed=2 (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_flag("--json", arguments->json, "Print JSON");
  command->footer(
      "Epochs, tokens, documents and offsets count from 0. A sample has one token more than\n"
      "data.sequence_length: the last one is only a target. With data.packing best_fit, this "
      "holds\n"
      "where a document continues; other samples are padded.\n"
      "\n"
      "Example:\n"
      "  kintsugi data where runs/demo/config.yaml --step 1234");
  command->callback([arguments] { show(*arguments); });
}

}  // namespace kintsugi
