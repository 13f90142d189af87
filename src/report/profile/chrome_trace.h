#pragma once

#include <string>
#include <vector>

#include "report/profile/exposure.h"

namespace kintsugi {

// A profile as a Chrome trace-event file for Perfetto: one process per rank, one thread per lane
// (more if spans of a lane overlap), and the facts and exposures under "otherData".
// report/profile/profile_file.h reads it back.
inline constexpr int kProfileVersion = 1;
std::string chrome_trace(const Profile& profile, const std::vector<StepExposure>& steps);

// Serialize a rank's trace, to send it to the rank that writes the file.
std::string to_text(const RankTrace& trace);
RankTrace rank_trace_from(const std::string& text);

}  // namespace kintsugi
