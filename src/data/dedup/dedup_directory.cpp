#include "data/dedup/dedup_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "core/file.h"
#include "core/output_file.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr int kDedupVersion = 1;
constexpr std::size_t kLongestPlainText = std::size_t{1} << 30;

std::string_view name_of(DedupBy by) {
  return by == DedupBy::Words ? "words" : by == DedupBy::Text ? "text" : "url";
}

fs::path dedup_json(const fs::path& output) { return output / "dedup.json"; }

using Json = DedupDirectory::Json;

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

// Of a file that there need not be.
bool is_checksum_or_empty(const Json& json) { return json == "" || is_checksum(json); }

}  // namespace

std::string_view to_string(DedupStage stage) {
  constexpr std::string_view kNames[] = {"all", "signatures", "pairs", "clusters", "remove"};
  return kNames[static_cast<std::size_t>(stage)];
}

DedupDirectory::DedupDirectory(const DedupOptions& options) : options_(options) {
  if (options_.inputs.empty()) user_error("there are no input files");
  auto& inputs = options_.inputs;
  std::sort(inputs.begin(), inputs.end(),
            [](const fs::path& a, const fs::path& b) { return a.string() < b.string(); });
  for (const fs::path& input : inputs)
    if (!fs::is_regular_file(input))
      user_error("{} is not a regular file: deduplication reads its inputs twice", input.string());
  tasks_ = options_.tasks > 0 ? options_.tasks : inputs.size();
  refuse_inputs_as_output("--output", options_.output, {.inputs = inputs});
  fs::create_directories(options_.output);
  if (options_.overwrite) start_over();
  keep_identity();
  for (const DedupStage stage :
       {DedupStage::Signatures, DedupStage::Pairs, DedupStage::Clusters, DedupStage::Remove})
    fs::create_directories(folder(stage));
  for (std::size_t band = 0; band < bands(); ++band)
    fs::create_directories(signatures(0, band).parent_path());
}

std::size_t DedupDirectory::bands() const {
  return options_.by == DedupBy::Words ? static_cast<std::size_t>(options_.shape.bands) : 1;
}
std::size_t DedupDirectory::rows() const {
  return options_.by == DedupBy::Words ? static_cast<std::size_t>(options_.shape.rows) : 2;
}
std::size_t DedupDirectory::value_bytes() const {
  return options_.by == DedupBy::Words && options_.shape.bits == 32 ? 4 : 8;
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
      return are_counts(json, {"documents", "records", "empty", "invalid"}) &&
             json["documents"] <= UINT32_MAX && json["records"] <= json["documents"] &&
             json.contains("skipped") &&
             are_all(json["skipped"], json["skipped"].size(),
                     [](const Json& one) { return one.is_string(); }) &&
             are_all(checksum, bands(), is_checksum);
    case DedupStage::Pairs:
      return are_counts(json, {"records", "pairs"}) && is_checksum(checksum);
    case DedupStage::Clusters:
      return are_counts(json, {"documents", "clusters", "duplicates"}) &&
             are_all(checksum, tasks_,
                     [](const Json& one) { return are_all(one, 2, is_checksum_or_empty); });
    case DedupStage::Remove:
    case DedupStage::All:
      break;
  }
  return are_counts(json, {"documents", "kept"}) && json.contains("packing") &&
         json["packing"].is_string() && json.contains("cluster_size") &&
         json["cluster_size"].is_boolean();
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

void DedupDirectory::remove_leftovers() const {
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(options_.output))
    if (entry.path().filename().string().starts_with(".dedup.json."))
      leftovers.push_back(entry.path());
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
  for (const DedupStage stage :
       {DedupStage::Remove, DedupStage::Clusters, DedupStage::Pairs, DedupStage::Signatures})
    fs::remove_all(folder(stage));
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
               {"by", name_of(options_.by)},
               {"tasks", tasks_},
               {"text_key", options_.text_key},
               {"skip_invalid", options_.skip_invalid}};
  if (options_.by == DedupBy::Url) json["url_key"] = options_.url_key;
  if (options_.by == DedupBy::Words)
    json["minhash"] = {{"words", shape.ngram},
                       {"bands", shape.bands},
                       {"rows", shape.rows},
                       {"bits", shape.bits},
                       {"hash", shape.hash == ShingleHash::Sha1 ? "sha1" : "xxhash"}};
  json["inputs"] = inputs;
  // A path may be invalid UTF-8.
  return Json::parse(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void DedupDirectory::keep_identity() const {
  const fs::path path = dedup_json(options_.output);
  const Json now = identity();
  if (!fs::exists(path)) {
    std::string other;
    for (const auto& entry : fs::directory_iterator(options_.output))
      if (const std::string name = entry.path().filename().string();
          name != "dedup.lock" && !name.starts_with(".dedup.json."))
        other = name;
    if (!other.empty() && !fs::exists(path))  // another job may have begun meanwhile
      user_error("{} has other files, such as {}: choose an empty directory",
                 options_.output.string(), other);
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
