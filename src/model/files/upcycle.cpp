#include <cmath>
#include <map>

#include "core/error.h"
#include "core/philox.h"
#include "model/files/merge.h"
#include "model/parameter_set.h"
#include "model/spec.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

ModelConfig mixture_of(const StoredModel& dense, const UpcycleOptions& options) {
  ModelConfig config = dense.config;
  if (config.family == Family::Llama)
    config.family = Family::Mixtral;
  else if (config.family == Family::Qwen3)
    config.family = Family::Qwen3Moe;
  else
    user_error("{} is a {} model, of which there is no mixture: only llama and qwen3 have one",
               dense.directory.string(), to_string(config.family));
  config.experts = ExpertsConfig{.count = options.experts, .chosen = options.chosen};
  config.complete_and_check();
  return config;
}

// The names of a layer's MLP: gate, up and down.
std::vector<std::string> mlp_names(const ModelConfig& config, std::int64_t layer) {
  std::vector<std::string> names;
  ModelSpec model = model_spec(config);
  for (const LinearUse& use : model.layers[static_cast<std::size_t>(layer)].linears())
    if (use.site.starts_with("mlp."))
      names.insert(names.end(), use.linear->weights.begin(), use.linear->weights.end());
  KINTSUGI_CHECK(names.size() == 3, "an MLP of {} matrices", names.size());
  return names;
}

// The tensor of the model that each parameter of the mixture is a copy of; none for routers.
std::map<std::string, std::string> sources_of(const ParameterSet& mixture, const ModelConfig& dense,
                                              const ExpertsConfig& experts) {
  std::map<std::string, std::string> sources;
  std::map<int, std::int64_t> seen;  // experts' matrices by layer: gate, up, gate, up, …, down, …
  std::map<int, std::vector<std::string>> names;
  for (const Parameter& parameter : mixture.parameters()) {
    if (parameter.group == ParameterGroup::Router) continue;
    std::string& source = sources[parameter.name];
    source = parameter.name;
    if (parameter.group != ParameterGroup::Experts) continue;
    const int layer = mixture.buckets()[static_cast<std::size_t>(parameter.bucket)].layer;
    if (!names.contains(layer)) names[layer] = mlp_names(dense, layer);
    const std::int64_t i = seen[layer]++;
    source = names[layer][i < 2 * experts.count ? static_cast<std::size_t>(i % 2) : 2];
  }
  return sources;
}

}  // namespace

WrittenModel upcycle_model(const fs::path& path, const fs::path& output,
                           const UpcycleOptions& options) {
  const StoredModel dense(path);
  const ModelConfig config = mixture_of(dense, options);
  check_output_is_no_input(output, dense.directory);
  check_unused_weights(dense.tensors, dense.config, dense.config, options.unused);
  dense.verify();
  const ParameterSet set(config);
  const auto sources = sources_of(set, dense.config, *config.experts);
  const auto locate = [&](const std::string& name) {
    const auto found = locate_tensor(dense.tensors, name);
    if (!found || !found.entry->dtype)
      user_error("{} has no tensor {}: a file is missing", dense.directory.string(), name);
    return found;
  };
  const DType stored = *locate(sources.begin()->second).entry->dtype;
  ModelContents contents{.tensors = {},
                         .config = write_hf_config(config, options.output.dtype.value_or(stored))};
  for (const Parameter& parameter : set.parameters()) {
    const auto source = sources.find(parameter.name);
    const DType own = source == sources.end() ? stored : *locate(source->second).entry->dtype;
    contents.tensors.push_back(
        {parameter.name, options.output.dtype.value_or(own), parameter.global});
  }
  // Uniform numbers with the standard deviation of the model's initial weights.
  const double bound = config.init_std * std::sqrt(3.0);
  return write_other_model(
      dense, contents, dense.directory, output, options.output,
      [&](TensorBlocks& blocks, SafetensorsWriter& writer,
          const SafetensorsWriter::Announced& tensor) {
        const auto source = sources.find(tensor.name);
        if (source != sources.end())
          return blocks.converted(writer, tensor, locate(source->second));
        const std::uint64_t key = derive_key(options.seed, hash64(tensor.name));
        blocks.computed(writer, tensor, [&](std::int64_t first, std::span<double> values) {
          for (std::size_t i = 0; i < values.size(); ++i)
            values[i] =
                bound *
                (2 * Philox::uniform(Philox::draw(key, static_cast<std::uint64_t>(first) + i)[0]) -
                 1);
        });
      });
}

}  // namespace kintsugi
