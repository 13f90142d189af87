#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/table.h"
#include "core/units.h"
#include "data/stores/store_check.h"
#include "data/stores/token_store.h"
#include "data/tokenizers/tokenizer.h"

namespace kintsugi {
namespace {

constexpr int kSamples = 3;
constexpr std::int64_t kSampleTokens = 64;
constexpr int kBarWidth = 40;

struct Sample {
  std::string shard;
  std::int64_t document = 0, tokens = 0;
  std::string text;
  bool truncated = false;
};

struct Inspection {
  std::string name;
  std::vector<TokenShard> shards;
  std::shared_ptr<const StoreInfo> info;  // from the first shard
  LengthSummary lengths;
  std::int64_t documents = 0, tokens = 0, masked = 0;
  std::vector<Sample> samples;
};

// Decodes the start of the first, the middle and the last document.
std::vector<Sample> decode_samples(const Inspection& store, const Tokenizer& tokenizer) {
  std::vector<Sample> samples;
  std::int64_t previous = -1;
  for (int i = 0; i < kSamples && store.documents > 0; ++i) {
    std::int64_t document = i * (store.documents - 1) / (kSamples - 1);
    if (std::exchange(previous, document) == document) continue;
    std::size_t s = 0;
    while (document >= store.shards[s].documents()) document -= store.shards[s++].documents();
    const TokenShard& shard = store.shards[s];
    const std::int64_t begin = shard.document_begin(document);
    const std::int64_t length = shard.document_begin(document + 1) - begin;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(length, kSampleTokens)));
    shard.read(begin, ids);
    Sample sample{shard.name(), document, length, "", length > kSampleTokens};
    tokenizer.decode(ids, sample.text);
    samples.push_back(std::move(sample));
  }
  return samples;
}

// Counts the tokens without loss (mask 0).
std::int64_t masked_tokens(const TokenShard& shard) {
  std::int64_t masked = 0;
  std::vector<std::uint8_t> buffer(1 << 16);
  for (std::int64_t first = 0; shard.has_mask() && first < shard.tokens();) {
    const auto count = std::min<std::int64_t>(shard.tokens() - first, 1 << 16);
    const auto mask = std::span(buffer).first(static_cast<std::size_t>(count));
    shard.read_mask(first, mask);
    masked += std::count(mask.begin(), mask.end(), std::uint8_t{0});
    first += count;
  }
  return masked;
}

Inspection inspect(const std::string& name, const std::string& tokenizer) {
  Inspection store;
  store.name = name;
  store.shards = open_token_store(name);
  const auto infos = read_store_infos(store.shards);
  store.info = infos.front();
  for (const TokenShard& shard : store.shards) {
    store.documents += shard.documents();
    store.tokens += shard.tokens();
    store.masked += masked_tokens(shard);
  }
  store.lengths = summarize_lengths(store.shards);
  if (tokenizer.empty()) return store;
  const auto decoder = load_tokenizer(tokenizer);
  for (std::size_t i = 0; i < infos.size(); ++i)
    if (infos[i] && infos[i]->tokenizer != decoder->fingerprint())
      user_error("{} was made with another tokenizer ({}) than {} ({})", store.shards[i].name(),
                 infos[i]->tokenizer_description, tokenizer, decoder->description());
  store.samples = decode_samples(store, *decoder);
  return store;
}

// Escapes line breaks and control characters, so that the text prints on one line.
std::string on_one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n')
      line += "\\n";
    else if (c == '\t')
      line += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      line += c;
  }
  return line;
}

std::string bucket_label(std::size_t bucket) {
  if (bucket < 2) return std::to_string(bucket);
  const std::uint64_t low = std::uint64_t{1} << (bucket - 1);
  return fmt::format("{} - {}", low, 2 * low - 1);
}

std::string histogram(const LengthSummary& lengths) {
  const auto& counts = lengths.by_log2;
  const auto used = [](std::int64_t count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), used) - counts.begin();
  const auto last = counts.rend() - std::find_if(counts.rbegin(), counts.rend(), used);
  const auto most = *std::max_element(counts.begin(), counts.end());
  std::string text;
  for (auto k = first; k < last; ++k) {
    const auto count = counts[static_cast<std::size_t>(k)];
    const auto bar =
        static_cast<int>((count * kBarWidth + most - 1) / std::max<std::int64_t>(most, 1));
    text += fmt::format("  {:>24} {:>12}  {}\n", bucket_label(static_cast<std::size_t>(k)), count,
                        std::string(static_cast<std::size_t>(bar), '#'));
  }
  return text;
}

void print_table(const Inspection& store) {
  const auto row = [](const char* name, const std::string& value) {
    fmt::print("  {:<18}{}\n", name, value);
  };
  fmt::print("{}\n", store.name);
  row("shards", std::to_string(store.shards.size()));
  row("documents", std::to_string(store.documents));
  row("tokens",
      fmt::format("{} ({})", store.tokens, format_count(static_cast<double>(store.tokens))));
  row("type", std::string(to_string(store.shards.front().type())));
  if (store.info) {
    if (!store.info->kind.empty()) row("kind", store.info->kind);
    if (!store.info->chat_format.empty()) row("chat format", on_one_line(store.info->chat_format));
    if (!store.info->labels.empty())
      row("labels", on_one_line(fmt::format("{}", fmt::join(store.info->labels, ", "))));
    row("tokenizer", store.info->tokenizer_description);
    if (store.info->bytes > 0)
      row("bytes per token", fmt::format("{:.4f}", static_cast<double>(store.info->bytes) /
                                                       static_cast<double>(std::max<std::int64_t>(
                                                           store.info->tokens, 1))));
  }
  if (store.masked > 0) row("without loss", fmt::format("{} tokens", store.masked));
  if (store.documents > 0) {
    row("shortest", fmt::format("{} tokens", store.lengths.shortest));
    row("median", fmt::format("{} tokens", store.lengths.median));
    row("longest", fmt::format("{} tokens", store.lengths.longest));
    row("mean", fmt::format("{:.1f} tokens", static_cast<double>(store.tokens) /
                                                 static_cast<double>(store.documents)));
    fmt::print("\n  {:>24} {:>12}\n{}", "tokens in a document", "documents",
               histogram(store.lengths));
  }
  for (const Sample& sample : store.samples)
    fmt::print("\n{}, document {}, {} tokens:\n  {}{}\n", sample.shard, sample.document,
               sample.tokens, on_one_line(sample.text), sample.truncated ? " …" : "");
}

void print_json(const Inspection& store) {
  using Json = nlohmann::ordered_json;
  Json json = {{"name", store.name},
               {"documents", store.documents},
               {"tokens", store.tokens},
               {"type", std::string(to_string(store.shards.front().type()))},
               {"tokens_without_loss", store.masked},
               {"shortest", store.lengths.shortest},
               {"median", store.lengths.median},
               {"longest", store.lengths.longest},
               {"shards", Json::array()},
               {"lengths", Json::array()}};
  for (const TokenShard& shard : store.shards)
    json["shards"].push_back({{"name", shard.name()},
                              {"documents", shard.documents()},
                              {"sequences", shard.sequences()},
                              {"tokens", shard.tokens()}});
  for (std::size_t k = 0; k < store.lengths.by_log2.size(); ++k)
    if (store.lengths.by_log2[k] > 0)
      json["lengths"].push_back({{"from", k == 0 ? 0 : std::uint64_t{1} << (k - 1)},
                                 {"documents", store.lengths.by_log2[k]}});
  if (store.info) {
    if (!store.info->kind.empty()) json["kind"] = store.info->kind;
    if (!store.info->chat_format.empty()) json["chat_format"] = store.info->chat_format;
    if (!store.info->labels.empty()) json["labels"] = store.info->labels;
    json["tokenizer"] = store.info->tokenizer_description;
    json["vocab_size"] = store.info->vocab_size;
    json["bytes"] = store.info->bytes;
  }
  for (const Sample& sample : store.samples)
    json["samples"].push_back({{"shard", sample.shard},
                               {"document", sample.document},
                               {"tokens", sample.tokens},
                               {"text", sample.text}});
  fmt::print("{}", json_lines(json));
}

}  // namespace

void add_data_inspect(CLI::App& data) {
  struct Options {
    std::string store, tokenizer;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* app = data.add_subcommand("inspect", "Print statistics of a token store");
  const AddOption add(*app);
  add("store", options->store, "prefix, directory, 'pattern' or text file", kRequired);
  add("--tokenizer", options->tokenizer, "decode the start of some documents with this tokenizer");
  add("--json", options->json, "print JSON");
  app->footer("Example:\n  kintsugi data inspect tokens/fi --tokenizer tokenizer.json");
  app->callback([options] {
    const Inspection store = inspect(options->store, options->tokenizer);
    options->json ? print_json(store) : print_table(store);
  });
}

}  // namespace kintsugi
