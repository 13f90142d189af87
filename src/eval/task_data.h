#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "eval/task.h"

namespace kintsugi {

// Returns the text of a file (decompressed), or of standard input for "-". UserError if a
// compressed file is very large when unpacked.
using ReadText = std::function<std::string(const std::string& path)>;
std::string read_whole_text(const std::string& path);

// Documents with where they are from.
struct TaskDocuments {
  struct Origin {
    std::uint32_t file = 0;
    std::uint64_t number = 0;  // line or document, from 1
  };
  std::vector<EvalDocument> documents;
  std::vector<Origin> origins;  // by document
  std::vector<std::string> files;
  std::size_t all = 0;  // also those beyond the limit
  bool in_lines = true;

  std::string where(std::size_t document) const;  // "d.jsonl line 3"
};

// Paths are from the working directory, else from the directory of the task file. A file has JSON
// lines, or is one JSON list. A token store (PREFIX.idx or PREFIX-00000.idx) has documents with the
// column kTokenColumn. At most `limit` documents are returned. UserError if there is no document,
// or if the task has another data set.
constexpr const char* kTokenColumn = "token_ids";
TaskDocuments read_documents(const EvalTask& task, const std::string& split, const ReadText& read,
                             std::size_t limit = SIZE_MAX);

// The path of a data file, as described above.
std::string data_path(const EvalTask& task, const std::string& file);
bool is_token_store(const std::string& path);

}  // namespace kintsugi
