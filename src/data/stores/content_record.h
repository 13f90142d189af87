#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/stores/token_store.h"

namespace kintsugi {

// The content of the data files when a run started, so that the run continues only on the same
// data; a change in the middle of a file is detected too.
//
// A file with the same size, times and inode is not read again. A file that was touched or copied
// is compared by content: by the hash of the whole file, which `data tokenize` has written to
// PREFIX.json or which is computed at the start. If there is too much to read, only blocks spread
// over each file are hashed.
struct FileContent {
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0, changed_ns = 0;
  std::uint64_t inode = 0;
  std::string hash;    // XXH3 of the whole file; empty: not computed
  std::string blocks;  // XXH3 of the blocks; empty: not computed
};
using ContentRecord = std::vector<FileContent>;
using DataStores = std::vector<std::span<const TokenShard>>;  // the shards of each source

struct ContentLimits {
  std::uint64_t whole_bytes = std::uint64_t{8} << 30;  // total; above it only blocks are compared
  std::uint64_t block_bytes = 64 * 1024;
  std::uint64_t blocks = 64;  // per file
};

// Records the files of these stores, in their order.
ContentRecord record_content(const DataStores& stores, const ContentLimits& limits = {});

// Returns the record with the current times. A UserError names a file whose content differs from
// `before`; paths may differ.
ContentRecord check_content(const DataStores& stores, const ContentRecord& before,
                            const ContentLimits& limits = {});

// Writes the record of the data with this fingerprint (sample_order.h).
void write_content(const std::filesystem::path& path, const std::string& fingerprint,
                   const ContentRecord& record);
// None if there is no such file, or if it belongs to other data.
std::optional<ContentRecord> read_content(const std::filesystem::path& path,
                                          const std::string& fingerprint);

}  // namespace kintsugi
