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
#include "core/gzip.h"
#include "core/hash.h"
#include "core/host/usable_cores.h"
#include "core/output_file.h"
#include "core/units.h"
#include "data/corpora/corpus_journal.h"
#include "data/corpora/corpus_pipeline.h"
#include "data/curation/curation_directory.h"
#include "data/stores/append_file.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

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

class Curator {
 public:
  explicit Curator(const CurateOptions& options)
      : options_(options), steps_(prepare(options.recipe, options.sources)) {
    const auto sources = sources_of_files(options.recipe.sources, options.inputs);
    for (std::size_t i = 0; i < sources.size(); ++i)
      source_of_file_[options.inputs[i].string()] = sources[i];
  }

  // Each thread has a context of its own.
  std::map<std::string, std::int64_t> facts(std::size_t step) const {
    return steps_[step].step ? steps_[step].step->facts() : std::map<std::string, std::int64_t>();
  }
  std::map<std::string, SearchedTask> tasks(std::size_t step) const {
    return steps_[step].step ? steps_[step].step->tasks() : std::map<std::string, SearchedTask>();
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
    const TextLength before = length_of(document.text);
    const std::int64_t copies =
        copies_after_steps(document, origin, context, source, result.report);
    count_lengths(before, document, copies, result.report);
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
        for (const StepContext::Leak& leak : context.leaks) add_leak(leak, counts);
      }
      if (with_examples && !steps_[i].sample)
        add_example(i, rule, before, document, origin, report);
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

  static void add_leak(const StepContext::Leak& leak, StepReport& counts) {
    StepReport::Leak& sum = counts.leaks[std::string(leak.sample)];
    ++sum.documents;
    sum.share = std::max(sum.share, leak.share);
    sum.hash = hex64(leak.hash);
  }

  // What step i did with the document, if it is one of the examples that the report keeps.
  void add_example(std::size_t i, std::string_view rule, std::string_view before,
                   const CuratedDocument& document, const std::string& origin,
                   CurationReport& report) const {
    CurationExample example{.order = hash64(origin.data(), origin.size(), i),
                            .kind = !rule.empty()             ? ExampleFate::Removed
                                    : before != document.text ? ExampleFate::Changed
                                                              : ExampleFate::Kept,
                            .rule = rule.empty() ? steps_[i].name : std::string(rule)};
    const auto most = static_cast<std::size_t>(options_.recipe.examples);
    if (!report.examples.has_room_for(example.kind, example.rule, example.order, most)) return;
    example.origin = origin;
    example.language = language_of(document);
    set_texts(example, before, document.text);
    report.examples.add(std::move(example), most);
  }

  // By the language that the document has at its end.
  static void count_lengths(const TextLength& before, const CuratedDocument& document,
                            std::int64_t copies, CurationReport& report) {
    LengthChange& lengths = report.lengths[language_of(document)];
    lengths.bytes_before.add(before.bytes);
    lengths.words_before.add(before.words);
    if (copies == 0) return;
    const TextLength after = document.is_changed ? length_of(document.text) : before;
    lengths.bytes_after.add(after.bytes, copies);
    lengths.words_after.add(after.words, copies);
  }

  // A label; whatever else a record may have under this key is no language.
  static std::string language_of(const CuratedDocument& document) {
    constexpr std::size_t kLongestLabel = 32;
    if (!document.language.empty()) return document.language;
    std::string label = document.members.text_of("language");
    const auto is_part = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '-' || c == '_';
    };
    const bool is_label =
        label.size() <= kLongestLabel && std::all_of(label.begin(), label.end(), is_part);
    return is_label ? label : "other";
  }

  static constexpr std::size_t kLongestText = std::size_t{1} << 30;
  const CurateOptions& options_;
  const std::vector<PreparedStep> steps_;
  std::map<std::string, std::string> source_of_file_;
};

// ---- a unit

bool stops_now(Clock::time_point saved, double save_every_s) {
  return std::chrono::duration<double>(Clock::now() - saved).count() >= save_every_s;
}

// What the record of a curation says of its recipe and of inputs; the hashes that are known are
// kept, as the identity of the job says that the inputs are the same.
CurationProvenance provenance_of(const CurateOptions& options, const std::vector<fs::path>& inputs,
                                 const std::vector<InputFile>& known) {
  CurationProvenance now{.recipe = options.recipe_text,
                         .sources = options.recipe.sources,
                         .inputs = describe_inputs(inputs)};
  const auto sources = sources_of_files(now.sources, inputs);
  for (std::size_t i = 0; i < now.inputs.size(); ++i) {
    now.inputs[i].source = sources[i];
    if (i < known.size() && known[i].path == now.inputs[i].path)
      now.inputs[i].sha256 = known[i].sha256;
  }
  return now;
}

// The documents of some inputs, on their way into files of the directory.
class Unit {
 public:
  Unit(const CurateOptions& options, const CurationDirectory& directory, std::size_t number,
       std::vector<fs::path> inputs)
      : options_(options),
        directory_(directory),
        number_(number),
        inputs_(std::move(inputs)),
        journal_(directory.record(number)) {}

  const CurationRecord& record() const { return journal_; }

  // `progress` gets the bytes of the inputs so far, and whether more was read and kept. False: it
  // was stopped.
  bool run(const Curator& curator, std::vector<StepContext>& contexts,
           const std::function<bool(const CuratedBatch&)>& progress) {
    const auto identity = inputs_identity(inputs_);
    std::vector<CorpusPipeline<CuratedBatch>::Process> processes;
    for (StepContext& context : contexts)
      processes.emplace_back(
          [&](const CorpusBatch& batch) { return curator.process(batch, context); });
    hashes_.emplace(journal_.provenance.inputs);
    journal_.provenance = provenance_of(options_, inputs_, journal_.provenance.inputs);
    journal_.program.clear();
    hashes_.emplace(journal_.provenance.inputs);
    if (journal_.shards.empty()) open_shard();
    file_.emplace(directory_.shard(journal_.shards.back()), journal_.shards.back().bytes);
    CorpusPipeline<CuratedBatch> pipeline(inputs_, batches(), std::move(processes),
                                          journal_.position);
    auto saved = Clock::now();
    std::uint64_t bytes = 0;
    for (CuratedBatch batch; pipeline.next(batch);) {
      bytes = batch.input_bytes;
      const bool keep_going = progress(batch);
      append(std::move(batch));
      if (!keep_going || stops_now(saved, options_.save_every_s)) {
        save();
        saved = Clock::now();
      }
      if (!keep_going) return false;
    }
    if (inputs_identity(inputs_) != identity)
      user_error(
          "the inputs have changed while they were being read (size or modification time): start "
          "over with --overwrite");
    if (!wait_for_hashes(bytes, progress)) return false;
    close_shard();
    for (std::size_t i = 0; i < journal_.report.steps.size(); ++i) {
      journal_.report.steps[i].facts = curator.facts(i);
      journal_.report.steps[i].tasks = curator.tasks(i);
    }
    directory_.finish(number_, journal_);
    return true;
  }

 private:
  // `bytes`: of the inputs, for the progress.
  bool wait_for_hashes(std::uint64_t bytes,
                       const std::function<bool(const CuratedBatch&)>& progress) {
    CuratedBatch nothing;
    nothing.input_bytes = bytes;
    while (!hashes_->wait_for(0.2)) {
      if (progress(nothing)) continue;
      save();
      return false;
    }
    journal_.provenance.inputs = hashes_->inputs();
    return true;
  }

  BatchOptions batches() const {
    BatchOptions batches{.bytes = options_.batch_bytes};
    batches.records.segment = batches.records.longest_line;  // a plain text is one record
    batches.records.longest_segment = batches.records.longest_line;
    batches.records.skip_damaged = options_.skip_invalid;
    return batches;
  }

  void append(CuratedBatch batch) {
    CuratedShard& shard = journal_.shards.back();
    file_->write(batch.frame.data(), batch.frame.size());
    shard.bytes = file_->size();
    shard.text.documents += batch.kept.documents;
    shard.text.bytes += batch.kept.bytes;
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
    file_.emplace(directory_.shard(journal_.shards.back()), 0);
  }

  void open_shard() {
    journal_.shards.push_back(
        {.file = CurationDirectory::shard_name(number_, journal_.shards.size(),
                                               ending_of(options_.compression)),
         .text = {},
         .bytes = 0,
         .hash = {}});
  }
  // An empty last shard is left out.
  void close_shard() {
    CuratedShard& shard = journal_.shards.back();
    file_->sync();
    shard.hash = file_->hash();
    file_.reset();
    const ShardOrigins origins = std::exchange(journal_.open_shard, {});
    if (shard.text.documents > 0)
      return write_shard_origins(directory_.shard(shard).replace_filename(origins_file(shard.file)),
                                 origins);
    fs::remove(directory_.shard(shard));
    journal_.shards.pop_back();
  }

  // Syncs the output before the journal, which must not refer to data that is not on disk.
  void save() {
    file_->sync();
    if (hashes_) journal_.provenance.inputs = hashes_->inputs();
    directory_.save(number_, journal_);
  }

  const CurateOptions& options_;
  const CurationDirectory& directory_;
  const std::size_t number_;
  const std::vector<fs::path> inputs_;
  CurationRecord journal_;
  std::optional<AppendFile> file_;  // of the last shard
  std::optional<InputHashes> hashes_;
};

// ---- the job

std::vector<fs::path> checked_inputs(const CurateOptions& options) {
  for (const fs::path& input : options.inputs)
    if (!fs::is_regular_file(input))
      user_error(
          "{} is not a regular file: an interrupted job must be able to read its inputs again",
          input.string());
  std::vector<fs::path> read = options.inputs;
  for (const fs::path& file : files_of(options.recipe)) {
    if (!fs::is_regular_file(file)) user_error("the recipe's {} is no file", file.string());
    read.push_back(file);
  }
  refuse_inputs_as_output("--output", options.output, {.inputs = read});
  return options.inputs;
}

// What the recipe says of its sources may be corrected later, but not which inputs they have.
std::string identity_of(const CurateOptions& options) {
  Recipe recipe = options.recipe;
  recipe.sources.clear();
  const Json json = {
      {"inputs", inputs_identity(options.inputs)},
      {"recipe", to_yaml(recipe)},
      {"sources of the inputs", sources_of_files(options.recipe.sources, options.inputs)},
      {"files of the recipe", inputs_identity(files_of(options.recipe))},
      {"compression", YamlScalar<CorpusCompression>::format(options.compression)},
      {"shard_bytes", options.shard_bytes},
      {"batch_bytes", options.batch_bytes},
      {"skip_invalid", options.skip_invalid}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

class Job {
 public:
  explicit Job(const CurateOptions& options)
      : options_(options),
        inputs_(CurationDirectory::units_of(checked_inputs(options),
                                            static_cast<std::uint64_t>(options.shard_bytes))),
        directory_(options.output, identity_of(options), inputs_.size()) {}

  WorkStage stage() const {
    WorkStage stage{.name = "curate"};
    if (inputs_.empty()) return stage;
    stage.units = inputs_.size();
    prepare(options_.recipe, options_.sources);
    directory_.check();
    directory_.check_idle();
    if (!directory_.finished()) stage.missing = directory_.missing();
    return stage;
  }

  CurateResult run(const std::function<bool(const CurateProgress&)>& progress) {
    if (inputs_.empty()) user_error("there are no input files");
    const Curator curator(options_);
    fs::create_directories(options_.output);
    const auto lock = options_.job ? nullptr : directory_.lock_all();
    if (!options_.job) directory_.remove_if_unused();  // of a killed job
    if (options_.overwrite) directory_.start_over();
    directory_.check();
    result_.units = inputs_.size();
    if (!directory_.begin()) {
      result_.state = CurateResult::State::WasComplete;
      return done(with_corrected_sources(*directory_.finished()));
    }
    try {
      write(curator, progress);
    } catch (...) {
      if (!options_.job) directory_.remove_if_unused();
      throw;
    }
    result_.progress.read = result_.report.read();
    result_.progress.kept = result_.report.kept();
    if (result_.state == CurateResult::State::Stopped) return std::move(result_);
    if (auto record = directory_.merge(most_examples(), ending_of(options_.compression),
                                       provenance_of(options_, {}, {})))
      return done(std::move(*record));
    result_.state = CurateResult::State::UnitsLeft;
    return std::move(result_);
  }

 private:
  std::size_t most_examples() const { return static_cast<std::size_t>(options_.recipe.examples); }

  std::uint64_t bytes_of(std::size_t unit) const {
    std::uint64_t bytes = 0;
    for (const fs::path& input : inputs_[unit]) bytes += fs::file_size(input);
    return bytes;
  }

  // What the recipe says of the sources of a finished curation may have been corrected.
  CurationRecord with_corrected_sources(CurationRecord record) const {
    CurationProvenance now = provenance_of(options_, options_.inputs, record.provenance.inputs);
    if (is_same(now, record.provenance)) return record;
    record.provenance = std::move(now);
    directory_.replace_report(record);
    return record;
  }

  CurateResult done(CurationRecord record) {
    result_.report = std::move(record.report);
    result_.skipped = std::move(record.skipped);
    result_.shards = std::move(record.shards);
    result_.units_left = 0;
    return std::move(result_);
  }

  // Of a unit of this job that is finished, or stopped.
  void add(const CurationRecord& record) {
    result_.report.add(record.report, most_examples());
    result_.skipped.insert(result_.skipped.end(), record.skipped.begin(), record.skipped.end());
    result_.shards.insert(result_.shards.end(), record.shards.begin(), record.shards.end());
  }

  // The finished units are left alone, also while other jobs work on theirs.
  void write(const Curator& curator, const std::function<bool(const CurateProgress&)>& progress) {
    const ArrayTask task = options_.job.value_or(ArrayTask{});
    const int threads = options_.threads > 0 ? options_.threads : usable_cores();
    std::vector<StepContext> contexts(static_cast<std::size_t>(threads),
                                      StepContext(options_.recipe.word_mode));
    std::vector<std::size_t> units;
    CurateProgress& now = result_.progress;
    for (std::size_t unit = task.number; unit < inputs_.size(); unit += task.tasks) {
      units.push_back(unit);
      now.input_bytes_total += bytes_of(unit);
      const CurationRecord before = directory_.record(unit);
      now.text_bytes_before += before.report.read().bytes;
    }
    std::uint64_t bytes_before = 0;
    for (const std::size_t unit : units) {
      if (!run_unit(unit, curator, contexts, bytes_before, progress)) return;
      bytes_before += bytes_of(unit);
    }
    result_.units_left = directory_.missing().size();
  }

  // False: stopped.
  bool run_unit(std::size_t number, const Curator& curator, std::vector<StepContext>& contexts,
                std::uint64_t bytes_before,
                const std::function<bool(const CurateProgress&)>& progress) {
    if (directory_.is_finished(number)) {
      add(directory_.record(number));
      return true;
    }
    if (directory_.finished()) return true;  // another process has removed its record
    const auto lock = directory_.lock(number);
    Unit unit(options_, directory_, number, inputs_[number]);
    CurateProgress now = result_.progress;
    now.read = sum_of(result_.report.read(), unit.record().report.read());
    now.kept = sum_of(result_.report.kept(), unit.record().report.kept());
    const bool is_done = unit.run(curator, contexts, [&](const CuratedBatch& batch) {
      now.input_bytes = bytes_before + batch.input_bytes;
      now.read = sum_of(now.read, batch.report.read());
      now.kept = sum_of(now.kept, batch.kept);
      return progress(now);
    });
    add(unit.record());
    if (!is_done) result_.state = CurateResult::State::Stopped;
    return is_done;
  }

  static TextCount sum_of(const TextCount& a, const TextCount& b) {
    return {a.documents + b.documents, a.bytes + b.bytes};
  }

  const CurateOptions& options_;
  const std::vector<std::vector<fs::path>> inputs_;  // of each unit
  const CurationDirectory directory_;
  CurateResult result_;
};

}  // namespace

WorkStage curation_stage(const CurateOptions& options) { return Job(options).stage(); }

CurateResult curate(const CurateOptions& options,
                    const std::function<bool(const CurateProgress&)>& progress) {
  return Job(options).run(progress);
}

}  // namespace kintsugi
