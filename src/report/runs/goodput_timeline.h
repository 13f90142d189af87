#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/goodput.h"

namespace kintsugi {

// What a run did in a span of time.
struct TimelineSpan {
  std::size_t attempt = 0;  // from 1
  const char* kind = "";    // of goodput_categories()
  double begin_s = 0, end_s = 0;
};

// The goodput of a run with its history. Between two events the order of what was done is not
// known: there the kinds follow each other in a fixed order, with their true lengths. A long
// history is drawn in fewer, longer intervals; of more than a few thousand spans the last ones are
// kept.
struct GoodputHistory {
  Goodput goodput = {};
  std::vector<TimelineSpan> timeline = {};
  std::string problem = {};  // why goodput.jsonl was not read: "is larger than 64 MiB"
};
// Of a run directory. Of the time since the last event, only that in steps is known. A ledger that
// is too long is not read: its end alone would give wrong sums.
GoodputHistory read_goodput_history(const std::filesystem::path& run);

}  // namespace kintsugi
