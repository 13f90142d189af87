#include "eval/task_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <iterator>

#include "core/error.h"
#include "core/units.h"
#include "data/corpora/record_reader.h"
#include "data/stores/token_store.h"
#include "eval/text.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMostUnpacked = std::size_t{1} << 30;  // text of a compressed file

std::string name_of_file(const std::string& path) { return path == "-" ? "standard input" : path; }

// Adds the documents of one file.
class DocumentReader {
 public:
  DocumentReader(TaskDocuments& result, const std::string& path, std::size_t limit)
      : result_(result), limit_(limit) {
    result_.files.push_back(name_of_file(path));
  }

  void add_lines(std::string_view text) {
    std::uint64_t number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view line = text.substr(begin, end - begin);
      begin = end + 1;
      ++number;
      if (!strip(line).empty()) add(EvalDocument::parse(line, nullptr, false), number, "line");
    }
  }
  void add_list(const EvalDocument& list) {
    result_.in_lines = false;
    for (std::size_t i = 0; i < list.size(); ++i) add(list[i], i + 1, "document");
  }
  void add_store(const std::string& prefix) {
    result_.in_lines = false;
    std::uint64_t number = 0;
    for (const TokenShard& shard : open_token_store(prefix))
      for (std::int64_t i = 0; i < shard.documents(); ++i) {
        if (++number > limit_) {
          result_.all += static_cast<std::size_t>(shard.documents() - i);
          break;
        }
        const std::int64_t begin = shard.document_begin(i);
        TokenIds ids(static_cast<std::size_t>(shard.document_begin(i + 1) - begin));
        shard.read(begin, ids);
        add({{kTokenColumn, ids}}, number, "document");
      }
  }

 private:
  void add(EvalDocument document, std::uint64_t number, const char* unit) {
    if (!document.is_object())
      user_error("{} {} {} is not a JSON object", result_.files.back(), unit, number);
    ++result_.all;
    if (result_.documents.size() >= limit_) return;
    result_.documents.push_back(std::move(document));
    result_.origins.push_back({static_cast<std::uint32_t>(result_.files.size() - 1), number});
  }

  TaskDocuments& result_;
  std::size_t limit_;
};

// The list of documents in a JSON file, if it is not one of JSON lines.
EvalDocument list_in(const std::string& text, const std::string& field, const std::string& name) {
  EvalDocument json = EvalDocument::parse(text, nullptr, false);
  if (json.is_discarded()) user_error("{} is not JSON", name);
  if (!field.empty()) {
    if (!json.is_object() || !json.contains(field)) user_error("{} has no key '{}'", name, field);
    json = EvalDocument(json[field]);
  }
  if (!json.is_array()) user_error("{} is not a list of documents", name);
  return json;
}

// A few MB can expand to more than the memory.
void check_unpacked(const std::string& path, std::size_t bytes) {
  if (bytes > kMostUnpacked)
    user_error(
        "{} has more than {} when unpacked: unpack it, split it into several files, or use a "
        "token store",
        path, format_bytes(static_cast<double>(kMostUnpacked)));
}

// The rows or records of a file, as lines of JSON.
std::string objects_of(const std::string& path) {
  RecordReader reader(path);
  std::string text;
  for (Record record; reader.next(record);) {
    text.append(record.bytes) += '\n';
    check_unpacked(path, text.size());
  }
  return text;
}

}  // namespace

std::string read_whole_text(const std::string& path) {
  if (path == "-")
    return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  if (const CorpusFormat format = RecordReader::format_of(path);
      format == CorpusFormat::Parquet || format == CorpusFormat::Warc)
    return objects_of(path);
  TextStream stream(path);
  std::string text;
  std::vector<char> buffer(1 << 16);
  while (const std::size_t bytes = stream.read(buffer)) {
    text.append(buffer.data(), bytes);
    // The size of a plain file is plain to see.
    if (text.size() > stream.bytes_total()) check_unpacked(path, text.size());
  }
  return text;
}

std::string TaskDocuments::where(std::size_t document) const {
  const Origin& origin = origins.at(document);
  return fmt::format("{} {} {}", files.at(origin.file), in_lines ? "line" : "document",
                     origin.number);
}

bool is_token_store(const std::string& path) {
  return fs::exists(path + ".idx") || fs::exists(path + "-00000.idx");
}

std::string data_path(const EvalTask& task, const std::string& file) {
  if (file == "-" || fs::exists(file) || is_token_store(file)) return file;
  const fs::path beside = task.file.parent_path() / file;
  return fs::exists(beside) || is_token_store(beside.string()) ? beside.string() : file;
}

TaskDocuments read_documents(const EvalTask& task, const std::string& split, const ReadText& read,
                             std::size_t limit) {
  if (!task.dataset.empty())
    user_error(
        "{}: the data set '{}' is not a local file: save it as JSON lines and set dataset_path: "
        "json and dataset_kwargs: {{data_files: {{{}: FILE}}}}",
        task.name, task.dataset, split);
  const auto files = task.data_files.find(split);
  if (files == task.data_files.end())
    user_error("{}: dataset_kwargs.data_files has no split '{}'", task.name, split);
  TaskDocuments result;
  for (const std::string& file : files->second) {
    const std::string path = data_path(task, file);
    DocumentReader reader(result, path, limit);
    if (path != "-" && !fs::exists(path) && is_token_store(path)) {
      reader.add_store(path);
      continue;
    }
    const std::string text = read(path);
    const std::string_view content = strip(text);
    if (!task.data_field.empty() || content.starts_with('['))
      reader.add_list(list_in(text, task.data_field, name_of_file(path)));
    else
      reader.add_lines(text);
  }
  if (result.documents.empty()) user_error("{}: the split '{}' has no documents", task.name, split);
  return result;
}

}  // namespace kintsugi
