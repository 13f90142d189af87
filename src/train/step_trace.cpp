#include "train/step_trace.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "comm/clock_offset.h"
#include "comm/socket.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "report/chrome_trace.h"

namespace kintsugi {
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kMaxSteps = 100;  // all their operations are kept in memory

bool read_number(std::string_view text, std::int64_t& value) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
}

std::string coordinates_text(const Coordinates& coordinates) {
  return fmt::format("tp {} cp {} dp {} pp {}", coordinates.tp, coordinates.cp, coordinates.dp,
                     coordinates.pp);
}

}  // namespace

TraceRequest trace_request(const std::string& file, std::string_view steps) {
  TraceRequest request{.file = file};
  const std::size_t dash = steps.find('-');
  const std::string_view first = steps.substr(0, dash),
                         last = dash == steps.npos ? first : steps.substr(dash + 1);
  if (!read_number(first, request.first) || !read_number(last, request.last) || request.first < 1 ||
      request.last < request.first)
    user_error(
        "--trace-steps {}: a step or a range of steps is needed, counted from 1 in this process, "
        "such as 3-4",
        steps);
  if (request.last - request.first >= kMaxSteps)
    user_error("--trace-steps {}: at most {} steps can be traced at once", steps, kMaxSteps);
  return request;
}

void check_writable(const fs::path& file) {
  const fs::path directory = file.has_parent_path() ? file.parent_path() : fs::path(".");
  std::error_code error;
  if (!file.has_filename() || fs::is_directory(file, error))
    user_error("--trace {}: that is a directory, but a file name is needed", file.string());
  if (!fs::is_directory(directory, error))
    user_error("--trace {}: there is no directory {}", file.string(), directory.string());
  if (::access(directory.c_str(), W_OK | X_OK) != 0)
    user_error("--trace {}: {} cannot be written to: {}", file.string(), directory.string(),
               std::strerror(errno));
}

StepTrace::StepTrace(Trace& trace, TraceRequest request, const Groups& groups)
    : trace_(trace), request_(std::move(request)), groups_(&groups) {}

void StepTrace::before_step() {
  if (++steps_ == request_.first) begin();
}

void StepTrace::after_step() {
  if (steps_ == request_.last) end();
}

void StepTrace::finish() {
  if (trace_.on()) end();
  if (steps_ < request_.first && groups_->is_first())
    log_warning(
        "no trace: it was requested from step {} of this process, but the process ran only {} "
        "steps",
        request_.first, steps_);
}

void StepTrace::begin() {
  Communicator& world = (*groups_)[GroupKind::World];
  offset_s_ = clock_offset(world, host_name(), Trace::now);
  world.barrier();
  trace_.begin();
  world.barrier();
}

void StepTrace::end() {
  // After the barrier all ranks have made their calls, so calls in flight will finish.
  (*groups_)[GroupKind::World].barrier();
  trace_.end();
  RankTrace local{(*groups_)[GroupKind::World].rank(), coordinates_text(groups_->coordinates),
                  trace_.take()};
  for (TraceSpan& span : local.spans) {
    span.begin_s += offset_s_;
    span.end_s += offset_s_;
  }
  const std::vector<std::string> texts = gather_traces(to_text(local));
  if (groups_->is_first()) write(texts);
}

// Ranks send one after the other, only to rank 0, because the traces are large.
std::vector<std::string> StepTrace::gather_traces(std::string local) const {
  Communicator& world = (*groups_)[GroupKind::World];
  std::vector<std::string> texts;
  if (world.rank() == 0) texts.push_back(std::move(local));
  for (int rank = 1; rank < world.size(); ++rank) {
    if (world.rank() != 0 && world.rank() != rank) continue;
    std::string received;
    std::string& text = world.rank() == rank ? local : received;
    const auto transfer = [&](const Tensor& x) {
      world.wait(world.rank() == rank ? world.send(x, 0) : world.receive(x, rank));
    };
    auto length = static_cast<std::int64_t>(text.size());
    transfer(Tensor(&length, DType::I64, {1}));
    text.resize(static_cast<std::size_t>(length));
    transfer(Tensor(text.data(), DType::U8, {length}));
    if (world.rank() == 0) texts.push_back(std::move(received));
  }
  return texts;
}

void StepTrace::write(const std::vector<std::string>& texts) const {
  std::vector<RankTrace> ranks;
  for (const std::string& text : texts) ranks.push_back(rank_trace_from(text));
  const std::vector<StepExposure> steps = step_exposures(ranks);
  for (const std::string& line : exposure_lines(steps)) log_info("{}", line);
  try {
    write_file_atomically(request_.file, chrome_trace(ranks, steps));
    log_info("trace written to {}: open it in https://ui.perfetto.dev", request_.file.string());
  } catch (const Failure& error) {  // not fatal
    log_warning("no trace: {}", error.what());
  }
}

}  // namespace kintsugi
