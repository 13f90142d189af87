#include "report/profile/chrome_trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <type_traits>

namespace kintsugi {
namespace {

using nlohmann::json;

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

}  // namespace kintsugi
