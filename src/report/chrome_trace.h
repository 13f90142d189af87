#pragma once

#include <string>
#include <vector>

#include "report/exposure.h"

namespace kintsugi {

// A Chrome trace-event file for Perfetto: one process per rank, one thread per lane (more if spans
// of a lane overlap), and the exposures under "otherData".
std::string chrome_trace(const std::vector<RankTrace>& ranks,
                         const std::vector<StepExposure>& steps);

// Serialize a rank's trace, to send it to the rank that writes the file.
std::string to_text(const RankTrace& trace);
RankTrace rank_trace_from(const std::string& text);

}  // namespace kintsugi
