#include "model/files/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace kintsugi {
namespace {

using Location = SafetensorsModel::Location;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

class Comparer {
 public:
  Comparer() : reader_(memory_), blocks_(memory_, 2, reader_.block()) {}

  TensorComparison compare(const std::string& name, const Location& a, const Location& b) {
    TensorComparison result{.name = name,
                            .first_shape = a.entry->shape,
                            .second_shape = b.entry->shape,
                            .first_dtype = a.entry->dtype_name,
                            .second_dtype = b.entry->dtype_name};
    if (!result.same_shape()) return result;
    result.elements = elements_of(*a.entry);
    if (a.entry->dtype && b.entry->dtype)
      compare_values(result, a, b);
    else
      compare_bytes(result, a, b);
    return result;
  }

 private:
  void compare_values(TensorComparison& result, const Location& a, const Location& b) {
    double squares = 0;
    for_each_block(result.elements, reader_.block(), [&](std::int64_t first, std::size_t count) {
      const std::span<double> x = blocks_.get(0, count), y = blocks_.get(1, count);
      reader_.read(a, first, x);
      reader_.read(b, first, y);
      for (std::size_t i = 0; i < count; ++i) {
        if (std::isfinite(x[i])) squares += x[i] * x[i];
        if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
        ++result.differing;
        const double difference = std::fabs(x[i] - y[i]);
        result.max_difference =
            std::max(result.max_difference, std::isnan(difference) ? kInfinite : difference);
      }
    });
    result.rms =
        std::sqrt(squares / static_cast<double>(std::max<std::int64_t>(result.elements, 1)));
  }

  // Types that we do not compute with, such as F8_E4M3: equal or not.
  static void compare_bytes(TensorComparison& result, const Location& a, const Location& b) {
    const auto x = a.bytes(), y = b.bytes();
    const bool same = result.same_dtype() && x.size() == y.size() &&
                      std::memcmp(x.data(), y.data(), x.size()) == 0;
    if (same) return;
    result.differing = result.elements;
    result.max_difference = kInfinite;
  }

  CountedMemory memory_;
  BlockReader reader_;
  DoubleBlocks blocks_;
};

std::vector<ConfigComparison> compare_configs(const StoredModel& first, const StoredModel& second) {
  using Json = nlohmann::ordered_json;
  const Json a = Json::parse(read_text_file(first.directory / "config.json")),
             b = Json::parse(read_text_file(second.directory / "config.json"));
  std::vector<ConfigComparison> different;
  for (const auto& [key, value] : a.items())
    if (!b.contains(key) || b[key] != value)
      different.push_back({key, value.dump(), b.contains(key) ? b[key].dump() : ""});
  for (const auto& [key, value] : b.items())
    if (!a.contains(key)) different.push_back({key, "", value.dump()});
  return different;
}

}  // namespace

double TensorComparison::relative() const {
  if (max_difference == 0) return 0;
  return rms > 0 ? max_difference / rms : kInfinite;
}

bool ModelComparison::equal() const {
  return only_first.empty() && only_second.empty() && config.empty() &&
         std::ranges::all_of(tensors, [](const auto& one) { return one.equal(); });
}

ModelComparison compare_models(const StoredModel& first, const StoredModel& second,
                               const ProgressCall& progress) {
  ModelComparison result;
  first.verify();
  second.verify();
  result.config = compare_configs(first, second);
  Comparer comparer;
  std::int64_t done = 0, total = 0;
  for (const std::string& name : first.names) total += elements_of(*first.tensors.find(name).entry);
  for (const std::string& name : first.names) {
    if (const Location other = locate_tensor(second.tensors, name))
      result.tensors.push_back(comparer.compare(name, first.tensors.find(name), other));
    else
      result.only_first.push_back(name);
    done += elements_of(*first.tensors.find(name).entry);
    if (progress) progress(done, total);
  }
  for (const std::string& name : second.names)
    if (!locate_tensor(first.tensors, name)) result.only_second.push_back(name);
  std::ranges::stable_sort(
      result.tensors, [](const auto& a, const auto& b) { return a.relative() > b.relative(); });
  return result;
}

TensorStatistics tensor_statistics(BlockReader& reader, const Location& tensor) {
  TensorStatistics result{.min = kInfinite, .max = -kInfinite};
  if (!tensor.entry->dtype)
    user_error("tensor {} in {} is stored as {}: there are no statistics of this type",
               tensor.entry->name, tensor.file->path().string(), tensor.entry->dtype_name);
  const std::int64_t elements = elements_of(*tensor.entry);
  std::vector<double> values(std::min(reader.block(), static_cast<std::size_t>(elements)));
  double sum = 0, squares = 0;
  for_each_block(elements, reader.block(), [&](std::int64_t first, std::size_t count) {
    reader.read(tensor, first, std::span(values).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      const double value = values[i];
      if (!std::isfinite(value)) {
        ++result.non_finite;
        continue;
      }
      result.min = std::min(result.min, value);
      result.max = std::max(result.max, value);
      sum += value;
      squares += value * value;
    }
  });
  const auto finite = static_cast<double>(elements - result.non_finite);
  if (finite == 0) return {.non_finite = result.non_finite};
  result.mean = sum / finite;
  result.rms = std::sqrt(squares / finite);
  return result;
}

}  // namespace kintsugi
