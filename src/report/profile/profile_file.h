#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "report/profile/breakdown.h"
#include "report/profile/profile.h"

namespace kintsugi {

// A profile as a Chrome trace-event file for Perfetto: one process per rank, one thread per lane
// (more if spans of a lane overlap), and the facts and exposures under "otherData".
std::string chrome_trace(const Profile& profile, const std::vector<StepExposure>& steps);

// Serialize a rank's trace, to send it to the rank that writes the file.
std::string to_text(const RankTrace& trace);
RankTrace rank_trace_from(const std::string& text);

// The most bytes of a profile, unpacked, and what to do with a larger one.
struct ProfileLimit {
  std::size_t bytes = std::size_t{2} << 30;
  std::string remedy = "record fewer steps or ranks";
};

// Reads a file of `train --profile` (chrome_trace), plain or gzip. Events of other programs are
// ignored. UserError if the file is something else, is damaged or is larger than the limit.
Profile read_profile(const std::filesystem::path& path, const ProfileLimit& limit = {});
// The same of its bytes. `source` is named in errors.
Profile unpack_profile(std::string_view bytes, const std::string& source,
                       const ProfileLimit& limit);
Profile parse_profile(std::string_view text, const std::string& source);

}  // namespace kintsugi
