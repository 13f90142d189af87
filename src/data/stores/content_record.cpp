#include "data/stores/content_record.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/units.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kThreads = 8;  // files read at once

// A file with its entry in PREFIX.json.
struct DataFile {
  FileContent now;
  std::string recorded;  // XXH3; empty: none
};

FileContent stamp(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    user_error("cannot read {}: {}", path.string(), std::strerror(errno));
  const auto ns = [](const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  FileContent content;
  content.path = path.string();
  content.bytes = static_cast<std::uint64_t>(status.st_size);
  content.modified_ns = ns(status.st_mtim);
  content.changed_ns = ns(status.st_ctim);
  content.inode = status.st_ino;
  return content;
}

bool same_stamp(const FileContent& a, const FileContent& b) {
  return a.bytes == b.bytes && a.modified_ns == b.modified_ns && a.changed_ns == b.changed_ns &&
         a.inode == b.inode;
}

// `number`: index of the shard within its source, usually also the index of its entry.
const StoreInfo::Shard* entry_of(const StoreInfo* info, const std::string& name,
                                 std::size_t number) {
  if (info == nullptr) return nullptr;
  const auto& entries = info->shards;
  if (number < entries.size() && entries[number].name == name) return &entries[number];
  for (const StoreInfo::Shard& entry : entries)
    if (entry.name == name) return &entry;
  return entries.size() == 1 ? &entries.front() : nullptr;  // renamed
}

void add_files(const TokenShard& shard, const StoreInfo* info, std::size_t number,
               std::vector<DataFile>& files) {
  if (shard.is_text()) {
    files.push_back({stamp(shard.name()), ""});
    return;
  }
  const fs::path prefix = shard.name();
  const StoreInfo::Shard* entry = entry_of(info, prefix.filename().string(), number);
  const auto add = [&](const char* ending, const std::string& recorded) {
    files.push_back({stamp(with_ending(prefix, ending)), recorded});
  };
  add(".bin", entry != nullptr ? entry->bin : "");
  add(".idx", entry != nullptr ? entry->idx : "");
  if (shard.has_mask()) add(".mask", entry != nullptr ? entry->mask : "");
  if (shard.has_labels()) add(".labels", entry != nullptr ? entry->labels : "");
}

std::vector<DataFile> files_of(const DataStores& stores) {
  std::vector<DataFile> files;
  for (const std::span<const TokenShard> shards : stores) {
    const auto infos = read_store_infos(shards);
    for (std::size_t i = 0; i < shards.size(); ++i) add_files(shards[i], infos[i].get(), i, files);
  }
  return files;
}

std::string whole_hash(const std::string& path) {
  const MappedFile file(path);
  const std::string hash = hex64(hash64(file.bytes().data(), file.bytes().size()));
  file.check_intact();
  return hash;
}

// Hashes evenly spaced blocks, including the first and the last.
std::string block_hash(const std::string& path, const ContentLimits& limits) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  StreamHash hash;
  if (bytes.size() <= limits.blocks * limits.block_bytes) {
    hash.update(bytes.data(), bytes.size());
  } else {
    const std::size_t span = bytes.size() - limits.block_bytes;
    const std::uint64_t last = std::max<std::uint64_t>(limits.blocks - 1, 1);
    for (std::uint64_t i = 0; i < limits.blocks; ++i)
      hash.update(bytes.data() + span / last * i + span % last * i / last, limits.block_bytes);
  }
  file.check_intact();
  return hex64(hash.digest());
}

// Calls work(i) for each i on several threads. Throws the first error after all have ended.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto worker = [&] {
    for (std::size_t i; (i = next++) < count;) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < std::min(count, kThreads); ++i) threads.emplace_back(worker);
  worker();
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

[[noreturn]] void fail_changed(const FileContent& before, const FileContent& now,
                               const std::string& what) {
  user_error(
      "{} is not the file that the run was started on{}: {}; restore it, or choose another run.dir",
      now.path, before.path == now.path ? "" : " (then " + before.path + ")", what);
}

// Compares the whole content if `read_whole`, otherwise the recorded checksum and the blocks.
void compare(DataFile& file, const FileContent& before, bool read_whole,
             const ContentLimits& limits) {
  FileContent& now = file.now;
  const auto expect = [&](const std::string& then, const std::string& found, const char* of) {
    if (then != found)
      fail_changed(before, now,
                   fmt::format("the checksum of {} is {}, it was {}", of, found, then));
  };
  if (read_whole && !before.hash.empty()) {
    expect(before.hash, whole_hash(now.path), "its content");
  } else {
    if (!before.hash.empty() && !file.recorded.empty())
      expect(before.hash, file.recorded, "its content");
    if (!before.blocks.empty())
      expect(before.blocks, block_hash(now.path, limits), "samples of its content");
  }
  now.hash = before.hash;
  now.blocks = before.blocks;
}

}  // namespace

ContentRecord record_content(const DataStores& stores, const ContentLimits& limits) {
  std::vector<DataFile> files = files_of(stores);
  std::uint64_t all = 0, unknown = 0;
  for (const DataFile& file : files) {
    all += file.now.bytes;
    if (file.recorded.empty()) unknown += file.now.bytes;
  }
  in_parallel(files.size(), [&](std::size_t i) {
    FileContent& now = files[i].now;
    now.hash = files[i].recorded;
    if (now.hash.empty() && unknown <= limits.whole_bytes) now.hash = whole_hash(now.path);
    if (all > limits.whole_bytes) now.blocks = block_hash(now.path, limits);
  });
  ContentRecord record;
  for (DataFile& file : files) record.push_back(std::move(file.now));
  return record;
}

ContentRecord check_content(const DataStores& stores, const ContentRecord& before,
                            const ContentLimits& limits) {
  std::vector<DataFile> files = files_of(stores);
  if (files.size() != before.size())
    user_error("the data has {} files, but the run was started on {}: choose another run.dir",
               files.size(), before.size());
  std::uint64_t to_read = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const FileContent& now = files[i].now;
    if (now.bytes != before[i].bytes)
      fail_changed(before[i], now,
                   fmt::format("it has {} bytes, it had {}", now.bytes, before[i].bytes));
    if (!same_stamp(now, before[i])) to_read += now.bytes;
  }
  const bool read_whole = to_read <= limits.whole_bytes;
  in_parallel(files.size(), [&](std::size_t i) {
    if (same_stamp(files[i].now, before[i])) {
      files[i].now.hash = before[i].hash;
      files[i].now.blocks = before[i].blocks;
    } else {
      compare(files[i], before[i], read_whole, limits);
    }
  });
  if (!read_whole)
    log_warning(
        "the modification times of {} of the data have changed since the run was started: sizes, "
        "recorded checksums and samples match; `kintsugi data verify` checks all of it",
        format_bytes(static_cast<double>(to_read)));
  ContentRecord record;
  for (DataFile& file : files) record.push_back(std::move(file.now));
  return record;
}

void write_content(const fs::path& path, const std::string& fingerprint,
                   const ContentRecord& record) {
  Json json = {{"fingerprint", fingerprint}, {"files", Json::array()}};
  for (const FileContent& file : record)
    json["files"].push_back({{"path", file.path},
                             {"bytes", file.bytes},
                             {"modified_ns", file.modified_ns},
                             {"changed_ns", file.changed_ns},
                             {"inode", file.inode},
                             {"hash", file.hash},
                             {"blocks", file.blocks}});
  write_file_atomically(path, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<ContentRecord> read_content(const fs::path& path, const std::string& fingerprint) {
  if (!fs::exists(path)) return std::nullopt;
  try {
    const Json json = Json::parse(read_text_file(path));
    if (json.at("fingerprint").get<std::string>() != fingerprint) return std::nullopt;
    ContentRecord record;
    for (const Json& file : json.at("files"))
      record.push_back({.path = file.at("path"),
                        .bytes = file.at("bytes"),
                        .modified_ns = file.at("modified_ns"),
                        .changed_ns = file.at("changed_ns"),
                        .inode = file.at("inode"),
                        .hash = file.at("hash"),
                        .blocks = file.at("blocks")});
    return record;
  } catch (const Json::exception& error) {
    user_error("{} does not describe the data of a run ({}): remove it to skip the check",
               path.string(), error.what());
  }
}

}  // namespace kintsugi
