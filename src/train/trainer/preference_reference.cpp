#include "train/trainer/preference_reference.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "comm/exchange.h"
#include "core/log.h"
#include "core/units.h"
#include "data/sampling/sample_reader.h"
#include "model/adapter/peft_config.h"
#include "model/files/fingerprint.h"
#include "tensor/safetensors.h"
#include "train/checkpoint/files.h"
#include "train/engine_options.h"
#include "train/initial_weights.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

constexpr const char* kTensorName = "log_probabilities";

std::string hash_of(std::span<const double> values) {
  return hex64(hash64(values.data(), values.size_bytes()));
}

std::string reference_file(std::span<const double> values, const fs::path& path) {
  const auto plan = SafetensorsWriter::plan(
      {{kTensorName, DType::F64, {static_cast<std::int64_t>(values.size())}}}, path.string(),
      {{"format", "pt"}, {"hash", hash_of(values)}});
  std::string content = plan.header;
  content.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  return content;
}

}  // namespace

// ---- files

std::vector<double> load_reference(const fs::path& path, std::int64_t sequences) {
  const SafetensorsFile file(path);
  const SafetensorsEntry* entry = file.find(kTensorName);
  if (entry == nullptr || entry->dtype != DType::F64 ||
      entry->shape != std::vector<std::int64_t>{sequences})
    user_error("{} does not have {} log-probabilities in F64", path.string(), sequences);
  std::vector<double> values(static_cast<std::size_t>(sequences));
  const auto bytes = file.bytes(*entry);
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  const auto hash = file.metadata().find("hash");
  if (hash == file.metadata().end() || hash->second != hash_of(values))
    user_error("{} is damaged: its hash does not match", path.string());
  return values;
}

ReferencePaths reference_paths(const TokenShard& shard, const StoreInfo* info,
                               const std::string& weights, const fs::path& directory) {
  std::string text = fmt::format("{} {} {}", weights, shard.fingerprint(), shard.sequences());
  const fs::path prefix = shard.name();
  // Beside the sizes and the ends of the files, also their hashes if they are known.
  for (std::size_t i = 0; info != nullptr && i < info->shards.size(); ++i)
    if (const StoreInfo::Shard& one = info->shards[i]; one.name == prefix.filename())
      text += fmt::format(" {} {} {}", one.bin, one.idx, one.mask);
  const std::string ending = fmt::format(".reference-{}.safetensors", hex64(hash64(text)));
  return {prefix.string() + ending,
          directory / "reference" / (prefix.filename().string() + ending)};
}

std::optional<std::vector<double>> read_reference(const fs::path& path, std::int64_t sequences) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  try {
    return load_reference(path, sequences);
  } catch (const UserError& damage) {
    log_warning("{}: the reference log-probabilities are computed again", damage.what());
    return std::nullopt;
  }
}

void write_reference(const ReferencePaths& paths, std::span<const double> values) {
  try {
    return write_file_atomically(paths.beside_store, reference_file(values, paths.beside_store));
  } catch (const Failure& error) {
    log_warning("{}: the reference log-probabilities are stored in {} instead", error.what(),
                paths.in_run.string());
  }
  fs::create_directories(paths.in_run.parent_path());
  write_file_atomically(paths.in_run, reference_file(values, paths.in_run));
}

// ---- the reference model

std::string weights_fingerprint(Communicator& host, const fs::path& model,
                                const ModelConfig& config, DType precision) {
  std::optional<SafetensorsModel> weights;
  together(host, [&] { weights.emplace(model_directory(model)); });
  check_agreement(host, {{"the fingerprint of the weights of the reference model",
                          shared_fingerprint(host, *weights).text()}});
  std::vector<double> halves;  // of the hash of each file: 32 bits are exact in a double
  together(host, [&] {
    halves.assign(2 * weights->files().size(), 0.0);
    for (std::size_t i = 0; i < weights->files().size(); ++i) {
      if (static_cast<int>(i % static_cast<std::size_t>(host.size())) != host.rank()) continue;
      const MappedFile file(weights->files()[i].path());
      const std::uint64_t hash = hash64(file.bytes().data(), file.bytes().size());
      file.check_intact();
      halves[2 * i] = static_cast<double>(hash >> 32);
      halves[2 * i + 1] = static_cast<double>(hash & 0xFFFFFFFF);
    }
  });
  host.wait(host.all_reduce(
      Tensor(halves.data(), DType::F64, {static_cast<std::int64_t>(halves.size())})));
  ModelConfig shape = config;  // what is trained does not change the reference
  shape.lora = {};
  shape.freeze = {};
  std::string text = write_hf_config(shape, precision);
  if (const Fp8Config& fp8 = config.fp8; fp8.on())
    text += fmt::format("fp8 {} {} {} {} {} {}", static_cast<int>(fp8.recipe),
                        fmt::join(fp8.filter, ","), static_cast<int>(fp8.fast_accumulation),
                        fp8.power_of_two_scales, fp8.bf16_layers.first, fp8.bf16_layers.last);
  return hex64(
      hash64(text.data(), text.size(), hash64(halves.data(), halves.size() * sizeof(halves[0]))));
}

// ---- the computation

namespace {

// The pairs of a shard in rows, in their order: a row is filled until the next pair does not fit.
class PairRows {
 public:
  PairRows(const TokenShard& shard, std::int64_t length) : shard_(shard), length_(length) {}

  std::int64_t documents() const { return next_; }  // so far
  bool ended() const { return next_ == shard_.documents(); }
  // The ranges of the next row; none at the end.
  void next(std::vector<TokenRange>& ranges) {
    ranges.clear();
    for (std::int64_t room = length_; !ended(); ++next_) {
      const std::int64_t begin = shard_.document_begin(next_),
                         count = shard_.document_begin(next_ + 1) - begin;
      if (count > length_)
        user_error(
            "{}: the pair in document {} has {} tokens, a sample has {}: raise "
            "data.sequence_length, or make the store with a smaller --max-length",
            shard_.name(), next_, count, length_);
      if (count > room) return;
      if (count > 0) ranges.push_back({&shard_, begin, count});
      room -= count;
    }
  }

 private:
  const TokenShard& shard_;
  std::int64_t length_, next_ = 0;
};

// Scores the rows of one round: those of this data rank.
class PairScores {
 public:
  PairScores(Engine& engine, std::vector<double>& values)
      : engine_(engine),
        length_(engine.options().length),
        options_{.kind = SampleKind::Pairs,
                 .length = length_,
                 .vocab_size = engine.options().model.vocab_size,
                 .document_mask = true,
                 .boundary_loss = false,
                 .packed = true},
        reader_(options_),
        batch_(engine.options().layout.micro_batch, options_),
        values_(values) {}

  void read(const std::vector<TokenRange>& ranges) { reader_.read(ranges, batch_, rows_++); }
  // A rank without rows computes one without targets, since a forward may gather weights.
  void score() {
    batch_.resize(std::max<std::int64_t>(rows_, 1));
    if (rows_ == 0) {
      std::ranges::fill(batch_.targets, -1);
      batch_.sequences.clear();
    }
    sequence_of_.assign(batch_.ids.size(), nullptr);
    for (const SampleSequence& sequence : batch_.sequences)
      for (std::int64_t at = sequence.begin; at < std::min(sequence.end, length_); ++at)
        sequence_of_[sequence.row * length_ + at] = &sequence;
    engine_.score({.ids = batch_.ids,
                   .targets = batch_.targets,
                   .positions = batch_.positions,
                   .document_start = batch_.document_start},
                  [&](std::size_t token, double loss, double) {
                    values_[static_cast<std::size_t>(sequence_of_[token]->sequence)] -= loss;
                  });
    rows_ = 0;
    batch_.resize(engine_.options().layout.micro_batch);
  }

 private:
  Engine& engine_;
  std::int64_t length_;
  SampleOptions options_;
  SampleReader reader_;
  SampleBatch batch_;
  std::vector<const SampleSequence*> sequence_of_;  // of each token
  std::vector<double>& values_;
  std::int64_t rows_ = 0;
};

void check_finite(const TokenShard& shard, std::span<const double> values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      user_error(
          "{}: sequence {} has the log-probability {} in the reference model: its weights or "
          "train.precision may be at fault",
          shard.name(), i, values[i]);
}

}  // namespace

std::vector<double> compute_reference(Engine& engine, const TokenShard& shard,
                                      const ReferenceProgress& progress) {
  const Groups& groups = engine.groups();
  Communicator& host = groups[GroupKind::World];
  const std::int64_t micro = engine.options().layout.micro_batch,
                     first = micro * groups.coordinates.dp, round = micro * groups.grid.dp;
  std::vector<double> values(static_cast<std::size_t>(shard.sequences()), 0.0);
  PairRows rows(shard, engine.options().length);
  PairScores scores(engine, values);
  std::vector<TokenRange> ranges;
  while (!rows.ended()) {
    together(host, [&] {
      for (std::int64_t i = 0; i < round; ++i) {
        rows.next(ranges);
        if (!ranges.empty() && i >= first && i < first + micro) scores.read(ranges);
      }
    });
    scores.score();
    if (progress) progress(rows.documents());
  }
  constexpr std::size_t kBlock = 1 << 20;
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock)
    host.wait(host.all_reduce(
        Tensor(&values[begin], DType::F64,
               {static_cast<std::int64_t>(std::min(kBlock, values.size() - begin))})));
  check_finite(shard, values);
  return values;
}

double ReferenceTable::at(const TokenShard& shard, std::int64_t sequence) const {
  const auto found = values_.find(shard.name());
  KINTSUGI_CHECK(found != values_.end() && sequence < std::ssize(found->second),
                 "no reference for sequence {} of {}", sequence, shard.name());
  return found->second[sequence];
}

namespace {

// RUN/reference.json: which model is the reference. After the first step the weights of the run are
// no longer those.
std::string reference_record(const std::string& model, const std::string& weights) {
  return nlohmann::ordered_json{{"model", model}, {"weights", weights}}.dump(1) + "\n";
}

std::string recorded_field(const std::string& record, const char* key, const fs::path& file) {
  try {
    return nlohmann::json::parse(record).at(key).get<std::string>();
  } catch (const nlohmann::json::exception&) {
    user_error("{} is damaged: restore it, or start again in another run.dir", file.string());
  }
}

// "+" and the values; empty: there are none.
std::string bytes_of_values(const std::optional<std::vector<double>>& values) {
  if (!values) return "";
  return "+" + std::string(reinterpret_cast<const char*>(values->data()),
                           values->size() * sizeof(double));
}

std::vector<double> values_of_bytes(const std::string& bytes) {
  std::vector<double> values((bytes.size() - 1) / sizeof(double));
  bytes.copy(reinterpret_cast<char*>(values.data()), values.size() * sizeof(double), 1);
  return values;
}

}  // namespace

void PreferenceReference::find_model(const std::optional<RunStart>& start) {
  const fs::path record = run_.directory / "reference.json";
  const bool continues = start && !start->other_run;
  std::string text;
  together(run_.host(), [&] {
    if (run_.is_first() && continues && fs::exists(record)) text = read_text_file(record);
  });
  text = text_of(run_.host(), 0, text);
  if (!text.empty()) {
    model_ = recorded_field(text, "model", record);
    weights_ = recorded_field(text, "weights", record);
    return;
  }
  model_ = start && start->other_run ? start->checkpoint.string() : run_.config.model_init;
  if (model_.empty())
    user_error(
        "{} is missing, so the reference model of this run is unknown: restore the file, or set "
        "model.init to the model that the run started from",
        record.string());
  // A run directory may get newer checkpoints: the record names the one that the run started from.
  together(run_.host(), [&] {
    std::error_code error;
    const fs::path found = fs::canonical(model_directory(model_), error);
    if (error) user_error("cannot read the reference model {}: {}", model_, error.message());
    model_ = found.string();
    if (is_adapter_directory(found))
      user_error(
          "objective dpo cannot begin from the adapters in {}, which its reference would need: "
          "merge them with `kintsugi model merge-adapter` and set model.init to the result",
          model_);
  });
  weights_ =
      weights_fingerprint(run_.host(), model_, run_.config.model, run_.config.train.precision);
}

// Rank 0 reads for all.
void PreferenceReference::read() {
  missing_.clear();
  for (const std::span<const TokenShard> store : run_.data->stores()) {
    const auto infos = read_store_infos(store);
    for (std::size_t i = 0; i < store.size(); ++i) {
      const TokenShard& shard = store[i];
      if (table_.has(shard)) continue;
      const ReferencePaths paths = reference_paths(shard, infos[i].get(), weights_, run_.directory);
      std::string bytes;
      together(run_.host(), [&] {
        if (!run_.is_first()) return;
        auto values = read_reference(paths.beside_store, shard.sequences());
        if (!values) values = read_reference(paths.in_run, shard.sequences());
        bytes = bytes_of_values(values);
      });
      bytes = text_of(run_.host(), 0, bytes);
      table_.add(shard, bytes.empty() ? std::vector<double>() : values_of_bytes(bytes));
      if (bytes.empty()) missing_.push_back({&shard, paths});
    }
  }
}

void PreferenceReference::open(const std::optional<RunStart>& start) {
  find_model(start);
  read();
  if (missing_.empty())
    return log_info("reference: the log-probabilities of {} were computed before", model_);
  if (!start || start->other_run) return;  // the run loads the reference model
  const std::string gone = missing_.front().paths.beside_store.string();
  together(run_.host(), [&] {
    if (!fs::exists(model_))
      user_error(
          "{} is gone, and so is the reference model {} to compute it again: restore one of them",
          gone, model_);
  });
  if (weights_fingerprint(run_.host(), model_, run_.config.model, run_.config.train.precision) !=
      weights_)
    user_error(
        "{} is gone, and {} no longer has the weights that the run started from: restore one of "
        "them",
        gone, model_);
  log_warning("{} is gone: it is computed again with {}", gone, model_);
  Engine initial(run_.backend, run_.backend, engine_options(run_.config, run_.groups.ranks()),
                 run_.groups);
  initial.prepare();
  InitialWeightsOptions options{.unused = initial_options(run_.config).unused};
  together(run_.host(), [&] {
    if (!run_.config.model_init.empty())
      options.subtokens = subtokens_of(run_.config, run_.data->tokenizer());
  });
  load_initial_weights(model_, initial, options);
  complete(initial);
}

void PreferenceReference::complete(Engine& initial) {
  std::int64_t documents = 0, before = 0;
  for (const auto& [shard, paths] : missing_) documents += shard->documents();
  const auto begin = std::chrono::steady_clock::now();
  std::optional<Progress> progress;
  if (run_.is_first()) progress.emplace("reference", documents, "pairs");
  for (const auto& [shard, paths] : missing_) {
    const auto show = [&](std::int64_t done) {
      if (progress) progress->set(before + done);
    };
    std::vector<double> values = compute_reference(initial, *shard, show);
    together(run_.host(), [&, &paths = paths] {
      if (run_.is_first()) write_reference(paths, values);
    });
    table_.add(*shard, std::move(values));
    before += shard->documents();
  }
  progress.reset();
  if (!missing_.empty())
    log_info("reference: log-probabilities of {} in {} by {}", format_number(documents, "pair"),
             format_duration(seconds_since(begin)), model_);
  missing_.clear();
}

void PreferenceReference::write_record() const {
  if (run_.is_first() && run_.preference())
    write_file_atomically(run_.directory / "reference.json", reference_record(model_, weights_));
}

std::span<const TokenSequence> PreferenceReference::pairs_of(const SampleBatch& batch) {
  pairs_.clear();
  for (const SampleSequence& one : batch.sequences)
    pairs_.push_back({.row = one.row,
                      .begin = one.begin,
                      .end = std::min(one.end, run_.config.data.sequence_length),
                      .reference = table_.at(*one.shard, one.sequence)});
  return pairs_;
}

}  // namespace kintsugi
