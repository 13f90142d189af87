#include "train/trainer/preference_reference.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "comm/exchange.h"
#include "core/log.h"
#include "core/units.h"
#include "model/adapter/model_files.h"
#include "train/engine_options.h"
#include "train/initial_weights.h"

namespace kintsugi {
namespace fs = std::filesystem;
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
