#pragma once

#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// A text that the model generated at a checkpoint.
struct TextSample {
  std::string prompt, text;
};

// The files of a run directory that only its viewers read: layout.json, ranks.json, samples.jsonl
// and events.jsonl. Rank 0 writes them. Thread-safe. Nothing here throws or ends a run: a file that
// cannot be written is one warning.
class RunFiles {
 public:
  // Removes incomplete last lines, which a crash has left.
  explicit RunFiles(const std::filesystem::path& directory) noexcept;

  void write_layout(std::string_view json) noexcept { write("layout.json", json); }
  // The mean time in which each rank computed in a step.
  void write_ranks(std::int64_t step, const std::vector<double>& seconds) noexcept;
  void add_samples(std::int64_t step, double time_s,
                   const std::vector<TextSample>& samples) noexcept;
  void add_event(std::string_view line) noexcept { append("events.jsonl", line); }
  void add_fp8(std::string_view line) noexcept { append("fp8.jsonl", line); }

 private:
  void write(const char* name, std::string_view text) noexcept;
  void append(const char* name, std::string_view text) noexcept;
  template <class Work>
  void warn_once(const char* name, const Work& work) noexcept;

  std::filesystem::path directory_;
  std::mutex mutex_;
  std::set<std::string> lost_;  // names of files that were not written
};

}  // namespace kintsugi
