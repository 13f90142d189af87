#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "core/file_lock.h"
#include "data/stores/store_info.h"

namespace kintsugi {

// Locks an output for this process. The system releases the lock if the process dies.
class OutputLock {
 public:
  // UserError if another process holds it. The destructor removes the file PREFIX.lock.
  explicit OutputLock(const std::filesystem::path& prefix);

 private:
  std::unique_ptr<FileLock> lock_;
};

// The files of a store, final or partial: NAME.bin, NAME-00000.idx, and so on.
std::vector<std::filesystem::path> store_files(const std::filesystem::path& prefix, bool partial);
// Whether the store writes a file of this name.
bool is_store_file(const std::filesystem::path& file, const std::filesystem::path& prefix);
// UserError if a file of an existing store is one of the inputs, under whatever name.
void refuse_inputs_as_store(const std::filesystem::path& prefix,
                            const std::vector<std::filesystem::path>& inputs);
// PREFIX.json may be the user's own file, for example a corpus: then a UserError.
void refuse_foreign_description(const std::filesystem::path& prefix);

// A store that is written as one shard and in one go (token_writer.h). If publish() is not reached,
// nothing of it stays.
class StoreOutput {
 public:
  // UserError if the store exists, unless `overwrite`, or if another process is writing it.
  StoreOutput(std::filesystem::path prefix, bool overwrite);
  ~StoreOutput();
  StoreOutput(const StoreOutput&) = delete;
  StoreOutput& operator=(const StoreOutput&) = delete;

  const std::filesystem::path& prefix() const { return prefix_; }
  // Replaces an old store by the finished shard. Without `info`, there is no PREFIX.json.
  void publish(const std::optional<StoreInfo>& info);

 private:
  std::filesystem::path prefix_;
  std::optional<OutputLock> lock_;
};

}  // namespace kintsugi
