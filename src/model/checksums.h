#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "model/file_loader.h"

namespace kintsugi {

inline constexpr const char* kChecksums = "checksums.json";

// The content of checksums.json: the hashes (hex64) of the files of a checkpoint's directory. Names
// are paths below the directory.
struct Checksums {
  struct Range {
    std::uint64_t offset = 0, bytes = 0;
    std::string hash;
  };
  std::map<std::string, std::string> texts;           // small files, each with one hash
  std::map<std::string, std::vector<Range>> tensors;  // ranges follow each other, from offset 0 on

  static std::uint64_t size(const std::vector<Range>& ranges) {  // of the file
    return ranges.empty() ? 0 : ranges.back().offset + ranges.back().bytes;
  }
};

// `source` is the path of the file. A UserError begins with it and has no remedy, which depends on
// what the directory is for. Names that lead out of the directory are refused.
Checksums parse_checksums(const std::string& text, const std::string& source);
std::string write_checksums(const Checksums& checksums);

// Of a directory whose weights are loaded; nothing if it has no checksums.json. UserError with the
// remedy if it cannot be used.
std::optional<Checksums> read_checksums(const std::filesystem::path& directory);

// The ranges that one of several ranks verifies: every `ranks`th, from `rank` on.
struct VerifyShare {
  int rank = 0, ranks = 1;
};

// Every code that loads weights calls one of these two. If the directory has a checksums.json, they
// verify its tensors; a UserError names the damaged file. The first announces the ranges to the
// loader, which reads and hashes them in run(). The second reads the files now, for code that reads
// them without a FileLoader. `progress`: bytes.
void verify_weights(const std::filesystem::path& directory, FileLoader& loader,
                    VerifyShare share = {});
void verify_weights_now(const std::filesystem::path& directory, const ProgressCall& progress = {});

}  // namespace kintsugi
