#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/runs/run_file.h"

namespace kintsugi {

// The values of one key over the rows of a StepSeries, fp32. A row may have none. A value that is
// not finite is stored as infinity. A key that few rows have takes memory for those rows only.
class StepColumn {
 public:
  static constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

  explicit StepColumn(std::string key) : key_(std::move(key)) {}
  const std::string& key() const { return key_; }

  // Rows in ascending order. `expected_rows`: how many the series will have.
  void add(std::uint32_t row, float value, std::size_t expected_rows);
  void drop_from(std::uint32_t row);  // this row and all behind it
  float at(std::uint32_t row) const;  // kNone: the row has no value
  // Calls use(row, value) for the values of rows [begin, end).
  template <class Use>
  void visit(std::uint32_t begin, std::uint32_t end, const Use& use) const;
  // Replaces the rows from `begin` on by the means of `group` rows each.
  void merge(std::uint32_t begin, std::uint32_t group);
  std::size_t bytes() const;

 private:
  void make_dense(std::size_t expected_rows);
  void make_sparse();

  std::string key_;
  bool dense_ = false;
  std::size_t count_ = 0;            // values
  std::vector<float> values_;        // dense: one per row; otherwise one for each of rows_
  std::vector<std::uint32_t> rows_;  // ascending; empty if dense
};

// Grows a vector by an eighth at a time, or at once to what is expected: doubling would waste half
// of the memory.
template <class T>
void push_tight(std::vector<T>& values, const T& value, std::size_t expected) {
  const std::size_t size = values.size();
  if (size == values.capacity()) values.reserve(expected > size ? expected : size + size / 8 + 256);
  values.push_back(value);
}

template <class Use>
void StepColumn::visit(std::uint32_t begin, std::uint32_t end, const Use& use) const {
  if (dense_) {
    const auto last = static_cast<std::uint32_t>(std::min<std::size_t>(end, values_.size()));
    for (std::uint32_t row = begin; row < last; ++row)
      if (!std::isnan(values_[row])) use(row, values_[row]);
    return;
  }
  const auto first = std::lower_bound(rows_.begin(), rows_.end(), begin) - rows_.begin();
  for (auto i = static_cast<std::size_t>(first); i < rows_.size() && rows_[i] < end; ++i)
    use(rows_[i], values_[i]);
}

enum class SeriesAxis : std::uint8_t { Step, Tokens, Hours };
std::string_view to_string(SeriesAxis axis);                         // "step", "tokens", "hours"
std::optional<SeriesAxis> parse_series_axis(std::string_view text);  // empty: none of these

// The mean of finite values; infinite if there are only others.
class FiniteMean {
 public:
  void add(float value) {
    any_ = true;
    if (!std::isfinite(value)) return;
    sum_ += static_cast<double>(value);
    ++count_;
  }
  bool any() const { return any_; }
  float value() const {
    return count_ > 0 ? static_cast<float>(sum_ / static_cast<double>(count_))
                      : std::numeric_limits<float>::infinity();
  }

 private:
  double sum_ = 0;
  std::int64_t count_ = 0;
  bool any_ = false;
};

// A curve to draw. Each point is the mean of a bucket of neighbouring values; y is infinite where
// no value of the bucket is finite. low and high are empty if every bucket is one value.
struct SeriesPoints {
  std::vector<double> x;
  std::vector<float> y, low, high;
};

struct SeriesQuery {
  SeriesAxis axis = SeriesAxis::Step;
  double from = -std::numeric_limits<double>::infinity(),
         to = std::numeric_limits<double>::infinity();
  std::size_t max_points = 1500;
};

// The columns of a metrics.jsonl that may be growing. Of repeated steps (after a rewind or a
// resume) the newest record counts: a record drops all earlier rows from its step on. Damaged lines
// are counted and left out.
//
// Keys are those of the file, "valid.SET.loss" for its validation sets, "eval.TASK.METRIC",
// "straggler.ratio", and "j_per_token".
class StepSeries {
 public:
  static constexpr std::size_t kMostBytes = 96 << 20;

  // Of more rows than fit into `most_bytes`, the means of n neighbours each are kept.
  explicit StepSeries(std::filesystem::path file, std::size_t most_bytes = kMostBytes);
  // Begins within the last `tail_bytes` of the file, for what follows new records only. Hours are
  // unknown (NaN) if the first record has no time_s.
  static StepSeries of_tail(std::filesystem::path file, std::uint64_t tail_bytes);

  enum class Change : std::uint8_t { None, Grown, Replaced };
  // Reads what has been added. Replaced: the file is another one or is shorter, and was read anew.
  Change update();

  const std::string& problem() const { return problem_; }  // why it cannot be read; empty: it can
  std::size_t rows() const { return steps_.size(); }
  std::int64_t records() const { return records_; }  // rows, before neighbours were merged
  std::int64_t damaged_lines() const { return damaged_; }
  // From 1; 0: there is none, or the series began at the tail.
  std::int64_t first_damaged_line() const { return first_damaged_; }
  std::int64_t rewinds() const { return rewinds_; }  // how often rows were dropped
  std::size_t memory_bytes() const;
  std::uint64_t bytes_read() const { return bytes_read_; }

  double step(std::size_t row) const { return steps_[row]; }
  double tokens(std::size_t row) const { return tokens_[row]; }  // NaN: unknown
  // Since the first record. Without time_s in the records: the sum of step_time_s.
  double hours(std::size_t row) const { return hours_[row]; }
  std::vector<std::string> keys() const;  // in the order of the file
  // NaN: the row has none. Infinite: it is not finite.
  float value(const std::string& key, std::size_t row) const;
  std::size_t first_row_after(double step) const;

  // Empty if there is no such key. At most range.max_points points.
  SeriesPoints points(const std::string& key, const SeriesQuery& range) const;

 private:
  // Duration, Rate and Energy are columns too.
  enum class Role : std::uint8_t {
    Column,
    Step,
    Tokens,
    Time,
    Duration,
    Rate,
    Energy,
    Nested,
    Ignored
  };
  struct Slot {  // a key of the records
    std::string key;
    Role role = Role::Column;
    int column = -1;           // in columns_; -1: no finite value yet
    std::size_t follower = 0;  // the slot of the next key: records have the same order of keys
  };
  struct Value {
    std::size_t slot;
    float value;  // infinite: null
  };

  void reset();
  bool is_same_file(const RunFile& file) const;
  void skip_to_tail(const RunFile& file);
  void read_from(const RunFile& file);
  void take_lines(std::string_view text);
  void take_line(std::string_view line);
  void note_damage();
  static bool is_column(Role role) {
    return role == Role::Column || role == Role::Duration || role == Role::Rate ||
           role == Role::Energy;
  }
  bool scan(std::string_view line);
  void note(Role role, double number);
  void scan_nested(std::string_view key, std::string_view text);
  std::size_t slot_of(std::string_view key);
  void commit();
  void add_value(std::size_t slot, float value);
  void add_time();
  void drop_from(std::size_t row);
  void merge_rows(std::size_t begin, std::uint32_t group);
  void keep_within_limit();
  void expect(std::uint64_t bytes_left, std::uint64_t bytes_done, std::int64_t lines_done);
  const std::vector<double>& x_values(SeriesAxis axis) const;

  std::filesystem::path path_;
  std::size_t most_bytes_;
  std::uint64_t tail_bytes_ = 0;  // 0: the whole file
  std::string problem_;

  // What was read.
  FileStamp stamp_;
  std::uint64_t offset_ = 0;      // behind the last complete line
  std::string last_bytes_;        // before it: shows whether the file was rewritten in place
  bool skipping_ = false;         // inside a line that is too long
  std::uint64_t bytes_read_ = 0;  // in all
  std::int64_t lines_ = 0, damaged_ = 0, first_damaged_ = 0, records_ = 0, rewinds_ = 0;

  std::vector<double> steps_, tokens_, hours_;
  std::vector<StepColumn> columns_;
  std::vector<Slot> slots_;
  std::map<std::string, std::size_t, std::less<>> slot_index_;
  std::size_t expected_rows_ = 0;
  std::uint32_t stride_ = 1;     // rows that were merged into one
  std::size_t merged_rows_ = 0;  // the first rows; those behind them are single ones

  // The line that is being read.
  std::vector<Value> line_;
  std::size_t last_slot_ = 0;
  double line_step_ = 0, line_tokens_ = 0, line_time_ = 0;
  float line_duration_ = 0, line_rate_ = 0, line_energy_ = 0;

  // Of the last record, dropped or not: wall time goes on through repeated steps.
  double last_time_ = 0, last_hours_ = 0;
  bool knows_hours_ = true;
};

}  // namespace kintsugi
