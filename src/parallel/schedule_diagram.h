#pragma once

#include <string>

#include "parallel/schedule.h"
#include "parallel/schedule_timing.h"

namespace kintsugi {

// Draws one row of characters per rank, at most `columns` wide, and a legend. Cells show the number
// of the micro-batch if it fits.
std::string draw_schedule(const PipelineSchedule& schedule, const PipelineTiming& timing,
                          int columns = 100);

// The same as an SVG picture, with a rectangle per forward and backward.
std::string schedule_svg(const PipelineSchedule& schedule, const PipelineTiming& timing);

}  // namespace kintsugi
