#include "data/dedup/dedup_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "core/file.h"
#include "core/output_file.h"
#include "data/dedup/cluster_sizes.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr int kDedupVersion = 1;
constexpr std::size_t kLongestPlainText = std::size_t{1} << 30;

constexpr std::string_view kMethods[] = {"words",      "text",  "url",
                                         "paragraphs", "lines", "substrings"};

fs::path dedup_json(const fs::path& output) { return output / "dedup.json"; }

using Json = DedupDirectory::Json;

// Of NewFile.
bool is_own_temporary(const std::string& name) {
  return name.starts_with(".dedup.json.") || name.starts_with(".summary.json.");
}

bool are_counts(const Json& json, std::initializer_list<const char*> keys) {
  return std::all_of(keys.begin(), keys.end(), [&](const char* key) {
    return json.contains(key) && json[key].is_number_unsigned() &&
           json[key].get<std::uint64_t>() < std::uint64_t{1} << 48;
  });
}

bool is_checksum(const Json& json) {
  return json.is_string() && json.get_ref<const std::string&>().size() == 16 &&
         json.get_ref<const std::string&>().find_first_not_of("0123456789abcdef") ==
             std::string::npos;
}

template <class Test>
bool are_all(const Json& json, std::size_t count, Test&& test) {
  return json.is_array() && json.size() == count && std::all_of(json.begin(), json.end(), test);
}

// Of the buckets of a file.
bool are_buckets(const Json& json, std::size_t count) {
  constexpr auto kMost = std::uint64_t{1} << 56;
  const auto is_size = [](const Json& one) {
    return one.is_number_unsigned() && one.get<std::uint64_t>() < kMost;
  };
  return json.contains("bytes") && are_all(json["bytes"], count, is_size) &&
         json.contains("xxh3") && are_all(json["xxh3"], count, is_checksum);
}

// Of a file that there need not be.
bool is_checksum_or_empty(const Json& json) { return json == "" || is_checksum(json); }

}  // namespace

std::string_view to_string(DedupBy by) { return kMethods[static_cast<std::size_t>(by)]; }

std::optional<DedupBy> dedup_by_of(std::string_view name) {
  const auto* const found = std::find(std::begin(kMethods), std::end(kMethods), name);
  if (found == std::end(kMethods)) return std::nullopt;
  return static_cast<DedupBy>(found - std::begin(kMethods));
}

std::string_view to_string(DedupStage stage) {
  constexpr std::string_view kNames[] = {"all",     "signatures", "pairs",  "clusters", "samples",
                                         "repeats", "sequences",  "copies", "remove"};
  return kNames[static_cast<std::size_t>(stage)];
}

std::uint64_t from_hex(const Json& text) {
  return std::stoull(text.get<std::string>(), nullptr, 16);
}

RecordForm signature_form(const DedupOptions& options) {
  RecordForm form{.rows = 2};
  if (options.by == DedupBy::Words)
    form = {.rows = static_cast<std::size_t>(options.shape.rows),
            .value_bytes = static_cast<std::size_t>(options.shape.bits) / 8};
  return form;
}

std::vector<DedupStageUnits> dedup_stages(const DedupOptions& options) {
  const std::size_t tasks = options.tasks > 0 ? options.tasks : options.inputs.size();
  const bool words = options.by == DedupBy::Words;
  const std::size_t bands = words ? static_cast<std::size_t>(options.shape.bands) : 1;
  std::vector<DedupStageUnits> stages;
  if (!cuts_pieces(options.by)) {
    stages = {
        {DedupStage::Signatures, tasks}, {DedupStage::Pairs, bands}, {DedupStage::Clusters, 1}};
  } else {
    if (options.by == DedupBy::Substrings)
      stages = {{DedupStage::Samples, tasks}, {DedupStage::Repeats, options.buckets}};
    stages.push_back({DedupStage::Sequences, tasks});
    stages.push_back({DedupStage::Copies, options.buckets});
  }
  stages.push_back({DedupStage::Remove, tasks});
  return stages;
}

DedupDirectory::DedupDirectory(const DedupOptions& options, DedupAccess access)
    : options_(options) {
  if (options_.inputs.empty()) user_error("there are no input files");
  auto& inputs = options_.inputs;
  std::sort(inputs.begin(), inputs.end(),
            [](const fs::path& a, const fs::path& b) { return a.string() < b.string(); });
  for (const fs::path& input : inputs)
    if (!fs::is_regular_file(input))
      user_error("{} is not a regular file: deduplication reads its inputs twice", input.string());
  tasks_ = options_.tasks > 0 ? options_.tasks : inputs.size();
  refuse_inputs_as_output("--output", options_.output, {.inputs = inputs});
  const bool looks = access == DedupAccess::Look;
  if (!looks) fs::create_directories(options_.output);
  if (!looks && options_.overwrite) start_over();
  keep_identity(access);
  if (looks) return;
  for (const auto& one : dedup_stages(options_)) fs::create_directories(folder(one.stage));
  for (std::size_t band = 0; first_stage() == DedupStage::Signatures && band < bands(); ++band)
    fs::create_directories(signatures(0, band).parent_path());
}

std::size_t DedupDirectory::units(DedupStage stage) const {
  for (const auto& one : dedup_stages(options_))
    if (one.stage == stage) return one.units;
  return 0;
}
std::size_t DedupDirectory::bands() const { return units(DedupStage::Pairs); }
std::size_t DedupDirectory::sequence_length() const {
  return options_.by == DedupBy::Substrings ? options_.substring_words : 1;
}

std::vector<fs::path> DedupDirectory::files_of(std::size_t task) const {
  std::vector<fs::path> files;
  for (std::size_t i = task; i < options_.inputs.size(); i += tasks_)
    files.push_back(options_.inputs[i]);
  return files;
}

std::int64_t DedupDirectory::input_bytes(std::size_t task) const {
  std::int64_t bytes = 0;
  for (const fs::path& file : files_of(task))
    bytes += static_cast<std::int64_t>(fs::file_size(file));
  return bytes;
}

fs::path DedupDirectory::folder(DedupStage stage) const {
  return options_.output / (stage == DedupStage::Remove ? "kept" : to_string(stage));
}
fs::path DedupDirectory::signatures(std::size_t task, std::size_t band) const {
  return folder(DedupStage::Signatures) / fmt::format("bucket_{:03}", band) /
         fmt::format("{:05}.minhash.sig", task);
}
fs::path DedupDirectory::records(DedupStage stage, std::size_t unit) const {
  return folder(stage) / fmt::format("{:05}.records", unit);
}
fs::path DedupDirectory::pairs(std::size_t band) const {
  return folder(DedupStage::Pairs) / fmt::format("{:05}_00.dups", band);
}
fs::path DedupDirectory::removed(std::size_t task) const {
  return folder(DedupStage::Clusters) / fmt::format("{:06}.remove", task);
}
fs::path DedupDirectory::sizes(std::size_t task) const {
  return folder(DedupStage::Clusters) / fmt::format("{:06}.sizes", task);
}
fs::path DedupDirectory::kept(std::size_t task, const std::string& packing) const {
  return folder(DedupStage::Remove) / fmt::format("{:05}.jsonl.{}", task, packing);
}

fs::path DedupDirectory::description(DedupStage stage, std::size_t unit) const {
  return folder(stage) / fmt::format("{:05}.json", unit);
}

std::optional<DedupDirectory::Json> DedupDirectory::find_description(DedupStage stage,
                                                                     std::size_t unit) const {
  const fs::path path = description(stage, unit);
  if (!fs::exists(path)) return std::nullopt;
  Json json = Json::parse(read_text_file(path), nullptr, false);
  if (!json.is_object() || !is_description(stage, json))
    user_error("{} is damaged: remove it and run --stage {} again", path.string(),
               to_string(stage));
  return json;
}

bool DedupDirectory::is_description(DedupStage stage, const Json& json) const {
  const Json checksum = json.value("xxh3", Json());
  switch (stage) {
    case DedupStage::Signatures:
      return is_task_description(json) && json["records"] <= json["documents"] &&
             are_all(checksum, bands(), is_checksum);
    case DedupStage::Samples:
    case DedupStage::Sequences:
      return is_task_description(json) && are_buckets(json, options_.buckets);
    case DedupStage::Repeats:
    case DedupStage::Copies:
      return are_counts(json, {"records", "marks"}) && json.contains("sizes") &&
             ClusterSizes::of(json["sizes"]) && are_buckets(json, tasks_);
    case DedupStage::Pairs:
      return are_counts(json, {"records", "pairs"}) && is_checksum(checksum);
    case DedupStage::Clusters:
      return are_counts(json, {"documents", "clusters", "duplicates"}) && json.contains("sizes") &&
             ClusterSizes::of(json["sizes"]) && are_all(checksum, tasks_, [](const Json& one) {
               return are_all(one, 2, is_checksum_or_empty);
             });
    case DedupStage::Remove:
    case DedupStage::All:
      break;
  }
  return are_counts(json, {"documents", "kept", "cut", "too_short", "removed_bytes"}) &&
         json.contains("packing") && json["packing"].is_string() && json.contains("cluster_size") &&
         json["cluster_size"].is_boolean();
}

bool DedupDirectory::is_task_description(const Json& json) const {
  return are_counts(json, {"documents", "records", "empty", "invalid", "text_bytes"}) &&
         json["documents"] <= UINT32_MAX && json.contains("skipped") &&
         are_all(json["skipped"], json["skipped"].size(),
                 [](const Json& one) { return one.is_string(); });
}

DedupDirectory::Json DedupDirectory::require(DedupStage stage, std::size_t unit) const {
  auto json = find_description(stage, unit);
  if (!json)
    user_error("{} does not exist: run --stage {} first, all of it",
               description(stage, unit).string(), to_string(stage));
  return *json;
}

void DedupDirectory::finish(DedupStage stage, std::size_t unit, const Json& json) const {
  // What a crash of the machine may damage is found by its checksum; kept documents have none.
  const bool last = stage == DedupStage::Remove;
  if (last) sync_directory(folder(stage));
  write_file_atomically(description(stage, unit),
                        json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n",
                        last ? OnDisk::Now : OnDisk::Later);
}

void DedupDirectory::write_summary(const Json& summary) const {
  const fs::path path = options_.output / "summary.json";
  const std::string text = summary.dump(1) + "\n";
  if (fs::exists(path) && read_text_file(path) == text) return;
  NewFile file(path, {.own_temporary = true});  // other jobs may be writing it
  file.write(text.data(), text.size());
  file.publish({}, OnDisk::Later);
}

void DedupDirectory::check_documents(std::size_t task, const DedupDocuments& documents) const {
  const Json first = require(first_stage(), task);
  if (const auto before = first.at("documents").get<std::int64_t>();
      documents.documents() != before)
    user_error(
        "the inputs of task {} have {} documents, and had {} before: start over with "
        "--overwrite",
        task, documents.documents(), before);
  if (const auto before = first.at("text_bytes").get<std::int64_t>();
      documents.text_bytes() != before)
    user_error(
        "the inputs of task {} have {} bytes of text, and had {} before: start over with "
        "--overwrite",
        task, documents.text_bytes(), before);
}

std::unique_ptr<FileLock> DedupDirectory::lock(DedupStage stage, std::size_t unit) const {
  std::string holder;
  fs::path path = description(stage, unit);
  auto lock = FileLock::try_take(path.replace_extension(".lock"), holder);
  if (!lock)
    user_error("{} {} of {} is being written by {}", to_string(stage), unit,
               options_.output.string(), holder);
  return lock;
}

std::unique_ptr<FileLock> DedupDirectory::lock_all() const {
  std::string holder;
  auto lock = FileLock::try_take(options_.output / "dedup.lock", holder);
  if (!lock) user_error("{} is being written by {}", options_.output.string(), holder);
  return lock;
}

void DedupDirectory::check_idle() const {
  std::vector<fs::path> locks = {options_.output / "dedup.lock"};
  for (const DedupStage stage :
       {DedupStage::Signatures, DedupStage::Pairs, DedupStage::Clusters, DedupStage::Remove}) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder(stage), none))
      if (entry.path().extension() == ".lock") locks.push_back(entry.path());
  }
  for (const fs::path& path : locks) {
    std::string holder;
    if (fs::exists(path) && !FileLock::try_take(path, holder))
      user_error("{} is being written by {}", options_.output.string(), holder);
  }
}

void DedupDirectory::remove_leftovers() const {
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(options_.output))
    if (is_own_temporary(entry.path().filename())) leftovers.push_back(entry.path());
  for (const fs::path& path : leftovers) fs::remove(path);
}

void DedupDirectory::remove_stale_lock(DedupStage stage, std::size_t unit) const {
  fs::path path = description(stage, unit);
  std::string holder;
  if (fs::exists(path.replace_extension(".lock"))) FileLock::try_take(path, holder);
}

void DedupDirectory::start_over() const {
  if (!fs::exists(dedup_json(options_.output))) return;
  const auto lock = lock_all();
  for (auto stage = static_cast<int>(DedupStage::Remove); stage > 0; --stage)  // of any method
    fs::remove_all(folder(static_cast<DedupStage>(stage)));
  fs::remove(options_.output / "summary.json");
  fs::remove(dedup_json(options_.output));
}

// Inputs count with their sizes and modification times.
DedupDirectory::Json DedupDirectory::identity() const {
  Json inputs = Json::array();
  for (const fs::path& input : options_.inputs) {
    const auto time = fs::last_write_time(input).time_since_epoch();
    inputs.push_back({fs::absolute(input).lexically_normal().string(), fs::file_size(input),
                      std::chrono::duration_cast<std::chrono::nanoseconds>(time).count()});
  }
  const MinHashShape& shape = options_.shape;
  Json json = {{"kintsugi_dedup", kDedupVersion},
               {"by", to_string(options_.by)},
               {"tasks", tasks_},
               {"text_key", options_.text_key},
               {"skip_invalid", options_.skip_invalid}};
  if (options_.by == DedupBy::Url) json["url_key"] = options_.url_key;
  if (options_.by == DedupBy::Words)
    json["minhash"] = {{shape.characters ? "characters" : "words", shape.ngram},
                       {"bands", shape.bands},
                       {"rows", shape.rows},
                       {"bits", shape.bits},
                       {"hash", shape.hash == ShingleHash::Sha1 ? "sha1" : "xxhash"}};
  if (cuts_pieces(options_.by)) {
    json["buckets"] = options_.buckets;
    json["shortest_document"] = options_.shortest_document;
    if (options_.by == DedupBy::Substrings)
      json["substring_words"] = options_.substring_words;
    else
      json["shortest_paragraph"] = options_.shortest_paragraph;
  }
  json["inputs"] = inputs;
  // A path may be invalid UTF-8.
  return Json::parse(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void DedupDirectory::keep_identity(DedupAccess access) const {
  const fs::path path = dedup_json(options_.output);
  const Json now = identity();
  if (!fs::exists(path)) {
    std::string other;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(options_.output, none))
      if (const std::string name = entry.path().filename().string();
          name != "dedup.lock" && name != "launch" && !is_own_temporary(name))
        other = name;
    if (!other.empty() && !fs::exists(path))  // another job may have begun meanwhile
      user_error("{} has other files, such as {}: choose an empty directory",
                 options_.output.string(), other);
    if (access == DedupAccess::Look) return;
    NewFile file(path, {.own_temporary = true});
    const std::string text = now.dump(1) + "\n";
    file.write(text.data(), text.size());
    file.publish();
    return;
  }
  const Json before = Json::parse(read_text_file(path), nullptr, false);
  if (!before.is_object()) user_error("{} is not a file of kintsugi data dedup", path.string());
  for (const auto& [key, value] : now.items()) {
    if (before.contains(key) && before[key] == value) continue;
    if (key == "inputs")
      user_error(
          "{} belongs to other inputs, or they have changed (size or modification time): choose "
          "another --output, or start over with --overwrite",
          path.string());
    user_error(
        "{} belongs to a job with other settings: {} was {} and is now {}; choose another "
        "--output, or start over with --overwrite",
        path.string(), key, before.contains(key) ? before[key].dump() : "not set", value.dump());
  }
}

DedupDocuments::DedupDocuments(const DedupOptions& options, std::vector<fs::path> files, bool whole)
    : options_(options), files_(std::move(files)), whole_(whole) {}

bool DedupDocuments::next(Entry& entry) {
  Record record;
  while (next_record(record)) {
    if (!read(record, entry)) continue;
    if (entry.text.empty()) {
      ++empty_;
      continue;
    }
    if (documents_ == UINT32_MAX)
      user_error("a task has more than 4 billion documents: use more --tasks");
    entry.number = static_cast<std::uint32_t>(documents_++);
    text_bytes_ += static_cast<std::int64_t>(entry.text.size());
    return true;
  }
  return false;
}

std::int64_t DedupDocuments::bytes_read() const {
  return finished_bytes_ + (reader_ ? static_cast<std::int64_t>(reader_->bytes_read()) : 0);
}

bool DedupDocuments::next_record(Record& record) {
  while (true) {
    if (reader_ && reader_->next(record)) return true;
    if (reader_) {
      for (SkippedInput& one : reader_->take_skipped()) skipped_.push_back(std::move(one));
      finished_bytes_ += static_cast<std::int64_t>(reader_->bytes_total());
      reader_.reset();
    }
    if (next_file_ == files_.size()) return false;
    RecordReader::Options options;
    options.skip_damaged = options_.skip_invalid;
    if (!whole_) {
      options.keys = {options_.text_key};
      if (options_.by == DedupBy::Url) options.keys.push_back(options_.url_key);
    }
    plain_.clear();
    reader_ = std::make_unique<RecordReader>(files_[next_file_++], RecordOffset{}, options);
  }
}

bool DedupDocuments::read(const Record& record, Entry& entry) {
  return reader_->has_objects() ? read_object(record, entry) : read_segment(record, entry);
}

bool DedupDocuments::read_object(const Record& record, Entry& entry) {
  DocumentFormat format;
  format.text_key = options_.text_key;
  if (options_.by == DedupBy::Url) format.prompt_key = options_.url_key;
  try {
    parse_document(record.bytes, format, reader_->name(), record.line, document_);
  } catch (const UserError&) {
    if (!options_.skip_invalid) throw;
    ++invalid_;
    return false;
  }
  entry.text.swap(document_.text);
  entry.url.swap(document_.prompt);
  entry.object = record.bytes;
  entry.file = reader_->name();
  entry.line = record.line;
  return true;
}

bool DedupDocuments::read_segment(const Record& record, Entry& entry) {
  if (options_.by == DedupBy::Url) user_error("{} is plain text and has no URLs", reader_->name());
  plain_ += record.bytes;
  if (plain_.size() > kLongestPlainText)
    user_error("{} is plain text of more than 1 GiB, which would be one document: use JSONL",
               reader_->name());
  if (!record.ends_document) return false;
  entry.text = valid_utf8_prefix(plain_) == plain_.size() ? plain_ : replace_invalid_utf8(plain_);
  plain_.clear();
  object_ = "{";
  append_json_string(object_, options_.text_key);
  object_ += ':';
  append_json_string(object_, entry.text);
  object_ += '}';
  entry.object = object_;
  entry.file = reader_->name();
  entry.line = 0;
  return true;
}

}  // namespace kintsugi
