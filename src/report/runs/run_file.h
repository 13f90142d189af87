#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace kintsugi {

// Which version of a file was read.
struct FileStamp {
  std::uint64_t device = 0, inode = 0, size = 0;
  std::int64_t changed_ns = 0;  // since 1970
  bool operator==(const FileStamp&) const = default;
  double changed_s() const { return 1e-9 * static_cast<double>(changed_ns); }
};
// Of a regular file; empty for anything else, links too.
std::optional<FileStamp> stamp_of(const std::filesystem::path& path);
// The names in a directory, in order; none if it is no directory.
std::vector<std::string> sorted_names(const std::filesystem::path& directory);

// Nothing here follows a link, not even one in the middle of a path: whoever may write into a
// folder of runs could otherwise show the viewers any directory of the machine. A path that the
// user gives may have links: resolve it first.
std::filesystem::path resolved(const std::filesystem::path& given);

// A file of a run directory, which another process may be writing and nobody vouches for. Opening
// and reading never block: only a regular file that is no link is opened.
class RunFile {
 public:
  // Check is_open(); otherwise problem() says why, or is empty if there is no such file.
  explicit RunFile(const std::filesystem::path& path);
  ~RunFile();
  RunFile(const RunFile&) = delete;
  RunFile& operator=(const RunFile&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  const std::string& problem() const { return problem_; }  // "is a link", "permission denied"
  const FileStamp& stamp() const { return stamp_; }        // when it was opened
  // Replaces `text` by the bytes from `offset` on: fewer than `size` where the file ends.
  void read(std::uint64_t offset, std::size_t size, std::string& text) const;

 private:
  int descriptor_ = -1;
  FileStamp stamp_;
  std::string problem_;
};

// A whole file, or why it was not read.
struct FileText {
  std::string text = {};
  std::string problem = {};  // empty: it was read, or there is no such file
  std::optional<FileStamp> stamp = {};
};
FileText read_run_file(const std::filesystem::path& path, std::size_t most_bytes);

// The complete lines within the last `bytes` of a file, without their ends. A line that begins
// before is left out.
struct FileTail {
  std::vector<std::string> lines = {};
  std::string problem = {};
  std::optional<FileStamp> stamp = {};
  std::uint64_t end = 0;  // behind the last complete line
  std::size_t bytes = 0;  // that were read
};
FileTail read_tail(const std::filesystem::path& path, std::size_t bytes);

// The lines of a text; a last one without an end is left out.
std::vector<std::string> complete_lines(const std::string& text);

// The JSON object in a file of a run; null if there is none, or if it is damaged or too large.
nlohmann::ordered_json read_json_object(const std::filesystem::path& file, std::size_t most_bytes);

}  // namespace kintsugi
