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

// The part of a sample that one document gives.
struct DocumentPart {
  const TokenShard* shard;
  std::int64_t token;     // within the shard
  std::int64_t document;  // within the shard
  std::int64_t offset;    // of that token within the document
  std::int64_t count;
};

std::vector<DocumentPart> documents_of(const std::vector<TokenPiece>& pieces) {
  std::vector<DocumentPart> parts;
  for (const TokenPiece& piece : pieces) {
    const std::int64_t end = piece.first + piece.count;
    for (std::int64_t token = piece.first; token < end;) {
      const std::int64_t document = piece.shard->document_of(token);
      const std::int64_t stop = std::min(end, piece.shard->document_begin(document + 1));
      KINTSUGI_CHECK(stop > token, "document {} of {} ends before its token {}", document,
                     piece.shard->name(), token);
      parts.push_back({piece.shard, token, document, token - piece.shard->document_begin(document),
                       stop - token});
      token = stop;
    }
  }
  return parts;
}

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  std::int64_t step = 0;
  bool json = false;
};

void show(const Arguments& arguments) {
  RunConfig config = load_run_config(arguments.config, arguments.overrides);
  if (arguments.step < 1 || arguments.step > config.total_steps())
    user_error("--step is {}, but the run has steps 1 to {}", arguments.step, config.total_steps());
  config.train.eval_every = 0;  // what is held out is not asked for
  const RunData data(config);
  const std::int64_t first = (arguments.step - 1) * config.batch.global;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  std::vector<TokenPiece> pieces;
  for (std::int64_t k = first; k < first + config.batch.global; ++k) {
    pieces.clear();
    const SampleOrder::Origin origin = data.order().locate(k, pieces);
    const auto documents = documents_of(pieces);
    const std::string& name = data.sources()[origin.source].name;
    if (arguments.json) {
      nlohmann::ordered_json sample = {{"sample", k}, {"source", name}, {"epoch", origin.epoch}};
      for (const DocumentPart& part : documents)
        sample["documents"].push_back({{"shard", part.shard->name()},
                                       {"first_token", part.token},
                                       {"tokens", part.count},
                                       {"document", part.document},
                                       {"offset", part.offset}});
      all.push_back(std::move(sample));
      continue;
    }
    fmt::print("sample {}: {}, epoch {}\n", k, name, origin.epoch);
    for (const DocumentPart& part : documents)
      fmt::print("  {} token {}, {} tokens: document {} from its token {}\n", part.shard->name(),
                 part.token, part.count, part.document, part.offset);
  }
  if (arguments.json) fmt::print("{}\n", all.dump(2));
}

}  // namespace

void add_data_where(CLI::App& data) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      data.add_subcommand("where", "Where the samples of a step of a run come from");
  command->add_option("config", arguments->config, "The run's configuration")->required();
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
      "data.sequence_length: the last one is only predicted.\n"
      "\n"
      "Example:\n"
      "  kintsugi data where runs/demo/config.yaml --step 1234");
  command->callback([arguments] { show(*arguments); });
}

}  // namespace kintsugi
