#include "report/profile/profile_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <type_traits>

#include "core/error.h"
#include "core/file.h"
#include "core/gzip.h"
#include "core/log.h"
#include "core/units.h"

namespace kintsugi {
namespace {

using nlohmann::json;

constexpr int kProfileVersion = 1;

// Times in integer nanoseconds, so that consecutive events do not overlap by rounding.
struct Event {
  const TraceSpan* span;
  std::int64_t begin_ns, end_ns;
};

bool nests(SpanKind kind) {
  return kind == SpanKind::Host || kind == SpanKind::Data || kind == SpanKind::Runtime;
}

// Viewers need the events of a thread to be nested or consecutive. Other overlapping events get
// additional rows.
std::vector<std::vector<Event>> rows_of(std::vector<Event> events) {
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tuple(a.begin_ns, -a.end_ns) < std::tuple(b.begin_ns, -b.end_ns);
  });
  struct Row {
    std::vector<Event> events;
    std::vector<std::int64_t> open;  // ends of the events that enclose the next one
  };
  std::vector<Row> rows;
  for (const Event& event : events) {
    const auto fits = [&](Row& row) {
      while (!row.open.empty() && row.open.back() <= event.begin_ns) row.open.pop_back();
      return row.open.empty() || (nests(event.span->kind) && event.end_ns <= row.open.back());
    };
    auto row = std::find_if(rows.begin(), rows.end(), fits);
    if (row == rows.end()) row = rows.emplace(rows.end());
    row->events.push_back(event);
    row->open.push_back(event.end_ns);
  }
  std::vector<std::vector<Event>> result;
  for (Row& row : rows) result.push_back(std::move(row.events));
  return result;
}

std::string safe(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}
std::string quoted(const std::string& text) { return safe(text); }

// Only what is known.
json arguments_of(const TraceSpan& span) {
  json arguments = json::object();
  const auto add = [&](const char* name, const auto& value) {
    if (value != std::decay_t<decltype(value)>()) arguments[name] = value;
  };
  add("call", span.call);
  add("bytes", span.bytes);
  add("operation", span.operation);
  if (span.work != WorkKind::Unknown) arguments["work"] = to_string(span.work);
  add("flops", span.flops);
  add("dtype", span.dtype);
  add("phase", span.phase);
  add("layer", span.layer);
  add("blocks", span.blocks);
  return arguments;
}

class Writer {
 public:
  explicit Writer(double zero_s) : zero_s_(zero_s) {}

  void add(const RankTrace& rank) {
    name("process", rank.rank, 0, fmt::format("rank {}: {}", rank.rank, rank.coordinates));
    sort("process", rank.rank, 0, rank.rank);
    // From top to bottom: host, phases, operations, device, communication. By SpanKind.
    constexpr int kOrder[] = {2, 3, 3, 3, 4, 0, 1, 0, 0};
    std::map<std::pair<int, std::string>, std::vector<Event>> lanes;
    for (const TraceSpan& span : rank.spans)
      lanes[{kOrder[static_cast<int>(span.kind)], span.lane}].push_back(
          {&span, nanoseconds(span.begin_s), nanoseconds(span.end_s)});
    int thread = 0;
    for (const auto& [key, events] : lanes) {
      int number = 0;
      for (const std::vector<Event>& row : rows_of(events)) {
        ++thread;
        name("thread", rank.rank, thread,
             ++number == 1 ? key.second : fmt::format("{} ({})", key.second, number));
        sort("thread", rank.rank, thread, thread);
        for (const Event& event : row) add(event, rank.rank, thread);
      }
    }
  }
  std::string take() { return std::move(text_); }

 private:
  std::int64_t nanoseconds(double seconds) const { return std::llround((seconds - zero_s_) * 1e9); }
  static std::string microseconds(std::int64_t ns) {
    return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
  }
  void line(const std::string& event) { text_ += (text_.empty() ? "" : ",\n") + event; }
  void name(const char* what, int rank, int thread, const std::string& text) {
    line(fmt::format(R"({{"ph":"M","name":"{}_name","pid":{},"tid":{},"args":{{"name":{}}}}})",
                     what, rank, thread, quoted(text)));
  }
  void sort(const char* what, int rank, int thread, int index) {
    line(fmt::format(
        R"({{"ph":"M","name":"{}_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})", what,
        rank, thread, index));
  }
  void add(const Event& event, int rank, int thread) {
    const TraceSpan& span = *event.span;
    const json arguments = arguments_of(span);
    line(fmt::format(R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{},"dur":{}{}}})",
                     quoted(span.name), to_string(span.kind), rank, thread,
                     microseconds(event.begin_ns), microseconds(event.end_ns - event.begin_ns),
                     arguments.empty() ? "" : ",\"args\":" + safe(arguments)));
  }

  const double zero_s_;
  std::string text_;
};

json to_json(const Exposure& exposure) {
  return {{"total_s", exposure.total_s},
          {"compute_s", exposure.compute_s},
          {"communication_s", exposure.communication_s},
          {"exposed_s", exposure.exposed_s},
          {"waiting_s", exposure.waiting_s},
          {"idle_s", exposure.idle_s()},
          {"hidden_share", exposure.hidden_share()},
          {"bytes", exposure.bytes}};
}

json exposures_json(const std::vector<StepExposure>& steps) {
  json exposures = json::array();
  for (const StepExposure& step : steps) {
    json one = to_json(step.all);
    one["rank"] = step.rank;
    one["step"] = step.step;
    for (const auto& [name, exposure] : step.groups) one["groups"][name] = to_json(exposure);
    exposures.push_back(std::move(one));
  }
  return exposures;
}

json facts_json(const Profile& profile) {
  const ProfileFacts& facts = profile.facts;
  json recorded = json::array();
  for (const RankTrace& rank : profile.ranks)
    recorded.push_back({{"rank", rank.rank}, {"coordinates", rank.coordinates}});
  json result = {{"kintsugi_profile", kProfileVersion},
                 {"steps", {facts.first_step, facts.last_step}},
                 {"step_seconds", facts.step_s},
                 {"ranks", facts.ranks},
                 {"recorded", recorded},
                 {"device", facts.device},
                 {"precision", facts.precision},
                 {"config", facts.config},
                 {"stage", facts.stage}};
  if (facts.peak_flops > 0) result["peak_flops"] = facts.peak_flops;
  if (facts.memory_bytes_per_s > 0) result["memory_bytes_per_s"] = facts.memory_bytes_per_s;
  if (facts.multiprocessors > 0) result["multiprocessors"] = facts.multiprocessors;
  return result;
}

constexpr double kMostMicroseconds = 1e14;  // three years
constexpr std::int64_t kMostRanks = std::int64_t{1} << 24;
constexpr int kMostDepth = 64;  // of nested values; comparing and copying them is recursive

constexpr SpanKind kSpanKinds[] = {SpanKind::Operation, SpanKind::Kernel,        SpanKind::Memcpy,
                                   SpanKind::Memset,    SpanKind::Communication, SpanKind::Runtime,
                                   SpanKind::Phase,     SpanKind::Data,          SpanKind::Host};
constexpr WorkKind kWorkKinds[] = {WorkKind::Matmul, WorkKind::Attention, WorkKind::Memory};

std::optional<SpanKind> span_kind(const std::string& name) {
  for (const SpanKind kind : kSpanKinds)
    if (to_string(kind) == name) return kind;
  return {};
}

WorkKind work_kind(const std::string& name) {
  for (const WorkKind kind : kWorkKinds)
    if (to_string(kind) == name) return kind;
  return WorkKind::Unknown;
}

// "pp > 1 (2)" is one of several rows of "pp > 1".
std::string without_row(std::string lane) {
  const std::size_t at = lane.rfind(" (");
  if (at != lane.npos && lane.ends_with(')') && at + 3 < lane.size() &&
      lane.find_first_not_of("0123456789", at + 2) == lane.size() - 1)
    lane.resize(at);
  return lane;
}

// Values of a JSON object, with errors that name the file and the key.
class Fields {
 public:
  Fields(const json& object, const std::string& source, const char* where)
      : object_(object), source_(source), where_(where) {}

  std::string text(const char* key, std::optional<std::string> missing = "") const {
    const json* value = find(key, missing.has_value());
    if (value == nullptr) return *missing;
    if (!value->is_string()) complain(key, "a text");
    return value->get<std::string>();
  }
  double number(const char* key, double low, double high,
                std::optional<double> missing = 0.0) const {
    const json* value = find(key, missing.has_value());
    if (value == nullptr) return *missing;
    if (!value->is_number()) complain(key, "a number");
    const auto result = value->get<double>();
    if (!(result >= low && result <= high)) complain(key, "in its range");
    return result;
  }
  std::int64_t count(const char* key, std::int64_t most,
                     std::optional<std::int64_t> missing = 0) const {
    const json* value = find(key, missing.has_value());
    if (value == nullptr) return *missing;
    return count_of(*value, key, most);
  }
  const json& array(const char* key) const {
    const json* value = find(key, false);
    if (!value->is_array()) complain(key, "a list");
    return *value;
  }
  std::int64_t count_of(const json& value, const char* key, std::int64_t most) const {
    if (!value.is_number_integer()) complain(key, "a whole number");
    const bool large = value.is_number_unsigned() &&
                       value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
    if (large || value.get<std::int64_t>() < 0 || value.get<std::int64_t>() > most)
      complain(key, "in its range");
    return value.get<std::int64_t>();
  }
  [[noreturn]] void complain(const char* key, const char* expected) const {
    user_error("{} is damaged: \"{}\" {} is not {}", source_, key, where_, expected);
  }

 private:
  const json* find(const char* key, bool optional) const {
    const auto found = object_.find(key);
    if (found != object_.end()) return &*found;
    if (!optional) user_error("{} is damaged: \"{}\" {} is missing", source_, key, where_);
    return nullptr;
  }

  const json& object_;
  const std::string& source_;
  const char* where_;
};

// Takes the events one by one while the text is parsed, so that they are never all in memory as
// JSON.
class EventReader {
 public:
  explicit EventReader(const std::string& source) : source_(source) {}

  void add(const json& event) {
    const auto kind = event.find("ph");
    if (kind == event.end() || !kind->is_string()) return;
    if (*kind == "M") add_name(event);
    if (*kind == "X") add_span(event);
  }

  // The spans of the ranks that the facts list; others are foreign.
  void give(std::vector<RankTrace>& ranks) {
    std::map<std::int64_t, RankTrace*> by_rank;
    for (RankTrace& rank : ranks) by_rank[rank.rank] = &rank;
    for (; !events_.empty(); events_.pop_front()) {
      Event& event = events_.front();
      const auto rank = by_rank.find(event.process);
      if (rank == by_rank.end()) continue;
      const auto lane = lanes_.find({event.process, event.thread});
      if (lane != lanes_.end()) event.span.lane = without_row(lane->second);
      rank->second->spans.push_back(std::move(event.span));
    }
  }

 private:
  struct Event {
    std::int64_t process, thread;
    TraceSpan span;
  };

  static bool has_place(const json& event) {
    const auto process = event.find("pid"), thread = event.find("tid");
    return process != event.end() && thread != event.end() && process->is_number_integer() &&
           thread->is_number_integer();
  }
  void add_name(const json& event) {
    const auto name = event.find("name"), arguments = event.find("args");
    if (!has_place(event) || name == event.end() || *name != "thread_name" ||
        arguments == event.end() || !arguments->is_object())
      return;
    const auto text = arguments->find("name");
    if (text == arguments->end() || !text->is_string()) return;
    lanes_[{event["pid"].get<std::int64_t>(), event["tid"].get<std::int64_t>()}] =
        text->get<std::string>();
  }
  void add_span(const json& event) {
    const auto category = event.find("cat");
    if (!has_place(event) || category == event.end() || !category->is_string()) return;
    const auto kind = span_kind(category->get<std::string>());
    if (!kind) return;
    const Fields fields(event, source_, "of an event");
    TraceSpan span{.kind = *kind, .name = fields.text("name", std::nullopt)};
    span.begin_s = 1e-6 * fields.number("ts", 0, kMostMicroseconds, std::nullopt);
    span.end_s = span.begin_s + 1e-6 * fields.number("dur", 0, kMostMicroseconds, std::nullopt);
    if (const auto arguments = event.find("args"); arguments != event.end()) {
      if (!arguments->is_object()) fields.complain("args", "an object");
      add_arguments(span, Fields(*arguments, source_, "of an event"));
    }
    events_.push_back(
        {event["pid"].get<std::int64_t>(), event["tid"].get<std::int64_t>(), std::move(span)});
  }
  static void add_arguments(TraceSpan& span, const Fields& fields) {
    span.bytes = fields.count("bytes", INT64_MAX);
    span.call = fields.text("call");
    span.operation = fields.count("operation", INT64_MAX);
    span.work = work_kind(fields.text("work"));
    span.flops = fields.number("flops", 0, 1e30);
    span.dtype = fields.text("dtype");
    span.phase = fields.text("phase");
    span.layer = fields.text("layer");
    span.blocks = fields.count("blocks", INT64_MAX);
  }

  const std::string& source_;
  std::deque<Event> events_;  // its memory shrinks while give() takes them
  std::map<std::pair<std::int64_t, std::int64_t>, std::string> lanes_;
};

ProfileFacts facts_of(const json& other, const std::string& source) {
  const Fields fields(other, source, "in otherData");
  ProfileFacts facts;
  const json& steps = fields.array("steps");
  if (steps.size() != 2) fields.complain("steps", "a list of the first and the last step");
  facts.first_step = fields.count_of(steps[0], "steps", INT64_MAX);
  facts.last_step = fields.count_of(steps[1], "steps", INT64_MAX);
  for (const json& seconds : fields.array("step_seconds")) {
    if (!seconds.is_number()) fields.complain("step_seconds", "a list of numbers");
    facts.step_s.push_back(seconds.get<double>());
  }
  facts.ranks = static_cast<int>(fields.count("ranks", kMostRanks, std::nullopt));
  facts.device = fields.text("device");
  facts.precision = fields.text("precision");
  facts.peak_flops = fields.number("peak_flops", 0, 1e24);
  facts.memory_bytes_per_s = fields.number("memory_bytes_per_s", 0, 1e24);
  facts.multiprocessors = fields.count("multiprocessors", 1 << 20);
  facts.config = fields.text("config");
  facts.stage = fields.count("stage", 1 << 20);
  return facts;
}

std::vector<RankTrace> ranks_of(const json& other, const std::string& source) {
  std::vector<RankTrace> ranks;
  for (const json& one : Fields(other, source, "in otherData").array("recorded")) {
    if (!one.is_object())
      Fields(other, source, "in otherData").complain("recorded", "a list of ranks");
    const Fields fields(one, source, "of a recorded rank");
    ranks.push_back({.rank = static_cast<int>(fields.count("rank", kMostRanks, std::nullopt)),
                     .coordinates = fields.text("coordinates")});
  }
  return ranks;
}

std::string version_text(const json& version) {
  constexpr std::size_t kMostText = 40;
  if (version.is_number()) return version.dump();
  if (version.is_string() && version.get_ref<const std::string&>().size() <= kMostText)
    return printable(version.get<std::string>());
  return "unknown";
}

[[noreturn]] void refuse_foreign(const std::string& source) {
  user_error("{} is not a profile of kintsugi train --profile", source);
}

void check_version(const json& version, const std::string& source) {
  if (!version.is_number_integer() || version != kProfileVersion)
    user_error("{} is a profile of another version ({}): this program reads version {}", source,
               version_text(version), kProfileVersion);
}

}  // namespace

std::string chrome_trace(const Profile& profile, const std::vector<StepExposure>& steps) {
  double zero_s = std::numeric_limits<double>::infinity();
  for (const RankTrace& rank : profile.ranks)
    for (const TraceSpan& span : rank.spans) zero_s = std::min(zero_s, span.begin_s);
  Writer writer(zero_s);
  for (const RankTrace& rank : profile.ranks) writer.add(rank);
  json other = facts_json(profile);
  other["exposure"] = exposures_json(steps);
  other["summary"] = exposure_lines(steps);
  return fmt::format(
      "{{\"displayTimeUnit\":\"ms\",\n\"otherData\":{},\n\"traceEvents\":[\n{}\n]}}\n", safe(other),
      writer.take());
}

std::string to_text(const RankTrace& trace) {
  json spans = json::array();
  for (const TraceSpan& span : trace.spans)
    spans.push_back({static_cast<int>(span.kind), span.lane, span.name, span.begin_s, span.end_s,
                     span.bytes, span.call, span.operation, static_cast<int>(span.work), span.flops,
                     span.dtype, span.phase, span.layer, span.blocks});
  return safe({{"rank", trace.rank}, {"coordinates", trace.coordinates}, {"spans", spans}});
}

RankTrace rank_trace_from(const std::string& text) {
  const json parsed = json::parse(text);
  RankTrace trace{.rank = parsed.at("rank"), .coordinates = parsed.at("coordinates")};
  for (const json& span : parsed.at("spans"))
    trace.spans.push_back({.kind = static_cast<SpanKind>(span.at(0).get<int>()),
                           .lane = span.at(1),
                           .name = span.at(2),
                           .begin_s = span.at(3),
                           .end_s = span.at(4),
                           .bytes = span.at(5),
                           .call = span.at(6),
                           .operation = span.at(7),
                           .work = static_cast<WorkKind>(span.at(8).get<int>()),
                           .flops = span.at(9),
                           .dtype = span.at(10),
                           .phase = span.at(11),
                           .layer = span.at(12),
                           .blocks = span.at(13)});
  return trace;
}

Profile parse_profile(std::string_view text, const std::string& source) {
  EventReader events(source);
  bool in_events = false;
  const auto take = [&](int depth, json::parse_event_t what, json& parsed) {
    if (depth >= kMostDepth)
      user_error("{} is damaged: it is nested more than {} levels deep", source, kMostDepth);
    if (what == json::parse_event_t::key && depth == 1) in_events = parsed == "traceEvents";
    if (what != json::parse_event_t::object_end || depth != 2 || !in_events) return true;
    events.add(parsed);
    return false;  // do not keep it
  };
  json root;
  try {
    root = json::parse(text.begin(), text.end(), take);
  } catch (const json::exception&) {
    if (text.find("\"kintsugi_profile\"") == text.npos) refuse_foreign(source);
    user_error("{} is damaged: it is no complete JSON text", source);
  }
  const auto other = root.is_object() ? root.find("otherData") : root.end();
  if (other == root.end() || !other->is_object() || !other->contains("kintsugi_profile"))
    refuse_foreign(source);
  check_version(other->at("kintsugi_profile"), source);
  Profile profile{.facts = facts_of(*other, source), .ranks = ranks_of(*other, source)};
  events.give(profile.ranks);
  return profile;
}

Profile unpack_profile(std::string_view bytes, const std::string& source,
                       const ProfileLimit& limit) {
  std::string unpacked;
  if (is_gzip(bytes))
    unpacked = gunzipped(bytes, limit.bytes, source, limit.remedy);
  else if (bytes.size() > limit.bytes)
    user_error("{} has more than {}: {}", source, format_bytes(static_cast<double>(limit.bytes)),
               limit.remedy);
  return parse_profile(is_gzip(bytes) ? unpacked : bytes, source);
}

Profile read_profile(const std::filesystem::path& path, const ProfileLimit& limit) {
  const MappedFile file(path);
  Profile profile =
      unpack_profile({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                     path.string(), limit);
  file.check_intact();
  return profile;
}

}  // namespace kintsugi
