#include "core/new_file.h"

#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/error.h"

namespace kintsugi {

NewFile::NewFile(const std::filesystem::path& target)
    : target_(target), temporary_(target.string() + ".tmp"), writer_(temporary_) {}

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
  if (::rename(temporary_.c_str(), target_.c_str()) != 0)
    failure("cannot rename {} to {}: {}", temporary_.string(), target_.string(),
            std::generic_category().message(errno));
  published_ = true;
}

}  // namespace kintsugi
