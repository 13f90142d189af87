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
  std::int64_t first = 3, last = 4;  // steps of this process, from 1
};
// `steps` is "3-4" or "3". UserError where they are no steps, or are too many.
TraceRequest trace_request(const std::string& file, std::string_view steps);
// UserError unless a file can be written there.
void check_writable(const std::filesystem::path& file);

// Traces some steps of a run and writes what all ranks saw into one file, which rank 0 writes as
// soon as the last of them is done.
class StepTrace {
 public:
  // `trace` is the one that backend and communicators were given. All outlive it.
  StepTrace(Trace& trace, TraceRequest request, const Groups& groups);

  // Every rank calls these.
  void before_step();
  void after_step();
  void finish();  // the run has no more steps

  Trace* active() const { return trace_.on() ? &trace_ : nullptr; }

 private:
  void begin();
  void end();
  void write(const std::vector<std::string>& texts) const;
  std::vector<std::string> texts_of_all(std::string mine) const;  // on rank 0

  Trace& trace_;
  const TraceRequest request_;
  const Groups* groups_;
  std::int64_t steps_ = 0;
  double offset_s_ = 0;  // from this rank's clock to that of rank 0
};

}  // namespace kintsugi
