#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/stores/token_store.h"

namespace kintsugi {

// What the files of a corpus held when a run began, so that a run continues on the same data only:
// also where a file changed in its middle.
//
// A file whose size, times and inode are as they were is not read again. One that was touched or
// copied is compared by content: the hash of all of it, which `data tokenize` has left in
// PREFIX.json or which is taken at the start. Where there is too much to read, blocks spread over
// each file stand for it.
struct FileContent {
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0, changed_ns = 0;
  std::uint64_t inode = 0;
  std::string hash;    // XXH3 of all of it; empty: nobody has read it
  std::string blocks;  // XXH3 of the blocks; empty: there was no need
};
using ContentRecord = std::vector<FileContent>;
using DataStores = std::vector<std::span<const TokenShard>>;  // the shards of each source

struct ContentLimits {
  std::uint64_t whole_bytes = std::uint64_t{8} << 30;  // in all; beyond it blocks are compared
  std::uint64_t block_bytes = 64 * 1024;
  std::uint64_t blocks = 64;  // of each file
};

// Of the files of these stores, in their order.
ContentRecord record_content(const DataStores& stores, const ContentLimits& limits = {});

// The record with the times of today. UserError that names the first file which is not as `before`
// says; names and places of files may be others.
ContentRecord check_content(const DataStores& stores, const ContentRecord& before,
                            const ContentLimits& limits = {});

// PATH holds the record of the data with this fingerprint (sample_order.h).
void write_content(const std::filesystem::path& path, const std::string& fingerprint,
                   const ContentRecord& record);
// None when there is no such file, or when it is of other data.
std::optional<ContentRecord> read_content(const std::filesystem::path& path,
                                          const std::string& fingerprint);

}  // namespace kintsugi
