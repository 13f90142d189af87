#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/file_lock.h"
#include "core/progress.h"
#include "data/stores/token_store.h"

namespace kintsugi {

// Locks an output for this process: PREFIX.lock, removed with the result. The system releases the
// lock if the process dies. UserError if another process holds it.
std::unique_ptr<FileLock> lock_output(const std::filesystem::path& prefix);

// The files of a store, final or partial: NAME.bin, NAME-00000.idx, and so on.
std::vector<std::filesystem::path> store_files(const std::filesystem::path& prefix, bool partial);
// UserError if the store writes a file of this name.
void refuse_input_name(const std::filesystem::path& input, const std::filesystem::path& prefix);
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
  std::unique_ptr<FileLock> lock_;
};

// Concatenates stores of one token type into one shard, document by document, in bounded memory. If
// all stores come from the same tokenizer, PREFIX.json is written too. The files get their final
// names at the end. `progress`: tokens.
StoreInfo merge_stores(const std::vector<std::string>& names, const std::filesystem::path& output,
                       bool overwrite, const ProgressCall& progress = {});

}  // namespace kintsugi
