#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "data/stores/store_check.h"
#include "data/stores/store_output.h"
#include "data/stores/token_store.h"
#include "data/tokenizers/tokenizer.h"

namespace kintsugi {
namespace {

struct VerifyCommand {
  std::string store, tokenizer;
  std::int64_t vocab_size = 0;
};

void run_verify(const VerifyCommand& command) {
  const auto shards = open_token_store(command.store);
  std::vector<std::string> problems;
  std::int64_t documents = 0, tokens = 0;
  bool ids_checked = true, checksums_checked = true;
  const auto infos = read_store_infos(shards);
  const auto tokenizer = command.tokenizer.empty() ? nullptr : load_tokenizer(command.tokenizer);
  const bool with_ids = command.vocab_size > 0 || tokenizer != nullptr;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i)
    total += bytes_to_check(shards[i], with_ids || infos[i] != nullptr, infos[i].get());
  std::optional<Progress> progress(std::in_place, "verify", total, "bytes");
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const TokenShard& shard = shards[i];
    const StoreInfo* info = infos[i].get();
    std::optional<std::int64_t> vocab_size;
    if (command.vocab_size > 0) {
      vocab_size = command.vocab_size;
    } else if (tokenizer) {
      vocab_size = tokenizer->vocab_size();
      if (info != nullptr && info->tokenizer != tokenizer->fingerprint())
        problems.push_back(fmt::format("{} was made with another tokenizer ({}) than {} ({})",
                                       shard.name(), info->tokenizer_description, command.tokenizer,
                                       tokenizer->description()));
    } else if (info != nullptr) {
      vocab_size = info->vocab_size;
    }
    for (std::string& problem :
         check_shard(shard, vocab_size, info, [&](std::int64_t bytes) { progress->add(bytes); }))
      problems.push_back(std::move(problem));
    documents += shard.documents();
    tokens += shard.tokens();
    ids_checked &= vocab_size.has_value();
    checksums_checked &= info != nullptr;
  }
  progress.reset();
  if (!problems.empty()) user_error("{}", fmt::join(problems, "\nerror: "));
  log_info(
      "{}: {} documents, {} tokens, check passed ({}, {})", command.store, documents, tokens,
      ids_checked ? "ids are in the vocabulary" : "ids not checked: give --tokenizer or --vocab",
      checksums_checked ? "checksums match" : "no checksums recorded");
}

struct MergeCommand {
  std::vector<std::string> stores;
  std::string output;
  bool overwrite = false;
};

void run_merge(const MergeCommand& command) {
  const StoreInfo info = [&] {
    Progress progress("merge", 0, "tokens");
    return merge_stores(command.stores, command.output, command.overwrite, progress.callback());
  }();
  log_info("{}: {} documents, {} tokens", command.output, info.documents, info.tokens);
}

}  // namespace

void add_data_verify(CLI::App& data) {
  const auto command = std::make_shared<VerifyCommand>();
  CLI::App* app = data.add_subcommand("verify", "Read a whole token store and check it");
  const AddOption add(*app);
  add("store", command->store, "prefix, directory or 'pattern'", kRequired);
  CLI::Option* tokenizer =
      add("--tokenizer", command->tokenizer,
          "check that the ids are in its vocabulary and that it made the store");
  add("--vocab", command->vocab_size, "check that the ids are below this",
      whole_number(between(1, INT32_MAX)))
      ->excludes(tokenizer);
  app->footer("Example:\n  kintsugi data verify tokens/fi --vocab 50304");
  app->callback([command] { run_verify(*command); });
}

void add_data_merge(CLI::App& data) {
  const auto command = std::make_shared<MergeCommand>();
  CLI::App* app = data.add_subcommand("merge", "Merge several token stores into one");
  const AddOption add(*app);
  add("stores", command->stores, "prefixes, directories or 'patterns', in this order", kRequired);
  add("--output", command->output, "PREFIX of the new store", kRequired);
  add("--overwrite", command->overwrite, "replace a store of that name");
  app->footer("Example:\n  kintsugi data merge tokens/fi tokens/sv --output tokens/nordic");
  app->callback([command] { run_merge(*command); });
}

void add_data_command(CLI::App& app) {
  CLI::App* data = app.add_subcommand(
      "data", "Curate corpora, train and run tokenizers, make and inspect token stores");
  data->require_subcommand(0, 1);  // as in main: report an unknown subcommand first
  data->callback([data] {
    if (data->get_subcommands().empty())
      user_error("give a command; kintsugi data --help lists them");
  });
  data->footer("Each command has its own --help with an example.");
  add_data_curate(*data);
  add_data_train_tokenizer(*data);
  add_data_dedup(*data);
  add_data_explore(*data);
  add_data_tokenize(*data);
  add_data_train_language_id(*data);
  add_data_language_id(*data);
  add_data_prepare_chat(*data);
  add_data_inspect(*data);
  add_data_card(*data);
  add_data_verify(*data);
  add_data_merge(*data);
  add_data_where(*data);
  add_data_encode(*data);
  add_data_decode(*data);
}

}  // namespace kintsugi
