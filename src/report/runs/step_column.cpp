#include "report/runs/step_column.h"

namespace kintsugi {
namespace {

constexpr std::size_t kFewValues = 1024;  // not worth a dense column

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

}  // namespace kintsugi
