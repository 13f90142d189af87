#include "core/output_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "core/error.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

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
    return std::any_of(files.begin(), files.end(),
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
