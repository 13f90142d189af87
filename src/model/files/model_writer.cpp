#include "model/files/model_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/output_file.h"
#include "model/config.h"
#include "model/files/fingerprint.h"
#include "model/parameter_set.h"
#include "tensor/safetensors.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

struct ModelDirectoryFile {
  std::string name, content;
};

constexpr std::uintmax_t kLargestTextFile = std::uintmax_t{256} << 20;

bool is_tokenizer_file(const std::string& name) {
  constexpr std::array<std::string_view, 9> kNames = {"tokenizer.json",
                                                      "tokenizer.model",
                                                      "tokenizer_config.json",
                                                      "added_tokens.json",
                                                      "special_tokens_map.json",
                                                      "chat_template.jinja",
                                                      "chat_template.json",
                                                      "vocab.json",
                                                      "merges.txt"};
  return std::ranges::find(kNames, name) != kNames.end() || name.ends_with(".tiktoken") ||
         (name.starts_with("tokenization_") && name.ends_with(".py"));
}

constexpr std::string_view kTemplates = "additional_chat_templates";

bool is_template_file(const fs::path& name) {
  return name.parent_path() == kTemplates && name.extension() == ".jinja";
}

bool is_weight_file(const std::string& name) {
  return name.starts_with("model") &&
         (name.ends_with(".safetensors") || name == "model.safetensors.index.json");
}

std::string config_with_dtype(const std::string& text, const ModelConfig& config,
                              std::optional<DType> dtype) {
  if (!dtype) return text;
  auto json = nlohmann::ordered_json::parse(text);
  const auto name = nlohmann::json::parse(write_hf_config(config, *dtype)).at("torch_dtype");
  const bool new_key = json.contains("dtype");  // of transformers 5
  if (new_key) json["dtype"] = name;
  if (!new_key || json.contains("torch_dtype")) json["torch_dtype"] = name;
  return json.dump(2) + "\n";
}

// The directories that write_model() writes.
DirectoryKind model_directory_kind() {
  return {.name = "a model that kintsugi writes",
          .required = "config.json",
          .is_member = [](const std::string& name) {
            return name == "config.json" || name == "generation_config.json" ||
                   is_tokenizer_file(name) || is_template_file(name) || is_weight_file(name);
          }};
}

// The files of a copy of a model, without its weights: config.json, generation_config.json and the
// files of the tokenizer, which are those of the directory `tokenizer`, if there is one. They are
// unchanged, except that config.json is the given one. A missing generation_config.json, or that of
// a model without a directory, is generated. Files that describe a training run (README.md,
// trainer.json, checksums.json) do not apply to the copy and are left out.
std::vector<ModelDirectoryFile> model_directory_files(const fs::path& directory,
                                                      const ModelConfig& config,
                                                      const std::string& config_json,
                                                      const fs::path& tokenizer) {
  std::vector<ModelDirectoryFile> files = {
      {"config.json", config_json}, {"generation_config.json", write_hf_generation_config(config)}};
  if (!directory.empty() && fs::exists(directory / "generation_config.json"))
    files.back().content = read_text_file(directory / "generation_config.json");
  if (tokenizer.empty()) return files;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(tokenizer))
    if (entry.is_regular_file() && is_tokenizer_file(entry.path().filename().string()))
      names.push_back(entry.path().filename().string());
  const fs::path templates = kTemplates;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(tokenizer / templates, ignored))
    if (entry.path().extension() == ".jinja")
      names.push_back((templates / entry.path().filename()).string());
  std::ranges::sort(names);
  for (const std::string& name : names) {
    if (fs::file_size(tokenizer / name) > kLargestTextFile)
      user_error("{} is too large for a tokenizer file: remove it", (tokenizer / name).string());
    files.push_back({name, read_text_file(tokenizer / name)});
  }
  return files;
}

// Wide parameters keep their type.
std::set<std::string> converted_names(const StoredModel& model) {
  std::set<std::string> names(model.names.begin(), model.names.end());
  const ParameterSet set(model.config);
  for (const Parameter& parameter : set.parameters())
    if (parameter.wide) names.erase(parameter.name);
  return names;
}

std::vector<SafetensorsWriter::Announced> announced_tensors(const StoredModel& model,
                                                            std::optional<DType> dtype) {
  std::vector<SafetensorsWriter::Announced> tensors;
  const std::set<std::string> converted = dtype ? converted_names(model) : std::set<std::string>();
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
    const bool is_converted = is_float(*entry.dtype) && converted.contains(name);
    tensors.push_back({name, is_converted ? *dtype : *entry.dtype, shape});
  }
  return tensors;
}

}  // namespace

TensorBlocks::TensorBlocks(std::int64_t elements, const ModelOutput& options)
    : options_(options),
      reader_(memory_, options.block),
      doubles_(memory_, 2, options.block),
      rounded_(memory_, 1, options.block * sizeof(double)),
      all_(elements) {}

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

void TensorBlocks::given(SafetensorsWriter& writer, const SafetensorsWriter::Announced& tensor,
                         DType stored, std::span<const std::byte> elements) {
  const auto from = [&](std::int64_t first) {
    return elements.data() + static_cast<std::size_t>(first) * size_of(stored);
  };
  if (stored != tensor.dtype)
    return computed(writer, tensor, [&](std::int64_t first, std::span<double> values) {
      to_doubles(from(first), stored, values);
    });
  for_each_block(tensor.shape.elements(), reader_.block(),
                 [&](std::int64_t first, std::size_t count) {
                   writer.append_part(tensor.name, from(first), count * size_of(stored));
                   advance(count);
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
  return write_other_model(
      model,
      {.tensors = announced_tensors(model, options.dtype),
       .config = config_with_dtype(read_text_file(model.directory / "config.json"), model.config,
                                   options.dtype)},
      tokenizer, output, options, write);
}

namespace {

// The files of a directory that is written, and what checksums.json says of them.
class ListedFiles {
 public:
  explicit ListedFiles(NewDirectory& target) : target_(target) {}

  void text(const std::string& name, const std::string& content) {
    target_.write(name, content);
    checksums_.texts[name] = hex64(hash64(content));
  }
  // Returns the bytes of the files, which are in `folder`: "" or "optimizer/".
  std::uint64_t tensors(const std::string& folder, const SafetensorsFiles& files,
                        TensorBlocks& blocks, const WriteTensor& write) {
    std::uint64_t bytes = 0;
    for (const SafetensorsFiles::File& file : files.files) {
      SafetensorsWriter writer(target_.path() / (folder + file.name), file.tensors);
      for (const auto& tensor : file.tensors) write(blocks, writer, tensor);
      const SafetensorsWriter::Result result = writer.finish();
      checksums_.tensors[folder + file.name] = {{0, result.bytes, hex64(result.hash)}};
      bytes += result.bytes;
    }
    if (!files.index.empty()) text(folder + files.index_name, files.index);
    return bytes;
  }
  void optimizer(const std::string& trainer, const SafetensorsFiles& files, TensorBlocks& blocks,
                 const WriteTensor& write) {
    const std::string folder = "optimizer";
    std::error_code error;
    fs::create_directory(target_.path() / folder, error);
    if (error) failure("cannot create a folder for {}: {}", folder, error.message());
    tensors(folder + "/", files, blocks, write);
    sync_directory(target_.path() / folder);
    text("trainer.json", trainer);
    target_.write(kChecksums, write_checksums(checksums_));
  }

 private:
  NewDirectory& target_;
  Checksums checksums_;
};

std::int64_t elements_of(const std::vector<SafetensorsWriter::Announced>& tensors) {
  std::int64_t elements = 0;
  for (const auto& tensor : tensors) elements += tensor.shape.elements();
  return elements;
}

// `directory` has the configuration's other files; empty: there are none.
WrittenModel write_directory(const fs::path& directory, const ModelConfig& config,
                             const ModelContents& contents, const fs::path& tokenizer,
                             const fs::path& output, const ModelOutput& options,
                             const WriteTensor& write) {
  const SafetensorsFiles files =
      divide_into_files("model", contents.tensors, options.max_shard_bytes);
  WrittenModel result{.tensors = contents.tensors.size(), .files = files.files.size()};
  const std::vector<ModelDirectoryFile> texts =
      model_directory_files(directory, config, contents.config, tokenizer);
  NewDirectory target(output, options.overwrite, model_directory_kind());
  ListedFiles written(target);
  TensorBlocks blocks(elements_of(contents.tensors) + elements_of(contents.optimizer), options);
  result.bytes = written.tensors("", files, blocks, write);
  for (const ModelDirectoryFile& file : texts) written.text(file.name, file.content);
  if (!contents.trainer.empty())
    written.optimizer(contents.trainer,
                      divide_into_files("optimizer", contents.optimizer, options.max_shard_bytes),
                      blocks, write);
  blocks.report(result);
  result.elements = elements_of(contents.tensors);
  target.publish();
  return result;
}

}  // namespace

WrittenModel write_other_model(const StoredModel& model, const ModelContents& contents,
                               const fs::path& tokenizer, const fs::path& output,
                               const ModelOutput& options, const WriteTensor& write) {
  return write_directory(model.directory, model.config, contents, tokenizer, output, options,
                         write);
}

WrittenModel write_new_model(const ModelConfig& config, const ModelContents& contents,
                             const fs::path& tokenizer, const fs::path& output,
                             const ModelOutput& options, const WriteTensor& write) {
  return write_directory({}, config, contents, tokenizer, output, options, write);
}

void check_output_is_no_input(const fs::path& output, const fs::path& input) {
  const OutputRule rule{.inputs = {input}};
  refuse_inputs_as_output("--output", output, rule);
  for (const fs::path& temporary : NewDirectory::temporaries(output))
    refuse_inputs_as_output("--output " + output.string() + ": the temporary", temporary, rule);
}

}  // namespace kintsugi
