#include "model/files/stored_model.h"

#include <fmt/ranges.h>

#include <set>
#include <tuple>

#include "core/error.h"
#include "core/log.h"
#include "model/adapter/peft_config.h"
#include "model/families/family.h"
#include "model/files/fingerprint.h"
#include "model/parameter_set.h"
#include "tensor/dtype.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kOpenFiles = 64;
constexpr std::size_t kLargestElement = 8;  // bytes

fs::path directory_of_model(const fs::path& path) {
  fs::path directory = model_directory(path);
  std::error_code ignored;
  if (!fs::exists(directory, ignored))
    user_error("{} does not exist: give a model directory, a checkpoint or a run directory",
               path.string());
  if (is_adapter_directory(directory)) refuse_adapter(directory);
  if (!fs::exists(directory / "config.json", ignored))
    user_error("{} is not a model directory: it has no config.json", path.string());
  return directory;
}

}  // namespace

StoredModel::StoredModel(const fs::path& path)
    : directory(directory_of_model(path)),
      config(read_hf_config(directory / "config.json")),
      tensors(directory),
      names(tensors.names()) {
  const auto position = [&](const std::string& name) {
    const auto found = tensors.find(name);
    return std::tuple(found.file->path(), found.entry->begin, name);
  };
  std::ranges::sort(
      names, [&](const std::string& a, const std::string& b) { return position(a) < position(b); });
}

void StoredModel::verify() const { verify_weights_now(directory); }

SafetensorsModel::Location locate_tensor(const SafetensorsModel& source, std::string_view name) {
  constexpr std::string_view prefix = "transformer.";
  if (const auto found = source.find(name)) return found;
  return name.starts_with(prefix) ? source.find(name.substr(prefix.size()))
                                  : source.find(std::string(prefix) + std::string(name));
}

std::int64_t elements_of(const SafetensorsEntry& entry) {
  std::int64_t count = 1;
  for (const std::int64_t extent : entry.shape) count *= extent;
  return count;
}

BlockReader::BlockReader(CountedMemory& memory, std::size_t block)
    : block_(block), buffer_(memory, 1, block * kLargestElement + FileReader::kSlack) {}

std::span<const std::byte> BlockReader::stored(const SafetensorsModel::Location& tensor,
                                               std::int64_t first, std::size_t count) {
  KINTSUGI_CHECK(count <= block_, "{} elements in a block of {}", count, block_);
  const fs::path& path = tensor.file->path();
  if (!files_.contains(path) && files_.size() >= kOpenFiles) files_.clear();
  std::unique_ptr<FileReader>& file = files_[path];
  if (!file) file = std::make_unique<FileReader>(path);
  const std::size_t size = size_of(*tensor.entry->dtype);
  const std::uint64_t offset =
      tensor.file->offset(*tensor.entry) + static_cast<std::uint64_t>(first) * size;
  return {file->read(offset, count * size, buffer_[0]), count * size};
}

void BlockReader::read(const SafetensorsModel::Location& tensor, std::int64_t first,
                       std::span<double> values) {
  to_doubles(stored(tensor, first, values.size()).data(), *tensor.entry->dtype, values);
}

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

// The beginnings of the names of tensors in layers that are not read (FamilyInfo::further_layers).
std::vector<std::string> further_layers(const SafetensorsModel& files, const FamilyInfo& family) {
  std::vector<std::string> found;
  if (family.further_layers == nullptr) return found;
  const std::string_view end = family.further_layers;
  for (const std::string& name : files.names())
    if (name.ends_with(end)) found.push_back(name.substr(0, name.size() - end.size()) + ".");
  return found;
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
  const std::vector<std::string> further = further_layers(files, family_info(model.family));
  std::vector<std::string> unused;
  for (const std::string& name : files.names()) {
    const bool is_buffer = std::ranges::any_of(
        buffers, [&](const char* end) { return end != nullptr && name.ends_with(end); });
    const bool is_further = std::ranges::any_of(
        further, [&](const std::string& layer) { return name.starts_with(layer); });
    if (!used.contains(name) && !is_buffer && !is_further) unused.push_back(name);
  }
  std::ranges::sort(unused);
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
