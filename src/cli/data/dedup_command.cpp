#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "cli/commands.h"
#include "cli/data/work_units.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/units.h"
#include "data/corpora/input_files.h"
#include "data/dedup/dedup_job.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

struct DedupCommand {
  std::vector<std::string> inputs;
  std::string output, by = "words", preset = "datatrove", stage = "all", job, memory = "4GiB",
                      units, compression = "zstd";
  std::string hash, ngram, characters, bands, rows, bits;
  DedupOptions options;
};

// What is published of the shingles and shapes of other programs.
const std::map<std::string, MinHashShape>& presets() {
  static const std::map<std::string, MinHashShape> shapes = {
      {"datatrove", {}},
      {"fineweb", {.hash = ShingleHash::Sha1}},
      {"refinedweb", {.bands = 450, .rows = 20}},
      {"curator", {.ngram = 24, .characters = true, .bands = 20, .rows = 13, .bits = 32}},
      {"hplt", {.ngram = 1, .bands = 17, .rows = 15, .bits = 32}}};
  return shapes;
}

MinHashShape shape_of(const DedupCommand& command) {
  constexpr int kMostValues = 16384;
  MinHashShape shape = presets().at(command.preset);
  const auto set = [](int& value, const std::string& text) {
    if (!text.empty()) value = static_cast<int>(parse_count(text));
  };
  if (!command.ngram.empty() && !command.characters.empty())
    user_error("--words and --characters: a shingle has one or the other");
  if (!command.ngram.empty() || !command.characters.empty())
    shape.characters = command.ngram.empty();
  set(shape.ngram, command.ngram);
  set(shape.ngram, command.characters);
  set(shape.bands, command.bands);
  set(shape.rows, command.rows);
  set(shape.bits, command.bits);
  if (!command.hash.empty())
    shape.hash = command.hash == "sha1" ? ShingleHash::Sha1 : ShingleHash::XxHash;
  if (shape.bands * shape.rows > kMostValues)
    user_error("--bands {} and --rows {}: at most {} values", shape.bands, shape.rows, kMostValues);
  return shape;
}

void read_job(const std::string& text, DedupOptions& options) {
  if (text.empty()) return;
  const ArrayTask task = parse_array_task(text);
  options.job = task.number;
  options.jobs = task.tasks;
  if (options.stage == DedupStage::All)
    user_error("--job needs --stage: with all stages, one job does everything");
}

constexpr DedupBy kMethods[] = {DedupBy::Words,      DedupBy::Text,  DedupBy::Url,
                                DedupBy::Paragraphs, DedupBy::Lines, DedupBy::Substrings};

std::vector<std::string> names_of_stages(const std::vector<DedupStageUnits>& stages) {
  std::vector<std::string> names;
  for (const auto& one : stages) names.emplace_back(to_string(one.stage));
  return names;
}

// Of all methods.
std::set<std::string> all_stages() {
  std::set<std::string> names = {"all"};
  DedupOptions options;
  for (const DedupBy by : kMethods) {
    options.by = by;
    for (const std::string& name : names_of_stages(dedup_stages(options))) names.insert(name);
  }
  return names;
}

DedupStage stage_of(const std::string& name, const DedupOptions& options) {
  if (name == "all") return DedupStage::All;
  const auto stages = dedup_stages(options);
  for (const auto& one : stages)
    if (name == to_string(one.stage)) return one.stage;
  user_error("--stage {}: --by {} has the stages {}", name, to_string(options.by),
             fmt::join(names_of_stages(stages), ", "));
}

void show_estimate(const DedupOptions& options) {
  const DedupEstimate estimate = estimate_dedup(options);
  std::error_code error;
  const auto space = std::filesystem::space(
      std::filesystem::absolute(options.output).lexically_normal().parent_path(), error);
  std::string text;
  double needed = estimate.temporary_bytes;
  for (const auto& [stage, bytes] : estimate.files) {
    const bool most = stage == DedupStage::Remove ||
                      (stage == DedupStage::Sequences && options.by == DedupBy::Substrings);
    text += fmt::format("{}{} of {}, ", most ? "at most about " : "", format_bytes(bytes),
                        stage == DedupStage::Remove ? "kept documents" : to_string(stage));
    needed += bytes;
  }
  if (estimate.temporary_bytes > 0)
    text += fmt::format("{} for sorting, ", format_bytes(estimate.temporary_bytes));
  text.resize(text.size() - 2);
  log_info(
      "about {} documents; disk: {}{}", format_count(estimate.documents), text,
      error ? "" : fmt::format(", {} free", format_bytes(static_cast<double>(space.available))));
  if (!error && needed > static_cast<double>(space.available))
    log_warning("the disk may be too small");
}

double percent(std::int64_t count, std::int64_t of) {
  return 100.0 * static_cast<double>(count) / static_cast<double>(std::max<std::int64_t>(of, 1));
}

void report_clusters(const DedupCommand& command, const DedupReport& result) {
  log_info("{} documents, {} empty, {} without a signature, {} pairs", result.documents,
           result.empty, result.without_signature, result.pairs);
  const double share = percent(result.duplicates, result.documents);
  if (command.stage == "clusters")
    log_info("{} clusters, {} duplicates ({:.2f} %)", result.clusters, result.duplicates, share);
  if (command.stage == "all" || command.stage == "remove")
    log_info("{} clusters, {} duplicates removed ({:.2f} %), {} documents kept in {}/kept",
             result.clusters, result.duplicates, share, result.kept, command.output);
}

void report_cuts(const DedupCommand& command, const DedupReport& result) {
  const DedupBy by = command.options.by;
  log_info("{} documents, {} empty, {} copies of {}", result.documents, result.empty, result.copies,
           by == DedupBy::Substrings
               ? fmt::format("sequences of {} words", command.options.substring_words)
               : to_string(by));
  if (command.stage == "all" || command.stage == "remove")
    log_info("{:.2f} % of the text removed; {} documents cut, {} dropped, {} kept in {}/kept",
             percent(result.removed_bytes, result.text_bytes), result.cut, result.too_short,
             result.kept, command.output);
}

void report(const DedupCommand& command, const DedupReport& result) {
  for (const std::string& skipped : result.skipped) log_warning("skipped: {}", skipped);
  if (result.invalid > 0) log_warning("{} malformed lines skipped", result.invalid);
  if (result.stopped) {
    log_info("{} received: finished tasks are kept; run the same command again to continue",
             StopSignals::received());
    throw CLI::RuntimeError(exit_code::kStopped);
  }
  if (result.units == result.done_before)
    log_info("{}: nothing to do, all was done before (--overwrite starts over)", command.output);
  if (cuts_pieces(command.options.by))
    report_cuts(command, result);
  else
    report_clusters(command, result);
}

void run_dedup(DedupCommand& command) {
  DedupOptions& options = command.options;
  options.inputs = inputs_for(command.inputs, command.units);
  options.output = command.output;
  options.by = *dedup_by_of(command.by);
  options.shape = shape_of(command);
  options.stage = stage_of(command.stage, options);
  options.memory = parse_bytes(command.memory);
  options.packing = command.compression == "gzip" ? "gz" : "zst";
  read_job(command.job, options);
  if (options.cluster_size && cuts_pieces(options.by))
    user_error("--cluster-size: --by {} has no clusters of documents", command.by);
  if (options.overwrite && options.stage != DedupStage::All)
    user_error("--overwrite starts over with all stages: leave out --stage");
  if (!command.units.empty())
    return print_work(command.units, {command.output, dedup_work(options)}, options.overwrite);
  if (options.stage == DedupStage::All || options.stage == dedup_stages(options).front().stage)
    show_estimate(options);
  const StopSignals signals;
  std::optional<Progress> progress;
  const DedupProgress shown{
      .begin = [&](const std::string& stage, std::int64_t total,
                   const std::string& unit) { progress.emplace(stage, total, unit); },
      .add = [&](std::int64_t more) { progress->add(more); },
      .stop = [] { return StopSignals::received() != nullptr; }};
  const DedupReport result = deduplicate(options, shown);
  progress.reset();
  report(command, result);
}

void add_minhash_options(const AddOption& add, DedupCommand& command) {
  add("--preset", command.preset,
      "values of the following: datatrove (and FineWeb-2: 14 bands of 8 rows, 5 words, 64 bits, "
      "xxhash), fineweb (the same with sha1), refinedweb (450 bands of 20 rows), curator (20 bands "
      "of 13 rows, 24 characters, 32 bits) or hplt (17 bands of 15 rows, 1 word, 32 bits)",
      CLI::IsMember({"datatrove", "fineweb", "refinedweb", "curator", "hplt"}), kShowDefault);
  add("--words", command.ngram, "words of a shingle", TypeName{"INT"},
      whole_number(between(1, 100)));
  add("--characters", command.characters, "characters of a shingle, instead of words",
      TypeName{"INT"}, whole_number(between(1, 1000)));
  add("--bands", command.bands, "bands; documents are a pair if they agree in one", TypeName{"INT"},
      whole_number(between(1, 1000)));
  add("--rows", command.rows, "values of a band", TypeName{"INT"}, whole_number(between(1, 1000)));
  add("--bits", command.bits, "of a value", CLI::IsMember({"32", "64"}));
  add("--hash", command.hash, "of shingles", CLI::IsMember({"xxhash", "sha1"}));
}

void add_piece_options(const AddOption& add, DedupOptions& options) {
  add("--substring-words", options.substring_words,
      "--by substrings: words of the shortest sequence that is removed",
      whole_number(between(2, 1e6)), kShowDefault);
  add("--shortest-paragraph", options.shortest_paragraph,
      "--by paragraphs and lines: characters of the shortest that is removed",
      whole_number(between(1, 1e9)), kShowDefault);
  add("--shortest-document", options.shortest_document,
      "characters; documents that are shorter after something was removed are dropped",
      whole_number(between(0, 1e9)), kShowDefault);
  add("--buckets", options.buckets,
      "of hashes, --by paragraphs, lines and substrings: units of the stages repeats and copies",
      whole_number(between(1, 1e5)), kShowDefault);
}

}  // namespace

void add_data_dedup(CLI::App& data) {
  CLI::App* app = data.add_subcommand(
      "dedup",
      "Remove near-duplicates (MinHash, as datatrove), equal texts or URLs, and paragraphs, "
      "lines and substrings that repeat");
  const AddOption add(*app);
  const auto command = std::make_shared<DedupCommand>();
  DedupOptions& options = command->options;
  add("inputs", command->inputs,
      "files or 'patterns': JSONL, Parquet, web archives or text, perhaps compressed", kRequired);
  add("--output", command->output,
      "a directory for all stages; the documents are written to its folder kept", kRequired);
  add("--by", command->by,
      "what duplicates have in common: documents with similar words, the same text or url; or "
      "paragraphs, lines or substrings, of which only copies are removed",
      CLI::IsMember({"words", "text", "url", "paragraphs", "lines", "substrings"}), kShowDefault);
  add_minhash_options(add, *command);
  add_piece_options(add, options);
  add("--text-key", options.text_key, "JSON key or column of the text", kShowDefault);
  add("--url-key", options.url_key, "JSON key or column of the URL, for --by url", kShowDefault);
  add("--tasks", options.tasks,
      "number the documents as datatrove with this many tasks does; 0: one per file",
      whole_number(between(0, 1e6)), kShowDefault);
  add("--stage", command->stage,
      "only this one; --units has their names and how many units they have",
      CLI::IsMember(all_stages()), kShowDefault);
  add("--job", command->job, "of a job array: 3/10 does the units 3, 13, 23, … of the stage",
      TypeName{"N/JOBS"});
  add_units_option(*app, command->units);
  add("--threads", options.threads, "0: one per core", whole_number(between(0, 4096)),
      kShowDefault);
  add("--memory", command->memory, "for buffers and clusters", TypeName{"SIZE"},
      byte_count(at_least(1 << 20)), kShowDefault);
  add("--compression", command->compression, "of the kept documents",
      CLI::IsMember({"zstd", "gzip"}), kShowDefault);
  add("--cluster-size", options.cluster_size,
      "add minhash_cluster_size to each kept document: how many were similar");
  add("--skip-invalid", options.skip_invalid,
      "skip and report malformed lines and damaged parts of files instead of stopping");
  add("--overwrite", options.overwrite, "start over: remove what this command wrote there");
  app->footer(
      "Example:\n"
      "  kintsugi data dedup 'corpus/*.jsonl.zst' --output dedup\n"
      "  kintsugi data dedup 'corpus/*.jsonl.zst' --output dedup --stage signatures --job 7/100\n"
      "  kintsugi data dedup 'dedup/kept/*.jsonl.zst' --output unique --by substrings\n"
      "As job arrays of Slurm, a stage after the other:\n"
      "  kintsugi launch --machine leonardo --partition dcgp_usr_prod --array 100 --time 1h -- "
      "data "
      "dedup 'corpus/*.jsonl.zst' --output dedup\n"
      "Words are what is between spaces after the normalization. datatrove divides a few further "
      "(0.2 % or less in European languages) by the exceptions of spaCy, which are not restated "
      "here.\n"
      "To continue a stopped or killed job, run the same command again.");
  app->callback([command] { run_dedup(*command); });
}

}  // namespace kintsugi
