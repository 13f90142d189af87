#include "model/adapter/merge_adapter.h"

#include "core/error.h"
#include "model/adapter/stored_adapter.h"
#include "model/files/fingerprint.h"
#include "tensor/dtype.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using Announced = SafetensorsWriter::Announced;

// Adds elements [first, first + values.size()) of left · right.
void add_elements(const LowRankUpdate& update, std::int64_t first, std::span<double> values) {
  const auto columns = static_cast<std::size_t>(update.columns),
             rank = static_cast<std::size_t>(update.rank);
  for (std::size_t done = 0; done < values.size();) {
    const std::size_t at = static_cast<std::size_t>(first) + done, row = at / columns,
                      column = at % columns,
                      count = std::min(columns - column, values.size() - done);
    for (std::size_t k = 0; k < rank; ++k)
      add_scaled(values.subspan(done, count), update.left[row * rank + k],
                 std::span(update.right).subspan(k * columns + column, count));
    done += count;
  }
}

fs::path base_directory(const fs::path& adapter, const fs::path& base) {
  if (base.empty())
    return base_of_adapter(adapter, read_peft_config(adapter), "give the base model with --base");
  const fs::path directory = model_directory(base);
  if (is_adapter_directory(directory))
    user_error("--base {} is an adapter itself: merge it first", directory.string());
  return directory;
}

}  // namespace

ModelFiles files_to_merge(const fs::path& path, const fs::path& base) {
  const fs::path directory = model_directory(path);
  StoredAdapter{directory};  // refuses a wrong path before the base is looked for
  return {base_directory(directory, base), directory};
}

WrittenModel merge_adapter(const fs::path& path, const fs::path& base, const fs::path& output,
                           const ModelOutput& options) {
  const ModelFiles files = files_to_merge(path, base);
  const fs::path& directory = files.adapter;
  const StoredModel model(files.model);
  const StoredAdapter adapter(directory, model.config, model.directory);
  check_output_is_no_input(output, model.directory);
  check_output_is_no_input(output, directory);
  model.verify();
  verify_weights_now(directory);
  const ParameterSet set(model.config);
  std::map<std::string, const Parameter*> parameters;  // by the name of the tensor in the files
  for (const Parameter& parameter : set.parameters()) {
    const auto found = locate_tensor(model.tensors, parameter.name);
    if (!found)
      user_error("{} has no tensor {}: a file is missing", model.directory.string(),
                 parameter.name);
    parameters[found.entry->name] = &parameter;
  }
  const auto write = [&](TensorBlocks& blocks, SafetensorsWriter& writer, const Announced& tensor) {
    const auto stored = model.tensors.find(tensor.name);
    const auto found = parameters.find(tensor.name);
    if (found == parameters.end()) return blocks.converted(writer, tensor, stored);
    const Parameter& parameter = *found->second;
    const auto whole = adapter.whole().find(parameter.name);
    const auto source = whole == adapter.whole().end() ? stored : whole->second;
    if (adapter.matrix_of(parameter.name) == nullptr)
      return blocks.converted(writer, tensor, source);
    const LowRankUpdate update = adapter.update_of(parameter);
    if (tensor.shape.elements() != update.rows * update.columns)
      user_error("tensor {} in {} does not have the shape of its config.json", tensor.name,
                 model.directory.string());
    blocks.computed(writer, tensor, [&](std::int64_t first, std::span<double> values) {
      blocks.reader().read(source, first, values);
      add_elements(update, first, values);
    });
  };
  return write_model(model, files.tokenizer(), output, options, write);
}

}  // namespace kintsugi
