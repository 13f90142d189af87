#include "model/initialize.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <ranges>

#include "core/hash.h"
#include "core/philox.h"

namespace kintsugi {
namespace {

void check_tensor(const SafetensorsModel::Location& found, const Parameter& parameter,
                  const Shape& shape, const std::string& prefix, const std::string& where) {
  if (!found)
    user_error(
        "{} has no tensor {}{}: it holds another model than the configuration, or a file is "
        "missing",
        where, prefix, parameter.name);
  bool same = found.entry->shape.size() == static_cast<std::size_t>(shape.rank());
  for (int i = 0; same && i < shape.rank(); ++i) same = found.entry->shape[i] == shape[i];
  if (!same)
    user_error("{} in {} has shape [{}], the configuration needs {}", parameter.name,
               found.file->path().string(), fmt::join(found.entry->shape, ", "), to_string(shape));
  const auto dtype = found.entry->dtype;
  if (!dtype || *dtype == DType::I64 || *dtype == DType::I32 || *dtype == DType::U8)
    user_error("{} in {} is stored as {}: only F64, F32, BF16 and F16 weights can be read",
               parameter.name, found.file->path().string(), found.entry->dtype_name);
}

}  // namespace

void ParameterSource::fill(Backend& backend, const Tensor& destination, const ParameterSet& set,
                           std::int64_t begin, std::int64_t end) const {
  KINTSUGI_CHECK(destination.elements() == end - begin, "{} elements for [{}, {})",
                 destination.elements(), begin, end);
  backend.fill(destination, 0.0);
  for (const Parameter& parameter : set.parameters()) {
    const std::int64_t from = std::max(begin, parameter.offset),
                       to = std::min(end, parameter.offset + parameter.shape.elements());
    if (from < to)
      fill_parameter(backend, destination.rows(from - begin, to - from), parameter, set.tp_rank(),
                     from - parameter.offset);
  }
}

// ---- random initialization

namespace {

// The number of ranges from `first` on, `period` apart, that are rows of one matrix, both locally
// and in the whole parameter.
std::size_t rows_from(const std::vector<ShardRange>& ranges, std::size_t first,
                      std::size_t period) {
  std::size_t rows = 1;
  for (std::size_t i = first + period; i < ranges.size(); i += period, ++rows) {
    const ShardRange &before = ranges[i - period], &range = ranges[i],
                     &second = ranges[first + period];
    if (range.count != ranges[first].count ||
        range.local - before.local != second.local - ranges[first].local ||
        range.global - before.global != second.global - ranges[first].global)
      break;
  }
  return rows;
}

// Draws all ranges. Ranges at equal distances take one call: a matrix that is sharded by columns
// has thousands of ranges.
void draw_ranges(Backend& backend, const Tensor& destination, const std::vector<ShardRange>& ranges,
                 std::int64_t first, std::size_t period, DrawOptions options) {
  auto* const begin = static_cast<std::byte*>(destination.data());
  for (std::size_t phase = 0; phase < std::min(period, ranges.size()); ++phase)
    for (std::size_t i = phase; i < ranges.size();) {
      const std::size_t rows = rows_from(ranges, i, period);
      const ShardRange &range = ranges[i], &next = ranges[rows > 1 ? i + period : i];
      const std::int64_t distance = rows > 1 ? next.local - range.local : range.count;
      options.first = range.global;
      options.row_stride = next.global - range.global;
      const Tensor matrix(
          begin + static_cast<std::size_t>(range.local - first) * size_of(destination.dtype()),
          destination.dtype(), {static_cast<std::int64_t>(rows), distance});
      backend.draw(matrix.part(1, 0, range.count), options);
      i += rows * period;
    }
}

}  // namespace

void FreshParameters::fill_parameter(Backend& backend, const Tensor& destination,
                                     const Parameter& parameter, int tp_rank,
                                     std::int64_t first) const {
  const Init& init = parameter.init;
  if (init.kind == InitKind::Zeros) return;
  std::vector<ShardRange> ranges;
  for_each_range(parameter.shard, parameter.global, tp_rank, first, first + destination.elements(),
                 [&](const ShardRange& range) { ranges.push_back(range); });
  if (init.kind == InitKind::Ones) {
    for (const ShardRange& range : ranges)
      backend.fill(destination.rows(range.local - first, range.count), 1.0);
    return;
  }
  draw_ranges(
      backend, destination, ranges, first, static_cast<std::size_t>(parameter.shard.parts),
      {.distribution = init.kind == InitKind::Normal ? Distribution::Normal : Distribution::Uniform,
       .scale = init.scale,
       .key = derive_key(seed_, hash64(parameter.name))});
}

// ---- from files

bool GrownTables::has(const Parameter& parameter) const {
  return std::ranges::find(names, parameter.name) != names.end();
}

Shape GrownTables::stored(const Parameter& parameter) const {
  return has(parameter) ? Shape{rows, parameter.global[1]} : parameter.global;
}

namespace {

// The mean of rows of a stored matrix. They are summed in fp64 in the order given, so that the
// result does not depend on the layout.
std::vector<double> mean_of_rows(const SafetensorsModel::Location& stored, const Shape& shape,
                                 const auto& rows) {
  const auto columns = static_cast<std::size_t>(shape[1]);
  std::vector<double> sum(columns, 0.0);
  visit_float(*stored.entry->dtype, [&]<class T>() {
    std::vector<T> values(columns);
    for (const std::int64_t row : rows) {
      const auto bytes = stored.bytes().subspan(static_cast<std::size_t>(row) * columns * sizeof(T),
                                                columns * sizeof(T));  // may be unaligned
      std::memcpy(values.data(), bytes.data(), bytes.size());
      for (std::size_t i = 0; i < columns; ++i)
        sum[i] += static_cast<double>(static_cast<Accumulator<T>>(values[i]));
    }
  });
  for (double& value : sum) value /= static_cast<double>(std::ranges::size(rows));
  return sum;
}

// The new rows of one table.
class NewRows {
 public:
  NewRows(const SafetensorsModel::Location& stored, const GrownTables& grown, const Shape& shape)
      : stored_(stored), grown_(grown), shape_(shape) {}

  // Writes the elements of the table from `first` on.
  void write(Backend& backend, const Tensor& destination, std::int64_t first) {
    constexpr std::int64_t kBlock = 1 << 20;  // elements converted at once
    visit_float(destination.dtype(), [&]<class T>() {
      std::vector<T> block;
      for (std::int64_t at = 0; at < destination.elements(); at += kBlock) {
        block.resize(static_cast<std::size_t>(std::min(kBlock, destination.elements() - at)));
        for (std::size_t i = 0; i < block.size(); ++i)
          block[i] = static_cast<T>(
              static_cast<Accumulator<T>>(element(first + at + static_cast<std::int64_t>(i))));
        backend.upload(destination.rows(at, static_cast<std::int64_t>(block.size())), block.data());
      }
    });
  }

 private:
  double element(std::int64_t index) {
    const std::int64_t row = index / shape_[1];
    if (row != row_) {
      row_ = row;
      values_ = values_of(static_cast<std::size_t>(row - shape_[0]));
    }
    return values_[static_cast<std::size_t>(index % shape_[1])];
  }
  const std::vector<double>& values_of(std::size_t number) {
    if (number < grown_.subtokens.size() && !grown_.subtokens[number].empty()) {
      own_ = mean_of_rows(stored_, shape_, grown_.subtokens[number]);
      return own_;
    }
    if (mean_.empty())
      mean_ = mean_of_rows(stored_, shape_, std::views::iota(std::int64_t{0}, shape_[0]));
    return mean_;
  }

  const SafetensorsModel::Location& stored_;
  const GrownTables& grown_;
  Shape shape_;  // in the file
  std::int64_t row_ = -1;
  std::vector<double> values_, own_, mean_;
};

}  // namespace

StoredParameters::StoredParameters(FileLoader& loader, const SafetensorsModel& files,
                                   const ParameterSet& set, std::string prefix,
                                   const std::function<bool(const Parameter&)>& has,
                                   GrownTables grown)
    : loader_(&loader), files_(&files), prefix_(std::move(prefix)), grown_(std::move(grown)) {
  const std::string where = files.files().front().path().parent_path().string();
  for (const Parameter& parameter : set.parameters())  // before anything is written
    if (!has || has(parameter))
      check_tensor(locate_tensor(files, prefix_ + parameter.name), parameter,
                   grown_.stored(parameter), prefix_, where);
}

void StoredParameters::fill_parameter(Backend& backend, const Tensor& destination,
                                      const Parameter& parameter, int tp_rank,
                                      std::int64_t first) const {
  const auto found = locate_tensor(*files_, prefix_ + parameter.name);
  const int file = loader_->open(found.file->path());
  const DType stored = *found.entry->dtype;
  const Shape shape = grown_.stored(parameter);
  NewRows new_rows(found, grown_, shape);
  for_each_range(parameter.shard, parameter.global, tp_rank, first, first + destination.elements(),
                 [&](const ShardRange& range) {
                   const Tensor elements = destination.rows(range.local - first, range.count);
                   const std::int64_t old =
                       std::clamp<std::int64_t>(shape.elements() - range.global, 0, range.count);
                   if (old > 0)
                     loader_->load(file,
                                   found.file->offset(*found.entry) +
                                       static_cast<std::uint64_t>(range.global) * size_of(stored),
                                   stored, elements.rows(0, old));
                   if (old == range.count) return;
                   new_rows.write(backend, elements.rows(old, range.count - old),
                                  range.global + old);
                 });
}

// ---- all weights

namespace {

void fill_all(Backend& backend, const ParameterStore& store, const ParameterSource& source) {
  const std::vector<Bucket>& buckets = store.set().buckets();
  for (int i = 0; i < static_cast<int>(buckets.size()); ++i) {
    const Bucket& bucket = buckets[static_cast<std::size_t>(i)];
    source.fill(backend, store.bucket_weights(i), store.set(), bucket.begin, bucket.end);
  }
}

}  // namespace

void initialize_parameters(Backend& backend, const ParameterStore& store, std::uint64_t seed) {
  fill_all(backend, store, FreshParameters(seed));
}

void load_parameters(Backend& backend, const ParameterStore& store, const SafetensorsModel& source,
                     const ModelConfig& config, const LoadOptions& options) {
  FileLoader loader(backend);
  const StoredParameters stored(loader, source, store.set());  // says what is missing first
  check_unused_weights(source, config, config, options.unused);
  verify_weights(directory_of(source), loader, options.verify);
  fill_all(backend, store, stored);
  loader.run(options.progress);
}

}  // namespace kintsugi
