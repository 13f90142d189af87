#include "model/stored_model.h"

#include <algorithm>
#include <tuple>

#include "core/error.h"
#include "model/adapter/peft_config.h"
#include "model/checksums.h"
#include "tensor/elements.h"

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
  std::sort(names.begin(), names.end(),
            [&](const std::string& a, const std::string& b) { return position(a) < position(b); });
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

}  // namespace kintsugi
