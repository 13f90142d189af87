#include "train/initial_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "comm/exchange.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/log.h"
#include "data/tokenizers/unicode.h"
#include "model/adapter/apply_adapter.h"
#include "model/adapter/peft_config.h"
#include "model/config.h"
#include "model/files/fingerprint.h"
#include "model/files/stored_model.h"
#include "tensor/safetensors.h"
#include "train/checkpoint/adapter_base.h"
#include "train/checkpoint/files.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

const char* const kAllowUnused = "model.allow_unused_weights: true";

// A new classifier on a language model: the files have no score.weight.
bool is_fresh_head(const ModelConfig& stored, const ModelConfig& model, const Parameter& p) {
  return model.is_classifier() && !stored.is_classifier() && p.name == kScoreTable;
}

// Throws UserError unless the files hold every parameter of `set`, except for a new head.
StoredParameters stored_weights(FileLoader& loader, const SafetensorsModel& files,
                                const ModelConfig& stored, const ModelConfig& model,
                                const ParameterSet& set, const SubtokenRows& subtokens = {}) {
  const ModelSpec spec = model_spec(model);
  return {loader,
          files,
          set,
          "",
          [&](const Parameter& p) {
            return p.group != ParameterGroup::Adapter && !is_fresh_head(stored, model, p);
          },
          {.names = {spec.embedding.table,
                     model.is_classifier() ? spec.embedding.table : spec.head.table},
           .rows = stored.vocab_size,
           .subtokens = subtokens}};
}

std::string describe_growth(std::int64_t before, std::int64_t now, const SubtokenRows& subtokens) {
  const auto with_text =
      std::ranges::count_if(subtokens, [](const auto& ids) { return !ids.empty(); });
  std::string text = fmt::format("; the vocabulary grows from {} to {}, ", before, now);
  if (with_text == 0) return text + "new rows are the mean of the old ones";
  text += fmt::format("{} new rows are the mean of their subtokens", with_text);
  if (with_text < now - before)
    text += fmt::format(", {} of all old ones", now - before - with_text);
  return text;
}

std::string hash_of(const SubtokenRows& subtokens) {
  StreamHash hash;
  for (const std::vector<std::int32_t>& ids : subtokens) {
    const std::size_t count = ids.size();
    hash.update(&count, sizeof(count));
    hash.update(ids.data(), count * sizeof(ids[0]));
  }
  return hex64(hash.digest());
}

}  // namespace

SubtokenRows subtokens_of(const RunConfig& config, const Tokenizer& tokenizer) {
  if (config.model_new_tokens == NewTokens::Mean) return {};
  const std::int64_t rows = read_model_directory(config.model_init).vocab_size;
  const std::int64_t vocab_size = config.model.vocab_size;
  if (vocab_size <= rows) return {};
  return subtokens_of_new_rows(config.model_init, rows, vocab_size, tokenizer);
}

InitialWeightsOptions initial_options(const RunConfig& config) {
  return {.subtokens = {},
          .seed = config.run.seed,
          .adapter = config.adapter.init.value_or(""),
          .unused = config.model_allow_unused ? UnusedWeights::Allow : UnusedWeights::Refuse};
}

namespace {

// The adapters of a run that begins: new ones, or those of a PEFT directory.
class InitialAdapters {
 public:
  InitialAdapters(FileLoader& loader, const fs::path& directory, const ModelConfig& model,
                  const fs::path& base, std::uint64_t seed)
      : fresh_(seed) {
    if (directory.empty()) return;
    stored_.emplace(model_directory(directory), model, base);
    parameters_.emplace(loader, *stored_, model);
  }
  bool has(const Parameter& parameter) const {
    if (parameters_) return static_cast<bool>(stored_->find(parameter));
    return parameter.group == ParameterGroup::Adapter;
  }
  const ParameterSource& source() const {
    if (parameters_) return *parameters_;
    return fresh_;
  }

 private:
  FreshParameters fresh_;
  std::optional<StoredAdapter> stored_;
  std::optional<AdapterParameters> parameters_;
};

void check_vocabulary(const ModelConfig& stored, const ModelConfig& model) {
  if (model.lora.on() && model.vocab_size > stored.vocab_size)
    user_error(
        "the vocabulary grows from {} to {}, but with `adapter:` the embedding is not saved: use "
        "the tokenizer of the model, or train all of it",
        stored.vocab_size, model.vocab_size);
}

}  // namespace

void check_initial_weights(const fs::path& directory, const ModelConfig& model, Backend& backend,
                           const InitialWeightsOptions& options) {
  const ModelConfig stored = read_model_directory(directory);
  const SafetensorsModel files(model_directory(directory));
  FileLoader unused(backend);
  check_vocabulary(stored, model);
  stored_weights(unused, files, stored, model, ParameterSet(model));
  check_unused_weights(files, model, stored, options.unused, kAllowUnused);
  InitialAdapters(unused, options.adapter, model, directory, 0);
}

fs::path base_of_run(const RunConfig& config, const fs::path& checkpoint) {
  if (!config.model_init.empty()) return fs::canonical(model_directory(config.model_init));
  if (checkpoint.empty() || !is_adapter_directory(checkpoint))
    user_error("adapter: adapters are trained on a model that exists: name it in model.init");
  return fs::canonical(base_of_adapter(checkpoint, read_peft_config(checkpoint),
                                       "name it in model.init instead of run.from"));
}

namespace {

std::string describe_weights(const fs::path& directory, const ModelConfig& stored,
                             const ModelConfig& model, const InitialWeightsOptions& options) {
  std::string text = fs::canonical(model_directory(directory)).string();
  if (model.is_classifier() && !stored.is_classifier())
    text += fmt::format("; new classifier head with {} labels", model.labels.size());
  if (model.vocab_size > stored.vocab_size)
    text += describe_growth(stored.vocab_size, model.vocab_size, options.subtokens);
  if (!options.adapter.empty()) text += fmt::format(", adapters from {}", options.adapter.string());
  return text;
}

// Ranks whose files differ would train a mixture.
std::string agreed_fingerprint(Communicator& host, const SafetensorsModel& files,
                               const InitialWeightsOptions& options) {
  const std::string content = shared_fingerprint(host, files).text();
  Facts facts = {{"the fingerprint of the weights in model.init", content},
                 {"the subtokens of new tokens", hash_of(options.subtokens)}};
  if (!options.adapter.empty()) {
    std::optional<SafetensorsModel> adapter;
    together(host, [&] { adapter.emplace(model_directory(options.adapter), kAdapterStem); });
    facts.emplace_back("the fingerprint of the weights in adapter.init",
                       shared_fingerprint(host, *adapter).text());
  }
  check_agreement(host, facts);
  together(host, [&] {
    if (host.rank() != 0 || options.adapter.empty()) return;
    if (const auto other = other_base(model_directory(options.adapter), directory_of(files)))
      log_warning("{}", other->text);
  });
  return content;
}

}  // namespace

LoadedWeights load_initial_weights(const fs::path& directory, Engine& engine,
                                   const InitialWeightsOptions& options) {
  Communicator& host = engine.groups()[GroupKind::World];
  const ModelConfig& model = engine.options().model;
  FileLoader loader(engine.backend());
  std::optional<SafetensorsModel> files;
  LoadedWeights loaded;
  together(host, [&] {
    const ModelConfig stored = read_model_directory(directory);
    files.emplace(model_directory(directory));
    const StoredParameters base =
        stored_weights(loader, *files, stored, model, engine.parameters(), options.subtokens);
    if (options.unused == UnusedWeights::Refuse)  // otherwise the check before has named them
      check_unused_weights(*files, model, stored, options.unused, kAllowUnused);
    const InitialAdapters adapters(loader, options.adapter, model, directory, options.seed);
    const FreshParameters fresh(options.seed);
    const ChosenParameters weights([&](const Parameter& parameter) -> const ParameterSource& {
      if (adapters.has(parameter)) return adapters.source();
      if (is_fresh_head(stored, model, parameter)) return fresh;
      return base;
    });
    engine.write_weights(weights, weights);
    loaded.description = describe_weights(directory, stored, model, options);
  });
  loaded.fingerprint = agreed_fingerprint(host, *files, options);
  verify_weights(host, model_directory(directory), loader);
  if (!options.adapter.empty()) verify_weights(host, model_directory(options.adapter), loader);
  together(host, [&] {
    std::optional<Progress> loading;  // of the first rank, for all of them
    if (host.rank() == 0) loading.emplace("load weights", 0, "bytes");
    loader.run(loading ? loading->callback() : ProgressCall());
  });
  return loaded;
}

std::string other_tokenizer(const fs::path& directory, const Tokenizer& tokenizer) {
  std::unique_ptr<Tokenizer> own;
  try {
    own = load_tokenizer(model_directory(directory).string());
  } catch (const UserError&) {
    return "";  // it has none that can be read
  }
  if (gives_same_ids(*own, tokenizer)) return "";
  return fmt::format(
      "the weights in {} were trained with another tokenizer ({}) than data.tokenizer ({}): the "
      "same token may have another id; set data.tokenizer to that directory to use its own",
      directory.string(), own->description(), tokenizer.description());
}

std::string initial_weights_name(const fs::path& directory) {
  fs::path path = directory.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const fs::path folder = path.parent_path();
  if (folder.filename() != "checkpoints") return path.filename().string();
  return fmt::format("{}, {}", folder.parent_path().filename().string(), path.filename().string());
}

namespace {

// The text of a token inside a text. Some tokenizers drop the space of the first token, so it is
// decoded twice and the second one is taken.
std::string text_inside(const Tokenizer& tokenizer, std::int32_t id) {
  if (id >= tokenizer.vocab_size() || tokenizer.bytes_of(id) == 0) return "";
  std::string once, twice;
  tokenizer.decode(std::vector{id}, once, SpecialTokens::AsText);
  tokenizer.decode(std::vector{id, id}, twice, SpecialTokens::AsText);
  return twice.starts_with(once) ? twice.substr(once.size()) : once;
}

bool encodes_exactly(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids,
                     const std::string& text) {
  std::string decoded;
  tokenizer.decode(ids, decoded, SpecialTokens::AsText);
  return decoded == text;
}

// Whether the text says what the token means: U+FFFD replaces bytes that cannot be decoded alone.
bool readable(const std::string& text) {
  return !text.empty() && text.find("\uFFFD") == std::string::npos;
}

std::unique_ptr<Tokenizer> old_tokenizer(const std::filesystem::path& directory) {
  try {
    return load_tokenizer(model_directory(directory).string());
  } catch (const UserError& error) {
    user_error(
        "model.new_tokens is subtokens, but model.init {} has no tokenizer that can be read ({}): "
        "copy its tokenizer there, or use mean",
        directory.string(), error.what());
  }
}

}  // namespace

SubtokenRows subtokens_of_new_rows(const std::filesystem::path& directory, std::int64_t rows,
                                   std::int64_t vocab_size, const Tokenizer& tokenizer) {
  const std::unique_ptr<Tokenizer> old = old_tokenizer(directory);
  SubtokenRows all;
  for (std::int64_t row = rows; row < vocab_size; ++row) {
    std::vector<std::int32_t>& ids = all.emplace_back();
    const std::string text = text_inside(tokenizer, static_cast<std::int32_t>(row));
    if (!readable(text)) continue;
    old->encode(text, ids, SpecialTokens::AsText);
    const bool is_text = valid_utf8_prefix(text) == text.size();
    const bool has_rows =
        std::ranges::all_of(ids, [&](std::int32_t id) { return id >= 0 && id < rows; });
    if (!has_rows || (!is_text && !encodes_exactly(*old, ids, text))) ids.clear();
  }
  return all;
}

}  // namespace kintsugi
