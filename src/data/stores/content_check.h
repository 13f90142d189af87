#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <thread>

#include "data/stores/content_record.h"

namespace kintsugi {

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
