#include "data/provenance/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "core/json_members.h"
#include "data/provenance/origins.h"
#include "data/stores/token_store.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kThreads = 8;  // files read at once

fs::path plain(const fs::path& path) {
  const fs::path full = fs::absolute(path).lexically_normal();
  return full.has_filename() ? full : full.parent_path();
}

// Follows the inputs of stages.
class HistoryReader {
 public:
  explicit HistoryReader(const std::vector<DocumentSource>& sources) : given_(sources) {}

  void read(const fs::path& name) {
    const fs::path path = plain(name);
    if (fs::is_regular_file(path / kCurationFile))
      return ask_for(visit(DataStage::Kind::Curation, path));
    if (fs::is_regular_file(path / kDedupFile)) return ask_for(visit(DataStage::Kind::Dedup, path));
    if (fs::is_regular_file(path / "data.json")) return read_run(path);
    if (is_store(path)) return read_store(path);
    user_error(
        "{} has no data that a card can describe: give a directory of kintsugi data curate or "
        "dedup, a token store, or a run directory",
        name.string());
  }

  DataHistory finish() {
    collect_sources();
    for (auto& [path, input] : originals_) {
      OriginalFile& file =
          history_.originals.emplace_back(OriginalFile{.input = input, .state = {}});
      std::error_code error;
      const auto size = fs::file_size(path, error);
      if (error)
        file.state = "missing";
      else if (size != input.bytes)
        file.state = fmt::format("changed: it has {} bytes, it had {}", size, input.bytes);
    }
    return std::move(history_);
  }

 private:
  void ask_for(std::size_t stage) {
    if (std::find(history_.last.begin(), history_.last.end(), stage) == history_.last.end())
      history_.last.push_back(stage);
  }

  static bool is_store(const fs::path& path) {
    std::error_code ignored;
    return fs::exists(with_ending(path, ".idx"), ignored) ||
           fs::exists(with_ending(path, ".bin"), ignored) ||
           fs::exists(with_ending(shard_prefix(path, 0), ".idx"), ignored) ||
           fs::is_directory(path, ignored);
  }

  // The stores whose shards the run has read.
  void read_run(const fs::path& run) {
    const fs::path path = run / "data.json";
    std::string problem;
    const auto json = parse_untrusted_json(read_text_file(path), &problem);
    if (!json || !json_at(*json, "files").is_array())
      user_error("{} is damaged: it does not list the files of the run's data", path.string());
    std::set<fs::path> stores;
    for (const Json& file : json_at(*json, "files")) {
      const fs::path name = text_at(file, "path");
      if (name.extension() == ".bin") stores.insert(plain(fs::path(name).replace_extension()));
    }
    if (stores.empty())
      user_error("{} lists no token store: the run read texts, which have no history",
                 path.string());
    std::set<fs::path> whole;
    for (const fs::path& shard : stores)
      whole.insert(fs::exists(with_ending(shard, ".json")) ? shard : store_of_shard(shard));
    for (const fs::path& store : whole) read_store(store);
  }

  // A directory has several.
  void read_store(const fs::path& name) {
    const std::vector<TokenShard> shards = open_token_store(name.string());
    std::set<fs::path> prefixes;
    for (const TokenShard& shard : shards) {
      const fs::path prefix = plain(shard.name());
      prefixes.insert(fs::exists(with_ending(prefix, ".json")) ? prefix : store_of_shard(prefix));
    }
    for (const fs::path& prefix : prefixes) ask_for(visit(DataStage::Kind::Store, prefix));
  }

  std::size_t visit(DataStage::Kind kind, const fs::path& directory) {
    const auto [known, is_new] = seen_.try_emplace(directory, kUnderWay);
    if (!is_new && known->second == kUnderWay)
      user_error("{} is made from its own output: restore its files", directory.string());
    if (!is_new) return known->second;
    DataStage stage = kind == DataStage::Kind::Curation ? curation_stage_of(directory)
                      : kind == DataStage::Kind::Dedup  ? dedup_stage_of(directory)
                                                        : store_stage_of(directory);
    follow(stage);
    history_.stages.push_back(std::move(stage));
    return seen_[directory] = history_.stages.size() - 1;
  }

  // The stages that wrote the inputs come first.
  void follow(DataStage& stage) {
    for (const InputFile& input : stage.inputs) {
      const auto writer = stage_that_wrote(input.path);
      if (!writer) {
        add_original(input);
        continue;
      }
      visit(writer->kind == WritingStage::Kind::Dedup ? DataStage::Kind::Dedup
                                                      : DataStage::Kind::Curation,
            writer->directory);
    }
    if (stage.kind == DataStage::Kind::Store) inherit(stage);
  }

  void add_original(const InputFile& input) {
    InputFile& known = originals_.try_emplace(input.path, input).first->second;
    if (known.source.empty()) known.source = input.source;
    if (known.sha256.empty()) known.sha256 = input.sha256;
  }

  // A store has what the files that it was made from have.
  void inherit(DataStage& store) {
    StageOutput& whole = store.outputs.front();
    for (const InputFile& input : store.inputs) {
      const auto found = outputs_.find(input.path);
      if (found == outputs_.end()) {
        whole.sources[input.source].documents += input.documents;
        continue;
      }
      add_counts(whole.sources, found->second.sources);
      add_counts(whole.domains, found->second.domains);
    }
  }

  DataStage curation_stage_of(const fs::path& directory) {
    auto record = read_curation_record(directory / kCurationFile);
    if (!record || !record->all_written)
      user_error("{} is not finished: run kintsugi data curate again", directory.string());
    DataStage stage{.kind = DataStage::Kind::Curation,
                    .directory = directory,
                    .program = record->program,
                    .in = record->report.read(),
                    .out = record->report.kept(),
                    .how = fmt::format("{} steps", record->report.steps.size())};
    stage.inputs = record->provenance.inputs;
    if (stage.inputs.empty()) stage.unknown.push_back("the hashes and sources of its inputs");
    name_sources(stage.inputs);
    stage.counts = record->report.sources;
    std::map<std::string, std::string> source_of_file;
    for (const InputFile& input : stage.inputs) source_of_file[input.file] = input.source;
    for (const CuratedShard& shard : record->shards) {
      StageOutput output{.path = directory / shard.file, .bytes = shard.bytes, .xxh3 = shard.hash};
      if (fs::exists(directory / origins_file(shard.file))) {
        ShardOrigins origins = read_shard_origins(output.path);
        for (const auto& [file, count] : origins.inputs)
          output.sources[source_of_file[file]].add(count);
        output.domains = std::move(origins.domains);
      } else {
        output.sources[""].add(shard.text);
        stage.unknown.push_back("the sources and domains of " + shard.file);
      }
      add_output(std::move(output), stage);
    }
    stage.report = std::move(record->report);
    stage.provenance = std::move(record->provenance);
    return stage;
  }

  DataStage dedup_stage_of(const fs::path& directory) {
    const DedupOptions settings = read_dedup_settings(directory);
    DataStage stage{.kind = DataStage::Kind::Dedup, .directory = directory};
    stage.how = dedup_method(directory);
    for (std::size_t task = 0; task < settings.tasks; ++task) read_task(directory, task, stage);
    for (const auto& [source, counts] : stage.counts) {
      stage.in.add(counts.read);
      stage.out.add(counts.kept);
    }
    return stage;
  }

  static std::string dedup_method(const fs::path& directory) {
    const Json json = Json::parse(read_text_file(directory / kDedupFile), nullptr, false);
    const Json& shape = json_at(json, "minhash");
    const std::string by = "by " + text_at(json, "by");
    if (const auto words = count_at(json, "substring_words"); words > 0)
      return fmt::format("{} of {} words", by, words);
    if (!shape.is_object()) return by;
    const bool by_words = shape.contains("words");
    return fmt::format("{}: {} bands of {} rows, {} {}, {} bits, {}", by, count_at(shape, "bands"),
                       count_at(shape, "rows"), count_at(shape, by_words ? "words" : "characters"),
                       by_words ? "words" : "characters", count_at(shape, "bits"),
                       text_at(shape, "hash"));
  }

  void read_task(const fs::path& directory, std::size_t task, DataStage& stage) {
    const fs::path path = directory / "kept" / fmt::format("{:05}.json", task);
    if (!fs::exists(path))
      user_error("{} is not finished: run kintsugi data dedup again", directory.string());
    try {
      const Json json = Json::parse(read_text_file(path));
      if (!json.contains("inputs")) {  // of an older program
        stage.unknown.push_back("what " + path.string() + " is about");
        return;
      }
      stage.program = json.at("program").get<std::string>();
      for (InputFile& input : input_files_of(json.at("inputs")))
        stage.inputs.push_back(std::move(input));
      const CountsBySource counts = counts_by_source_of(json.at("sources"));
      const fs::path file = json.at("file").get<std::string>();
      StageOutput output{.path = directory / "kept" / file.filename(),
                         .bytes = json.at("bytes").get<std::uint64_t>(),
                         .xxh3 = json.at("xxh3").get<std::string>()};
      for (const auto& [source, count] : counts) output.sources[source].add(count.kept);
      output.domains = counts_by_name_of(json.at("domains"));
      add_counts(stage.counts, counts);
      add_output(std::move(output), stage);
    } catch (const nlohmann::json::exception&) {
      user_error("{} is damaged: remove it and run --stage remove again", path.string());
    }
  }

  DataStage store_stage_of(const fs::path& prefix) {
    DataStage stage{.kind = DataStage::Kind::Store, .directory = prefix};
    const auto info = read_store_info(prefix);
    std::vector<StageOutput> outputs;
    const auto add = [&](const fs::path& shard, const char* ending, const std::string& hash) {
      const fs::path path = with_ending(shard, ending);
      std::error_code missing;
      const auto bytes = fs::file_size(path, missing);
      outputs.push_back({.path = path, .bytes = missing ? 0 : bytes, .xxh3 = hash});
    };
    if (!info) {
      stage.unknown.push_back("how the store was made: it has no .json file");
      for (const TokenShard& shard : open_token_store(prefix.string())) {
        stage.tokens += shard.tokens();
        stage.out.documents += shard.documents();
        add(shard.name(), ".bin", "");
        add(shard.name(), ".idx", "");
      }
    } else {
      stage.how = info->tokenizer_description;
      stage.tokens = info->tokens;
      stage.out = {info->documents, info->bytes};
      stage.inputs = inputs_in(info->made_from, prefix.string());
      stage.program = text_at(Json::parse(info->made_from, nullptr, false), "program");
      name_sources(stage.inputs);
      if (stage.inputs.empty()) stage.unknown.push_back("which files the store was made from");
      for (const StoreInfo::Shard& shard : info->shards) {
        const bool renamed = info->shards.size() == 1 && fs::exists(with_ending(prefix, ".idx"));
        const fs::path name = renamed ? prefix : prefix.parent_path() / shard.name;
        add(name, ".bin", shard.bin);
        add(name, ".idx", shard.idx);
        if (!shard.mask.empty()) add(name, ".mask", shard.mask);
        if (!shard.labels.empty()) add(name, ".labels", shard.labels);
      }
    }
    stage.in = stage.out;
    for (StageOutput& output : outputs) add_output(std::move(output), stage);
    return stage;
  }

  void add_output(StageOutput output, DataStage& stage) {
    outputs_[output.path.string()] = output;
    stage.outputs.push_back(std::move(output));
  }

  void collect_sources() {
    std::set<std::string> names;
    for (const DataStage& stage : history_.stages)
      for (const DocumentSource& source : stage.provenance.sources)
        if (names.insert(source.name).second) history_.sources.push_back(source);
  }

  void name_sources(std::vector<InputFile>& inputs) const {
    std::vector<fs::path> paths;
    for (const InputFile& input : inputs) paths.emplace_back(input.path);
    const std::vector<std::string> names = sources_of_files(given_, paths);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].source.empty()) inputs[i].source = names[i];
  }

  static constexpr std::size_t kUnderWay = SIZE_MAX;
  const std::vector<DocumentSource>& given_;
  DataHistory history_;
  std::map<fs::path, std::size_t> seen_;
  std::map<std::string, StageOutput> outputs_;  // by path
  std::map<std::string, InputFile> originals_;
};

// Reads files on several threads: done(i, digest or why there is none).
template <class Done>
void read_files(const std::vector<std::pair<fs::path, std::uint64_t>>& files,
                const ProgressCall& progress, Done&& done) {
  std::int64_t total = 0;
  for (const auto& [path, bytes] : files) total += static_cast<std::int64_t>(bytes);
  std::atomic<std::size_t> next = 0;
  std::int64_t read = 0;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i; (i = next++) < files.size();) {
      FileDigest digest;
      std::string problem;
      try {
        digest = digest_of(files[i].first, {}, [&](std::size_t bytes) {
                   const std::lock_guard lock(mutex);
                   read += static_cast<std::int64_t>(bytes);
                   if (progress) progress(read, total);
                 }).value();
      } catch (const UserError& error) {
        problem = error.what();
      }
      const std::lock_guard lock(mutex);
      done(i, digest, problem);
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < std::min(files.size(), kThreads); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

std::string_view to_string(DataStage::Kind kind) {
  return kind == DataStage::Kind::Curation ? "curation"
         : kind == DataStage::Kind::Dedup  ? "deduplication"
                                           : "tokenization";
}

DataHistory read_history(const std::vector<fs::path>& names,
                         const std::vector<DocumentSource>& sources) {
  if (names.empty()) user_error("give a directory of data, a token store or a run directory");
  HistoryReader reader(sources);
  for (const fs::path& name : names) reader.read(name);
  return reader.finish();
}

std::vector<std::string> check_outputs(DataHistory& history, const ProgressCall& progress) {
  std::vector<StageOutput*> outputs;
  for (const std::size_t stage : history.last)
    for (StageOutput& output : history.stages[stage].outputs) outputs.push_back(&output);
  std::vector<std::pair<fs::path, std::uint64_t>> files;
  for (const StageOutput* output : outputs) files.emplace_back(output->path, output->bytes);
  std::vector<std::string> problems(outputs.size());
  read_files(files, progress, [&](std::size_t i, const FileDigest& digest, const std::string& why) {
    StageOutput& output = *outputs[i];
    output.sha256 = digest.sha256;
    if (!why.empty())
      problems[i] = why;
    else if (digest.bytes != output.bytes)
      problems[i] = fmt::format("{} has {} bytes, and had {} when it was written",
                                output.path.string(), digest.bytes, output.bytes);
    else if (!output.xxh3.empty() && digest.xxh3 != output.xxh3)
      problems[i] =
          fmt::format("{} has another content than was written: its checksum is {}, not {}",
                      output.path.string(), digest.xxh3, output.xxh3);
  });
  std::erase(problems, "");
  return problems;
}

void check_originals(DataHistory& history, const ProgressCall& progress) {
  std::vector<OriginalFile*> originals;
  std::vector<std::pair<fs::path, std::uint64_t>> files;
  for (OriginalFile& file : history.originals) {
    if (!file.state.empty()) continue;
    originals.push_back(&file);
    files.emplace_back(file.input.path, file.input.bytes);
  }
  read_files(files, progress, [&](std::size_t i, const FileDigest& digest, const std::string& why) {
    OriginalFile& file = *originals[i];
    if (!why.empty()) file.state = why;
    if (why.empty() && !file.input.sha256.empty() && digest.sha256 != file.input.sha256)
      file.state = "changed: its SHA-256 is " + digest.sha256;
  });
}

}  // namespace kintsugi
