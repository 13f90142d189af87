#include "report/runs/series_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/json_members.h"

namespace kintsugi {
namespace {

// Steps and tokens are exact; the mean of a bucket has nine digits.
void append_number(std::string& text, double value) {
  const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
  if (whole)
    fmt::format_to(std::back_inserter(text), "{:.0f}", value);
  else if (std::isfinite(value))
    fmt::format_to(std::back_inserter(text), "{:.9g}", value);
  else
    text += "null";
}
// As few digits as give the same fp32 number.
void append_number(std::string& text, float value) {
  if (std::isfinite(value))
    fmt::format_to(std::back_inserter(text), "{}", value);
  else
    text += "null";
}

template <class T>
void append_list(std::string& text, const char* name, const std::vector<T>& values) {
  fmt::format_to(std::back_inserter(text), "\"{}\":[", name);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += ',';
    append_number(text, values[i]);
  }
  text += ']';
}

void append_curve(std::string& text, const std::string& key, const SeriesPoints& points) {
  if (text.back() != '{') text += ',';
  text += compact_json(key) + ":{";
  append_list(text, "x", points.x);
  text += ',';
  append_list(text, "y", points.y);
  if (!points.low.empty()) {
    text += ',';
    append_list(text, "low", points.low);
    text += ',';
    append_list(text, "high", points.high);
  }
  text += '}';
}

// The means of the values in groups of rows, at the step of the last row of each group.
SeriesPoints grouped_points(const StepSeries& series, const std::string& key, std::size_t first_row,
                            std::size_t group) {
  SeriesPoints points;
  for (std::size_t row = first_row; row < series.rows();) {
    FiniteMean mean;
    const std::size_t end = std::min(row + group, series.rows());
    for (; row < end; ++row)
      if (const float value = series.value(key, row); !std::isnan(value)) mean.add(value);
    if (!mean.any()) continue;
    points.x.push_back(series.step(end - 1));
    points.y.push_back(mean.value());
  }
  return points;
}

}  // namespace

void SeriesCache::with(const std::filesystem::path& run,
                       const std::function<void(const StepSeries&)>& use) {
  const std::shared_ptr<Entry> entry = entry_of(run);  // may be dropped meanwhile
  const std::lock_guard lock(entry->mutex);
  read(*entry);
  {
    const std::lock_guard all(mutex_);
    entry->bytes = entry->series.memory_bytes();
    drop_others(*entry);
  }
  use(entry->series);
}

std::shared_ptr<SeriesCache::Entry> SeriesCache::entry_of(const std::filesystem::path& run) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Entry>& entry = entries_[run];
  if (!entry) entry = std::make_shared<Entry>(StepSeries(run / "metrics.jsonl", most_bytes_ / 3));
  entry->used = ++calls_;
  return entry;
}

void SeriesCache::read(Entry& entry) {
  readers_.acquire();
  struct Release {
    std::counting_semaphore<2>& readers;
    ~Release() { readers.release(); }
  } const release{readers_};
  entry.series.update();
}

void SeriesCache::drop_others(const Entry& kept) {
  while (all_bytes() > most_bytes_) {
    auto oldest = entries_.end();
    for (auto one = entries_.begin(); one != entries_.end(); ++one)
      if (one->second.get() != &kept &&
          (oldest == entries_.end() || one->second->used < oldest->second->used))
        oldest = one;
    if (oldest == entries_.end()) return;
    entries_.erase(oldest);
  }
}

std::size_t SeriesCache::memory_bytes() const {
  const std::lock_guard lock(mutex_);
  return all_bytes();
}

std::size_t SeriesCache::all_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [run, entry] : entries_) bytes += entry->bytes;
  return bytes;
}

std::string series_json(const StepSeries& series, const std::vector<std::string>& keys,
                        const SeriesQuery& range) {
  std::string text = fmt::format(
      "{{\"axis\":\"{}\",\"rows\":{},\"last_step\":", to_string(range.axis), series.records());
  append_number(text, series.rows() > 0 ? series.step(series.rows() - 1)
                                        : std::numeric_limits<double>::quiet_NaN());
  text += ",\"keys\":{";
  const std::vector<std::string> known = series.keys();
  for (const std::string& key : keys)
    if (std::find(known.begin(), known.end(), key) != known.end())
      append_curve(text, key, series.points(key, range));
  return text + "}}";
}

std::string new_rows_json(const StepSeries& series, const std::string& id, std::size_t first_row,
                          std::size_t most) {
  std::string text = fmt::format("{{\"id\":{},\"keys\":{{", compact_json(id));
  const std::size_t rows = series.rows() - std::min(first_row, series.rows());
  const std::size_t group = std::max<std::size_t>(1, (rows + most - 1) / most);
  for (const std::string& key : series.keys())
    if (const SeriesPoints points = grouped_points(series, key, first_row, group);
        !points.x.empty())
      append_curve(text, key, points);
  std::vector<double> steps, tokens, hours;
  for (std::size_t row = first_row; row < series.rows();) {
    row = std::min(row + group, series.rows());
    steps.push_back(series.step(row - 1));
    tokens.push_back(series.tokens(row - 1));
    hours.push_back(series.hours(row - 1));
  }
  text += "},";
  append_list(text, "steps", steps);
  text += ',';
  append_list(text, "tokens", tokens);
  text += ',';
  append_list(text, "hours", hours);
  return text + fmt::format(",\"rows\":{}}}", series.records());
}

}  // namespace kintsugi
