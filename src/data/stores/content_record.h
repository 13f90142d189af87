#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "data/stores/token_store.h"

namespace kintsugi {

// The content of the data files when a run started, so that the run continues only on the same
// data; a change in the middle of a file is detected too.
//
// A file with the same size, times and inode is not read again. A new one, or one that was touched
// or copied, is compared by the hash of its whole content: with that of the start of the run, or
// with the one that `data tokenize` has written to PREFIX.json. If there is too much to read before
// the first step, blocks spread over each file are compared at once, and ContentCheck reads the
// rest in the background.
struct FileContent {
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0, changed_ns = 0;
  std::uint64_t inode = 0;
  std::string hash;    // XXH3 of the whole file; empty: not known
  std::string blocks;  // XXH3 of the blocks; empty: not computed
  bool read = false;   // the content was read and has this hash, which else is from PREFIX.json
};
using ContentRecord = std::vector<FileContent>;
using DataStores = std::vector<std::span<const TokenShard>>;  // the shards of each source

struct ContentLimits {
  std::uint64_t whole_bytes = std::uint64_t{256} << 20;  // read before the first step, in total
  std::uint64_t block_bytes = 64 * 1024;
  std::uint64_t blocks = 64;  // per file
};

// A file whose content is still to be compared.
struct UnreadFile {
  std::size_t number = 0;  // in the record
  FileContent now;
  std::string described;              // the hash in PREFIX.json; empty: none
  std::optional<FileContent> before;  // in the record of the run, if it continues
};

struct ComparedContent {
  ContentRecord record;  // unread files of a run that continues have their entries of before
  std::vector<UnreadFile> unread = {};
};

// Records the files of these stores, in their order. UserError if the content of a file is not what
// PREFIX.json describes.
ComparedContent record_content(const DataStores& stores, const ContentLimits& limits = {});

// Compares the files with those of the start; paths may differ. A UserError names a file whose
// content differs.
ComparedContent compare_content(const DataStores& stores, const ContentRecord& before,
                                const ContentLimits& limits = {});

// Writes the record of the data with this fingerprint (sample_order.h).
void write_content(const std::filesystem::path& path, const std::string& fingerprint,
                   const ContentRecord& record);
// None if there is no such file, or if it belongs to data with none of these fingerprints.
std::optional<ContentRecord> read_content(const std::filesystem::path& path,
                                          const std::vector<std::string>& fingerprints);

// Reads the files that were too much to read before the first step, in one thread of low priority
// and past the page cache, and compares their content. It ends with the object: the record then
// says which files were read, and the next start reads the others.
class ContentCheck {
 public:
  // Called with the record at once and after each file, the latter from the thread.
  using Save = std::function<void(const ContentRecord&)>;
  ContentCheck(ComparedContent content, Save save);
  ~ContentCheck();
  ContentCheck(const ContentCheck&) = delete;
  ContentCheck& operator=(const ContentCheck&) = delete;

  bool found_change() const { return found_change_; }
  void rethrow() const;  // the UserError that names the file, if found_change()
  std::uint64_t unread_bytes() const { return unread_bytes_; }
  void wait();  // until all files are read

 private:
  void read_files();
  bool read_file(UnreadFile& file);  // false if it was stopped
  void note_read(UnreadFile& file);

  ContentRecord record_;
  std::vector<UnreadFile> unread_;
  Save save_;
  std::atomic<bool> stopping_ = false, found_change_ = false;
  std::atomic<std::uint64_t> unread_bytes_ = 0;
  std::exception_ptr error_;  // written before found_change_
  std::thread thread_;
};

}  // namespace kintsugi
