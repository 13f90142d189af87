#pragma once

#include <string>
#include <vector>

#include "report/exposure.h"

namespace kintsugi {

// A Chrome trace-event file, which Perfetto opens: a process per rank, in it a thread per lane (and
// more where spans of a lane overlap), the exposures under "otherData".
std::string chrome_trace(const std::vector<RankTrace>& ranks,
                         const std::vector<StepExposure>& steps);

// A rank's part on its way to the rank that writes the file.
std::string to_text(const RankTrace& trace);
RankTrace rank_trace_from(const std::string& text);

}  // namespace kintsugi
