#include "train/run_data.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/hash.h"
#include "core/log.h"
#include "data/sampling/megatron_order.h"
#include "data/tokenizers/tokenizer_formats.h"

namespace kintsugi {
namespace {

// The tokens of the sequences [first, end): one part of a Megatron split.
TokenStream sequence_range(const TokenShard& shard, std::int64_t first, std::int64_t end) {
  if (first >= end) return {};
  const std::int64_t begin = shard.sequence_begin(first);
  const std::int64_t last = shard.sequence_begin(end - 1) + shard.sequence_length(end - 1);
  return TokenStream({{&shard, begin, std::max<std::int64_t>(last - begin, 0)}});
}

void check_tokenizer(const TokenShard& shard, const StoreInfo* info, const Tokenizer& tokenizer,
                     const RunConfig& config) {
  if (shard.is_text()) {
    if (tokenizer.fingerprint() != make_byte_tokenizer()->fingerprint())
      user_error(
          "{} is text, but data.tokenizer is {}: convert it to a token store with `kintsugi data "
          "tokenize --input {} --tokenizer {} --output …` and use that store as the path",
          shard.name(), config.data.tokenizer, shard.name(), config.data.tokenizer);
    return;
  }
  if (info == nullptr) return;
  if (!info->tokenizer.empty() && info->tokenizer != tokenizer.fingerprint())
    user_error(
        "{} was made with another tokenizer (fingerprint {}, {} tokens) than data.tokenizer {} "
        "(fingerprint {}, {} tokens): set data.tokenizer to the one it was made with",
        shard.name(), info->tokenizer, info->vocab_size, config.data.tokenizer,
        tokenizer.fingerprint(), tokenizer.vocab_size());
  if (info->vocab_size > config.model.vocab_size)
    user_error("{} has a vocabulary of {} tokens, but model.vocab_size is {}: raise it",
               shard.name(), info->vocab_size, config.model.vocab_size);
}

SampleKind sample_kind(ObjectiveKind objective) {
  return objective == ObjectiveKind::Dpo              ? SampleKind::Pairs
         : objective == ObjectiveKind::Classification ? SampleKind::Labels
                                                      : SampleKind::Text;
}

PackingRule packing_rule(Packing packing) {
  return packing == Packing::Single ? PackingRule::Single : PackingRule::BestFit;
}

// Whether a store has what an objective reads. Stores of other programs have no description.
void check_kind(const TokenShard& shard, const StoreInfo* info, ObjectiveKind objective) {
  const std::string kind = info == nullptr ? "" : info->kind;
  const char* needed = nullptr;
  if (objective == ObjectiveKind::LanguageModel && kind == "preference")
    user_error("{} has preference pairs: set objective: dpo, or use another store", shard.name());
  if (objective == ObjectiveKind::Sft && kind != "chat" && kind != "prompt" &&
      !(kind.empty() && shard.has_mask()))
    needed = "examples with a loss mask (kind chat or prompt)";
  if (objective == ObjectiveKind::Dpo && kind != "preference") needed = "preference pairs";
  if (objective == ObjectiveKind::Classification &&
      (kind != "classification" || !shard.has_labels()))
    needed = "texts with labels";
  if (needed != nullptr)
    user_error(
        "objective {} needs {}, but {} has {}: make the store with `kintsugi data prepare-chat`",
        to_string(objective), needed, shard.name(),
        kind.empty() ? "text" : "examples of kind " + kind);
}

// Examples are not cut, so all must fit a sample.
void check_lengths(const TokenShard& shard, const StoreInfo* info, std::int64_t length) {
  if (info != nullptr && info->longest > 0 && info->longest <= length) return;
  std::int64_t begin = 0;
  for (std::int64_t d = 0; d < shard.documents(); ++d) {
    const std::int64_t end = shard.document_begin(d + 1);
    if (end - begin > length)
      user_error(
          "{}: example {} has {} tokens, but data.sequence_length is {}, and examples are not cut: "
          "raise it, or make the store with `kintsugi data prepare-chat --max-length {}`",
          shard.name(), d, end - begin, length, length);
    begin = end;
  }
}

}  // namespace

RunData::RunData(RunConfig& config, PackingFiles packing) {
  resolve_tokenizer(config);
  tokenizer_ = config.loaded.tokenizer;
  for (std::int64_t id = 0; id < tokenizer_->vocab_size(); ++id)
    bytes_.push_back(
        static_cast<std::int32_t>(tokenizer_->bytes_of(static_cast<std::int32_t>(id))));
  options_ = {.kind = sample_kind(config.objective.kind),
              .length = config.data.sequence_length,
              .vocab_size = config.model.vocab_size,
              .classes = std::ssize(config.model.labels),
              .document_mask = config.data.document_mask,
              .boundary_loss = config.data.boundary_loss,
              .packed = config.data.packed()};
  packed_validation_ = config.on_examples();
  sources_.reserve(config.data.train.size());  // streams point to the shards inside
  for (const DataSource& source : config.data.train) open_source(source, config);
  make_order(config, packing);
  open_validation(config);
  weigh_classes(config);
}

std::vector<TokenShard> RunData::open_checked(const std::string& path,
                                              const RunConfig& config) const {
  std::vector<TokenShard> shards = open_token_store(path);
  const auto infos = read_store_infos(shards);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    check_tokenizer(shards[i], infos[i].get(), *tokenizer_, config);
    check_kind(shards[i], infos[i].get(), config.objective.kind);
    if (config.on_examples()) check_lengths(shards[i], infos[i].get(), config.data.sequence_length);
  }
  return shards;
}

void RunData::open_source(const DataSource& source, const RunConfig& config) {
  Source& opened = sources_.emplace_back();
  opened.name = source.name;
  opened.shards = open_checked(source.path, config);
  for (const auto& info : read_store_infos(opened.shards))
    if (info && !info->chat_format.empty()) chat_formats_.insert(info->chat_format);
  TokenStream valid;
  if (config.data.megatron()) {
    if (opened.shards.size() != 1)
      user_error(
          "{} has {} shards, but data.order megatron takes one .bin/.idx pair per source: list "
          "them one by one, or merge them with `kintsugi data merge`",
          source.path, opened.shards.size());
    const TokenShard& shard = opened.shards.front();
    const auto ends = megatron_split(parse_megatron_split(config.data.split), shard.sequences());
    opened.train = sequence_range(shard, ends[0], ends[1]);
    valid = sequence_range(shard, ends[1], ends[2]);
  } else {
    const double fraction = config.data.valid.empty() ? config.data.valid_fraction : 0.0;
    HeldOut split = config.on_examples() ? hold_out_examples(opened.shards, fraction)
                                         : hold_out(opened.shards, fraction);
    opened.train = std::move(split.train);
    valid = std::move(split.valid);
  }
  const std::int64_t length = config.data.sequence_length;
  // Megatron's order repeats a source that is shorter than a sample, and packing pads it.
  const std::int64_t needed = config.data.packed() ? 1 : length + 1;
  if (opened.train.tokens() < needed && !config.data.megatron())
    user_error(
        "the training part of {} has {} tokens, one sample needs {}: take a larger corpus, a "
        "shorter data.sequence_length or a smaller data.valid_fraction",
        source.path, opened.train.tokens(), needed);
  if (config.data.valid.empty()) held_out_.push_back({source.name, {}, std::move(valid)});
}

const ChatFormat* RunData::chat_format() const {
  if (chat_formats_.size() != 1) return nullptr;
  for (const ChatFormat& format : chat_formats())
    if (format.name == *chat_formats_.begin()) return &format;
  return nullptr;  // of a newer version
}

std::vector<std::optional<double>> RunData::source_weights(const DataConfig& data) const {
  std::vector<std::optional<double>> weights;
  if (data.temperature > 0) {
    std::vector<double> sizes;
    for (const Source& source : sources_)
      sizes.push_back(static_cast<double>(source.train.tokens()));
    const std::vector<double> tempered = temperature_weights(sizes, data.temperature);
    for (std::size_t i = 0; i < tempered.size(); ++i)
      if (tempered[i] == 0 && sizes[i] > 0)
        user_error(
            "data.temperature {} makes the weight of {} underflow to 0: raise it, or remove that "
            "source",
            data.temperature, sources_[i].name);
    weights.assign(tempered.begin(), tempered.end());
    return weights;
  }
  for (const DataSource& source : data.train)
    weights.push_back(source.tokens > 0 ? static_cast<double>(source.tokens) : source.weight);
  return weights;
}

std::unique_ptr<SourceSamples> RunData::samples_of(Source& source, const RunConfig& config,
                                                   PackingFiles packing) {
  const std::int64_t length = config.data.sequence_length;
  if (!config.data.packed()) return std::make_unique<WindowSamples>(source.train, length);
  const PackingRule rule = packing_rule(config.data.packing);
  const std::string name =
      hex64(PackingIndex::fingerprint(source.train, length, kPackedBlock, rule)) + ".index";
  const auto path = std::filesystem::path(config.run.dir) / "packing" / name;
  auto index = PackingIndex::open(path, source.train, length, packing == PackingFiles::Verify,
                                  kPackedBlock, rule);
  if (!index && packing == PackingFiles::Read) {
    index = PackingIndex::in_memory(source.train, length, rule);
  } else if (!index) {
    if (std::filesystem::exists(path))
      log_warning("{} is damaged or of another version: it is made again", path.string());
    PackingIndex::build(path, source.train, length, kPackedBlock, rule);
    index = PackingIndex::open(path, source.train, length, false, kPackedBlock, rule);
    if (!index) failure("{} changed while it was opened: start again", path.string());
  }
  source.packing = index->summary();
  return std::make_unique<PackedSamples>(source.train, std::move(*index));
}

std::vector<double> RunData::make_shuffled_order(const RunConfig& config,
                                                 const std::vector<std::optional<double>>& weights,
                                                 PackingFiles packing) {
  const DataConfig& data = config.data;
  std::vector<BlendSource> blend;
  std::vector<std::unique_ptr<SourceSamples>> samples;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    samples.push_back(samples_of(sources_[i], config, packing));
    const double source_limit = data.train[i].max_epochs;
    blend.push_back({.weight = weights[i].value_or(1.0),
                     .epoch = samples.back()->count(),
                     .max_epochs = source_limit > 0 ? source_limit : data.max_epochs});
  }
  const std::vector<std::uint64_t> integers =
      blend_weights(blend, config.total_samples(), data.sequence_length);
  order_ = std::make_unique<ShuffledOrder>(std::move(samples), integers, data.sequence_length,
                                           config.data_seed());
  return {integers.begin(), integers.end()};
}

void RunData::make_order(const RunConfig& config, PackingFiles packing) {
  const DataConfig& data = config.data;
  const std::int64_t samples = config.total_samples();
  const std::vector<std::optional<double>> given = source_weights(data);
  const std::vector<double> weights = data.megatron() ? make_megatron_order(config, given)
                                                      : make_shuffled_order(config, given, packing);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    source.share = weights[i] / total;
    const double epoch = source.packing ? static_cast<double>(source.packing->samples)
                                        : static_cast<double>(source.train.tokens()) /
                                              static_cast<double>(data.sequence_length);
    source.epochs = source.share * static_cast<double>(samples) / epoch;
    if (data.temperature > 0 && source.share * static_cast<double>(samples) < 1)
      log_warning("data.temperature {} gives {} a fraction of {:.3g}: less than one of {} samples",
                  data.temperature, source.name, source.share, samples);
  }
}

std::vector<double> RunData::make_megatron_order(
    const RunConfig& config, const std::vector<std::optional<double>>& weights) {
  std::vector<MegatronOrder::Source> sources;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const TokenShard& shard = sources_[i].shards.front();
    const auto ends = megatron_split(parse_megatron_split(config.data.split), shard.sequences());
    sources.push_back({.shard = &shard,
                       .first = ends[0],
                       .count = ends[1] - ends[0],
                       .weight = weights[i],
                       .name = sources_[i].name});
  }
  auto order = std::make_unique<MegatronOrder>(
      sources, config.total_samples(), config.data.sequence_length, config.data_seed(),
      config.data.order == DataOrder::Megatron010 ? MegatronVersion::V010
                                                  : MegatronVersion::Newest);
  const std::vector<double> shares = order->shares();
  order_ = std::move(order);
  return shares;
}

ValidationSet RunData::validation_set(const HeldOutSet& held, const RunConfig& config) const {
  const std::int64_t length = config.data.sequence_length;
  const std::int64_t count = config.train.eval_batches * config.layout.micro_batch;
  if (!config.on_examples() || held.stream.tokens() == 0)
    return {held.name, held.stream, length, count};
  return {held.name, held.stream,
          PackingIndex::in_memory(held.stream, length, packing_rule(config.data.packing)), count};
}

// One set per source. With Megatron's order, a set is made of our own windows over the validation
// split: it is fixed, so that losses of different steps can be compared.
void RunData::open_validation(const RunConfig& config) {
  if (config.train.eval_every == 0) return;
  held_out_.reserve(held_out_.size() + config.data.valid.size());
  for (const ValidSource& source : config.data.valid) {
    HeldOutSet& held = held_out_.emplace_back();
    held.name = source.name;
    held.shards = open_checked(source.path, config);
    held.stream = hold_out(held.shards, 0.0).train;
  }
  const std::int64_t length = config.data.sequence_length;
  for (const HeldOutSet& held : held_out_) {
    ValidationSet set = validation_set(held, config);
    if (set.size() > 0)
      validation_.push_back(std::move(set));
    else if (!config.data.valid.empty())
      user_error("the validation set {} has {} tokens, one sample needs {}: take a larger one",
                 held.name, held.stream.tokens(), length + 1);
  }
  if (validation_.empty())
    user_error(
        "the held-out part of the data is shorter than one sample of {} tokens: raise {} or set "
        "train.eval_every to 0",
        length, config.data.megatron() ? "the second part of data.split" : "data.valid_fraction");
  for (const HeldOutSet& held : held_out_)
    if (held.stream.tokens() <= (config.on_examples() ? 0 : length))
      log_warning("{} tokens are held out of {}, one sample needs {}: it is not validated",
                  held.stream.tokens(), held.name, length + 1);
}

// Balanced weights give all labels the same sum of weights: documents / (labels x documents of the
// label).
void RunData::weigh_classes(const RunConfig& config) {
  const NumbersOrWord& weights = config.objective.class_weights;
  class_weights_.assign(weights.numbers.begin(), weights.numbers.end());
  if (weights.word != "balanced") return;
  std::vector<double> counts(config.model.labels.size());
  double documents = 0;
  for (const Source& source : sources_)
    for (const TokenShard& shard : source.shards)
      for (std::int64_t i = 0; i < shard.documents(); ++i, ++documents)
        if (const auto label = static_cast<std::size_t>(shard.label(i)); label < counts.size())
          ++counts[label];
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0)
      user_error(
          "objective.class_weights is balanced, but no document of data.train has the label {}: "
          "give the weights as a list",
          config.model.labels[i]);
    class_weights_.push_back(
        static_cast<float>(documents / (static_cast<double>(counts.size()) * counts[i])));
  }
}

SampleOptions RunData::validation_options() const {
  SampleOptions options = options_;
  options.packed = packed_validation_;
  return options;
}

std::vector<std::span<const TokenShard>> RunData::stores() const {
  std::vector<std::span<const TokenShard>> all;
  for (const Source& source : sources_) all.emplace_back(source.shards);
  for (const HeldOutSet& held : held_out_)
    if (!held.shards.empty()) all.emplace_back(held.shards);
  return all;
}

std::string RunData::fingerprint() const { return hex64(order_->fingerprint()); }

std::string RunData::held_out_fingerprint() const {
  StreamHash hash;
  for (const HeldOutSet& held : held_out_) add_parts(held.stream, hash);
  return hex64(hash.digest());
}

std::string RunData::difference_from(const PastOrder& past) const {
  if (past.fingerprint.empty() || past.fingerprint == fingerprint()) return "";
  if (past.seed && *past.seed != order_->seed())
    return fmt::format("data.seed, or else the seed of the run, was {}, now {}", *past.seed,
                       order_->seed());
  if (past.fingerprint == hex64(order_->unseeded_fingerprint())) return "";
  return "other data, weights, data.seed, data.valid_fraction, data.sequence_length, data.packing "
         "or "
         "(with max_epochs or order megatron) another number of steps";
}

ComparedContent RunData::compare_content(const std::filesystem::path& record,
                                         bool continues) const {
  DataStores stores;
  for (const Source& source : sources_) stores.emplace_back(source.shards);
  std::optional<ContentRecord> before;
  if (continues)
    before = read_content(record, {fingerprint(), hex64(order_->unseeded_fingerprint())});
  if (continues && !before)
    log_warning(
        "{} has no record of the data's content at the start of the run: only the sizes and the "
        "ends of the files were compared",
        record.string());
  return before ? kintsugi::compare_content(stores, *before) : record_content(stores);
}

std::unique_ptr<ContentCheck> RunData::check_content(const std::filesystem::path& record,
                                                     bool continues) const {
  const auto save = [record, own = fingerprint()](const ContentRecord& content) {
    write_content(record, own, content);
  };
  return std::make_unique<ContentCheck>(compare_content(record, continues), save);
}

std::int64_t RunData::bytes_of(std::span<const std::int32_t> targets) const {
  std::int64_t bytes = 0;
  for (const std::int32_t target : targets)
    if (target >= 0 && static_cast<std::size_t>(target) < bytes_.size()) bytes += bytes_[target];
  return bytes;
}

}  // namespace kintsugi
