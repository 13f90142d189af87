#include "data/corpora/tokenize_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "core/units.h"
#include "data/corpora/corpus_journal.h"
#include "data/stores/store_output.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;

Json json_of(const TokenizeJournal& journal) {
  Json shards = Json::array();
  for (const StoreInfo::Shard& shard : journal.shards)
    shards.push_back({shard.name, shard.bin, shard.idx, shard.mask});
  return {{"kintsugi_tokenize", kVersion},
          {"all_written", journal.all_written},
          {"place", json_of(journal.position)},
          {"counts",
           {{"documents", journal.counts.documents},
            {"tokens", journal.counts.tokens},
            {"text_bytes", journal.counts.text_bytes},
            {"empty_documents", journal.counts.empty_documents},
            {"invalid_lines", journal.counts.invalid_lines}}},
          {"first_invalid", journal.first_invalid},
          {"skipped", json_of(journal.skipped)},
          {"writer",
           {{"tokens", journal.writer.tokens},
            {"sequences", journal.writer.sequences},
            {"documents", journal.writer.documents},
            {"open_tokens", journal.writer.open_tokens}}},
          {"shards", shards},
          {"inputs", json_of(journal.inputs)},
          {"made_from", Json::parse(journal.made_from)}};
}

TokenizeJournal journal_of(const Json& json) {
  TokenizeJournal journal;
  const auto number = [&](const char* group, const char* key) {
    return json.at(group).at(key).get<std::int64_t>();
  };
  journal.all_written = json.at("all_written").get<bool>();
  journal.position = input_offset_of(json.at("place"));
  journal.counts = {number("counts", "documents"), number("counts", "tokens"),
                    number("counts", "text_bytes"), number("counts", "empty_documents"),
                    number("counts", "invalid_lines")};
  journal.first_invalid = json.at("first_invalid").get<std::string>();
  if (json.contains("skipped"))  // older programs did not write it
    journal.skipped = skipped_inputs_of(json["skipped"]);
  journal.writer = {number("writer", "tokens"), number("writer", "sequences"),
                    number("writer", "documents"), number("writer", "open_tokens")};
  for (const Json& shard : json.at("shards"))
    journal.shards.push_back({shard.at(0).get<std::string>(), shard.at(1).get<std::string>(),
                              shard.at(2).get<std::string>(), shard.at(3).get<std::string>()});
  if (json.contains("inputs")) journal.inputs = input_files_of(json["inputs"]);
  journal.made_from = json.at("made_from").dump();
  return journal;
}

using Clock = std::chrono::steady_clock;

void check_inputs(const TokenizeOptions& options) {
  if (options.inputs.empty()) user_error("there are no input files");
  for (const fs::path& input : options.inputs) {
    if (!fs::is_regular_file(input))
      user_error(
          "{} is not a regular file: an interrupted job must be able to read its inputs again",
          input.string());
    refuse_input_name(input, options.output);
    if (!options.format.prompt_key.empty() && !RecordReader::has_objects(input))
      user_error("{} is plain text and has no prompts: --prompt-key needs JSONL or Parquet",
                 input.string());
  }
  refuse_inputs_as_store(options.output, options.inputs);
}

class Job {
 public:
  Job(const Tokenizer& tokenizer, const TokenizeOptions& options)
      : tokenizer_(tokenizer), options_(options), prefix_(options.output) {}

  TokenizeResult run(const std::function<bool(const TokenizeProgress&)>& progress) {
    check_inputs(options_);
    if (prefix_.has_parent_path()) fs::create_directories(prefix_.parent_path());
    const auto lock = lock_output(prefix_);
    if (!prepare()) {
      result_.state = TokenizeResult::State::WasComplete;
      return result_;
    }
    if (!journal_.all_written) {
      try {
        write(progress);
      } catch (...) {
        give_up();
        throw;
      }
    }
    if (result_.state == TokenizeResult::State::Finished) publish();
    result_.progress.counts = journal_.counts;
    result_.first_invalid = journal_.first_invalid;
    result_.skipped = journal_.skipped;
    result_.shards = static_cast<std::int64_t>(journal_.shards.size());
    return result_;
  }

 private:
  std::string identity() const {
    Json json = {{"inputs", inputs_identity(options_.inputs)},
                 {"tokenizer", tokenizer_.fingerprint()},
                 {"end_of_document", nullptr},
                 {"text_key", options_.format.text_key},
                 {"prompt_key", options_.format.prompt_key},
                 {"type", std::string(to_string(type_))},
                 {"shard_bytes", options_.shard_bytes}};
    if (options_.end_of_document) json["end_of_document"] = *options_.end_of_document;
    // A path may be invalid UTF-8.
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  // False: there is nothing to do.
  bool prepare() {
    type_ = token_type_for(tokenizer_.vocab_size());
    const std::string identity = this->identity();
    for (const fs::path& input : options_.inputs)
      result_.progress.input_bytes_total += fs::file_size(input);
    if (options_.overwrite) {
      fs::remove(journal_path(prefix_));
    } else if (auto journal = read_journal(prefix_)) {
      if (const std::string difference = identity_difference(journal->made_from, identity);
          !difference.empty())
        user_error(
            "{} belongs to an unfinished job with other settings: {}; finish that job, or start "
            "over with --overwrite",
            journal_path(prefix_).string(), difference);
      journal_ = std::move(*journal);
      result_.progress.text_bytes_before = journal_.counts.text_bytes;
      return true;
    } else if (const auto existing = store_files(prefix_, false); !existing.empty()) {
      const auto info = read_store_info(prefix_);
      const std::string difference = identity_difference(info ? info->made_from : "", identity);
      if (!difference.empty())
        user_error(
            "{} exists and does not match these settings: {}; replace it with --overwrite, or "
            "choose another --output",
            existing.front().string(), difference);
      journal_.counts.documents = info->documents;
      journal_.counts.tokens = info->tokens;
      journal_.counts.text_bytes = info->bytes;
      result_.progress.counts = journal_.counts;
      result_.shards = static_cast<std::int64_t>(info->shards.size());
      return false;
    } else {
      refuse_foreign_description(prefix_);
    }
    for (const fs::path& leftover : store_files(prefix_, true)) fs::remove(leftover);
    journal_.made_from = identity;
    journal_.inputs = describe_inputs(options_.inputs);
    for (InputFile& input : journal_.inputs) {
      input.text_key = options_.format.text_key;
      input.prompt_key = options_.format.prompt_key;
    }
    return true;
  }

  void write(const std::function<bool(const TokenizeProgress&)>& progress) {
    const TokenizePipeline::Options pipeline_options{
        .format = options_.format,
        .end_of_document = options_.end_of_document,
        .skip_invalid = options_.skip_invalid,
        .threads = options_.threads > 0
                       ? options_.threads
                       : std::max(1, static_cast<int>(std::thread::hardware_concurrency())),
        .batch_bytes = options_.batch_bytes};
    open_writer(journal_.writer);
    hashes_.emplace(journal_.inputs);
    TokenizePipeline pipeline(options_.inputs, tokenizer_, pipeline_options, journal_.position);
    auto saved = Clock::now();
    EncodedBatch batch;
    while (pipeline.next(batch)) {
      write_batch(batch);
      result_.progress.counts = journal_.counts;
      result_.progress.input_bytes = batch.input_bytes;
      const bool keep_going = progress(result_.progress);
      if (!keep_going) result_.state = TokenizeResult::State::Stopped;
      if (!keep_going ||
          std::chrono::duration<double>(Clock::now() - saved).count() >= options_.save_every_s) {
        save();
        saved = Clock::now();
      }
      if (!keep_going) return;
    }
    while (!hashes_->wait_for(0.2)) {
      if (progress(result_.progress)) continue;
      result_.state = TokenizeResult::State::Stopped;
      return save();
    }
    keep_hashes();
    if (const std::string difference = identity_difference(journal_.made_from, identity());
        !difference.empty())
      user_error("while the inputs were being read, {}: start over with --overwrite", difference);
    if (journal_.counts.documents == 0) {
      warn_of_skipped(journal_.skipped);
      user_error("the inputs contain no document: {}, {}, {}, {}",
                 format_number(std::ssize(options_.inputs), "file"),
                 format_number(journal_.counts.empty_documents, "empty document"),
                 format_number(journal_.counts.invalid_lines, "malformed line"),
                 format_number(std::ssize(journal_.skipped), "damaged part"));
    }
    if (writer_->state().documents > 0 || journal_.shards.empty()) finish_shard();
    journal_.all_written = true;
    write_journal(prefix_, journal_);
  }

  void write_batch(const EncodedBatch& batch) {
    const std::span<const std::int32_t> ids(batch.ids);
    const std::span<const std::uint8_t> mask(batch.mask);
    std::size_t begin = 0;
    between_batches_ = false;
    for (const EncodedBatch::Record& record : batch.records) {
      const std::size_t count = record.end - begin;
      writer_->append(ids.subspan(begin, count), mask.empty() ? mask : mask.subspan(begin, count));
      begin = record.end;
      if (!record.ends_document) continue;
      writer_->end_document();
      ++journal_.counts.documents;
      if (batch.end.file < journal_.inputs.size()) ++journal_.inputs[batch.end.file].documents;
      if (options_.shard_bytes > 0 && writer_->bytes() >= options_.shard_bytes) {
        finish_shard();
        open_writer({});
      }
    }
    journal_.counts.tokens += static_cast<std::int64_t>(batch.ids.size());
    journal_.counts.text_bytes += batch.text_bytes;
    journal_.counts.empty_documents += batch.empty_documents;
    if (journal_.counts.invalid_lines == 0) journal_.first_invalid = batch.first_invalid;
    journal_.counts.invalid_lines += batch.invalid_lines;
    journal_.skipped.insert(journal_.skipped.end(), batch.skipped.begin(), batch.skipped.end());
    journal_.position = batch.end;
    between_batches_ = true;
  }

  void keep_hashes() {
    if (!hashes_) return;
    const std::vector<InputFile> hashed = hashes_->inputs();
    for (std::size_t i = 0; i < journal_.inputs.size(); ++i)
      journal_.inputs[i].sha256 = hashed[i].sha256;
  }

  void open_writer(const TokenWriter::State& from) {
    TokenWriter::Options options;
    options.mask = !options_.format.prompt_key.empty();
    writer_ =
        std::make_unique<TokenWriter>(shard_name(journal_.shards.size()), type_, options, from);
  }

  void finish_shard() {
    journal_.shards.push_back(writer_->finish());
    writer_.reset();
  }

  // Syncs the outputs before the journal, which must not refer to data that is not on disk.
  void save() {
    writer_->sync();
    keep_hashes();
    journal_.writer = writer_->state();
    write_journal(prefix_, journal_);
  }

  // The process may be killed after any of these steps; the next run then repeats them.
  void publish() {
    writer_.reset();
    std::vector<std::string> kept;
    for (const StoreInfo::Shard& shard : journal_.shards) kept.push_back(shard.name);
    const bool mask = !options_.format.prompt_key.empty();
    for (const fs::path& old : store_files(prefix_, false)) {  // of the store to be replaced
      const bool ours = std::find(kept.begin(), kept.end(), old.stem().string()) != kept.end();
      const bool stale = old.extension() == ".labels" || (old.extension() == ".mask" && !mask);
      if (!ours || stale) fs::remove(old);
    }
    for (std::size_t i = 0; i < journal_.shards.size(); ++i) TokenWriter::publish(shard_name(i));
    StoreInfo info;
    info.tokenizer = tokenizer_.fingerprint();
    info.tokenizer_description = tokenizer_.description();
    info.vocab_size = tokenizer_.vocab_size();
    info.end_of_document = options_.end_of_document;
    info.bytes = journal_.counts.text_bytes;
    info.tokens = journal_.counts.tokens;
    info.documents = journal_.counts.documents;
    info.shards = journal_.shards;
    info.made_from = with_inputs(journal_.made_from, journal_.inputs);
    write_store_info(prefix_, info);
    for (const fs::path& leftover : store_files(prefix_, true)) fs::remove(leftover);
    const fs::path folder = prefix_.has_parent_path() ? prefix_.parent_path() : fs::path(".");
    sync_directory(folder);
    fs::remove(journal_path(prefix_));
    sync_directory(folder);
  }

  // Saves the progress for the next run. A job that has written no tokens leaves no files.
  void give_up() noexcept {
    try {
      if (journal_.counts.tokens > 0 && writer_ && between_batches_) save();
    } catch (...) {  // the original error is the one to report
    }
    try {
      writer_.reset();
      if (journal_.counts.tokens == 0) fs::remove(journal_path(prefix_));
      if (fs::exists(journal_path(prefix_))) return;
      // Without a journal these files are useless.
      for (const fs::path& file : store_files(prefix_, true)) fs::remove(file);
    } catch (...) {
    }
  }

  fs::path shard_name(std::size_t shard) const {
    return options_.shard_bytes > 0 ? shard_prefix(prefix_, static_cast<std::int64_t>(shard))
                                    : prefix_;
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  fs::path prefix_;
  TokenType type_ = TokenType::U16;
  TokenizeJournal journal_;
  std::unique_ptr<TokenWriter> writer_;
  std::optional<InputHashes> hashes_;
  bool between_batches_ = true;  // counts, position and writer are consistent
  TokenizeResult result_;
};

}  // namespace

fs::path journal_path(const fs::path& prefix) { return with_ending(prefix, ".progress.json"); }

std::optional<TokenizeJournal> read_journal(const fs::path& prefix) {
  const fs::path path = journal_path(prefix);
  if (!fs::exists(path)) return std::nullopt;
  try {
    const Json json = Json::parse(read_text_file(path));
    if (json.at("kintsugi_tokenize").get<int>() == kVersion) return journal_of(json);
  } catch (const nlohmann::json::exception&) {
  }
  user_error("{} is not a journal that this version can read: start over with --overwrite",
             path.string());
}

void write_journal(const fs::path& prefix, const TokenizeJournal& journal) {
  write_file_atomically(
      journal_path(prefix),
      json_of(journal).dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

TokenizeResult tokenize(const Tokenizer& tokenizer, const TokenizeOptions& options,
                        const std::function<bool(const TokenizeProgress&)>& progress) {
  return Job(tokenizer, options).run(progress);
}

}  // namespace kintsugi
