#include "core/new_directory.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "core/log.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

void check_replaceable(const fs::path& target, bool overwrite, const std::string& replaceable) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(target, ignored))) return;
  if (!overwrite)
    user_error("{} already exists: choose another --output, or give --overwrite to replace it",
               target.string());
  if (fs::is_symlink(target, ignored) || !fs::is_directory(target, ignored))
    user_error("{} is not a directory, so --overwrite does not replace it: remove it first",
               target.string());
  if (!fs::is_empty(target, ignored) && !fs::exists(target / replaceable, ignored))
    user_error(
        "{} has no {}, so --overwrite does not replace it: choose another --output or remove it",
        target.string(), replaceable);
}

fs::path without_trailing_slash(const fs::path& path) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

}  // namespace

NewDirectory::NewDirectory(const fs::path& target, bool overwrite, const std::string& replaceable)
    : target_(without_trailing_slash(target)),
      temporary_(target_.parent_path() / ("." + target_.filename().string() + ".tmp")),
      old_(target_.parent_path() / ("." + target_.filename().string() + ".old")) {
  check_replaceable(target_, overwrite, replaceable);
  std::error_code error;
  if (!fs::is_directory(target_.parent_path(), error))
    user_error("the directory {} does not exist: create it first", target_.parent_path().string());
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

void NewDirectory::publish() {
  const auto rename = [](const fs::path& from, const fs::path& to) {
    if (::rename(from.c_str(), to.c_str()) != 0)
      failure("cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno));
  };
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(temporary_))
    if (entry.is_directory()) sync_directory(entry.path());
  sync_directory(temporary_);
  const bool replaces = fs::exists(target_, error);
  if (replaces) {
    fs::remove_all(old_, error);
    rename(target_, old_);
  }
  try {
    rename(temporary_, target_);
  } catch (...) {
    if (replaces) fs::rename(old_, target_, error);
    throw;
  }
  lock_.reset();  // nothing to remove from now on
  sync_directory(target_.parent_path());
  if (!replaces) return;
  fs::remove_all(old_, error);
  if (error) log_warning("cannot remove {}: {}", old_.string(), error.message());
}

}  // namespace kintsugi
