#include "data/stores/content_check.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <new>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/units.h"

namespace kintsugi {
namespace {

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
