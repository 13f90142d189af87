#include "report/runs/step_series.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/json_members.h"

namespace kintsugi {
namespace {

constexpr std::size_t kFewValues = 1024;  // not worth a dense column

constexpr std::size_t kChunk = 1 << 20, kMostLine = 4 << 20;  // bytes
constexpr std::uint64_t kMostFile = 16ull << 30;
constexpr std::size_t kMostKeys = 2048, kMostKeyBytes = 256;  // others are left out
constexpr std::size_t kFingerprint = 64, kFirstLine = 64 << 10;
constexpr double kLargestStep = 1e15, kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr float kNotFinite = std::numeric_limits<float>::infinity();
constexpr std::size_t kMostRows = 1u << 31;

constexpr std::array<std::string_view, 3> kAxes = {"step", "tokens", "hours"};

float as_float(const JsonMember& member) {
  const auto value = static_cast<float>(member.number);
  return member.kind == JsonMember::Kind::Number && std::isfinite(value) ? value : kNotFinite;
}

// Adds up the values of one bucket after the other.
class Buckets {
 public:
  explicit Buckets(std::size_t per_bucket) : per_bucket_(per_bucket) {}
  void add(double x, float y) {
    if (std::isfinite(y)) {
      sum_y_ += static_cast<double>(y);
      sum_x_ += x;
      low_ = finite_ == 0 ? y : std::min(low_, y);
      high_ = finite_ == 0 ? y : std::max(high_, y);
      ++finite_;
    }
    all_x_ += x;
    if (++count_ == per_bucket_) finish();
  }
  SeriesPoints points() {
    if (count_ > 0) finish();
    return std::move(points_);
  }

 private:
  void finish() {
    const auto finite = static_cast<double>(finite_);
    points_.x.push_back(finite_ > 0 ? sum_x_ / finite : all_x_ / static_cast<double>(count_));
    points_.y.push_back(finite_ > 0 ? static_cast<float>(sum_y_ / finite) : kNotFinite);
    if (per_bucket_ > 1) {
      points_.low.push_back(finite_ > 0 ? low_ : kNotFinite);
      points_.high.push_back(finite_ > 0 ? high_ : kNotFinite);
    }
    sum_x_ = sum_y_ = all_x_ = 0;
    count_ = finite_ = 0;
  }

  std::size_t per_bucket_, count_ = 0, finite_ = 0;
  double sum_x_ = 0, sum_y_ = 0, all_x_ = 0;
  float low_ = 0, high_ = 0;
  SeriesPoints points_;
};

}  // namespace

void StepColumn::add(std::uint32_t row, float value, std::size_t expected_rows) {
  if (std::isnan(value)) return;
  ++count_;
  if (dense_ && row >= 4 * count_ + kFewValues) make_sparse();
  if (dense_) {
    while (values_.size() < row) push_tight(values_, kNone, expected_rows);
    push_tight(values_, value, expected_rows);
    return;
  }
  push_tight(rows_, row, 0);
  push_tight(values_, value, 0);
  if (count_ >= kFewValues && 2 * count_ > row) make_dense(expected_rows);
}

void StepColumn::make_dense(std::size_t expected_rows) {
  std::vector<float> values;
  values.reserve(std::max<std::size_t>(expected_rows, rows_.back() + 1));
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    values.resize(rows_[i], kNone);
    values.push_back(values_[i]);
  }
  values_ = std::move(values);
  rows_ = {};
  dense_ = true;
}

void StepColumn::make_sparse() {
  std::vector<float> values;
  for (std::uint32_t row = 0; row < values_.size(); ++row)
    if (!std::isnan(values_[row])) {
      rows_.push_back(row);
      values.push_back(values_[row]);
    }
  values_ = std::move(values);
  dense_ = false;
}

void StepColumn::drop_from(std::uint32_t row) {
  if (!dense_) {
    while (!rows_.empty() && rows_.back() >= row) {
      rows_.pop_back();
      values_.pop_back();
    }
    count_ = rows_.size();
    return;
  }
  for (; values_.size() > row; values_.pop_back())
    if (!std::isnan(values_.back())) --count_;
}

float StepColumn::at(std::uint32_t row) const {
  if (dense_) return row < values_.size() ? values_[row] : kNone;
  const auto found = std::lower_bound(rows_.begin(), rows_.end(), row);
  return found != rows_.end() && *found == row
             ? values_[static_cast<std::size_t>(found - rows_.begin())]
             : kNone;
}

void StepColumn::merge(std::uint32_t begin, std::uint32_t group) {
  StepColumn merged(key_);
  merged.dense_ = dense_;
  visit(0, begin, [&](std::uint32_t row, float value) { merged.add(row, value, 0); });
  FiniteMean mean;
  std::uint32_t current = begin;  // row after the merge
  const auto finish = [&] {
    if (mean.any()) merged.add(current, mean.value(), 0);
    mean = {};
  };
  visit(begin, std::numeric_limits<std::uint32_t>::max(), [&](std::uint32_t row, float value) {
    const std::uint32_t target = begin + (row - begin) / group;
    if (target != current) finish();
    current = target;
    mean.add(value);
  });
  finish();
  *this = std::move(merged);
}

std::size_t StepColumn::bytes() const {
  return sizeof(*this) + key_.capacity() + values_.capacity() * sizeof(float) +
         rows_.capacity() * sizeof(std::uint32_t);
}

std::string_view to_string(SeriesAxis axis) { return kAxes[static_cast<std::size_t>(axis)]; }

std::optional<SeriesAxis> parse_series_axis(std::string_view text) {
  const auto found = std::find(kAxes.begin(), kAxes.end(), text);
  if (found == kAxes.end()) return {};
  return static_cast<SeriesAxis>(found - kAxes.begin());
}

StepSeries::StepSeries(std::filesystem::path file, std::size_t most_bytes)
    : path_(std::move(file)), most_bytes_(most_bytes) {
  reset();
}

StepSeries StepSeries::of_tail(std::filesystem::path file, std::uint64_t tail_bytes) {
  StepSeries series(std::move(file), 4 * tail_bytes);
  series.tail_bytes_ = tail_bytes;
  return series;
}

void StepSeries::reset() {
  offset_ = 0;
  last_bytes_.clear();
  skipping_ = false;
  lines_ = damaged_ = first_damaged_ = records_ = 0;
  steps_ = {};
  tokens_ = {};
  hours_ = {};
  columns_.clear();
  slots_.clear();
  slot_index_.clear();
  stride_ = 1;
  merged_rows_ = 0;
  last_time_ = kUnknown;
  last_hours_ = kUnknown;
  knows_hours_ = true;
  for (const auto& [key, role] : {std::pair{"step", Role::Step},
                                  {"tokens", Role::Tokens},
                                  {"time_s", Role::Time},
                                  {"step_time_s", Role::Duration},
                                  {"tokens_per_s", Role::Rate},
                                  {"energy_j", Role::Energy},
                                  {"seq", Role::Ignored},
                                  {"valid", Role::Nested},
                                  {"eval", Role::Nested},
                                  {"straggler", Role::Nested}}) {
    slot_index_[key] = slots_.size();
    slots_.push_back({key, role});
  }
}

// ---- reading

StepSeries::Change StepSeries::update() {
  const RunFile file(path_);
  problem_ = file.problem();
  if (file.is_open() && file.stamp().size > kMostFile) problem_ = "is larger than 16 GiB";
  if (!file.is_open() || !problem_.empty()) {
    const bool had_rows = rows() > 0;
    stamp_ = {};
    reset();
    return had_rows ? Change::Replaced : Change::None;
  }
  if (file.stamp() == stamp_) return Change::None;
  const bool same = is_same_file(file);
  if (!same) reset();
  const std::int64_t before = records_ + rewinds_;
  read_from(file);
  stamp_ = file.stamp();
  if (!same) return Change::Replaced;
  return records_ + rewinds_ == before ? Change::None : Change::Grown;
}

bool StepSeries::is_same_file(const RunFile& file) const {
  const FileStamp& now = file.stamp();
  if (offset_ == 0) return true;  // nothing was read
  if (now.device != stamp_.device || now.inode != stamp_.inode || now.size < offset_) return false;
  std::string bytes;
  file.read(offset_ - last_bytes_.size(), last_bytes_.size(), bytes);
  return bytes == last_bytes_;
}

// Hours count from the first record, so its time is needed.
void StepSeries::skip_to_tail(const RunFile& file) {
  std::string text;
  file.read(0, kFirstLine, text);
  bytes_read_ += text.size();
  line_.clear();
  line_time_ = kUnknown;
  last_slot_ = 0;
  scan(std::string_view(text).substr(0, text.find('\n')));
  last_time_ = line_time_;
  last_hours_ = 0;
  knows_hours_ = !std::isnan(line_time_);
  offset_ = file.stamp().size - tail_bytes_;
  skipping_ = true;  // the line that begins before
  --damaged_;        // is none
}

void StepSeries::read_from(const RunFile& file) {
  if (offset_ == 0 && tail_bytes_ > 0 && file.stamp().size > tail_bytes_) skip_to_tail(file);
  const std::uint64_t size = file.stamp().size, begin = offset_;
  const std::int64_t lines_before = records_;
  std::string chunk;
  std::size_t wanted = kChunk;
  while (offset_ < size) {
    file.read(offset_, static_cast<std::size_t>(std::min<std::uint64_t>(wanted, size - offset_)),
              chunk);
    bytes_read_ += chunk.size();
    if (chunk.empty()) return;  // it has become shorter since
    const std::size_t end = chunk.rfind('\n');
    if (end == chunk.npos && offset_ + chunk.size() == size && chunk.size() < kMostLine) return;
    if (end == chunk.npos && chunk.size() < kMostLine) {
      wanted = kMostLine;
      continue;
    }
    const std::size_t used = end == chunk.npos ? chunk.size() : end + 1;
    if (end == chunk.npos)
      skipping_ = true;
    else
      take_lines({chunk.data(), used});
    offset_ += used;
    const std::size_t kept = std::min(used, kFingerprint);
    last_bytes_.assign(chunk, used - kept, kept);
    expect(size - offset_, offset_ - begin, records_ - lines_before);
    keep_within_limit();
    wanted = kChunk;
  }
}

void StepSeries::expect(std::uint64_t bytes_left, std::uint64_t bytes_done,
                        std::int64_t lines_done) {
  if (lines_done <= 0) return;
  const double lines = static_cast<double>(bytes_left) * static_cast<double>(lines_done) /
                       static_cast<double>(bytes_done);
  const std::size_t row_bytes = 3 * sizeof(double) + columns_.size() * sizeof(float);
  const double fits = static_cast<double>(most_bytes_) / static_cast<double>(row_bytes);
  expected_rows_ = static_cast<std::size_t>(
      std::min(static_cast<double>(rows()) + 1.01 * lines / stride_ + 64, fits));
}

void StepSeries::take_lines(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    ++lines_;
    if (skipping_)
      note_damage();
    else if (end > 0)
      take_line(text.substr(0, end));
    skipping_ = false;
    text.remove_prefix(end + 1);
  }
}

void StepSeries::take_line(std::string_view line) {
  line_.clear();
  last_slot_ = 0;
  line_step_ = line_tokens_ = line_time_ = kUnknown;
  line_duration_ = line_rate_ = line_energy_ = StepColumn::kNone;
  const bool valid = scan(line) && line_step_ >= 0 && line_step_ <= kLargestStep;
  if (valid && rows() < kMostRows)
    commit();
  else
    note_damage();
}

void StepSeries::note_damage() {
  if (++damaged_ == 1 && tail_bytes_ == 0) first_damaged_ = lines_;
}

std::size_t StepSeries::slot_of(std::string_view key) {
  const std::size_t likely = slots_[last_slot_].follower;
  if (slots_[likely].key == key) return last_slot_ = likely;
  if (const auto found = slot_index_.find(key); found != slot_index_.end())
    return last_slot_ = slots_[last_slot_].follower = found->second;
  if (slots_.size() >= kMostKeys || key.size() > kMostKeyBytes || key.find('\\') != key.npos)
    return slots_.size();
  slot_index_.emplace(key, slots_.size());
  slots_.push_back({.key = std::string(key)});
  return last_slot_ = slots_[last_slot_].follower = slots_.size() - 1;
}

bool StepSeries::scan(std::string_view line) {
  JsonMembers members(line);
  for (JsonMember member; members.next(member);) {
    const bool nested = member.kind == JsonMember::Kind::Nested;
    const bool number = member.kind == JsonMember::Kind::Number;
    if (!nested && !number && member.kind != JsonMember::Kind::Null) continue;
    const std::size_t slot = slot_of(member.key);
    if (slot == slots_.size()) continue;
    const Role role = slots_[slot].role;
    if (nested) {
      if (role == Role::Nested) scan_nested(member.key, member.value);
      continue;
    }
    if (is_column(role)) line_.push_back({slot, as_float(member)});
    if (number && std::isfinite(member.number)) note(role, member.number);
  }
  return members.is_complete();
}

void StepSeries::note(Role role, double number) {
  if (role == Role::Step) line_step_ = number;
  if (role == Role::Tokens) line_tokens_ = number;
  if (role == Role::Time) line_time_ = number;
  if (role == Role::Duration) line_duration_ = static_cast<float>(number);
  if (role == Role::Rate) line_rate_ = static_cast<float>(number);
  if (role == Role::Energy) line_energy_ = static_cast<float>(number);
}

void StepSeries::scan_nested(std::string_view key, std::string_view text) {
  const auto json = parse_untrusted_json(text);
  if (!json) return;
  const auto add = [&](const std::string& name, const nlohmann::ordered_json& value) {
    if (!value.is_number() && !value.is_null()) return;
    const std::size_t slot = slot_of(name);
    if (slot == slots_.size() || !is_column(slots_[slot].role)) return;
    const float number = value.is_null() ? kNotFinite : value.get<float>();
    line_.push_back({slot, std::isfinite(number) ? number : kNotFinite});
  };
  if (key == "valid" && json->is_object()) {
    for (const auto& [set, values] : json->items())
      if (values.is_object())
        for (const auto& [metric, value] : values.items())
          add("valid." + set + "." + metric, value);
  } else if (key == "eval" && json->is_array()) {
    for (const auto& one : *json)
      if (one.is_object() && one.contains("task") && one["task"].is_string() &&
          one.contains("metric") && one["metric"].is_string() && one.contains("value"))
        add("eval." + one["task"].get<std::string>() + "." + one["metric"].get<std::string>(),
            one["value"]);
  } else if (key == "straggler" && json->is_object() && json->contains("ratio")) {
    add("straggler.ratio", (*json)["ratio"]);
  }
}

// ---- rows

void StepSeries::add_time() {
  const double spent = line_duration_ > 0 ? line_duration_ / 3600.0 : 0.0;
  if (std::isnan(last_hours_))
    last_hours_ = std::isnan(line_time_) ? spent : 0.0;
  else if (!std::isnan(line_time_) && !std::isnan(last_time_))
    last_hours_ += std::max(0.0, (line_time_ - last_time_) / 3600);  // 0: the clock was set back
  else
    last_hours_ += spent;
  last_time_ = line_time_;
  push_tight(hours_, knows_hours_ ? last_hours_ : kUnknown, expected_rows_);
}

void StepSeries::add_value(std::size_t slot, float value) {
  int& column = slots_[slot].column;
  if (column < 0) {
    if (!std::isfinite(value)) return;
    column = static_cast<int>(columns_.size());
    columns_.emplace_back(slots_[slot].key);
  }
  const auto row = static_cast<std::uint32_t>(steps_.size() - 1);
  StepColumn& of = columns_[static_cast<std::size_t>(column)];
  if (std::isnan(of.at(row))) of.add(row, value, expected_rows_);  // a key twice: the first counts
}

void StepSeries::commit() {
  if (!steps_.empty() && line_step_ <= steps_.back()) {
    ++rewinds_;
    drop_from(static_cast<std::size_t>(std::lower_bound(steps_.begin(), steps_.end(), line_step_) -
                                       steps_.begin()));
  }
  push_tight(steps_, line_step_, expected_rows_);
  push_tight(tokens_, line_tokens_ >= 0 ? line_tokens_ : kUnknown, expected_rows_);
  add_time();
  ++records_;
  for (const Value& one : line_) add_value(one.slot, one.value);
  const float tokens = line_rate_ * line_duration_, energy = line_energy_ / tokens;
  if (tokens > 0 && std::isfinite(energy))
    if (const std::size_t slot = slot_of("j_per_token"); slot < slots_.size())
      add_value(slot, energy);
}

void StepSeries::drop_from(std::size_t row) {
  const std::size_t single = rows() - std::max(row, merged_rows_);
  const std::size_t merged = merged_rows_ - std::min(row, merged_rows_);
  records_ -= static_cast<std::int64_t>(single + merged * stride_);
  merged_rows_ = std::min(merged_rows_, row);
  steps_.resize(row);
  tokens_.resize(row);
  hours_.resize(row);
  for (StepColumn& column : columns_) column.drop_from(static_cast<std::uint32_t>(row));
}

// A merged row has the step, tokens and hours of its last one.
void StepSeries::merge_rows(std::size_t begin, std::uint32_t group) {
  const std::size_t count = (rows() - begin + group - 1) / group;
  for (std::vector<double>* column : {&steps_, &tokens_, &hours_}) {
    for (std::size_t i = 0; i < count; ++i)
      (*column)[begin + i] = (*column)[std::min(begin + (i + 1) * group, column->size()) - 1];
    column->resize(begin + count);
    column->shrink_to_fit();
  }
  for (StepColumn& column : columns_) column.merge(static_cast<std::uint32_t>(begin), group);
  merged_rows_ = begin + count;
}

void StepSeries::keep_within_limit() {
  if (memory_bytes() <= most_bytes_) return;
  if (stride_ > 1 && merged_rows_ < rows()) merge_rows(merged_rows_, stride_);
  // Down to three quarters, so that the next chunk does not merge again.
  while (memory_bytes() > most_bytes_ - most_bytes_ / 4 && rows() > 1) {
    merge_rows(0, 2);
    stride_ *= 2;
  }
}

std::size_t StepSeries::memory_bytes() const {
  std::size_t bytes = (steps_.capacity() + tokens_.capacity() + hours_.capacity()) * sizeof(double);
  for (const StepColumn& column : columns_) bytes += column.bytes();
  for (const Slot& slot : slots_) bytes += 2 * slot.key.capacity() + 2 * sizeof(Slot);
  return bytes;
}

// ---- points

std::vector<std::string> StepSeries::keys() const {
  std::vector<std::string> keys;
  for (const StepColumn& column : columns_) keys.push_back(column.key());
  return keys;
}

float StepSeries::value(const std::string& key, std::size_t row) const {
  const auto found = slot_index_.find(key);
  if (found == slot_index_.end() || slots_[found->second].column < 0) return StepColumn::kNone;
  return columns_[static_cast<std::size_t>(slots_[found->second].column)].at(
      static_cast<std::uint32_t>(row));
}

std::size_t StepSeries::first_row_after(double step) const {
  return static_cast<std::size_t>(std::upper_bound(steps_.begin(), steps_.end(), step) -
                                  steps_.begin());
}

const std::vector<double>& StepSeries::x_values(SeriesAxis axis) const {
  return axis == SeriesAxis::Step ? steps_ : axis == SeriesAxis::Tokens ? tokens_ : hours_;
}

SeriesPoints StepSeries::points(const std::string& key, const SeriesQuery& range) const {
  const auto found = slot_index_.find(key);
  if (found == slot_index_.end() || slots_[found->second].column < 0) return {};
  const StepColumn& column = columns_[static_cast<std::size_t>(slots_[found->second].column)];
  const std::vector<double>& x = x_values(range.axis);
  std::uint32_t begin = 0, end = static_cast<std::uint32_t>(rows());
  if (range.axis == SeriesAxis::Step) {  // ascending; the others only if the file is honest
    begin =
        static_cast<std::uint32_t>(std::lower_bound(x.begin(), x.end(), range.from) - x.begin());
    end = static_cast<std::uint32_t>(std::upper_bound(x.begin(), x.end(), range.to) - x.begin());
  }
  const auto inside = [&](std::uint32_t row) { return x[row] >= range.from && x[row] <= range.to; };
  std::size_t count = 0;
  column.visit(begin, end, [&](std::uint32_t row, float) { count += inside(row) ? 1 : 0; });
  const std::size_t most = std::max<std::size_t>(1, range.max_points);
  Buckets buckets(std::max<std::size_t>(1, (count + most - 1) / most));
  column.visit(begin, end, [&](std::uint32_t row, float value) {
    if (inside(row)) buckets.add(x[row], value);
  });
  return buckets.points();
}

}  // namespace kintsugi
