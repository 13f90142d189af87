#include "data/document_reader.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "data/json_line.h"
#include "data/path_pattern.h"
#include "data/record_reader.h"

namespace kintsugi {

struct DocumentReader::Implementation {
  Implementation(const std::filesystem::path& path, DocumentFormat f)
      : records(path), format(std::move(f)) {}
  RecordReader records;
  DocumentFormat format;
};

DocumentReader::DocumentReader(const std::filesystem::path& path, DocumentFormat format)
    : implementation_(std::make_unique<Implementation>(path, std::move(format))) {}
DocumentReader::~DocumentReader() = default;

bool DocumentReader::next(Part& part) {
  Record record;
  if (!implementation_->records.next(record)) return false;
  part.prompt.clear();
  part.ends_document = record.ends_document;
  if (implementation_->records.jsonl())
    parse_document(record.bytes, implementation_->format, implementation_->records.name(),
                   record.line, part);
  else
    part.text = record.bytes;
  return true;
}

std::uint64_t DocumentReader::bytes_read() const { return implementation_->records.bytes_read(); }
std::uint64_t DocumentReader::bytes_total() const { return implementation_->records.bytes_total(); }

void parse_document(std::string_view line, const DocumentFormat& format, const std::string& file,
                    std::uint64_t line_number, DocumentReader::Part& part) {
  part.ends_document = true;
  try {
    parse_json_line(line, format.text_key, format.prompt_key, part.text, part.prompt);
  } catch (const JsonLineError& error) {
    user_error("{}, line {}, byte {}: {}", file, line_number, error.byte(), error.what());
  }
}

std::vector<std::filesystem::path> expand_inputs(const std::vector<std::string>& patterns) {
  std::vector<std::filesystem::path> files;
  std::set<std::filesystem::path> seen;
  const auto add = [&](const std::filesystem::path& file) {
    if (std::filesystem::is_directory(file))
      user_error("{} is a directory: name its files with a pattern, like '{}/*.jsonl.zst'",
                 file.string(), file.string());
    if (seen.insert(std::filesystem::absolute(file).lexically_normal()).second)
      files.push_back(file);
  };
  for (const std::string& pattern : patterns) {
    if (!is_pattern(pattern)) {
      if (!std::filesystem::exists(pattern)) user_error("there is no file {}", pattern);
      add(pattern);
      continue;
    }
    const auto matches = expand_pattern(pattern);
    if (matches.empty()) user_error("no file matches {}", pattern);
    for (const auto& match : matches)
      if (!std::filesystem::is_directory(match)) add(match);
  }
  if (files.empty()) user_error("there are no input files");
  return files;
}

}  // namespace kintsugi
