#include "train/step_profile.h"

#include <unistd.h>

#include <charconv>
#include <set>

#include "comm/exchange.h"
#include "comm/socket.h"
#include "core/error.h"
#include "core/file.h"
#include "core/gzip.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/units.h"
#include "report/profile/profile_file.h"

namespace kintsugi {
namespace fs = std::filesystem;

namespace {

constexpr int kMostProfiledRanks = 256;  // rank 0 keeps those of all of them
constexpr std::int64_t kMostGatheredBytes = std::int64_t{1} << 30;
constexpr std::int64_t kDefaultFirst = 3, kDefaultLast = 4;  // steps of this process

struct NumberRange {
  std::int64_t first = 0, last = 0;
};

bool read_number(std::string_view text, std::int64_t& value) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && value >= 0;
}

// "20-25" or "20"
bool read_range(std::string_view text, NumberRange& range) {
  const std::size_t dash = text.find('-');
  const std::string_view last = dash == text.npos ? text : text.substr(dash + 1);
  return read_number(text.substr(0, dash), range.first) && read_number(last, range.last) &&
         range.first <= range.last;
}

std::string coordinates_text(const Coordinates& coordinates) {
  return fmt::format("tp {} cp {} dp {} pp {}", coordinates.tp, coordinates.cp, coordinates.dp,
                     coordinates.pp);
}

void set_steps(ProfileRequest& request, std::string_view text) {
  NumberRange range;
  if (!read_range(text, range) || range.first < 1)
    user_error(
        "--profile steps={}: give a step of the run or a range of steps, such as steps=20-25",
        text);
  if (range.last - range.first >= kMostProfiledSteps)
    user_error("--profile steps={}: at most {} steps can be recorded", text, kMostProfiledSteps);
  request.first_step = range.first;
  request.last_step = range.last;
}

void set_ranks(ProfileRequest& request, std::string_view text) {
  NumberRange range;
  if (!read_range(text, range) || range.last > 1 << 24)
    user_error("--profile ranks={}: give a rank or a range of ranks, such as ranks=0-7", text);
  if (range.last - range.first >= kMostProfiledRanks)
    user_error("--profile ranks={}: at most {} ranks can be recorded", text, kMostProfiledRanks);
  request.first_rank = static_cast<int>(range.first);
  request.last_rank = static_cast<int>(range.last);
}

}  // namespace

std::string range_text(std::int64_t first, std::int64_t last) {
  return first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
}

bool ProfileRequest::records(int rank, int ranks) const {
  return rank >= first_rank && rank <= (last_rank < 0 ? kDefaultRanks - 1 : last_rank) &&
         rank < ranks;
}

ProfileRequest parse_profile_request(std::string_view text) {
  ProfileRequest request;
  std::set<std::string_view> seen;
  for (std::string_view rest = text; !text.empty();) {
    const std::string_view key = rest.substr(0, rest.find_first_of("=,"));
    // A file name may have commas, so it comes last.
    const std::size_t end = key == "file" ? rest.npos : rest.find(',');
    const std::string_view one = rest.substr(0, end);
    const std::string_view value = one.size() > key.size() ? one.substr(key.size() + 1) : "";
    const bool known = key == "steps" || key == "ranks" || key == "file";
    const bool on_request = one == "on-request";
    if (!(on_request || (known && !value.empty())) || !seen.insert(key).second)
      user_error(
          "--profile {}: give steps=20-25, ranks=0-7 and last file=PATH, or some of them, with "
          "commas between them; on-request instead of steps; or nothing, behind the configuration",
          text);
    if (on_request) request.on_request = true;
    if (key == "steps") set_steps(request, value);
    if (key == "ranks") set_ranks(request, value);
    if (key == "file") request.file = value;
    if (end == rest.npos) break;
    rest = rest.substr(end + 1);
  }
  if (request.on_request && (request.given_steps() || !request.file.empty()))
    user_error("--profile {}: kintsugi ctl says which steps, and each profile is a file", text);
  return request;
}

void check_profile_file(const ProfileRequest& request, const std::vector<fs::path>& inputs) {
  if (!request.file.empty())
    check_output_file("--profile file=", request.file, {request.overwrite, inputs});
}

StepProfile::StepProfile(Trace& trace, ProfileRequest request)
    : trace_(trace), request_(std::move(request)) {}

void StepProfile::open(const Groups& groups, fs::path directory, ProfileFacts facts) {
  groups_ = &groups;
  directory_ = std::move(directory);
  facts_ = std::move(facts);
}

bool StepProfile::records(int rank) const { return request_.records(rank, groups_->ranks()); }

void StepProfile::before_step(std::int64_t step) {
  if (first_seen_ == 0) first_seen_ = step;
  if (!request_.given_steps() && !request_.on_request) {
    request_.first_step = first_seen_ + kDefaultFirst - 1;
    request_.last_step = first_seen_ + kDefaultLast - 1;
  }
  if (recording_ && step <= step_) end();  // the run went back to a checkpoint
  step_ = step;
  if (!done_ && !recording_ && step >= request_.first_step && step <= request_.last_step) begin();
}

void StepProfile::after_step(double seconds) {
  if (!recording_) return;
  facts_.step_s.push_back(seconds);
  facts_.last_step = step_;
  if (step_ == request_.last_step) end();
}

void StepProfile::close() {
  if (recording_) end();
}

void StepProfile::check_ask() const {
  if (!request_.on_request)
    user_error("this run records no steps later: start it with --profile on-request");
  if (recording_ || request_.last_step > step_)
    user_error("the run records steps {} now: ask again later",
               range_text(request_.first_step, request_.last_step));
}

void StepProfile::ask(std::int64_t steps) {
  check_ask();
  request_.first_step = step_ + 1;
  request_.last_step = step_ + steps;
  done_ = false;
}

void StepProfile::report() const {
  if (done_ || request_.on_request || groups_ == nullptr || !groups_->is_first()) return;
  if (first_seen_ == 0) return log_warning("no profile: this process had no step to train");
  log_warning("no profile: steps {} were requested, but this process trained steps {}",
              range_text(request_.first_step, request_.last_step), range_text(first_seen_, step_));
}

void StepProfile::begin() {
  Communicator& world = (*groups_)[GroupKind::World];
  offset_s_ = clock_offset(world, host_name(), Trace::now, [&](int rank) { return records(rank); });
  recording_ = true;
  facts_.first_step = step_;
  facts_.step_s.clear();
  world.barrier();
  if (records(world.rank())) trace_.begin();
  world.barrier();
}

void StepProfile::end() {
  recording_ = false;
  done_ = true;
  Communicator& world = (*groups_)[GroupKind::World];
  // After the barrier all ranks have made their calls, so calls in flight will finish.
  world.barrier();
  RankTrace local{world.rank(), coordinates_text(groups_->coordinates)};
  if (records(world.rank())) {
    trace_.end();
    local.spans = trace_.take();
  }
  for (TraceSpan& span : local.spans) {
    span.begin_s += offset_s_;
    span.end_s += offset_s_;
  }
  std::vector<RankTrace> ranks = gather_traces(std::move(local));
  if (groups_->is_first()) write(std::move(ranks));
}

// Ranks send one after the other, only to rank 0, because the traces are large. Rank 0 answers each
// length with how much of it it wants: all, or nothing beyond kMostGatheredBytes.
std::vector<RankTrace> StepProfile::gather_traces(RankTrace local) const {
  Communicator& world = (*groups_)[GroupKind::World];
  const std::string own = world.rank() == 0 ? "" : to_text(local);
  std::vector<RankTrace> ranks;
  if (world.rank() == 0 && records(0)) ranks.push_back(std::move(local));
  std::int64_t left = kMostGatheredBytes, left_out = 0;
  for (int rank = 1; rank < world.size(); ++rank) {
    if (!records(rank) || (world.rank() != 0 && world.rank() != rank)) continue;
    const bool sends = world.rank() == rank;
    const auto to_first = [&](const Tensor& x) {
      world.wait(sends ? world.send(x, 0) : world.receive(x, rank));
    };
    auto length = static_cast<std::int64_t>(own.size());
    to_first(Tensor(&length, DType::I64, {1}));
    std::int64_t wanted = length <= left ? length : 0;
    const Tensor answer(&wanted, DType::I64, {1});
    world.wait(sends ? world.receive(answer, 0) : world.send(answer, rank));
    left -= wanted;
    left_out += wanted < length ? 1 : 0;
    if (wanted == 0) continue;
    std::string text = own;
    text.resize(static_cast<std::size_t>(wanted));
    to_first(Tensor(text.data(), DType::U8, {wanted}));
    if (world.rank() == 0) ranks.push_back(rank_trace_from(text));
  }
  if (left_out > 0 && world.rank() == 0)
    log_warning(
        "the profile leaves out {}, because the others have {} of spans: record fewer steps or "
        "ranks",
        format_number(left_out, "rank"),
        format_bytes(static_cast<double>(kMostGatheredBytes - left)));
  return ranks;
}

fs::path StepProfile::file() const {
  if (!request_.file.empty()) return request_.file;
  return directory_ / "profiles" /
         fmt::format("steps-{}-{}.json", facts_.first_step, facts_.last_step);
}

void StepProfile::write(std::vector<RankTrace> ranks) {
  facts_.ranks = groups_->ranks();
  const Profile profile{.facts = facts_, .ranks = std::move(ranks)};
  const std::vector<StepExposure> steps = step_exposures(profile.ranks);
  for (const std::string& line : exposure_lines(steps)) log_info("{}", line);
  const fs::path path = file();
  try {
    if (request_.file.empty()) fs::create_directory(path.parent_path());
    const std::string text = chrome_trace(profile, steps);
    const std::string content = path.extension() == ".gz" ? gzipped(text) : text;
    if (request_.file.empty())
      write_file_atomically(path, content);
    else
      write_output_file("--profile file=", path, {.overwrite = request_.overwrite}, content);
    log_info(
        "profile written to {0}: see kintsugi report --profile {0}, or open it in "
        "https://ui.perfetto.dev",
        path.string());
  } catch (const std::exception& error) {  // not fatal; also if there is not enough memory
    log_warning("no profile: {}", error.what());
  }
}

}  // namespace kintsugi
