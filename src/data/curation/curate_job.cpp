#include "data/curation/curate_job.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "core/file_lock.h"
#include "core/gzip.h"
#include "core/hash.h"
#include "core/output_file.h"
#include "core/units.h"
#include "data/corpora/corpus_journal.h"
#include "data/corpora/corpus_pipeline.h"
#include "data/stores/append_file.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kExampleBytes = 4000;
constexpr const char* kReport = "curation.json";
constexpr const char* kJournal = "curation.progress.json";  // replaced after each sync
constexpr const char* kShard = "documents-";
constexpr const char* kOrigins = "origins-";

// ---- one batch

// The documents of a batch that are kept, as one frame of the output.
struct CuratedBatch {
  std::string frame;
  TextCount kept;
  CountsByName domains;  // of kept documents
  CurationReport report;
  std::vector<SkippedInput> skipped;
  InputOffset end;
  std::uint64_t input_bytes = 0;
};

std::string zstd_frame(std::string_view text) {
  constexpr int kLevel = 3;
  std::string frame(ZSTD_compressBound(text.size()), '\0');
  const std::size_t size =
      ZSTD_compress(frame.data(), frame.size(), text.data(), text.size(), kLevel);
  if (ZSTD_isError(size) != 0) failure("zstd: {}", ZSTD_getErrorName(size));
  frame.resize(size);
  return frame;
}

std::string compressed(std::string lines, CorpusCompression compression) {
  if (lines.empty() || compression == CorpusCompression::None) return lines;
  return compression == CorpusCompression::Zstd ? zstd_frame(lines) : gzipped(lines);
}

std::string_view ending_of(CorpusCompression compression) {
  constexpr std::array<std::string_view, 3> kEndings = {".jsonl.zst", ".jsonl.gz", ".jsonl"};
  return kEndings.at(static_cast<std::size_t>(compression));
}

std::string shortened(std::string_view text) {
  return std::string(text.substr(0, valid_utf8_prefix(text.substr(0, kExampleBytes))));
}

class Curator {
 public:
  explicit Curator(const CurateOptions& options)
      : options_(options), steps_(prepare(options.recipe, options.read_tasks)) {
    const auto sources = sources_of_files(options.recipe.sources, options.inputs);
    for (std::size_t i = 0; i < sources.size(); ++i)
      source_of_file_[options.inputs[i].string()] = sources[i];
  }

  // Each thread has a context of its own.
  std::map<std::string, std::int64_t> facts(std::size_t step) const {
    return steps_[step].step ? steps_[step].step->facts() : std::map<std::string, std::int64_t>();
  }

  CuratedBatch process(const CorpusBatch& batch, StepContext& context) const {
    CuratedBatch result;
    result.end = batch.end;
    result.input_bytes = batch.input_bytes;
    result.skipped = batch.skipped;
    for (const PreparedStep& step : steps_) result.report.steps.push_back({.name = step.name});
    std::string lines;
    for (std::size_t i = 0; i < batch.entries.size(); ++i)
      process_record(batch, i, lines, context, result);
    result.frame = compressed(std::move(lines), options_.compression);
    return result;
  }

 private:
  void process_record(const CorpusBatch& batch, std::size_t i, std::string& lines,
                      StepContext& context, CuratedBatch& result) const {
    const CorpusBatch::Entry& entry = batch.entries[i];
    CuratedDocument document;
    try {
      document = batch.objects
                     ? CuratedDocument::of_object(batch.record(i), options_.recipe.text_key,
                                                  batch.file, entry.line)
                     : whole_text(batch, i);
    } catch (const UserError& error) {
      if (!options_.skip_invalid) throw;
      if (result.report.invalid_records++ == 0) result.report.first_invalid = error.what();
      return;
    }
    const std::string origin =
        batch.objects ? fmt::format("{}:{}", batch.file, entry.line) : batch.file;
    auto& [read, kept] = result.report.inputs[batch.file];
    SourceCounts& source = result.report.sources[source_of_file_.at(batch.file)];
    read.add(std::ssize(document.text));
    source.read.add(std::ssize(document.text));
    const std::int64_t copies =
        copies_after_steps(document, origin, context, source, result.report);
    if (copies == 0) return;
    if (options_.recipe.origin && document.members.find("origin").empty()) {
      std::string json;
      append_json_string(json, origin);
      document.members.set("origin", std::move(json));
    }
    const std::string domain = registered_domain(document.members.text_of(options_.recipe.url_key));
    const std::size_t begin = lines.size();
    document.append_line(options_.recipe.text_key, lines);
    const std::string line = copies > 1 ? lines.substr(begin) : std::string();
    for (std::int64_t copy = 0; copy < copies; ++copy) {
      if (copy > 0) lines += line;
      kept.add(std::ssize(document.text));
      source.kept.add(std::ssize(document.text));
      result.kept.add(std::ssize(document.text));
      if (!domain.empty()) result.domains[domain].add(std::ssize(document.text));
    }
  }

  CuratedDocument whole_text(const CorpusBatch& batch, std::size_t i) const {
    const CorpusBatch::Entry& entry = batch.entries[i];
    if (!entry.starts_document || !entry.ends_document)
      user_error("{} is a plain text of more than {}: make it JSONL, a document per line",
                 batch.file, format_bytes(static_cast<double>(kLongestText)));
    const std::string_view text = batch.record(i);
    if (const std::size_t valid = valid_utf8_prefix(text); valid != text.size())
      user_error("{} is not UTF-8 at byte {}", batch.file, valid + 1);
    return CuratedDocument::of_text(text, options_.recipe.text_key);
  }

  // How often the document is in the output.
  std::int64_t copies_after_steps(CuratedDocument& document, const std::string& origin,
                                  StepContext& context, SourceCounts& source,
                                  CurationReport& report) const {
    std::int64_t copies = 1;
    context.text_changed();
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      StepReport& counts = report.steps[i];
      counts.in.add(std::ssize(document.text));
      const bool with_examples = options_.recipe.examples > 0;
      const std::string before = with_examples ? document.text : std::string();
      std::string_view rule;
      if (steps_[i].sample) {
        const std::int64_t chosen = steps_[i].sample->copies(document);
        if (chosen > 1) counts.notes["copies"] += chosen - 1;
        copies *= chosen;
        if (chosen == 0) rule = "sample";
      } else {
        context.notes.clear();
        context.leaks.clear();
        rule = steps_[i].step->apply(document, context);
        for (const auto& [name, count] : context.notes) {
          counts.notes[std::string(name)] += count;
          source.notes[fmt::format("{}.{}", steps_[i].name, name)] += count;
        }
        for (const auto& [sample, share] : context.leaks)
          counts.leaks[std::string(sample)] = {.documents = 1, .share = share};
      }
      if (with_examples && !steps_[i].sample && (!rule.empty() || before != document.text))
        report.add_example({.order = hash64(origin),
                            .rule = rule.empty() ? steps_[i].name : std::string(rule),
                            .origin = origin,
                            .before = shortened(before),
                            .after = rule.empty() ? shortened(document.text) : std::string()},
                           static_cast<std::size_t>(options_.recipe.examples));
      if (!rule.empty()) {
        const std::string language = language_of(document);
        counts.removed[std::string(rule)][language].add(std::ssize(document.text));
        source.removed[std::string(rule)][language].add(std::ssize(document.text));
        return 0;
      }
      counts.out.add(std::ssize(document.text));
    }
    return copies;
  }

  static std::string language_of(const CuratedDocument& document) {
    return document.language.empty() ? document.members.text_of("language") : document.language;
  }

  static constexpr std::size_t kLongestText = std::size_t{1} << 30;
  const CurateOptions& options_;
  const std::vector<PreparedStep> steps_;
  std::map<std::string, std::string> source_of_file_;
};

// ---- the job

bool is_own_file(std::string name) {
  if (name.ends_with(".tmp")) name.resize(name.size() - 4);
  return name == kReport || name == kJournal || name == ".lock" || name.starts_with(kShard) ||
         name.starts_with(kOrigins);
}

class Job {
 public:
  explicit Job(const CurateOptions& options) : options_(options), directory_(options.output) {}

  CurateResult run(const std::function<bool(const CurateProgress&)>& progress) {
    check_inputs();
    const Curator curator(options_);
    fs::create_directories(directory_);
    const auto lock = take_lock();
    if (!prepare_output()) {
      result_.state = CurateResult::State::WasComplete;
    } else {
      try {
        if (!journal_.all_written) write(curator, progress);
      } catch (...) {
        give_up();
        throw;
      }
      if (result_.state == CurateResult::State::Finished) publish();
    }
    result_.progress.read = journal_.report.read();
    result_.progress.kept = journal_.report.kept();
    result_.report = journal_.report;
    result_.skipped = journal_.skipped;
    result_.shards = journal_.shards;
    return result_;
  }

 private:
  void check_inputs() const {
    if (options_.inputs.empty()) user_error("there are no input files");
    for (const fs::path& input : options_.inputs)
      if (!fs::is_regular_file(input))
        user_error(
            "{} is not a regular file: an interrupted job must be able to read its inputs again",
            input.string());
    std::vector<fs::path> read = options_.inputs;
    for (const fs::path& file : files_of(options_.recipe)) {
      if (!fs::is_regular_file(file)) user_error("the recipe's {} is no file", file.string());
      read.push_back(file);
    }
    refuse_inputs_as_output("--output", directory_, {.inputs = read});
  }

  std::unique_ptr<FileLock> take_lock() const {
    std::string holder;
    auto lock = FileLock::try_take(directory_ / ".lock", holder);
    if (!lock)
      user_error("another process is writing {} ({}): wait for it or choose another --output",
                 directory_.string(), holder);
    return lock;
  }

  // What the recipe says of its sources may be corrected later, but not which inputs they have.
  std::string identity() const {
    Recipe recipe = options_.recipe;
    recipe.sources.clear();
    const Json json = {
        {"inputs", inputs_identity(options_.inputs)},
        {"recipe", to_yaml(recipe)},
        {"sources of the inputs", sources_of_files(options_.recipe.sources, options_.inputs)},
        {"files of the recipe", inputs_identity(files_of(options_.recipe))},
        {"compression", YamlScalar<CorpusCompression>::format(options_.compression)},
        {"shard_bytes", options_.shard_bytes},
        {"batch_bytes", options_.batch_bytes},
        {"skip_invalid", options_.skip_invalid}};
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  // False: there is nothing to do.
  bool prepare_output() {
    for (const auto& entry : fs::directory_iterator(directory_))
      if (!is_own_file(entry.path().filename().string()))
        user_error("{} has other files, such as {}: choose an empty or a new directory",
                   directory_.string(), entry.path().filename().string());
    for (const char* name : {kReport, kJournal})  // of a process that was killed while it wrote
      fs::remove(directory_ / (std::string(name) + ".tmp"));
    const std::string identity = this->identity();
    for (const fs::path& input : options_.inputs)
      result_.progress.input_bytes_total += fs::file_size(input);
    if (options_.overwrite) {
      for (const auto& entry : fs::directory_iterator(directory_))
        if (entry.path().filename() != ".lock") fs::remove(entry.path());
    }
    for (const char* name : {kReport, kJournal}) {
      auto found = read_curation_record(directory_ / name);
      if (!found) continue;
      if (const std::string difference = identity_difference(found->made_from, identity);
          !difference.empty())
        user_error(
            "{} belongs to a job with other settings: {}; start over with --overwrite, or "
            "choose another --output",
            (directory_ / name).string(), difference);
      journal_ = std::move(*found);
      result_.progress.text_bytes_before = journal_.report.read().bytes;
      if (name == kJournal) {
        journal_.provenance = provenance(journal_.provenance.inputs);
        journal_.program.clear();
        return true;
      }
      fs::remove(directory_ / kJournal);  // of a job that was killed at its very end
      update_report();
      return false;
    }
    for (const auto& entry : fs::directory_iterator(directory_))  // of a job without a journal
      if (entry.path().filename() != ".lock") fs::remove(entry.path());
    journal_.made_from = identity;
    journal_.provenance = provenance({});
    return true;
  }

  // The hashes that are known are kept: the identity says that the inputs are the same.
  CurationProvenance provenance(const std::vector<InputFile>& known) const {
    CurationProvenance now{.recipe = options_.recipe_text,
                           .sources = options_.recipe.sources,
                           .inputs = describe_inputs(options_.inputs)};
    const auto sources = sources_of_files(now.sources, options_.inputs);
    for (std::size_t i = 0; i < now.inputs.size(); ++i) {
      now.inputs[i].source = sources[i];
      if (i < known.size() && known[i].path == now.inputs[i].path)
        now.inputs[i].sha256 = known[i].sha256;
    }
    return now;
  }

  // Of a finished job: what the recipe says of its sources may have been corrected.
  void update_report() {
    const CurationProvenance now = provenance(journal_.provenance.inputs);
    if (is_same(now, journal_.provenance)) return;
    journal_.provenance = now;
    write_curation_record(directory_ / kReport, journal_);
  }

  void write(const Curator& curator, const std::function<bool(const CurateProgress&)>& progress) {
    const int threads = options_.threads > 0
                            ? options_.threads
                            : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    BatchOptions batches{.bytes = options_.batch_bytes};
    batches.records.segment = batches.records.longest_line;  // a plain text is one record
    batches.records.longest_segment = batches.records.longest_line;
    batches.records.skip_damaged = options_.skip_invalid;
    std::vector<StepContext> contexts(static_cast<std::size_t>(threads),
                                      StepContext(options_.recipe.word_mode));
    std::vector<CorpusPipeline<CuratedBatch>::Process> processes;
    for (StepContext& context : contexts)
      processes.emplace_back(
          [&](const CorpusBatch& batch) { return curator.process(batch, context); });
    hashes_.emplace(journal_.provenance.inputs);
    if (journal_.shards.empty()) open_shard();
    file_.emplace(temporary(journal_.shards.back().file), journal_.shards.back().bytes);
    CorpusPipeline<CuratedBatch> pipeline(options_.inputs, batches, std::move(processes),
                                          journal_.position);
    TextCount read = journal_.report.read(), kept = journal_.report.kept();
    auto saved = Clock::now();
    for (CuratedBatch batch; pipeline.next(batch);) {
      result_.progress.input_bytes = batch.input_bytes;
      append(std::move(batch), read, kept);
      result_.progress.read = read;
      result_.progress.kept = kept;
      const bool keep_going = progress(result_.progress);
      if (!keep_going ||
          std::chrono::duration<double>(Clock::now() - saved).count() >= options_.save_every_s) {
        save();
        saved = Clock::now();
      }
      if (keep_going) continue;
      result_.state = CurateResult::State::Stopped;
      return;
    }
    while (!hashes_->wait_for(0.2)) {
      if (progress(result_.progress)) continue;
      save();
      result_.state = CurateResult::State::Stopped;
      return;
    }
    journal_.provenance.inputs = hashes_->inputs();
    if (const std::string difference = identity_difference(journal_.made_from, identity());
        !difference.empty())
      user_error("while the inputs were being read, {}: start over with --overwrite", difference);
    close_shard();
    for (std::size_t i = 0; i < journal_.report.steps.size(); ++i)
      journal_.report.steps[i].facts = curator.facts(i);
    journal_.all_written = true;
    write_curation_record(directory_ / kJournal, journal_);
  }

  void append(CuratedBatch batch, TextCount& read, TextCount& kept) {
    CuratedShard& shard = journal_.shards.back();
    file_->write(batch.frame.data(), batch.frame.size());
    shard.bytes = file_->size();
    shard.text.documents += batch.kept.documents;
    shard.text.bytes += batch.kept.bytes;
    const TextCount more = batch.report.read();
    read.documents += more.documents, read.bytes += more.bytes;
    kept.documents += batch.kept.documents, kept.bytes += batch.kept.bytes;
    add_counts(journal_.open_shard.domains, batch.domains);
    for (const auto& [file, counts] : batch.report.inputs)
      if (counts.second.documents > 0) journal_.open_shard.inputs[file].add(counts.second);
    journal_.report.add(std::move(batch.report),
                        static_cast<std::size_t>(options_.recipe.examples));
    journal_.skipped.insert(journal_.skipped.end(), batch.skipped.begin(), batch.skipped.end());
    journal_.position = batch.end;
    if (shard.text.bytes < options_.shard_bytes) return;
    close_shard();
    open_shard();
    file_.emplace(temporary(journal_.shards.back().file), 0);
  }

  void open_shard() {
    journal_.shards.push_back({.file = fmt::format("{}{:05}{}", kShard, journal_.shards.size(),
                                                   ending_of(options_.compression)),
                               .text = {},
                               .bytes = 0,
                               .hash = {}});
  }
  // An empty last shard is left out, unless it is the only one.
  void close_shard() {
    CuratedShard& shard = journal_.shards.back();
    file_->sync();
    shard.hash = file_->hash();
    file_.reset();
    const ShardOrigins origins = std::exchange(journal_.open_shard, {});
    if (shard.text.documents > 0 || journal_.shards.size() == 1)
      return write_shard_origins(temporary(origins_file(shard.file)), origins);
    fs::remove(temporary(shard.file));
    journal_.shards.pop_back();
  }

  // What the last save has is kept for the next run. Without a journal these files are useless.
  void give_up() noexcept {
    file_.reset();
    std::error_code ignored;
    if (fs::exists(directory_ / kJournal, ignored)) return;
    for (const CuratedShard& shard : journal_.shards)
      for (const std::string& name : {shard.file, origins_file(shard.file)})
        fs::remove(temporary(name), ignored);
  }

  // Syncs the output before the journal, which must not refer to data that is not on disk.
  void save() {
    file_->sync();
    if (hashes_) journal_.provenance.inputs = hashes_->inputs();
    write_curation_record(directory_ / kJournal, journal_);
  }

  // The process may be killed after any of these steps; the next run then repeats them.
  void publish() {
    for (const CuratedShard& shard : journal_.shards)
      for (const std::string& name : {origins_file(shard.file), shard.file})
        if (fs::exists(temporary(name))) fs::rename(temporary(name), directory_ / name);
    sync_directory(directory_);
    write_curation_record(directory_ / kReport, journal_);
    fs::remove(directory_ / kJournal);
    sync_directory(directory_);
  }

  fs::path temporary(const std::string& name) const { return directory_ / (name + ".tmp"); }

  const CurateOptions& options_;
  const fs::path directory_;
  CurationRecord journal_;
  std::optional<AppendFile> file_;  // of the last shard
  std::optional<InputHashes> hashes_;
  CurateResult result_;
};

}  // namespace

CurateResult curate(const CurateOptions& options,
                    const std::function<bool(const CurateProgress&)>& progress) {
  return Job(options).run(progress);
}

}  // namespace kintsugi
