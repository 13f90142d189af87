#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "report/profile/profile.h"

namespace kintsugi {

// Reads a file of `train --profile` (chrome_trace.h), plain or gzip. Events of other programs are
// ignored. UserError if the file is something else, or is damaged.
Profile read_profile(const std::filesystem::path& path);
// `source` is named in errors.
Profile parse_profile(std::string_view text, const std::string& source);

}  // namespace kintsugi
