#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

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

}  // namespace kintsugi
