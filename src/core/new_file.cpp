#include "core/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// Creates an empty file, which no link can redirect. Returns false if the name is taken.
bool create_empty(const fs::path& path, bool is_private) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                          is_private ? 0600 : 0644);
  if (file < 0 && errno != EEXIST)
    failure("cannot create {}: {}", path.string(), std::generic_category().message(errno));
  if (file >= 0) ::close(file);
  return file >= 0;
}

fs::path make_temporary(const fs::path& target, const NewFileOptions& options) {
  if (options.own_temporary) {
    for (int number = 0;; ++number) {
      const fs::path name =
          target.parent_path() /
          fmt::format(".{}.{}-{}.tmp", target.filename().string(), ::getpid(), number);
      if (create_empty(name, options.is_private)) return name;
    }
  }
  const fs::path name = target.string() + ".tmp";
  if (options.is_private) {
    ::unlink(name.c_str());  // a killed process may have left it, readable for others
    create_empty(name, true);
  }
  return name;
}

}  // namespace

NewFile::NewFile(const fs::path& target, const NewFileOptions& options)
    : target_(target),
      options_(options),
      temporary_(make_temporary(target, options)),
      writer_(temporary_) {}

NewFile::~NewFile() {
  if (!published_) ::unlink(temporary_.c_str());
}

void NewFile::publish(std::string_view first_bytes, OnDisk on_disk) {
  writer_.close(on_disk);
  if (!first_bytes.empty()) {
    OffsetWriter first(temporary_);
    first.write_at(0, first_bytes.data(), first_bytes.size());
    first.close();
  }
  int problem = 0;
  if (!options_.replaces)
    problem = rename_to_new_name(temporary_, target_);
  else if (::rename(temporary_.c_str(), target_.c_str()) != 0)
    problem = errno;
  if (problem != 0)
    failure("cannot rename {} to {}: {}", temporary_.string(), target_.string(),
            std::generic_category().message(problem));
  published_ = true;
}

void write_private_file(const fs::path& path, std::string_view content) {
  NewFile file(path, {.is_private = true});
  file.write(content.data(), content.size());
  file.publish();
}

int rename_to_new_name(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  struct stat facts;
  if (::lstat(to.c_str(), &facts) == 0) return EEXIST;
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

namespace {

// The name of something in the directory that is not of this kind; empty: there is nothing.
std::string foreign_entry(const fs::path& directory, const DirectoryKind& kind) {
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const std::string name = fs::relative(entry.path(), directory).string();
    if (entry.is_directory() && !entry.is_symlink()) {
      if (!fs::is_empty(entry.path())) continue;  // its files are looked at
      return name;
    }
    if (!kind.is_member(name)) return name;
  }
  return "";
}

void check_replaceable(const fs::path& target, bool overwrite, const DirectoryKind& kind) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(target, ignored))) return;
  if (!overwrite)
    user_error("{} already exists: choose another --output, or give --overwrite to replace it",
               target.string());
  if (fs::is_symlink(target, ignored) || !fs::is_directory(target, ignored))
    user_error("{} is not a directory, so --overwrite does not replace it: remove it first",
               target.string());
  if (fs::is_empty(target, ignored)) return;
  if (!fs::exists(target / kind.required, ignored))
    user_error(
        "{} has no {}, so --overwrite does not replace it: choose another --output or remove it",
        target.string(), kind.required);
  if (const std::string name = foreign_entry(target, kind); !name.empty())
    user_error(
        "{} has {}, which is not part of {}, so --overwrite does not replace it: choose another "
        "--output or remove it",
        target.string(), name, kind.name);
}

// What a killed process left, unless it is something else.
void check_leftover(const fs::path& directory, const DirectoryKind& kind) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(directory, ignored))) return;
  if (fs::is_symlink(directory, ignored) || !fs::is_directory(directory, ignored))
    user_error("{} is in the way and not a directory: remove it", directory.string());
  if (const std::string name = foreign_entry(directory, kind); !name.empty())
    user_error("{} is in the way: it has {}, which is not part of {}; remove it or rename it",
               directory.string(), name, kind.name);
}

fs::path without_trailing_slash(const fs::path& path) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

fs::path beside(const fs::path& target, const char* ending) {
  return target.parent_path() / ("." + target.filename().string() + ending);
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    failure("cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno));
}

}  // namespace

std::vector<fs::path> NewDirectory::temporaries(const fs::path& target) {
  const fs::path whole = without_trailing_slash(target);
  return {beside(whole, ".tmp"), beside(whole, ".old")};
}

NewDirectory::NewDirectory(const fs::path& target, bool overwrite, DirectoryKind kind)
    : target_(without_trailing_slash(target)),
      temporary_(beside(target_, ".tmp")),
      old_(beside(target_, ".old")),
      overwrite_(overwrite),
      kind_(std::move(kind)) {
  check_replaceable(target_, overwrite_, kind_);
  std::error_code error;
  if (!fs::is_directory(target_.parent_path(), error))
    user_error("the directory {} does not exist: create it first", target_.parent_path().string());
  for (const fs::path& leftover : {temporary_, old_}) check_leftover(leftover, kind_);
  fs::create_directory(temporary_, error);
  if (error) failure("cannot create {}: {}", temporary_.string(), error.message());
  lock_ = std::make_unique<DirectoryLock>(temporary_);
  for (const auto& entry : fs::directory_iterator(temporary_, error))  // of a killed process
    fs::remove_all(entry.path(), error);
}

NewDirectory::~NewDirectory() {
  std::error_code ignored;
  if (lock_) fs::remove_all(temporary_, ignored);
}

void NewDirectory::write(const std::string& name, const std::string& content) {
  const fs::path file = temporary_ / name;
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (error) failure("cannot create {}: {}", file.parent_path().string(), error.message());
  FileWriter writer(file);
  writer.write(content.data(), content.size());
  writer.close();
}

// The old directory is moved away and removed at the end.
void NewDirectory::replace_target() {
  std::error_code error;
  fs::remove_all(old_, error);
  const bool exchanged =
      ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0;
  if (exchanged) {
    rename_or_fail(temporary_, old_);
    return;
  }
  rename_or_fail(target_, old_);
  try {
    rename_or_fail(temporary_, target_);
  } catch (...) {
    fs::rename(old_, target_, error);
    throw;
  }
}

void NewDirectory::publish() {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(temporary_))
    if (entry.is_directory()) sync_directory(entry.path());
  sync_directory(temporary_);
  check_replaceable(target_, overwrite_, kind_);  // it may have appeared or changed meanwhile
  const bool replaces = fs::exists(target_, error);
  if (replaces) {
    replace_target();
  } else if (const int problem = rename_to_new_name(temporary_, target_); problem != 0) {
    failure("cannot rename {} to {}: {}", temporary_.string(), target_.string(),
            std::strerror(problem));
  }
  lock_.reset();  // nothing to remove from now on
  sync_directory(target_.parent_path());
  if (!replaces) return;
  fs::remove_all(old_, error);
  if (error) log_warning("cannot remove {}: {}", old_.string(), error.message());
}

}  // namespace kintsugi
