#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "report/profile/profile.h"

namespace kintsugi {

// The most bytes of a profile, unpacked, and what to do with a larger one.
struct ProfileLimit {
  std::size_t bytes = std::size_t{2} << 30;
  std::string remedy = "record fewer steps or ranks";
};

// Reads a file of `train --profile` (chrome_trace.h), plain or gzip. Events of other programs are
// ignored. UserError if the file is something else, is damaged or is larger than the limit.
Profile read_profile(const std::filesystem::path& path, const ProfileLimit& limit = {});
// The same of its bytes. `source` is named in errors.
Profile unpack_profile(std::string_view bytes, const std::string& source,
                       const ProfileLimit& limit);
Profile parse_profile(std::string_view text, const std::string& source);

}  // namespace kintsugi
