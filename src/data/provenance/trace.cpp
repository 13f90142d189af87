#include "data/provenance/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "data/corpora/record_reader.h"
#include "data/dedup/dedup_directory.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kMostSteps = 32;  // of a chain, which a damaged file could make a circle
constexpr std::size_t kLongestText = std::size_t{1} << 30;

std::string full_path(const fs::path& path) {
  return fs::absolute(path).lexically_normal().string();
}

std::string place_text(const std::string& file, std::uint64_t line) {
  return line == 0 ? file : fmt::format("{}:{}", file, line);
}

// A file of plain text is one document.
std::string whole_text(const std::string& file) {
  RecordReader reader(file, {}, {.skip_damaged = true});
  std::string text;
  for (Record record; reader.next(record);) {
    text += record.bytes;
    if (text.size() > kLongestText) user_error("{} is a text of more than 1 GiB", file);
  }
  return text;
}

// The numbers of the documents that a deduplication has removed from a task.
std::vector<std::uint32_t> removed_documents(const fs::path& directory, std::size_t task) {
  const fs::path path = directory / "clusters" / fmt::format("{:06}.remove", task);
  if (!fs::exists(path)) return {};
  const std::string bytes = read_text_file(path);
  std::vector<std::uint32_t> numbers(bytes.size() / 4);
  std::memcpy(numbers.data(), bytes.data(), 4 * numbers.size());
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

const char* stage_name(const std::string& file) {
  const auto stage = stage_that_wrote(file);
  if (!stage) return "original";
  return stage->kind == WritingStage::Kind::Dedup ? "deduplicated" : "curated";
}

}  // namespace

// The next record of a file.
struct DocumentTracer::Cursor {
  Cursor(const std::string& path, const std::string& text_key, const std::string& prompt_key)
      : reader(path, {}, {.skip_damaged = true}),
        format{.text_key = text_key, .prompt_key = prompt_key} {}

  // False at the end. Malformed records are passed over, as the job did that read the file.
  bool next() {
    while (reader.next(record)) {
      try {
        parse_document(record.bytes, format, reader.name(), record.line, document);
        documents += document.text.empty() && document.prompt.empty() ? 0 : 1;
        return true;
      } catch (const UserError&) {
      }
    }
    return false;
  }
  Place place() const {
    return {.file = reader.name(),
            .line = record.line,
            .text = document.prompt + document.text,
            .object = std::string(record.bytes)};
  }

  RecordReader reader;
  DocumentFormat format;
  Record record;
  Document document;
  std::int64_t documents = 0;  // up to this one that have text
};

// The next document of a task of a deduplication.
struct DocumentTracer::DedupCursor {
  DedupCursor(const fs::path& directory, std::size_t task)
      : options(read_dedup_settings(directory)), removed(removed_documents(directory, task)) {
    options.skip_invalid = true;
    std::vector<fs::path> files;
    for (std::size_t i = task; i < options.inputs.size(); i += options.tasks)
      files.push_back(options.inputs[i]);
    documents.emplace(options, std::move(files), true);
  }

  DedupOptions options;
  std::vector<std::uint32_t> removed;
  std::optional<DedupDocuments> documents;
  DedupDocuments::Entry entry;
  std::int64_t number = -1;
};

DocumentTracer::DocumentTracer() = default;
DocumentTracer::~DocumentTracer() = default;

const DocumentTracer::KnownStore& DocumentTracer::store_of(const TokenShard& shard) {
  const auto [found, is_new] = stores_.try_emplace(shard.name());
  if (!is_new) return found->second;
  if (auto info = read_store_info(shard.name())) {
    found->second.inputs = inputs_in(info->made_from, shard.name());
    found->second.info = std::move(*info);
  }
  return found->second;
}

// The documents of the shards before this one.
std::int64_t DocumentTracer::documents_before(const TokenShard& shard,
                                              const StoreInfo& info) const {
  const fs::path own = shard.name();
  if (info.shards.size() == 1) return 0;  // which may be renamed
  std::int64_t documents = 0;
  for (const StoreInfo::Shard& one : info.shards) {
    if (one.name == own.filename().string()) return documents;
    documents += TokenShard::open(own.parent_path() / one.name).documents();
  }
  user_error("{} is none of the shards in the .json file of its store: copy the store again",
             shard.name());
}

DocumentTrace DocumentTracer::trace(const TokenShard& shard, std::int64_t document) {
  DocumentTrace trace;
  try {
    find(shard, document, trace);
  } catch (const UserError& error) {  // the other documents may be found
    trace.problem = error.what();
  }
  return trace;
}

void DocumentTracer::find(const TokenShard& shard, std::int64_t document, DocumentTrace& trace) {
  if (shard.is_text())
    return add({.file = shard.name(), .text = whole_text(shard.name()), .object = {}}, trace);
  const KnownStore& store = store_of(shard);
  if (store.inputs.empty())
    user_error(
        "{} does not say which files it was made from: tokenize them again with this version",
        shard.name());
  std::int64_t number = documents_before(shard, store.info) + document;
  for (const InputFile& input : store.inputs) {
    if (number < input.documents) return follow(in_input(input, number), input.text_key, trace);
    number -= input.documents;
  }
  user_error("the .json file of {} accounts for fewer documents than it has", shard.name());
}

DocumentTracer::Place DocumentTracer::in_input(const InputFile& input, std::int64_t document) {
  if (fs::exists(input.path) && fs::file_size(input.path) != input.bytes)
    user_error("{} has changed since it was tokenized: it has {} bytes, it had {}", input.path,
               fs::file_size(input.path), input.bytes);
  if (!RecordReader::has_objects(input.path))
    return {.file = input.path, .text = whole_text(input.path), .object = {}};
  std::unique_ptr<Cursor>& cursor = cursors_["tokenized " + input.path];
  if (!cursor || cursor->documents > document + 1)
    cursor = std::make_unique<Cursor>(input.path, input.text_key, input.prompt_key);
  while (cursor->documents <= document)
    if (!cursor->next())
      user_error("{} has only {} documents, and had {} when it was tokenized", input.path,
                 cursor->documents, input.documents);
  return cursor->place();
}

DocumentTracer::Place DocumentTracer::at_line(const std::string& file, std::uint64_t line,
                                              const std::string& text_key) {
  if (line == 0) return {.file = file, .text = whole_text(file), .object = {}};
  std::unique_ptr<Cursor>& cursor = cursors_[file];
  if (!cursor || cursor->record.line > line || cursor->record.bytes.empty())
    cursor = std::make_unique<Cursor>(file, text_key, "");
  while (cursor->record.line < line)
    if (!cursor->next()) break;
  if (cursor->record.line != line) {
    cursor.reset();
    user_error("{} has no {} {} with a text", file, RecordReader::unit_of(file), line);
  }
  return cursor->place();
}

// Line n of a file of kept documents is the n-th that was not removed.
DocumentTracer::Place DocumentTracer::before_dedup(const fs::path& directory, const Place& kept) {
  const std::string name = fs::path(kept.file).filename().string();
  const std::size_t task = std::strtoull(name.c_str(), nullptr, 10);
  std::unique_ptr<DedupCursor>& cursor = dedups_[kept.file];
  auto number = static_cast<std::int64_t>(kept.line) - 1;
  if (!cursor) cursor = std::make_unique<DedupCursor>(directory, task);
  for (const std::uint32_t removed : cursor->removed) number += removed <= number ? 1 : 0;
  if (cursor->number > number) cursor = std::make_unique<DedupCursor>(directory, task);
  while (cursor->number < number) {
    if (!cursor->documents->next(cursor->entry))
      user_error("the inputs of {} have fewer documents than when it was written: restore them",
                 kept.file);
    cursor->number = cursor->entry.number;
  }
  return {.file = cursor->entry.file,
          .line = cursor->entry.line,
          .text = cursor->entry.text,
          .object = std::string(cursor->entry.object)};
}

std::optional<DocumentTracer::Place> DocumentTracer::origin_of(const Place& curated,
                                                               const std::string& text_key,
                                                               DocumentTrace& trace) {
  const OriginPlace origin = parse_origin(trace.records.back().labels.origin);
  if (origin.file.empty()) {
    trace.problem = fmt::format("{} has no member origin", place_text(curated.file, curated.line));
    return std::nullopt;
  }
  const fs::path directory = fs::path(curated.file).parent_path();
  const auto [known, is_new] = curations_.try_emplace(directory.string());
  if (is_new) known->second = curations_of({curated.file});
  for (const CurationRecord& record : known->second)
    for (const InputFile& input : record.provenance.inputs) {
      if (input.file != origin.file) continue;
      Place place = at_line(input.path, origin.line, text_key);
      for (const DocumentSource& source : record.provenance.sources)
        if (source.name == input.source) trace.records.back().source = source;
      return place;
    }
  return at_line(full_path(origin.file), origin.line, text_key);
}

void DocumentTracer::add(const Place& place, DocumentTrace& trace) const {
  trace.records.push_back({.stage = stage_name(place.file),
                           .file = place.file,
                           .line = place.line,
                           .text = place.text,
                           .labels = labels_of(place.object)});
}

void DocumentTracer::follow(Place place, const std::string& text_key, DocumentTrace& trace) {
  for (std::size_t steps = 0; steps < kMostSteps; ++steps) {
    place.file = full_path(place.file);
    std::optional<DocumentSource> source;
    if (!trace.records.empty()) source = std::exchange(trace.records.back().source, {});
    add(place, trace);
    trace.records.back().source = source;
    const auto stage = stage_that_wrote(place.file);
    if (!stage) return;
    // A document that lost paragraphs has its origin, but is no longer one that the clusters name.
    const bool is_whole = stage->kind == WritingStage::Kind::Dedup &&
                          !cuts_pieces(read_dedup_settings(stage->directory).by);
    if (is_whole) {
      place = before_dedup(stage->directory, place);
      continue;
    }
    auto next = origin_of(place, text_key, trace);
    if (!next) return;
    place = std::move(*next);
  }
  trace.problem = "the files name each other as their origin: restore them";
}

Json json_of(const DocumentTrace& trace) {
  Json records = Json::array();
  for (const TracedRecord& record : trace.records) {
    Json one = {{"stage", record.stage}, {"file", record.file}, {"line", record.line}};
    const auto add = [&](const char* key, const std::string& value) {
      if (!value.empty()) one[key] = value;
    };
    add("url", record.labels.url);
    add("language", record.labels.language);
    add("date", record.labels.date);
    add("license", record.labels.license);
    if (record.source) one["source"] = json_of(*record.source);
    one["text"] = record.text;
    records.push_back(std::move(one));
  }
  Json json = {{"records", std::move(records)}};
  if (!trace.problem.empty()) json["problem"] = trace.problem;
  return json;
}

std::string to_string(const DocumentTrace& trace, std::size_t most_text) {
  std::string lines;
  const auto line = [&](std::string_view title, const std::string& value) {
    if (value.empty()) return;
    std::string shown = printable(value);
    for (std::size_t at = 0; (at = shown.find('\n', at)) != std::string::npos; at += 19)
      shown.insert(at + 1, 18, ' ');
    lines += fmt::format("    {:<13} {}\n", title, shown);
  };
  for (const TracedRecord& record : trace.records)
    line(record.stage, place_text(record.file, record.line));
  if (!trace.problem.empty()) line("not further", trace.problem);
  if (trace.records.empty()) return lines;
  const TracedRecord& last = trace.records.back();
  line("url", last.labels.url);
  line("date", last.labels.date);
  if (last.source) {
    line("source",
         last.source->name + (last.source->version.empty() ? "" : " ") + last.source->version);
    line("source's url", last.source->url);
  }
  line("licence", !last.labels.license.empty() ? last.labels.license
                  : last.source                ? last.source->license
                                               : "");
  const std::size_t shown = std::min(last.text.size(), most_text);
  line("text",
       last.text.substr(0, valid_utf8_prefix(std::string_view(last.text).substr(0, shown))) +
           (shown < last.text.size() ? fmt::format(" … ({} bytes)", last.text.size()) : ""));
  return lines;
}

}  // namespace kintsugi
