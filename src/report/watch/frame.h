#pragma once

#include <string>
#include <vector>

#include "report/watch/run_watch.h"

namespace kintsugi {

struct FrameOptions {
  int columns = 80, rows = 24;
  std::size_t chosen = 0;  // the run whose log is shown
  bool logarithmic = false;
  bool colours = false;
};

// How the runs of a frame are arranged.
struct FrameLayout {
  int across = 1, down = 1;  // panels
  int panel_rows = 0;        // rows of one panel
  int list_rows = 0;         // lines of a list of runs, if not all have a panel
  int log_rows = 0;          // for the log of the chosen run
  bool shows_all() const { return list_rows == 0; }
};
// `log_lines`: of the chosen run.
FrameLayout lay_out(std::size_t runs, int columns, int rows, std::size_t log_lines);

// The runs whose panels are in the frame: all, or only the chosen one. Others need no curves.
std::vector<std::size_t> runs_with_panel(std::size_t runs, const FrameOptions& options);

// The live view: panels of runs side by side, and the log of the chosen one below.
std::vector<std::string> watch_frame(const std::vector<WatchedRun>& runs,
                                     const FrameOptions& options);

// The same in one line, for pipes and lists.
std::string watch_line(const WatchedRun& run);

}  // namespace kintsugi
