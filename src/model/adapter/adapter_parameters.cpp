#include "model/adapter/adapter_parameters.h"

#include <set>

#include "core/error.h"

namespace kintsugi {

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
  const SafetensorsModel::Location found = adapter_->find(parameter);
  const int file = loader_->open(found.file->path());
  const DType stored = *found.entry->dtype;
  for_each_range(parameter.shard, parameter.global, tp_rank, first, first + destination.elements(),
                 [&](const ShardRange& range) {
                   loader_->load(file,
                                 found.file->offset(*found.entry) +
                                     static_cast<std::uint64_t>(range.global) * size_of(stored),
                                 stored, destination.rows(range.local - first, range.count));
                 });
}

}  // namespace kintsugi
