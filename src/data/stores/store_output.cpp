#include "data/stores/store_output.h"

#include <algorithm>
#include <array>
#include <string>

#include "core/error.h"
#include "core/file.h"
#include "core/output_file.h"
#include "data/stores/store_info.h"
#include "data/stores/token_writer.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// Of each shard; while it is written also .lengths.
constexpr std::array<const char*, 5> kStoreEndings = {".bin", ".idx", ".mask", ".labels",
                                                      ".lengths"};

fs::path folder_of(const fs::path& prefix) {
  return prefix.has_parent_path() ? prefix.parent_path() : fs::path(".");
}

bool is_name_of(const fs::path& name, const fs::path& prefix) {
  return name == prefix.filename() || store_of_shard(name) == prefix.filename();
}

}  // namespace

OutputLock::OutputLock(const std::filesystem::path& prefix) {
  std::string holder;
  lock_ = FileLock::try_take(with_ending(prefix, ".lock"), holder);
  if (!lock_)
    user_error("another process is writing {} ({}): wait for it or choose another --output",
               prefix.string(), holder);
}

std::vector<fs::path> store_files(const fs::path& prefix, bool partial) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder_of(prefix))) {
    const fs::path ending = entry.path().extension();
    if (std::find(kStoreEndings.begin(), kStoreEndings.end(), ending) == kStoreEndings.end())
      continue;
    fs::path name = entry.path().filename().stem();
    if ((name.extension() == ".partial") != partial) continue;
    if (partial) name = name.stem();
    if (is_name_of(name, prefix)) files.push_back(entry.path());
  }
  return files;
}

bool is_store_file(const fs::path& file, const fs::path& prefix) {
  const fs::path ending = file.extension();
  if (ending != ".json" &&
      (ending == ".lengths" ||
       std::find(kStoreEndings.begin(), kStoreEndings.end(), ending) == kStoreEndings.end()))
    return false;
  return fs::weakly_canonical(fs::absolute(file).parent_path()) ==
             fs::weakly_canonical(fs::absolute(prefix).parent_path()) &&
         is_name_of(file.stem(), prefix);
}

void refuse_inputs_as_store(const fs::path& prefix, const std::vector<fs::path>& inputs) {
  std::error_code ignored;
  if (!fs::is_directory(folder_of(prefix), ignored)) return;
  std::vector<fs::path> files = store_files(prefix, false);
  files.push_back(with_ending(prefix, ".json"));
  for (const fs::path& file : files) refuse_inputs_as_output("--output", file, {.inputs = inputs});
}

void refuse_foreign_description(const fs::path& prefix) {
  try {
    read_store_info(prefix);
  } catch (const UserError&) {
    user_error("{} exists but was not written by this command: choose another --output",
               with_ending(prefix, ".json").string());
  }
}

StoreOutput::StoreOutput(fs::path prefix, bool overwrite) : prefix_(std::move(prefix)) {
  refuse_foreign_description(prefix_);
  for (const char* ending : {".idx", ".bin", ".mask", ".labels", ".json", ".progress.json"})
    if (!overwrite && fs::exists(with_ending(prefix_, ending)))
      user_error("{} exists: replace it with --overwrite, or choose another --output",
                 with_ending(prefix_, ending).string());
  fs::create_directories(folder_of(prefix_));
  lock_.emplace(prefix_);
  TokenWriter::discard(prefix_);
}

// After publish() there are no temporary files.
StoreOutput::~StoreOutput() { TokenWriter::discard(prefix_); }

void StoreOutput::publish(const std::optional<StoreInfo>& info) {
  // Files of the replaced store must not be taken for those of the new one.
  for (const char* ending : {".json", ".progress.json", ".idx", ".mask", ".labels"})
    fs::remove(with_ending(prefix_, ending));
  TokenWriter::publish(prefix_);
  if (info) write_store_info(prefix_, *info);
  sync_directory(folder_of(prefix_));
}

}  // namespace kintsugi
