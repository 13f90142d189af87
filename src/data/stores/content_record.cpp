#include "data/stores/content_record.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/units.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kThreads = 8;  // files read at once

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
               std::vector<UnreadFile>& files) {
  const auto add = [&](const fs::path& path, const std::string& described) {
    files.push_back({files.size(), stamp(path), described, std::nullopt});
  };
  if (shard.is_text()) return add(shard.name(), "");
  const fs::path prefix = shard.name();
  const StoreInfo::Shard* entry = entry_of(info, prefix.filename().string(), number);
  const auto add_part = [&](const char* ending, std::string StoreInfo::Shard::*hash) {
    add(with_ending(prefix, ending), entry != nullptr ? entry->*hash : "");
  };
  add_part(".bin", &StoreInfo::Shard::bin);
  add_part(".idx", &StoreInfo::Shard::idx);
  if (shard.has_mask()) add_part(".mask", &StoreInfo::Shard::mask);
  if (shard.has_labels()) add_part(".labels", &StoreInfo::Shard::labels);
}

std::vector<UnreadFile> files_of(const DataStores& stores) {
  std::vector<UnreadFile> files;
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

// UserError if this hash of its content is not the expected one.
void check_hash(const UnreadFile& file, const std::string& hash) {
  const bool known = file.before && !file.before->hash.empty();
  const std::string& expected = known ? file.before->hash : file.described;
  if (expected.empty() || hash == expected) return;
  if (known && (file.before->read || !same_stamp(*file.before, file.now)))
    fail_changed(*file.before, file.now,
                 fmt::format("the checksum of its content is {}, it was {}", hash, expected));
  user_error(
      "{} has another content than its store was written with: its checksum is {}, but the .json "
      "file of the store says {}; copy or write the store again (`kintsugi data verify` checks it)",
      file.now.path, hash, expected);
}

// Compares blocks, and what PREFIX.json says, with the start of the run.
void compare_quickly(UnreadFile& file, const ContentLimits& limits) {
  file.now.hash = file.described;
  file.now.blocks = block_hash(file.now.path, limits);
  if (!file.before) return;
  const auto expect = [&](const std::string& then, const std::string& found, const char* of) {
    if (!then.empty() && !found.empty() && then != found)
      fail_changed(*file.before, file.now,
                   fmt::format("the checksum of {} is {}, it was {}", of, found, then));
  };
  expect(file.before->hash, file.described, "its content");
  expect(file.before->blocks, file.now.blocks, "samples of its content");
}

// Reads the files, or only blocks of them if they are too large. Those that stay unread keep their
// entries of before, so that a later start compares them again.
void settle(ComparedContent& content, const ContentLimits& limits) {
  std::vector<UnreadFile>& unread = content.unread;
  std::uint64_t bytes = 0;
  for (const UnreadFile& file : unread) bytes += file.now.bytes;
  const bool read_whole = bytes <= limits.whole_bytes;
  in_parallel(unread.size(), [&](std::size_t i) {
    UnreadFile& file = unread[i];
    if (read_whole) {
      file.now.hash = whole_hash(file.now.path);
      check_hash(file, file.now.hash);
      file.now.blocks = file.before ? file.before->blocks : "";
      file.now.read = true;
    } else {
      compare_quickly(file, limits);
    }
  });
  for (const UnreadFile& file : unread)
    content.record[file.number] = read_whole || !file.before ? file.now : *file.before;
  if (read_whole) unread.clear();
}

constexpr std::size_t kBlock = std::size_t{8} << 20;

// Of the calling thread, for processor and disk; what the system does not support has no effect.
void lower_priority() {
  constexpr int kProcess = 1, kIdleClass = 3, kClassShift = 13;  // linux/ioprio.h
  ::syscall(SYS_ioprio_set, kProcess, 0, kIdleClass << kClassShift);
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 19);
}

struct FreePages {
  void operator()(std::byte* pages) const {
    ::operator delete (pages, std::align_val_t{FileReader::kPage});
  }
};

}  // namespace

ComparedContent record_content(const DataStores& stores, const ContentLimits& limits) {
  ComparedContent content{.record = {}, .unread = files_of(stores)};
  content.record.resize(content.unread.size());
  settle(content, limits);
  return content;
}

ComparedContent compare_content(const DataStores& stores, const ContentRecord& before,
                                const ContentLimits& limits) {
  ComparedContent content{.record = before};
  std::vector<UnreadFile> files = files_of(stores);
  if (files.size() != before.size())
    user_error("the data has {} files, but the run was started on {}: choose another run.dir",
               files.size(), before.size());
  for (UnreadFile& file : files) {
    file.before = before[file.number];
    if (file.now.bytes != file.before->bytes)
      fail_changed(*file.before, file.now,
                   fmt::format("it has {} bytes, it had {}", file.now.bytes, file.before->bytes));
    if (!file.before->read || !same_stamp(file.now, *file.before))
      content.unread.push_back(std::move(file));
  }
  settle(content, limits);
  return content;
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
                             {"blocks", file.blocks},
                             {"read", file.read}});
  write_file_atomically(path, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<ContentRecord> read_content(const fs::path& path,
                                          const std::vector<std::string>& fingerprints) {
  if (!fs::exists(path)) return std::nullopt;
  try {
    const Json json = Json::parse(read_text_file(path));
    const std::string own = json.at("fingerprint");
    if (std::find(fingerprints.begin(), fingerprints.end(), own) == fingerprints.end())
      return std::nullopt;
    ContentRecord record;
    for (const Json& file : json.at("files"))
      record.push_back({.path = file.at("path"),
                        .bytes = file.at("bytes"),
                        .modified_ns = file.at("modified_ns"),
                        .changed_ns = file.at("changed_ns"),
                        .inode = file.at("inode"),
                        .hash = file.at("hash"),
                        .blocks = file.at("blocks"),
                        .read = file.value("read", false)});  // older versions trusted PREFIX.json
    return record;
  } catch (const Json::exception& error) {
    user_error("{} does not describe the data of a run ({}): remove it to skip the check",
               path.string(), error.what());
  }
}

ContentCheck::ContentCheck(ComparedContent content, Save save)
    : record_(std::move(content.record)),
      unread_(std::move(content.unread)),
      save_(std::move(save)) {
  save_(record_);
  if (unread_.empty()) return;
  std::uint64_t bytes = 0;
  for (const UnreadFile& file : unread_) bytes += file.now.bytes;
  unread_bytes_ = bytes;
  log_info("the content of the data ({}) is read and compared in the background",
           format_bytes(static_cast<double>(bytes)));
  thread_ = std::thread([this] { read_files(); });
}

ContentCheck::~ContentCheck() {
  stopping_ = true;
  wait();
}

void ContentCheck::wait() {
  if (thread_.joinable()) thread_.join();
}

void ContentCheck::rethrow() const {
  if (found_change_) std::rethrow_exception(error_);
}

void ContentCheck::read_files() {
  lower_priority();
  for (UnreadFile& file : unread_) {
    try {
      if (!read_file(file)) return;
    } catch (const std::exception& error) {  // a run that can still train goes on
      log_warning("the content of {} was not compared: {}", file.now.path, error.what());
      continue;
    }
    try {
      check_hash(file, file.now.hash);
    } catch (const UserError&) {
      error_ = std::current_exception();
      found_change_ = true;
      return;
    }
    note_read(file);
  }
}

void ContentCheck::note_read(UnreadFile& file) {
  file.now.blocks = record_[file.number].blocks;
  file.now.read = true;
  record_[file.number] = file.now;
  try {
    save_(record_);
  } catch (const std::exception& error) {
    log_warning("{}", error.what());
  }
}

bool ContentCheck::read_file(UnreadFile& file) {
  const FileReader reader(file.now.path);
  const std::unique_ptr<std::byte, FreePages> buffer(static_cast<std::byte*>(
      ::operator new (kBlock + FileReader::kSlack, std::align_val_t{FileReader::kPage})));
  StreamHash hash;
  for (std::uint64_t at = 0; at < reader.size();) {
    if (stopping_) return false;
    const auto bytes =
        static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, reader.size() - at));
    hash.update(reader.read(at, bytes, buffer.get()), bytes);
    at += bytes;
    unread_bytes_ -= bytes;
  }
  file.now.hash = hex64(hash.digest());
  return true;
}

}  // namespace kintsugi
