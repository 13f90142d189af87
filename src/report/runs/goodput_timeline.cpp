#include "report/runs/goodput_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "report/runs/run_file.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMostIntervals = 500, kMostSpans = 4000;
// A run adds a record of a few hundred bytes per minute: enough for four months.
constexpr std::size_t kMostLedger = 64 << 20, kMostRecords = 200'000;
constexpr std::size_t kMetricsEnd = 64 << 10;  // bytes

using Amount = double GoodputAmounts::*;
// The order within an interval: a repeated step is done before a new one.
constexpr std::array<Amount, 8> kOrder = {&GoodputAmounts::waiting,    &GoodputAmounts::down,
                                          &GoodputAmounts::startup,    &GoodputAmounts::recomputed,
                                          &GoodputAmounts::productive, &GoodputAmounts::validation,
                                          &GoodputAmounts::checkpoint, &GoodputAmounts::other};

const char* name_of(Amount amount) {
  for (const GoodputCategory& one : goodput_categories())
    if (one.amount == amount) return one.name;
  return "other";
}

// Builds the timeline from what Goodput charges: the differences between two looks at an attempt.
class TimelineBuilder {
 public:
  void look(const std::vector<Attempt>& attempts) {
    for (; attempt_ < attempts.size(); ++attempt_) {
      const Attempt& now = attempts[attempt_];
      GoodputAmounts since;
      for (const Amount amount : kOrder)
        since.*amount = std::max(0.0, now.seconds.*amount - charged_.*amount);
      const double before = since.waiting + since.down;
      append(since, begun_ ? last_s_ : now.launched_s - before);
      charged_ = now.seconds;
      last_s_ = now.last_s;
      begun_ = true;
      if (attempt_ + 1 == attempts.size()) return;
      charged_ = {};  // the next attempt
      begun_ = false;
    }
  }
  std::vector<TimelineSpan> take() {
    if (spans_.size() > kMostSpans)
      spans_.erase(spans_.begin(), spans_.end() - static_cast<std::ptrdiff_t>(kMostSpans));
    return std::move(spans_);
  }

 private:
  void append(const GoodputAmounts& amounts, double begin_s) {
    for (const Amount amount : kOrder) {
      const double length = amounts.*amount;
      if (length <= 0) continue;
      TimelineSpan span{attempt_ + 1, name_of(amount), begin_s, begin_s + length};
      begin_s = span.end_s;
      if (!spans_.empty() && spans_.back().attempt == span.attempt &&
          std::strcmp(spans_.back().kind, span.kind) == 0)
        spans_.back().end_s = span.end_s;
      else
        spans_.push_back(span);
    }
  }

  std::vector<TimelineSpan> spans_;
  std::size_t attempt_ = 0;
  GoodputAmounts charged_;
  double last_s_ = 0;
  bool begun_ = false;
};

struct Ledger {
  std::vector<GoodputEvent> events = {};
  std::string problem = {};
};

// Views of the lines: a hostile file may have as many as bytes.
Ledger read_ledger(const std::filesystem::path& path) {
  const FileText file = read_run_file(path, kMostLedger);
  Ledger ledger{.problem = file.problem};
  const std::string_view text = file.text;
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1) {
    auto event = parse_goodput_line(text.substr(at, end - at));
    if (!event) continue;
    if (ledger.events.size() == kMostRecords)
      return {.problem = fmt::format("has more than {} records", kMostRecords)};
    ledger.events.push_back(std::move(*event));
  }
  return ledger;
}

// `signs`: what metrics.jsonl says after the last event (signs_of).
GoodputHistory goodput_history(const std::vector<GoodputEvent>& events, const GoodputEvent& signs) {
  GoodputHistory history;
  TimelineBuilder builder;
  const std::size_t group = std::max<std::size_t>(1, events.size() / kMostIntervals);
  for (std::size_t i = 0; i < events.size(); ++i) {
    const bool starts = events[i].kind == GoodputEvent::Kind::Start;
    // The attempt before is complete only once the next one is known.
    history.goodput.add(events[i]);
    if (starts || i % group == 0) builder.look(history.goodput.attempts());
  }
  history.goodput.add_later_signs(signs);
  builder.look(history.goodput.attempts());
  history.timeline = builder.take();
  return history;
}

}  // namespace

GoodputHistory read_goodput_history(const std::filesystem::path& run) {
  const Ledger ledger = read_ledger(run / "goodput.jsonl");
  const std::filesystem::path metrics = run / "metrics.jsonl";
  const FileTail tail = read_tail(metrics, kMetricsEnd);
  GoodputHistory history = goodput_history(
      ledger.events,
      signs_of(metrics, tail.lines, ledger.events.empty() ? GoodputEvent{} : ledger.events.back()));
  history.problem = ledger.problem;
  return history;
}

}  // namespace kintsugi
