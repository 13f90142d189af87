#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/files/stored_model.h"
#include "tensor/dtype.h"

namespace kintsugi {

// Writes a Hugging Face directory with the tensors of another model, computed block by block.
// Arithmetic is in double, and every element is rounded once. Memory is a few blocks, whatever the
// size of the model.

struct ModelOutput {
  std::optional<DType> dtype = {};  // of the result; none: the type of the model's tensor
  std::uint64_t max_shard_bytes = 5'000'000'000;
  bool overwrite = false;
  std::size_t block = BlockReader::kBlock;                                 // elements
  std::function<void(std::int64_t done, std::int64_t all)> progress = {};  // elements
};

struct WrittenModel {
  std::size_t tensors = 0, files = 0;
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;  // of all weight files
  std::size_t peak_buffer_bytes = 0;
  std::size_t non_finite = 0;         // elements that are infinite or NaN, as in a model
  std::string first_non_finite = {};  // the first tensor with such elements
};

// Writes the elements of one tensor after the other.
class TensorBlocks {
 public:
  // Of tensors with so many elements together.
  TensorBlocks(std::int64_t elements, const ModelOutput& options);

  BlockReader& reader() { return reader_; }
  // Two blocks of memory; the first is that of computed().
  std::span<double> result(std::size_t count) const { return doubles_.get(0, count); }
  std::span<double> scratch(std::size_t count) const { return doubles_.get(1, count); }

  // Computes elements [first, first + values.size()).
  using Compute = std::function<void(std::int64_t first, std::span<double> values)>;
  void computed(SafetensorsWriter& writer, const SafetensorsWriter::Announced& tensor,
                const Compute& compute);
  // Copies `source`. `check`, if given, sees the bytes of each block.
  using Check = std::function<void(std::int64_t first, std::span<const std::byte> bytes)>;
  void copied(SafetensorsWriter& writer, const SafetensorsWriter::Announced& tensor,
              const SafetensorsModel::Location& source, const Check& check = {});
  // Copies `source`, converted if the types differ.
  void converted(SafetensorsWriter& writer, const SafetensorsWriter::Announced& tensor,
                 const SafetensorsModel::Location& source);
  // Writes elements of type `stored` that are in memory, converted if the types differ.
  void given(SafetensorsWriter& writer, const SafetensorsWriter::Announced& tensor, DType stored,
             std::span<const std::byte> elements);

  void report(WrittenModel& result) const;

 private:
  void advance(std::size_t count);

  const ModelOutput& options_;
  CountedMemory memory_;
  BlockReader reader_;
  DoubleBlocks doubles_;
  HostBuffers rounded_;  // one block of the result
  std::int64_t all_ = 0, done_ = 0;
  std::size_t non_finite_ = 0;
  std::string first_non_finite_;
};

// Writes a directory with the tensors and the configuration of `model`, and the tokenizer of the
// directory `tokenizer`. `write` writes one tensor. The directory appears when it is complete.
// UserError if the output exists; Failure if it cannot be written.
using WriteTensor = std::function<void(TensorBlocks& blocks, SafetensorsWriter& writer,
                                       const SafetensorsWriter::Announced& tensor)>;
WrittenModel write_model(const StoredModel& model, const std::filesystem::path& tokenizer,
                         const std::filesystem::path& output, const ModelOutput& options,
                         const WriteTensor& write);
// The same with other tensors and another config.json.
struct ModelContents {
  std::vector<SafetensorsWriter::Announced> tensors;
  std::string config;
  // Of a checkpoint that run.from continues: trainer.json, and what the folder `optimizer` has. The
  // directory then has checksums.json, too.
  std::string trainer = {};
  std::vector<SafetensorsWriter::Announced> optimizer = {};
};
WrittenModel write_other_model(const StoredModel& model, const ModelContents& contents,
                               const std::filesystem::path& tokenizer,
                               const std::filesystem::path& output, const ModelOutput& options,
                               const WriteTensor& write);
// The same of a model that is in no directory yet; an empty `tokenizer`: it has none.
WrittenModel write_new_model(const ModelConfig& config, const ModelContents& contents,
                             const std::filesystem::path& tokenizer,
                             const std::filesystem::path& output, const ModelOutput& options,
                             const WriteTensor& write);

// UserError if the output is the input or contains it: a rename would delete it.
void check_output_is_no_input(const std::filesystem::path& output,
                              const std::filesystem::path& input);

}  // namespace kintsugi
