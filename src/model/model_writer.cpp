#include "model/model_writer.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/new_file.h"
#include "core/output_file.h"
#include "model/model_directory_files.h"
#include "tensor/elements.h"
#include "tensor/safetensors_files.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

std::vector<SafetensorsWriter::Announced> announced_tensors(const StoredModel& model,
                                                            std::optional<DType> dtype) {
  std::vector<SafetensorsWriter::Announced> tensors;
  for (const std::string& name : model.names) {
    const SafetensorsEntry& entry = *model.tensors.find(name).entry;
    if (!entry.dtype)
      user_error("tensor {} in {} is stored as {}, which cannot be converted", name,
                 model.directory.string(), entry.dtype_name);
    if (entry.shape.size() > kMaxRank)
      user_error("tensor {} in {} has {} dimensions, at most {} are supported", name,
                 model.directory.string(), entry.shape.size(), kMaxRank);
    Shape shape;
    for (const std::int64_t extent : entry.shape) shape.append(extent);
    tensors.push_back({name, dtype && is_float(*entry.dtype) ? *dtype : *entry.dtype, shape});
  }
  return tensors;
}

}  // namespace

TensorBlocks::TensorBlocks(const StoredModel& model, const ModelOutput& options)
    : options_(options),
      reader_(memory_, options.block),
      doubles_(memory_, 2, options.block),
      rounded_(memory_, 1, options.block * sizeof(double)) {
  for (const std::string& name : model.names) all_ += elements_of(*model.tensors.find(name).entry);
}

void TensorBlocks::advance(std::size_t count) {
  done_ += static_cast<std::int64_t>(count);
  if (options_.progress) options_.progress(done_, all_);
}

void TensorBlocks::computed(SafetensorsWriter& writer, const SafetensorsWriter::Announced& tensor,
                            const Compute& compute) {
  if (tensor.shape.elements() == 0) writer.append(tensor.name, nullptr, 0);
  const auto write = [&](std::int64_t first, std::size_t count) {
    const std::span<double> values = doubles_.get(0, count);
    compute(first, values);
    const RoundingReport rounding = from_doubles(values, tensor.dtype, rounded_[0]);
    if (rounding.overflows > 0)
      user_error("tensor {} has values that are too large for {}: choose another --dtype",
                 tensor.name, to_string(tensor.dtype));
    if (rounding.non_finite > 0 && non_finite_ == 0) first_non_finite_ = tensor.name;
    non_finite_ += rounding.non_finite;
    writer.append_part(tensor.name, rounded_[0], count * size_of(tensor.dtype));
    advance(count);
  };
  for_each_block(tensor.shape.elements(), reader_.block(), write);
}

void TensorBlocks::copied(SafetensorsWriter& writer, const SafetensorsWriter::Announced& tensor,
                          const SafetensorsModel::Location& source, const Check& check) {
  if (tensor.shape.elements() == 0) writer.append(tensor.name, nullptr, 0);
  const auto write = [&](std::int64_t first, std::size_t count) {
    const std::span<const std::byte> bytes = reader_.stored(source, first, count);
    std::memcpy(rounded_[0], bytes.data(), bytes.size());
    if (check) check(first, {rounded_[0], bytes.size()});
    writer.append_part(tensor.name, rounded_[0], count * size_of(tensor.dtype));
    advance(count);
  };
  for_each_block(tensor.shape.elements(), reader_.block(), write);
}

void TensorBlocks::converted(SafetensorsWriter& writer, const SafetensorsWriter::Announced& tensor,
                             const SafetensorsModel::Location& source) {
  if (source.entry->dtype == tensor.dtype) return copied(writer, tensor, source);
  computed(writer, tensor, [&](std::int64_t first, std::span<double> values) {
    reader_.read(source, first, values);
  });
}

void TensorBlocks::report(WrittenModel& result) const {
  result.elements = all_;
  result.peak_buffer_bytes = memory_.peak_bytes();
  result.non_finite = non_finite_;
  result.first_non_finite = first_non_finite_;
}

WrittenModel write_model(const StoredModel& model, const fs::path& tokenizer,
                         const fs::path& output, const ModelOutput& options,
                         const WriteTensor& write) {
  const SafetensorsFiles files =
      divide_into_files("model", announced_tensors(model, options.dtype), options.max_shard_bytes);
  WrittenModel result{.tensors = model.names.size(), .files = files.files.size()};
  const std::vector<ModelDirectoryFile> texts =
      model_directory_files(model.directory, model.config, options.dtype, tokenizer);
  NewDirectory directory(output, options.overwrite, model_directory_kind());
  TensorBlocks blocks(model, options);
  for (const SafetensorsFiles::File& file : files.files) {
    SafetensorsWriter writer(directory.path() / file.name, file.tensors);
    for (const auto& tensor : file.tensors) write(blocks, writer, tensor);
    result.bytes += writer.finish().bytes;
  }
  if (!files.index.empty()) directory.write(files.index_name, files.index);
  for (const ModelDirectoryFile& file : texts) directory.write(file.name, file.content);
  blocks.report(result);
  directory.publish();
  return result;
}

void check_output_is_no_input(const fs::path& output, const fs::path& input) {
  const OutputRule rule{.inputs = {input}};
  refuse_inputs_as_output("--output", output, rule);
  for (const fs::path& temporary : NewDirectory::temporaries(output))
    refuse_inputs_as_output("--output " + output.string() + ": the temporary", temporary, rule);
}

}  // namespace kintsugi
