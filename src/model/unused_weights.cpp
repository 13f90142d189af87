#include "model/unused_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/log.h"
#include "model/families/family.h"
#include "model/fingerprint.h"
#include "model/parameter_set.h"
#include "model/stored_model.h"

namespace kintsugi {
namespace {

constexpr std::size_t kNamedTensors = 3;

// The name that the head of this language model has, or would have if it were not tied.
std::string language_head(ModelConfig model) {
  model.labels.clear();
  model.tied = false;
  return model_spec(model).head.table;
}

// Whether the files repeat the embedding as the head that is tied to it.
bool is_copy_of_embedding(const SafetensorsModel& files, const SafetensorsModel::Location& head,
                          const ModelConfig& model) {
  const auto embedding = locate_tensor(files, model_spec(model).embedding.table);
  return model.tied && embedding && has_same_samples(head, embedding);
}

}  // namespace

std::vector<std::string> unused_weights(const SafetensorsModel& files, const ModelConfig& model,
                                        const ModelConfig& stored) {
  std::set<std::string> used;
  const ParameterSet set(model);
  for (const Parameter& parameter : set.parameters())
    if (const auto found = locate_tensor(files, parameter.name)) used.insert(found.entry->name);
  if (const auto head = locate_tensor(files, language_head(model));
      head && ((model.is_classifier() && !stored.is_classifier()) ||
               is_copy_of_embedding(files, head, model)))
    used.insert(head.entry->name);
  const auto& buffers = family_info(model.family).buffers;
  std::vector<std::string> unused;
  for (const std::string& name : files.names()) {
    const bool is_buffer = std::any_of(buffers.begin(), buffers.end(), [&](const char* end) {
      return end != nullptr && name.ends_with(end);
    });
    if (!used.contains(name) && !is_buffer) unused.push_back(name);
  }
  std::sort(unused.begin(), unused.end());
  return unused;
}

void check_unused_weights(const SafetensorsModel& files, const ModelConfig& model,
                          const ModelConfig& stored, UnusedWeights allowed,
                          const std::string& option) {
  const std::vector<std::string> unused = unused_weights(files, model, stored);
  if (unused.empty()) return;
  const auto named = static_cast<std::ptrdiff_t>(std::min(unused.size(), kNamedTensors));
  const std::string text =
      fmt::format("{} has {} tensor{} that its configuration does not use ({}{})",
                  directory_of(files).string(), unused.size(), unused.size() == 1 ? "" : "s",
                  fmt::join(unused.begin(), unused.begin() + named, ", "),
                  unused.size() > kNamedTensors ? ", …" : "");
  if (allowed == UnusedWeights::Refuse)
    user_error("{}: correct config.json, or ignore them with {}", text, option);
  log_note("{}: they are ignored", text);
}

}  // namespace kintsugi
