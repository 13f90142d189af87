#include "model/adapter/apply_adapter.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "model/files/file_loader.h"
#include "tensor/arena.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kBlockElements = std::int64_t{1} << 23;  // of wide weights at a time

// The index in the whole parameter of each row (dimension 0) or column (1) of a rank's shard; -1:
// padding.
std::vector<std::int64_t> global_indices(const Parameter& parameter, int dimension, int tp_rank) {
  const std::int64_t local = parameter.shape[dimension];
  std::vector<std::int64_t> indices(static_cast<std::size_t>(local), -1);
  TensorShard shard = parameter.shard;
  shard.dimension = parameter.shard.dimension == dimension ? 0 : -1;
  for_each_range(shard, {parameter.global[dimension]}, tp_rank, 0, local,
                 [&](const ShardRange& range) {
                   for (std::int64_t i = 0; i < range.count; ++i)
                     indices[range.local + i] = range.global + i;
                 });
  return indices;
}

// The rows and columns of an update that belong to a rank's shard.
LowRankUpdate local_update(const LowRankUpdate& all, const Parameter& parameter, int tp_rank) {
  LowRankUpdate local{.rows = parameter.shape[0],
                      .rank = all.rank,
                      .columns = parameter.shape[1],
                      .left = {},
                      .right = {}};
  const std::vector<std::int64_t> rows = global_indices(parameter, 0, tp_rank),
                                  columns = global_indices(parameter, 1, tp_rank);
  for (const std::int64_t row : rows)
    for (std::int64_t k = 0; k < all.rank; ++k)
      local.left.push_back(row < 0 ? 0 : all.left[row * all.rank + k]);
  for (std::int64_t k = 0; k < all.rank; ++k)
    for (const std::int64_t column : columns)
      local.right.push_back(column < 0 ? 0 : all.right[k * all.columns + column]);
  return local;
}

void upload_doubles(Backend& backend, const Tensor& to, const std::vector<double>& values) {
  if (to.dtype() == DType::F64) return backend.upload(to, values.data());
  const std::vector<float> rounded(values.begin(), values.end());
  backend.upload(to, rounded.data());
}

// weight += left · right, in accumulator precision.
void add_update(Backend& backend, const Tensor& weight, const LowRankUpdate& update) {
  const DType wide = accumulator_of(weight.dtype());
  Arena work(backend);
  const auto allocate = [&](const char* label, std::int64_t rows, std::int64_t columns) {
    return work.allocate(Region::Workspace, label, wide, {rows, columns});
  };
  const Tensor left = allocate("left", update.rows, update.rank),
               right = allocate("right", update.rank, update.columns);
  upload_doubles(backend, left, update.left);
  upload_doubles(backend, right, update.right);
  if (weight.dtype() == wide) {
    backend.matmul(weight, left, right, {.accumulate = true});
  } else {
    const std::int64_t block =
        std::clamp<std::int64_t>(kBlockElements / update.columns, 1, update.rows);
    const Tensor sums = allocate("sums", block, update.columns);
    for (std::int64_t first = 0; first < update.rows; first += block) {
      const std::int64_t count = std::min(block, update.rows - first);
      backend.copy(sums.rows(0, count), weight.rows(first, count));
      backend.matmul(sums.rows(0, count), left.rows(first, count), right, {.accumulate = true});
      backend.copy(weight.rows(first, count), sums.rows(0, count));
    }
  }
  backend.synchronize();  // the memory of this function is released
}

// Announces to the loader the elements from `first` on of a rank's shard of a parameter.
void announce(FileLoader& loader, const SafetensorsModel::Location& found,
              const Parameter& parameter, int tp_rank, std::int64_t first,
              const Tensor& destination) {
  const int file = loader.open(found.file->path());
  const DType stored = *found.entry->dtype;
  for_each_range(parameter.shard, parameter.global, tp_rank, first, first + destination.elements(),
                 [&](const ShardRange& range) {
                   loader.load(file,
                               found.file->offset(*found.entry) +
                                   static_cast<std::uint64_t>(range.global) * size_of(stored),
                               stored, destination.rows(range.local - first, range.count));
                 });
}

}  // namespace

void apply_adapter(Backend& backend, const ParameterStore& store, const StoredAdapter& adapter,
                   VerifyShare verify) {
  const ParameterSet& set = store.set();
  FileLoader loader(backend);
  verify_weights(adapter.directory(), loader, verify);
  for (int i = 0; i < static_cast<int>(set.parameters().size()); ++i) {
    const Parameter& parameter = set[i];
    if (const auto found = adapter.whole().find(parameter.name); found != adapter.whole().end())
      announce(loader, found->second, parameter, set.tp_rank(), 0,
               store.weight(i).view({parameter.shape.elements()}));
  }
  loader.run();
  for (int i = 0; i < static_cast<int>(set.parameters().size()); ++i)
    if (const Parameter& parameter = set[i];
        parameter.shape.elements() > 0 && adapter.matrix_of(parameter.name) != nullptr)
      add_update(backend, store.weight(i),
                 local_update(adapter.update_of(parameter), parameter, set.tp_rank()));
}

AdapterParameters::AdapterParameters(FileLoader& loader, const StoredAdapter& adapter,
                                     const ModelConfig& model)
    : loader_(&loader), adapter_(&adapter) {
  const ParameterSet set(model);
  std::set<std::string> used;
  for (const Parameter& parameter : set.parameters()) {
    if (!parameter.trained) continue;
    const SafetensorsModel::Location found = adapter.find(parameter);
    if (!found)
      user_error(
          "{} has no tensor {}: the run trains other modules than this adapter has; compare "
          "adapter.targets and adapter.train with its {}",
          adapter.directory().string(), name_in_adapter(parameter), kAdapterConfig);
    used.insert(found.entry->name);
  }
  for (const std::string& name : adapter.tensors().names())
    if (!used.contains(name))
      user_error(
          "{} has a tensor {}, which the run does not train: compare adapter.targets and "
          "adapter.train with its {}",
          adapter.directory().string(), name, kAdapterConfig);
}

void AdapterParameters::fill_parameter(Backend&, const Tensor& destination,
                                       const Parameter& parameter, int tp_rank,
                                       std::int64_t first) const {
  announce(*loader_, adapter_->find(parameter), parameter, tp_rank, first, destination);
}

}  // namespace kintsugi
