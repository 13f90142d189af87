#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "model/config.h"
#include "tensor/arena.h"
#include "tensor/safetensors.h"

namespace kintsugi {

// A model in files: a Hugging Face directory, a checkpoint, or a run directory (its latest
// checkpoint). Throws UserError if it is incomplete or of an unknown family.
struct StoredModel {
  explicit StoredModel(const std::filesystem::path& path);
  // Code that reads more than the names and shapes of the tensors calls it first. UserError if a
  // file does not match its checksum; a directory without checksums.json is not read.
  void verify() const;

  std::filesystem::path directory;
  ModelConfig config;
  SafetensorsModel tensors;
  std::vector<std::string> names;  // of all tensors, in the order of the files
};

// Finds a tensor by its name. GPT-2 and BLOOM files on the hub leave out the prefix "transformer.",
// so both spellings are found.
SafetensorsModel::Location locate_tensor(const SafetensorsModel& source, std::string_view name);

std::int64_t elements_of(const SafetensorsEntry& entry);

// Reads stored tensors block by block through one buffer, so that memory does not depend on the
// sizes of tensors. Only some files are open at the same time.
class BlockReader {
 public:
  static constexpr std::size_t kBlock = std::size_t{1} << 20;  // elements

  explicit BlockReader(CountedMemory& memory, std::size_t block = kBlock);

  std::size_t block() const { return block_; }
  // Elements [first, first + count) as they are stored; valid until the next call.
  std::span<const std::byte> stored(const SafetensorsModel::Location& tensor, std::int64_t first,
                                    std::size_t count);
  // Elements [first, first + values.size()).
  void read(const SafetensorsModel::Location& tensor, std::int64_t first, std::span<double> values);

 private:
  std::size_t block_;
  HostBuffers buffer_;
  std::map<std::filesystem::path, std::unique_ptr<FileReader>> files_;
};

// Memory for blocks of doubles.
class DoubleBlocks {
 public:
  DoubleBlocks(CountedMemory& memory, std::size_t count, std::size_t block)
      : buffers_(memory, count, block * sizeof(double)) {}
  std::span<double> get(std::size_t i, std::size_t count) const {
    return {reinterpret_cast<double*>(buffers_[i]), count};
  }

 private:
  HostBuffers buffers_;
};

// Calls use(first, count) for consecutive blocks of `elements` elements.
void for_each_block(std::int64_t elements, std::size_t block, auto&& use) {
  for (std::int64_t first = 0; first < elements; first += static_cast<std::int64_t>(block))
    use(first, static_cast<std::size_t>(
                   std::min<std::int64_t>(elements - first, static_cast<std::int64_t>(block))));
}

// Tensors in the files of a model that its configuration does not use (fewer layers, no biases): if
// they were ignored, another model than the trained one would be computed.
enum class UnusedWeights : std::uint8_t { Refuse, Allow };

// The names of the tensors that `model` does not load from files whose config.json is `stored`.
// Left out are buffers that the family declares, a copy of the embedding for a tied head, and the
// language model's head that a new classifier replaces.
std::vector<std::string> unused_weights(const SafetensorsModel& files, const ModelConfig& model,
                                        const ModelConfig& stored);

// UserError if there are some; with Allow, a note. `option` is what allows them.
void check_unused_weights(const SafetensorsModel& files, const ModelConfig& model,
                          const ModelConfig& stored, UnusedWeights unused,
                          const std::string& option = "--allow-unused-weights");

}  // namespace kintsugi
