#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/file.h"
#include "model/files/model_writer.h"
#include "model/import/torch_file.h"

namespace kintsugi {

// Models of Megatron and torchtitan: their weights become a Hugging Face directory.

enum class CheckpointFormat : std::uint8_t {
  Auto,
  Megatron,   // mp_rank_TT[_PPP]/model_optim_rng.pt
  TorchDist,  // Megatron's names in torch DCP
  Dcp         // torch DCP as torchtitan writes it
};

// A tensor of a checkpoint in chunks, which may be in several files.
struct ChunkedTensor {
  struct Chunk {
    std::vector<std::int64_t> offsets, sizes;  // in the tensor
    std::string file = {};                     // has the torch.save of this chunk at these bytes
    std::uint64_t offset = 0, bytes = 0;
    std::optional<StoredTensor> data = {};  // or what has been opened
  };
  std::optional<DType> dtype;  // none for types we do not compute with
  std::vector<std::int64_t> shape;
  std::vector<Chunk> chunks;
};

// The tensors of one checkpoint. UserError if a file is missing or damaged, or if the chunks of a
// tensor do not cover it exactly once (when it is read).
class ForeignCheckpoint {
 public:
  // `gated`: the MLPs have a gate, which legacy files of Megatron have beside the up projection in
  // each tensor rank's shard.
  ForeignCheckpoint(const std::filesystem::path& path, CheckpointFormat format, bool gated);

  using Tensors = std::map<std::string, ChunkedTensor, std::less<>>;
  const Tensors& tensors() const { return tensors_; }
  CheckpointFormat format() const { return format_; }
  const std::filesystem::path& directory() const { return directory_; }
  // Of the run that wrote it, as `args`; null if the checkpoint has none.
  const PickleValue* arguments() const { return arguments_; }

  // The elements [begin, begin + sizes) of a tensor, row by row.
  std::vector<std::byte> read(const std::string& name, const std::vector<std::int64_t>& begin,
                              const std::vector<std::int64_t>& sizes) const;

 private:
  std::span<const std::byte> mapped(const std::string& file) const;
  TorchFile& open(const std::string& file);
  void find_format(const std::filesystem::path& path);
  void read_dcp();
  void read_common(const ChunkedTensor::Chunk* in_dcp);
  void read_arguments(const PickleValue& state);
  void read_legacy(bool gated);
  // Of the file that has the chunk; UserError if it is too short.
  std::span<const std::byte> bytes_of(const ChunkedTensor::Chunk& chunk,
                                      const std::string& source) const;
  StoredTensor data_of(const std::string& name, const ChunkedTensor& tensor,
                       const ChunkedTensor::Chunk& chunk) const;

  std::filesystem::path directory_;
  CheckpointFormat format_;
  Tensors tensors_;
  mutable std::map<std::string, MappedFile> files_;
  mutable std::set<std::string> covered_;  // tensors whose chunks have been checked
  std::vector<std::unique_ptr<TorchFile>> opened_;
  const PickleValue* arguments_ = nullptr;
};

struct ImportOptions {
  CheckpointFormat format = CheckpointFormat::Auto;
  std::filesystem::path tokenizer = {};  // the directory of its files; empty: none
  ModelOutput output = {};
  // Imports AdamW's state, too: the output is a checkpoint that run.from continues. Returns its
  // trainer.json. Empty: the weights only.
  std::function<std::string(std::int64_t step, DType precision)> trainer = {};
};

// Writes the weights of a dense Llama, Qwen2, Qwen3 or GPT-2 model with this configuration. Every
// tensor of the model must be found once with the right shape, and every weight of the checkpoint
// must be used. The directory appears when it is complete.
WrittenModel import_model(const std::filesystem::path& checkpoint, const ModelConfig& model,
                          const std::filesystem::path& output, const ImportOptions& options = {});

}  // namespace kintsugi
