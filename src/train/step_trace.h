#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "comm/grid.h"
#include "core/trace.h"

namespace kintsugi {

struct TraceRequest {
  std::filesystem::path file;
  std::int64_t first = 3, last = 4;  // steps of this process, counted from 1
};
// `steps` is "3-4" or "3". Throws UserError if it is not a range of steps or too long.
TraceRequest trace_request(const std::string& file, std::string_view steps);
// Throws UserError unless `file` can be written.
void check_writable(const std::filesystem::path& file);

// Traces some steps of a run on all ranks. Rank 0 writes one file after the last traced step.
class StepTrace {
 public:
  // `trace` is the one given to the backend and the communicators. The arguments must outlive it.
  StepTrace(Trace& trace, TraceRequest request, const Groups& groups);

  // Called by all ranks.
  void before_step();
  void after_step();
  void finish();  // after the last step of the run

  Trace* active() const { return trace_.on() ? &trace_ : nullptr; }

 private:
  void begin();
  void end();
  void write(const std::vector<std::string>& texts) const;
  std::vector<std::string> gather_traces(std::string local) const;  // result on rank 0

  Trace& trace_;
  const TraceRequest request_;
  const Groups* groups_;
  std::int64_t steps_ = 0;
  double offset_s_ = 0;  // add to this rank's clock to get rank 0's
};

}  // namespace kintsugi
