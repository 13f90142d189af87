#include "model/adapter/stored_adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "model/files/stored_model.h"
#include "model/lora.h"
#include "tensor/dtype.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using Location = SafetensorsModel::Location;

constexpr std::string_view kWeight = ".weight";

const fs::path& adapter_directory(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::exists(directory, ignored))
    user_error("{} does not exist: give the directory of an adapter", directory.string());
  if (!fs::exists(directory / kAdapterConfig, ignored))
    user_error("{} is not an adapter: it has no {}", directory.string(), kAdapterConfig);
  return directory;
}

// The name of a tensor without what PEFT puts around the names of the model.
std::string name_in_model(std::string name) {
  if (name.starts_with(kAdapterPrefix)) name.erase(0, kAdapterPrefix.size());
  for (const std::string_view part : {".modules_to_save.default", ".modules_to_save"})
    if (const auto at = name.find(part); at != std::string::npos) name.erase(at, part.size());
  return name;
}

// "….q_proj.lora_A.weight" or "….q_proj.lora_A.default.weight": the module; empty: no such tensor.
std::string module_of(const std::string& name, std::string_view factor) {
  for (const std::string_view end : {".weight", ".default.weight"}) {
    const std::string whole = fmt::format(".{}{}", factor, end);
    if (name.ends_with(whole)) return name.substr(0, name.size() - whole.size());
  }
  return "";
}

// The spellings of a name in models with and without a language-model head.
std::vector<std::string> spellings(const std::string& name) {
  std::vector<std::string> all = {name};
  for (const std::string_view prefix : {"transformer.", "model."})
    all.push_back(name.starts_with(prefix) ? name.substr(prefix.size())
                                           : std::string(prefix) + name);
  return all;
}

std::string shape_of(const SafetensorsEntry& entry) {
  return fmt::format("[{}]", fmt::join(entry.shape, ", "));
}

void check_shape(const Location& found, const Shape& shape, const std::string& mismatch) {
  const std::vector<std::int64_t>& stored = found.entry->shape;
  bool same = stored.size() == static_cast<std::size_t>(shape.rank());
  for (int i = 0; same && i < shape.rank(); ++i) same = stored[i] == shape[i];
  if (!same)
    user_error("{}: {} has shape {}, the model needs {}", mismatch, found.entry->name,
               shape_of(*found.entry), to_string(shape));
}

bool is_in_out(const Parameter& parameter) { return parameter.matrices.dimension == 1; }

std::vector<double> values_of(const Location& found) {
  std::vector<double> values(static_cast<std::size_t>(elements_of(*found.entry)));
  to_doubles(found.bytes().data(), *found.entry->dtype, values);
  return values;
}

std::vector<double> transposed(const std::vector<double>& values, std::int64_t rows,
                               std::int64_t columns) {
  std::vector<double> result(values.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) result[j * rows + i] = values[i * columns + j];
  return result;
}

}  // namespace

std::string name_in_adapter(const Parameter& parameter) {
  return parameter.name.starts_with(kAdapterPrefix) ? parameter.name
                                                    : std::string(kAdapterPrefix) + parameter.name;
}

StoredAdapter::StoredAdapter(const fs::path& directory)
    : directory_(adapter_directory(directory)),
      config_(read_peft_config(directory)),
      tensors_(directory, kAdapterStem) {
  collect();
}

StoredAdapter::StoredAdapter(const fs::path& directory, const ModelConfig& model,
                             const fs::path& base)
    : StoredAdapter(directory) {
  match(model, base);
}

void StoredAdapter::collect() {
  for (const std::string& stored : tensors_.names()) {
    const Location found = tensors_.find(stored);
    const std::string file = found.file->path().string(), name = name_in_model(stored);
    if (!found.entry->dtype || !is_float(*found.entry->dtype))
      user_error("{}: {} is stored as {}: only F64, F32, BF16 and F16 can be read", file, stored,
                 found.entry->dtype_name);
    const std::string a = module_of(name, "lora_A"), b = module_of(name, "lora_B");
    if (!a.empty() || !b.empty()) {
      Matrix& matrix = matrices_[a.empty() ? b : a];
      Location& factor = a.empty() ? matrix.b : matrix.a;
      if (factor) user_error("{}: {} is stored twice", file, stored);
      factor = found;
    } else if (name.find("lora_") != std::string::npos) {
      user_error("{}: {} is no matrix of a plain LoRA adapter: this kind is not supported", file,
                 stored);
    } else if (!whole_.emplace(name, found).second) {
      user_error("{}: {} is stored twice", file, stored);
    }
  }
  for (const auto& [module, matrix] : matrices_) {
    const Location one = matrix.a ? matrix.a : matrix.b;
    const std::string file = one.file->path().string();
    if (!matrix.a || !matrix.b)
      user_error("{}: {} has {} but no {}: the file is incomplete", file, module,
                 matrix.a ? "lora_A" : "lora_B", matrix.a ? "lora_B" : "lora_A");
    const std::vector<std::int64_t>&a = matrix.a.entry->shape, &b = matrix.b.entry->shape;
    if (a.size() != 2 || b.size() != 2 || a[0] != b[1])
      user_error("{}: lora_A of {} has shape {} and lora_B {}: these are no factors of a matrix",
                 file, module, shape_of(*matrix.a.entry), shape_of(*matrix.b.entry));
    if (a[0] != config_.rank_of(module))
      user_error("{}: {} has rank {}, but {} says {}", file, module, a[0], kAdapterConfig,
                 config_.rank_of(module));
  }
  if (matrices_.empty() && whole_.empty())
    user_error("{} has no tensors of an adapter", tensors_.files().front().path().string());
}

void StoredAdapter::match(const ModelConfig& model, const fs::path& base) {
  const ParameterSet set(model);
  std::map<std::string, const Parameter*> by_name;
  for (const Parameter& parameter : set.parameters()) by_name[parameter.name] = &parameter;
  const std::string mismatch =
      fmt::format("{} is an adapter of another model than {}", directory_.string(), base.string());
  const auto parameter_of = [&](const std::string& name) -> const Parameter& {
    for (const std::string& spelling : spellings(name))
      if (const auto found = by_name.find(spelling); found != by_name.end()) return *found->second;
    if (name == "lm_head.weight" && model.tied)
      user_error("{}: it has lm_head, but the model's head is tied to its embedding", mismatch);
    user_error("{}: it has {}, which the model does not have", mismatch, name);
  };
  std::map<std::string, Matrix> matrices;
  for (const auto& [module, matrix] : matrices_) {
    const Parameter& parameter = parameter_of(module + std::string(kWeight));
    if (parameter.global.rank() != 2 || parameter.group == ParameterGroup::Embedding)
      user_error("{} has an adapter of {}, which is no matrix of a layer: this is not supported",
                 directory_.string(), module);
    const bool in_out = is_in_out(parameter);
    const std::int64_t r = matrix.a.entry->shape[0];
    check_shape(matrix.a, {r, parameter.global[in_out ? 0 : 1]}, mismatch);
    check_shape(matrix.b, {parameter.global[in_out ? 1 : 0], r}, mismatch);
    matrices[parameter.name.substr(0, parameter.name.size() - kWeight.size())] = matrix;
  }
  std::map<std::string, Location> whole;
  for (const auto& [name, found] : whole_) {
    const Parameter& parameter = parameter_of(name);
    check_shape(found, parameter.global, mismatch);
    whole[parameter.name] = found;
  }
  matrices_ = std::move(matrices);
  whole_ = std::move(whole);
}

std::int64_t StoredAdapter::elements() const {
  std::int64_t sum = 0;
  for (const SafetensorsFile& file : tensors_.files())
    for (const SafetensorsEntry& entry : file.entries()) sum += elements_of(entry);
  return sum;
}

std::vector<std::string> StoredAdapter::targets() const {
  std::set<std::string> names;
  for (const auto& [module, matrix] : matrices_) names.insert(module.substr(module.rfind('.') + 1));
  return {names.begin(), names.end()};
}

const StoredAdapter::Matrix* StoredAdapter::matrix_of(const std::string& parameter) const {
  if (!parameter.ends_with(kWeight)) return nullptr;
  const auto found = matrices_.find(parameter.substr(0, parameter.size() - kWeight.size()));
  return found == matrices_.end() ? nullptr : &found->second;
}

SafetensorsModel::Location StoredAdapter::find(const Parameter& parameter) const {
  const std::string name = name_in_model(parameter.name);
  if (parameter.group != ParameterGroup::Adapter) {
    const auto found = whole_.find(name);
    return found == whole_.end() ? Location() : found->second;
  }
  const std::string a = module_of(name, "lora_A"), b = module_of(name, "lora_B");
  const auto found = matrices_.find(a.empty() ? b : a);
  if (found == matrices_.end()) return {};
  return a.empty() ? found->second.b : found->second.a;
}

LoraConfig StoredAdapter::training_config() const {
  if (!config_.ranks.empty() || !config_.alphas.empty())
    user_error(
        "{} has modules with other ranks or scales (rank_pattern, alpha_pattern): it can be "
        "merged, but not trained further",
        (directory_ / kAdapterConfig).string());
  LoraConfig lora = config_.lora;
  if (lora.targets.empty()) lora.targets = targets();
  // PEFT also lists modules that the model does not have.
  std::erase_if(lora.train, [&](const std::string& module) {
    return std::ranges::none_of(whole_, [&](const auto& entry) {
      const std::string& name = entry.first;
      return name.starts_with(module + ".") || name.find("." + module + ".") != name.npos;
    });
  });
  return lora;
}

LowRankUpdate StoredAdapter::update_of(const Parameter& parameter) const {
  const Matrix& matrix = *matrix_of(parameter.name);
  const std::int64_t r = matrix.a.entry->shape[0], inputs = matrix.a.entry->shape[1],
                     outputs = matrix.b.entry->shape[0];
  LowRankUpdate update{.rows = parameter.global[0],
                       .rank = r,
                       .columns = parameter.global[1],
                       .left = values_of(matrix.b),
                       .right = values_of(matrix.a)};
  if (is_in_out(parameter)) {  // W is stored transposed: W^T += A^T B^T
    std::swap(update.left, update.right);
    update.left = transposed(update.left, r, inputs);
    update.right = transposed(update.right, outputs, r);
  }
  const double scale =
      config_.scale_of(parameter.name.substr(0, parameter.name.size() - kWeight.size()));
  for (double& value : update.left) value *= scale;
  return update;
}

}  // namespace kintsugi
