#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

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
  std::string hash, ngram, bands, rows, bits;
  DedupOptions options;
};

MinHashShape preset_shape(const std::string& name) {
  MinHashShape shape;  // datatrove's defaults, which FineWeb-2 has too
  if (name == "fineweb") shape.hash = ShingleHash::Sha1;
  return shape;
}

MinHashShape shape_of(const DedupCommand& command) {
  constexpr int kMostValues = 4096;
  MinHashShape shape = preset_shape(command.preset);
  const auto set = [](int& value, const std::string& text) {
    if (!text.empty()) value = static_cast<int>(parse_count(text));
  };
  set(shape.ngram, command.ngram);
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

DedupStage stage_of(const std::string& name) {
  for (const DedupStage stage :
       {DedupStage::Signatures, DedupStage::Pairs, DedupStage::Clusters, DedupStage::Remove})
    if (name == to_string(stage)) return stage;
  return DedupStage::All;
}

void show_estimate(const DedupOptions& options) {
  const DedupEstimate estimate = estimate_dedup(options);
  std::error_code error;
  const auto space = std::filesystem::space(
      std::filesystem::absolute(options.output).lexically_normal().parent_path(), error);
  log_info(
      "about {} documents; disk: {} of signatures, at most about {} of kept documents{}",
      format_count(estimate.documents), format_bytes(estimate.signature_bytes),
      format_bytes(estimate.kept_bytes),
      error ? "" : fmt::format(", {} free", format_bytes(static_cast<double>(space.available))));
  const double needed = estimate.signature_bytes + estimate.kept_bytes;
  if (!error && needed > static_cast<double>(space.available))
    log_warning("the disk may be too small");
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
  log_info("{} documents, {} empty, {} without a signature, {} pairs", result.documents,
           result.empty, result.without_signature, result.pairs);
  const double share = 100.0 * static_cast<double>(result.duplicates) /
                       static_cast<double>(std::max<std::int64_t>(result.documents, 1));
  if (command.stage == "clusters")
    log_info("{} clusters, {} duplicates ({:.2f} %)", result.clusters, result.duplicates, share);
  if (command.stage == "all" || command.stage == "remove")
    log_info("{} clusters, {} duplicates removed ({:.2f} %), {} documents kept in {}/kept",
             result.clusters, result.duplicates, share, result.kept, command.output);
}

void run_dedup(DedupCommand& command) {
  DedupOptions& options = command.options;
  options.inputs = inputs_for(command.inputs, command.units);
  options.output = command.output;
  options.by = command.by == "text"  ? DedupBy::Text
               : command.by == "url" ? DedupBy::Url
                                     : DedupBy::Words;
  options.shape = shape_of(command);
  options.stage = stage_of(command.stage);
  options.memory = parse_bytes(command.memory);
  options.packing = command.compression == "gzip" ? "gz" : "zst";
  read_job(command.job, options);
  if (options.overwrite && options.stage != DedupStage::All)
    user_error("--overwrite starts over with all stages: leave out --stage");
  if (!command.units.empty())
    return print_work(command.units, {command.output, dedup_stages(options)}, options.overwrite);
  if (options.stage == DedupStage::All || options.stage == DedupStage::Signatures)
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
      "xxhash) or fineweb (the same with sha1)",
      CLI::IsMember({"datatrove", "fineweb"}), kShowDefault);
  add("--words", command.ngram, "words of a shingle", TypeName{"INT"},
      whole_number(between(1, 100)));
  add("--bands", command.bands, "bands; documents are a pair if they agree in one", TypeName{"INT"},
      whole_number(between(1, 1000)));
  add("--rows", command.rows, "values of a band", TypeName{"INT"}, whole_number(between(1, 1000)));
  add("--bits", command.bits, "of a value", CLI::IsMember({"32", "64"}));
  add("--hash", command.hash, "of shingles", CLI::IsMember({"xxhash", "sha1"}));
}

}  // namespace

void add_data_dedup(CLI::App& data) {
  CLI::App* app = data.add_subcommand(
      "dedup", "Remove near-duplicates (MinHash, as datatrove), equal texts or equal URLs");
  const AddOption add(*app);
  const auto command = std::make_shared<DedupCommand>();
  DedupOptions& options = command->options;
  add("inputs", command->inputs,
      "files or 'patterns': JSONL, Parquet, web archives or text, perhaps compressed", kRequired);
  add("--output", command->output,
      "a directory for all stages; the documents are written to its folder kept", kRequired);
  add("--by", command->by,
      "what duplicates have in common: words (similar texts), text (equal) or url (equal)",
      CLI::IsMember({"words", "text", "url"}), kShowDefault);
  add_minhash_options(add, *command);
  add("--text-key", options.text_key, "JSON key or column of the text", kShowDefault);
  add("--url-key", options.url_key, "JSON key or column of the URL, for --by url", kShowDefault);
  add("--tasks", options.tasks,
      "number the documents as datatrove with this many tasks does; 0: one per file",
      whole_number(between(0, 1e6)), kShowDefault);
  add("--stage", command->stage,
      "only this one: signatures, pairs (per band), clusters (one job), remove",
      CLI::IsMember({"all", "signatures", "pairs", "clusters", "remove"}), kShowDefault);
  add("--job", command->job,
      "of a job array: 3/10 does the tasks or bands 3, 13, 23, … of the stage", TypeName{"N/JOBS"});
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
