#include "core/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
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
      // Of others, the files are looked at.
      if (!fs::is_empty(entry.path()) || kind.is_member(name)) continue;
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
  if (error) user_error("cannot create {}: {}", temporary_.string(), error.message());
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

namespace {

// What a file is, whatever its names are.
struct FileIdentity {
  dev_t device = 0;
  ino_t number = 0;
  bool is_directory = false;

  bool operator==(const FileIdentity& other) const {
    return device == other.device && number == other.number;
  }
};

std::optional<FileIdentity> identity_of(const fs::path& path) {
  struct stat facts;
  if (::stat(path.c_str(), &facts) != 0) return {};
  return FileIdentity{facts.st_dev, facts.st_ino, S_ISDIR(facts.st_mode)};
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// ".bin", "-00000.idx"
bool is_end_of_store_file(std::string_view end) {
  if (end.starts_with("-")) end.remove_prefix(std::min(end.find('.'), end.size()));
  return end.starts_with(".") && end.find_first_of(".-", 1) == std::string_view::npos;
}

// The files of a token store: PREFIX.bin, PREFIX-00000.idx and so on.
std::vector<fs::path> files_of_prefix(const fs::path& prefix) {
  const std::string name = prefix.filename().string();
  std::vector<fs::path> files;
  std::error_code ignored;
  if (name.empty()) return files;
  for (const auto& entry : fs::directory_iterator(folder_of(prefix), ignored)) {
    const std::string other = entry.path().filename().string();
    if (other.starts_with(name) && is_end_of_store_file(other.substr(name.size())))
      files.push_back(entry);
  }
  return files;
}

bool is_inside(const fs::path& path, const FileIdentity& directory) {
  std::error_code ignored;
  for (fs::path at = fs::weakly_canonical(path, ignored); at.has_relative_path();
       at = at.parent_path())
    if (identity_of(at.parent_path()) == directory) return true;
  return false;
}

// Whether a file of the directory, or what a link in it points to, is this one.
bool holds(const fs::path& directory, const FileIdentity& file) {
  std::error_code error;
  constexpr auto kOptions = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator at(directory, kOptions, error), end; !error && at != end;
       at.increment(error))
    if (identity_of(at->path()) == file) return true;
  return false;
}

// Whether writing `output` would replace the input or a part of it.
bool would_replace(const fs::path& output, const fs::path& input, const OutputRule& rule) {
  const auto target = identity_of(output), source = identity_of(input);
  if (!target) return false;
  if (!source) {
    const std::vector<fs::path> files = files_of_prefix(input);
    return std::ranges::any_of(files,
                               [&](const fs::path& file) { return identity_of(file) == target; });
  }
  if (*source == *target) return true;
  if (target->is_directory) return is_inside(input, *target);
  if (!source->is_directory || (rule.is_own && rule.is_own(output))) return false;
  return is_inside(output, *source) || holds(input, *target);
}

// "--output x.csv", "--profile file=x.json"
std::string named(const std::string& option, const fs::path& path) {
  return option + (option.ends_with('=') ? "" : " ") + path.string();
}

void check_folder_of(const std::string& option, const fs::path& path) {
  const fs::path folder = folder_of(path);
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    user_error("{}: there is no directory {}", named(option, path), folder.string());
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    user_error("{}: its directory cannot be written to: {}", named(option, path),
               std::generic_category().message(errno));
}

}  // namespace

void refuse_inputs_as_output(const std::string& option, const fs::path& output,
                             const OutputRule& rule) {
  for (const fs::path& input : rule.inputs)
    if (!input.empty() && would_replace(output, input, rule))
      user_error("{} would replace the input {}: choose another name", named(option, output),
                 input.string());
}

void check_output_file(const std::string& option, const fs::path& path, const OutputRule& rule) {
  std::error_code error;
  if (!path.has_filename() || fs::is_directory(path, error))
    user_error("{} is a directory: name a file", named(option, path));
  check_folder_of(option, path);
  if (!fs::exists(fs::symlink_status(path, error))) return;
  if (fs::exists(path, error) && !fs::is_regular_file(path, error))
    user_error("{} is not a regular file: choose another name", named(option, path));
  refuse_inputs_as_output(option, path, rule);
  if (!rule.overwrite)
    user_error("{} exists: give --overwrite to replace it, or choose another name",
               named(option, path));
}

bool begins_with(const fs::path& file, std::string_view text) {
  std::string begin(text.size(), '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return stream.gcount() == static_cast<std::streamsize>(text.size()) && begin == text;
}

void refuse_same_output(const std::string& first_option, const fs::path& first,
                        const std::string& second_option, const fs::path& second) {
  if (first.empty() || second.empty()) return;
  std::error_code ignored;
  const auto known = identity_of(first);
  if (fs::weakly_canonical(fs::absolute(first), ignored) ==
          fs::weakly_canonical(fs::absolute(second), ignored) ||
      (known && known == identity_of(second)))
    user_error("{} and {} name the same file, {}: choose another name for one of them",
               first_option, second_option, second.string());
}

OutputFile::OutputFile(std::string option, fs::path path, OutputRule rule)
    : option_(std::move(option)), path_(std::move(path)), rule_(std::move(rule)) {
  check_output_file(option_, path_, rule_);
}

void OutputFile::begin() {
  if (!file_)
    file_.emplace(path_, NewFileOptions{.own_temporary = true,
                                        .is_private = rule_.is_private,
                                        .replaces = rule_.overwrite});
}

void OutputFile::write(std::string_view content) {
  begin();
  file_->write(content.data(), content.size());
}

void OutputFile::publish(std::string_view first_bytes) {
  begin();
  check_output_file(option_, path_, rule_);
  file_->publish(first_bytes);
}

void write_output_file(const std::string& option, const fs::path& path, const OutputRule& rule,
                       std::string_view content) {
  OutputFile file(option, path, rule);
  file.write(content);
  file.publish();
}

}  // namespace kintsugi
