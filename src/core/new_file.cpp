#include "core/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/error.h"

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

}  // namespace kintsugi
