#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/progress.h"
#include "model/files/file_loader.h"
#include "tensor/safetensors.h"

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

// Identifies the weights of a model without reading all of them. It has two parts:
// - a hash of the names, types, shapes and sampled blocks of all tensors. A tensor of up to 64 KiB
//   is hashed whole; of a larger one, eight blocks of 8 KiB from its first byte to its last. Other
//   weights (another seed, another step of a training, a fine-tuned model) differ in many elements
//   of every trained tensor and are always found. A change of a few elements of a large tensor may
//   lie between the blocks.
// - if the directory has a checksums.json, a hash of the checksums of its tensor files, which
//   change with every bit. Loading verifies that the files match them.
struct WeightsFingerprint {
  std::uint64_t sampled = 0;
  std::uint64_t ranges = 0,
                checksums = 0;  // hashes of the ranges and their hashes; 0: there is none

  std::string text() const;
  bool operator==(const WeightsFingerprint&) const = default;
};
WeightsFingerprint fingerprint_of(const SafetensorsModel& files);

// What every rank of the group sees, which need not be the same files. All ranks call it. Of ranks
// that see the same files on one node, only the first reads them. `group` communicates host memory.
WeightsFingerprint shared_fingerprint(Communicator& group, const SafetensorsModel& files);

// Whether `recorded`, the text() of weights at an earlier time, is that of the weights in `files`,
// whose fingerprint is `current`. Checksums count if both have them for the same ranges. Older
// versions recorded a hash that left out tensors of more than 64 KiB: it is compared as it was.
bool is_same_model(const std::string& recorded, const WeightsFingerprint& current,
                   const SafetensorsModel& files);
// Whether it was recorded by such a version.
bool is_old_fingerprint(const std::string& recorded);

// The directory of a model's files.
std::filesystem::path directory_of(const SafetensorsModel& files);

// Whether the sampled blocks of two tensors are equal, and their types and shapes.
bool has_same_samples(const SafetensorsModel::Location& a, const SafetensorsModel::Location& b);

}  // namespace kintsugi
