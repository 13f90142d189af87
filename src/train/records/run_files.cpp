#include "train/records/run_files.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/log.h"

namespace kintsugi {
namespace {

using RecordJson = nlohmann::ordered_json;

// Generated text may end within a character.
std::string record_line(const RecordJson& json) {
  return json.dump(-1, ' ', false, RecordJson::error_handler_t::replace) + "\n";
}

}  // namespace

template <class Work>
void RunFiles::warn_once(const char* name, const Work& work) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    try {
      work();
    } catch (const std::exception& error) {
      if (!lost_.insert(name).second) return;
      log_warning("{}: the run continues, but {} is incomplete", error.what(), name);
    }
  } catch (...) {  // no memory for the warning
  }
}

RunFiles::RunFiles(const std::filesystem::path& directory) noexcept : directory_(directory) {
  for (const char* name : {"samples.jsonl", "events.jsonl", "fp8.jsonl"})
    warn_once(name, [&] { drop_partial_line(directory_ / name); });
}

void RunFiles::write(const char* name, std::string_view text) noexcept {
  warn_once(name, [&] { write_file_atomically(directory_ / name, text); });
}

void RunFiles::append(const char* name, std::string_view text) noexcept {
  warn_once(name, [&] { append_to_file(directory_ / name, text); });
}

void RunFiles::write_ranks(std::int64_t step, const std::vector<double>& seconds) noexcept {
  warn_once("ranks.json", [&] {
    RecordJson json = {{"step", step}, {"seconds", RecordJson::array()}};
    // Microseconds are enough, and keep the file of ten thousand ranks short.
    for (const double one : seconds) json["seconds"].push_back(std::round(one * 1e6) / 1e6);
    write_file_atomically(directory_ / "ranks.json", record_line(json), OnDisk::Later);
  });
}

void RunFiles::add_samples(std::int64_t step, double time_s,
                           const std::vector<TextSample>& samples) noexcept {
  warn_once("samples.jsonl", [&] {
    std::string lines;
    for (const TextSample& one : samples)
      lines += record_line(
          {{"step", step}, {"prompt", one.prompt}, {"text", one.text}, {"time_s", time_s}});
    append_to_file(directory_ / "samples.jsonl", lines);
  });
}

}  // namespace kintsugi
