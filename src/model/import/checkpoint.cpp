// Where the tensors of a checkpoint are: torch DCP, and the files of Megatron's tensor and pipeline
// ranks.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>

#include "core/error.h"
#include "model/import/import.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using Kind = PickleValue::Kind;
using Extents = std::vector<std::int64_t>;
using Chunk = ChunkedTensor::Chunk;

std::string text_of(const Extents& extents) {
  std::string text = "[";
  for (const std::int64_t extent : extents)
    text += fmt::format("{}{}", text.size() > 1 ? ", " : "", extent);
  return text + "]";
}

// UserError if the number of elements, or of their bytes, has more than 62 bits.
std::int64_t elements_of(const Extents& extents, const std::string& name) {
  constexpr std::int64_t kMost = std::int64_t{1} << 58;
  std::int64_t count = 1;
  for (const std::int64_t extent : extents) {
    if (extent > 0 && count > kMost / extent)
      user_error("tensor {} has the shape {}, which is too large", name, text_of(extents));
    count *= extent;
  }
  return count;
}

// Copies a block of elements between two strided blocks.
void copy_block(const std::byte* from, std::span<const std::int64_t> from_strides, std::byte* to,
                std::span<const std::int64_t> to_strides, std::span<const std::int64_t> sizes,
                std::size_t width) {
  if (sizes.empty()) {
    std::memcpy(to, from, width);
    return;
  }
  if (sizes.size() == 1 && from_strides[0] == 1 && to_strides[0] == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(sizes[0]) * width);
    return;
  }
  for (std::int64_t i = 0; i < sizes[0]; ++i)
    copy_block(from + i * from_strides[0] * static_cast<std::int64_t>(width),
               from_strides.subspan(1), to + i * to_strides[0] * static_cast<std::int64_t>(width),
               to_strides.subspan(1), sizes.subspan(1), width);
}

Extents row_major_strides(const Extents& sizes) {
  Extents strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  return strides;
}

bool overlap(const Chunk& a, const Chunk& b) {
  for (std::size_t i = 0; i < a.offsets.size(); ++i)
    if (a.offsets[i] + a.sizes[i] <= b.offsets[i] || b.offsets[i] + b.sizes[i] <= a.offsets[i])
      return false;
  return true;
}

// UserError unless the chunks cover the tensor exactly once.
void check_cover(const std::string& name, const ChunkedTensor& tensor) {
  const std::int64_t all = elements_of(tensor.shape, name);
  std::vector<const Chunk*> chunks;
  for (const Chunk& chunk : tensor.chunks) {
    for (std::size_t i = 0; i < tensor.shape.size(); ++i)
      if (chunk.offsets[i] > tensor.shape[i] || chunk.sizes[i] > tensor.shape[i] - chunk.offsets[i])
        user_error("tensor {} of shape {} has a chunk outside at {}", name, text_of(tensor.shape),
                   text_of(chunk.offsets));
    if (elements_of(chunk.sizes, name) > 0) chunks.push_back(&chunk);
  }
  std::ranges::sort(chunks, {}, [](const Chunk* chunk) { return chunk->offsets; });
  std::int64_t covered = 0;
  std::vector<const Chunk*> open;  // those that reach the rows of the next one
  for (const Chunk* const chunk : chunks) {
    std::erase_if(open, [&](const Chunk* other) {
      return !chunk->offsets.empty() && other->offsets[0] + other->sizes[0] <= chunk->offsets[0];
    });
    for (const Chunk* const other : open)
      if (overlap(*chunk, *other))
        user_error("tensor {} has the chunk at {} twice, or overlapping chunks", name,
                   text_of(chunk->offsets));
    open.push_back(chunk);
    covered += elements_of(chunk->sizes, name);
  }
  if (covered != all)
    user_error("tensor {} has chunks with {} of its {} elements: a chunk is missing", name, covered,
               all);
}

// ---- torch DCP

const PickleValue& field(const PickleValue& object, const char* name, const std::string& source) {
  const PickleValue* const value = object.find(name);
  if (!value) user_error("{}: {} is missing: it is no metadata of torch DCP", source, name);
  return *value;
}

// State of torch.distributed.checkpoint.metadata.TensorProperties: (dtype, layout, …) or a dict.
std::optional<DType> dtype_of(const PickleValue& properties) {
  const PickleValue* type = properties.find("dtype");
  if (!type && properties.state && !properties.state->items.empty())
    type = properties.state->items.front();
  return type && type->kind == Kind::Global ? torch_dtype(type->text) : std::nullopt;
}

ChunkedTensor tensor_of(const PickleValue& entry, const std::string& source) {
  ChunkedTensor tensor{.dtype = dtype_of(field(entry, "properties", source)),
                       .shape = extents_of(field(entry, "size", source), source),
                       .chunks = {}};
  for (const PickleValue* const chunk : field(entry, "chunks", source).items) {
    tensor.chunks.push_back({.offsets = extents_of(field(*chunk, "offsets", source), source),
                             .sizes = extents_of(field(*chunk, "sizes", source), source)});
    const Chunk& read = tensor.chunks.back();
    if (read.offsets.size() != tensor.shape.size() || read.sizes.size() != tensor.shape.size())
      user_error("{}: a chunk has another number of dimensions than its tensor", source);
  }
  return tensor;
}

// A file below the directory.
std::string safe_name(const PickleValue& value, const std::string& source) {
  const fs::path path = value.kind == Kind::Text ? fs::path(std::string(value.text)) : fs::path();
  const bool leaves = std::ranges::any_of(path, [](const fs::path& part) { return part == ".."; });
  if (path.empty() || path.is_absolute() || leaves || path.string().find('\0') != std::string::npos)
    user_error("{}: the file name '{}' leaves the directory of the checkpoint", source,
               path.string().substr(0, 200));
  return path.string();
}

std::uint64_t position(const PickleValue& value, const std::string& source) {
  if (value.kind != Kind::Integer || value.integer < 0)
    user_error("{}: an offset or a length is no number", source);
  return static_cast<std::uint64_t>(value.integer);
}

// The blobs of storage_data: MetadataIndex(fqn, offset) -> _StorageInfo(relative_path, offset,
// length).
using BlobKey = std::pair<std::string, Extents>;
struct Blobs {
  std::map<BlobKey, Chunk> tensors;
  std::optional<Chunk> common;  // Megatron's common_state
};
Blobs blobs_of(const PickleValue& metadata, const std::string& source) {
  Blobs blobs;
  for (const auto& [index, info] : field(metadata, "storage_data", source).pairs) {
    const PickleValue& name = field(*index, "fqn", source);
    const PickleValue* const offset = index->find("offset");
    if (name.kind != Kind::Text) user_error("{}: the name of a tensor is no text", source);
    const bool is_object = !offset || offset->kind == Kind::None;  // no tensor
    if (is_object && !name.text.starts_with("common_state/")) continue;
    if (const PickleValue* const transforms = info->find("transform_descriptors"))
      if (!transforms->items.empty())
        user_error("{}: tensor {} is compressed, which is not supported", source, name.text);
    Chunk blob{.offsets = {},
               .sizes = {},
               .file = safe_name(field(*info, "relative_path", source), source),
               .offset = position(field(*info, "offset", source), source),
               .bytes = position(field(*info, "length", source), source)};
    if (is_object) {
      blobs.common = std::move(blob);
      continue;
    }
    BlobKey key{std::string(name.text), extents_of(*offset, source)};
    const auto [at, is_new] = blobs.tensors.emplace(std::move(key), std::move(blob));
    if (!is_new)
      user_error("{}: tensor {} has the chunk at {} twice", source, at->first.first,
                 text_of(at->first.second));
  }
  return blobs;
}

// Megatron writes "model.decoder…" or "decoder…", torchtitan "model.layers…" or "layers…".
std::string without_prefix(std::string_view name) {
  for (const std::string_view prefix : {"model.", "module."})
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  return std::string(name);
}

// ---- Megatron's files of ranks

struct RankFile {
  int tensor = 0, pipeline = 0;
  std::string file;
};

// mp_rank_TT or mp_rank_TT_PPP, with model_optim_rng.pt or, beside a distributed optimizer,
// model_rng.pt.
std::vector<RankFile> rank_files(const fs::path& directory) {
  constexpr std::string_view kPrefix = "mp_rank_";
  std::vector<RankFile> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    RankFile file;
    const char *at = name.data() + kPrefix.size(), *const end = name.data() + name.size();
    auto [next, error] = std::from_chars(at, end, file.tensor);
    if (error == std::errc() && next != end && *next == '_')
      std::tie(next, error) = [&, after = next + 1] {
        const auto read = std::from_chars(after, end, file.pipeline);
        return std::tuple(read.ptr, read.ec);
      }();
    constexpr int kMost = 100'000;
    if (error != std::errc() || next != end || file.tensor < 0 || file.pipeline < 0 ||
        file.pipeline > kMost)
      user_error("{}: {} is no directory of a tensor and pipeline rank (experts are not imported)",
                 directory.string(), name);
    for (const char* const weights : {"model_optim_rng.pt", "model_rng.pt"})
      if (file.file.empty() && fs::exists(entry.path() / weights)) file.file = name + "/" + weights;
    if (file.file.empty())
      user_error("{} has no model_optim_rng.pt: a file is missing", entry.path().string());
    files.push_back(std::move(file));
  }
  std::ranges::sort(files, {}, [](const RankFile& f) { return std::pair(f.pipeline, f.tensor); });
  return files;
}

// The dimension that tensor ranks shard, by the end of the name; -1: each has all of it.
int sharded_dimension(std::string_view name) {
  for (const char* const end :
       {"word_embeddings.weight", "output_layer.weight", "linear_qkv.weight", "linear_qkv.bias",
        "linear_fc1.weight", "linear_fc1.bias"})
    if (name.ends_with(end)) return 0;
  for (const char* const end : {"linear_proj.weight", "linear_fc2.weight"})
    if (name.ends_with(end)) return 1;
  return -1;
}

// The part [first, first + count) of the rows.
StoredTensor rows_of(const StoredTensor& tensor, std::int64_t first, std::int64_t count) {
  StoredTensor rows = tensor;
  rows.shape[0] = count;
  rows.data = tensor.data.subspan(
      std::min(tensor.data.size(),
               static_cast<std::size_t>(first * tensor.strides[0]) * size_of(*tensor.dtype)));
  return rows;
}

// One tensor of the shards of all tensor ranks. An MLP with a gate has [gate; up] in each shard.
ChunkedTensor joined(const std::string& name, const std::vector<StoredTensor>& shards, bool gated) {
  ChunkedTensor tensor{.dtype = shards[0].dtype, .shape = shards[0].shape, .chunks = {}};
  const int dimension = sharded_dimension(name);
  const auto add = [&](Extents offsets, StoredTensor data) {
    const Extents sizes = data.shape;
    tensor.chunks.push_back(
        {.offsets = std::move(offsets), .sizes = sizes, .data = std::move(data)});
  };
  const Extents zero(tensor.shape.size(), 0);
  if (dimension < 0) {
    add(zero, shards[0]);
    return tensor;
  }
  const auto d = static_cast<std::size_t>(dimension);
  for (const StoredTensor& shard : shards)
    if (shard.shape != shards[0].shape || shard.dtype != shards[0].dtype || shard.shape.size() <= d)
      user_error("the shards of tensor {} have different shapes or types", name);
  const std::int64_t own = tensor.shape[d], ranks = static_cast<std::int64_t>(shards.size());
  elements_of({own, ranks}, name);
  tensor.shape[d] = own * ranks;
  const bool halves =
      gated && tensor.dtype && name.find("linear_fc1.") != std::string::npos && own % 2 == 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const StoredTensor& shard = shards[static_cast<std::size_t>(rank)];
    Extents offsets = zero;
    if (!halves) {
      offsets[d] = rank * own;
      add(offsets, shard);
      continue;
    }
    for (const std::int64_t half : {0, 1}) {
      offsets[0] = (half * ranks + rank) * (own / 2);
      add(offsets, rows_of(shard, half * (own / 2), own / 2));
    }
  }
  return tensor;
}

// "decoder.layers.3.mlp…" of a stage that begins with layer `first`, as a name of the model.
// Returns the number of the layer in its stage; -1: it is no tensor of a layer.
std::int64_t renumber(std::string& name, std::int64_t first) {
  constexpr std::string_view kLayers = "decoder.layers.";
  if (!name.starts_with(kLayers)) return -1;
  std::int64_t layer = 0;
  const char* const begin = name.data() + kLayers.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), layer);
  constexpr std::int64_t kMost = 1'000'000;
  if (error != std::errc() || layer < 0 || layer > kMost) return -1;
  const std::string rest = name.substr(static_cast<std::size_t>(end - name.data()));
  name = fmt::format("{}{}{}", kLayers, first + layer, rest);
  return layer;
}

// Calls use(name, tensor) for the tensors of nested dicts, whose keys are joined by dots.
class TensorsOf {
 public:
  using Use = std::function<void(const std::string&, StoredTensor)>;
  TensorsOf(const TorchFile& file, const Use& use) : file_(file), use_(use) {}

  void visit(const PickleValue& value, const std::string& prefix = "", int depth = 0) {
    constexpr int kDeepest = 16, kMost = 1'000'000;
    for (const auto& [key, entry] : value.pairs) {
      // Dicts may contain each other in circles.
      if (depth > kDeepest || ++visited_ > kMost)
        user_error("{}: the model's tensors are nested too deeply", prefix.substr(0, 200));
      if (key->kind != Kind::Text || key->text.ends_with("_extra_state")) continue;
      const std::string name =
          prefix.empty() ? std::string(key->text) : prefix + "." + std::string(key->text);
      if (auto tensor = file_.tensor(*entry))
        use_(name, std::move(*tensor));
      else if (entry->kind == Kind::Dict || entry->is_object("collections.OrderedDict"))
        visit(*entry, name, depth + 1);
    }
  }

 private:
  const TorchFile& file_;
  const Use& use_;
  int visited_ = 0;
};

}  // namespace

// ---- ForeignCheckpoint

ForeignCheckpoint::ForeignCheckpoint(const fs::path& path, CheckpointFormat format, bool gated)
    : format_(format) {
  find_format(path);
  if (format_ == CheckpointFormat::Megatron)
    read_legacy(gated);
  else
    read_dcp();
}

void ForeignCheckpoint::find_format(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored))
    user_error("{} is no directory: name the directory of a checkpoint", path.string());
  directory_ = path;
  // Megatron's directory of all checkpoints names the latest one.
  const fs::path latest = path / "latest_checkpointed_iteration.txt";
  if (fs::exists(latest, ignored)) {
    std::string text = read_text_file(latest);
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
    std::int64_t iteration = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), iteration);
    const bool is_number = error == std::errc() && end == text.data() + text.size();
    if (!is_number && text != "release") user_error("{} names no iteration", latest.string());
    directory_ /= is_number ? fmt::format("iter_{:07}", iteration) : text;
    if (!fs::is_directory(directory_, ignored))
      user_error("{} names {}, which does not exist", latest.string(), directory_.string());
  }
  const bool dcp = fs::exists(directory_ / ".metadata", ignored);
  bool ranks = false;
  for (const auto& entry : fs::directory_iterator(directory_))
    ranks = ranks || entry.path().filename().string().starts_with("mp_rank_");
  if (format_ == CheckpointFormat::Auto)
    format_ = ranks && !dcp                              ? CheckpointFormat::Megatron
              : fs::exists(directory_ / "metadata.json") ? CheckpointFormat::TorchDist
                                                         : CheckpointFormat::Dcp;
  if (format_ == CheckpointFormat::Megatron ? !ranks : !dcp)
    user_error("{} has no {}: it is no checkpoint of this format, or a file is missing",
               directory_.string(),
               format_ == CheckpointFormat::Megatron ? "mp_rank_… directories" : ".metadata");
}

std::span<const std::byte> ForeignCheckpoint::mapped(const std::string& file) const {
  constexpr std::size_t kMost = 256;
  auto found = files_.find(file);
  if (found == files_.end()) {
    if (format_ != CheckpointFormat::Megatron && files_.size() >= kMost) {
      for (const auto& [name, mapping] : files_) mapping.check_intact();
      files_.clear();
    }
    const fs::path path = directory_ / file;
    std::error_code ignored;
    if (!fs::exists(path, ignored)) user_error("{} is missing", path.string());
    found = files_.emplace(file, MappedFile(path)).first;
  }
  return found->second.bytes();
}

TorchFile& ForeignCheckpoint::open(const std::string& file) {
  opened_.push_back(std::make_unique<TorchFile>(mapped(file), (directory_ / file).string()));
  return *opened_.back();
}

void ForeignCheckpoint::read_arguments(const PickleValue& state) {
  if (const PickleValue* const arguments = state.find("args");
      arguments && arguments->is_object("argparse.Namespace"))
    arguments_ = arguments;
}

// What is the same on all ranks of Megatron: common.pt, or the list of one object in a blob.
void ForeignCheckpoint::read_common(const Chunk* in_dcp) {
  std::error_code ignored;
  if (fs::exists(directory_ / "common.pt", ignored))
    return read_arguments(open("common.pt").root());
  if (!in_dcp) return;
  const std::string source = (directory_ / in_dcp->file).string() + ": common_state";
  opened_.push_back(std::make_unique<TorchFile>(bytes_of(*in_dcp, source), source));
  const PickleValue& list = opened_.back()->root();
  if (!list.items.empty()) read_arguments(*list.items.front());
}

void ForeignCheckpoint::read_dcp() {
  const std::string source = (directory_ / ".metadata").string();
  const Pickle pickle(read_text_file(source), source);
  const PickleValue& metadata = pickle.root();
  const Blobs blobs = blobs_of(metadata, source);
  std::size_t chunks = 0;
  for (const auto& [key, entry] : field(metadata, "state_dict_metadata", source).pairs) {
    if (key->kind != Kind::Text) user_error("{}: the name of a tensor is no text", source);
    if (!entry->is_object("TensorStorageMetadata")) continue;
    const std::string name(key->text);
    ChunkedTensor tensor = tensor_of(*entry, source);
    constexpr std::size_t kMissing = 100'000;  // each chunk has a blob, unless files are damaged
    if ((chunks += tensor.chunks.size()) > blobs.tensors.size() + kMissing)
      user_error("{}: tensors have more chunks than the files", source);
    for (Chunk& chunk : tensor.chunks) {
      const auto blob = blobs.tensors.find({name, chunk.offsets});
      if (blob == blobs.tensors.end()) continue;  // an error if the tensor is read
      chunk.file = blob->second.file;
      chunk.offset = blob->second.offset;
      chunk.bytes = blob->second.bytes;
    }
    if (!tensors_.emplace(without_prefix(name), std::move(tensor)).second)
      user_error("{} has two tensors {}", source, without_prefix(name));
  }
  const bool is_megatron = tensors_.contains("embedding.word_embeddings.weight");
  if (format_ == CheckpointFormat::Dcp && is_megatron) format_ = CheckpointFormat::TorchDist;
  if (format_ == CheckpointFormat::TorchDist) read_common(blobs.common ? &*blobs.common : nullptr);
}

void ForeignCheckpoint::read_legacy(bool gated) {
  const std::vector<RankFile> ranks = rank_files(directory_);
  const int stages = ranks.back().pipeline + 1;
  const std::size_t size = ranks.size() / static_cast<std::size_t>(stages);
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (size == 0 || ranks[i].pipeline != static_cast<int>(i / size) ||
        ranks[i].tensor != static_cast<int>(i % size))
      user_error("{} lacks the directory of a rank, or has one twice: see {}", directory_.string(),
                 ranks[i].file);
  std::vector<const TorchFile*> files;
  for (const RankFile& rank : ranks) files.push_back(&open(rank.file));
  read_arguments(files.front()->root());
  // Virtual stages: chunk 0 of all pipeline ranks, then chunk 1, …
  const bool is_virtual = files.front()->root().find("model0") != nullptr;
  std::int64_t first = 0;  // layer of the next chunk
  for (int chunk = 0;; ++chunk) {
    const std::string key = is_virtual ? fmt::format("model{}", chunk) : "model";
    if (!files.front()->root().find(key)) {
      if (chunk == 0) user_error("{} has no model", (directory_ / ranks.front().file).string());
      break;
    }
    for (int stage = 0; stage < stages; ++stage) {
      std::map<std::string, std::vector<StoredTensor>> shards;
      std::int64_t layers = 0;
      for (std::size_t rank = 0; rank < size; ++rank) {
        const TorchFile& file = *files[static_cast<std::size_t>(stage) * size + rank];
        const PickleValue* const model = file.root().find(key);
        if (!model) user_error("stage {} of {} has no {}", stage, directory_.string(), key);
        const TensorsOf::Use add = [&](const std::string& own, StoredTensor tensor) {
          std::string name = without_prefix(own);
          layers = std::max(layers, renumber(name, first) + 1);
          shards[name].push_back(std::move(tensor));
        };
        TensorsOf(file, add).visit(*model);
      }
      first += layers;
      for (const auto& [name, all] : shards) {
        if (all.size() != size)
          user_error("{}: tensor {} is on {} of {} tensor ranks", directory_.string(), name,
                     all.size(), size);
        // The last stage may have a copy of the embedding.
        if (!tensors_.emplace(name, joined(name, all, gated)).second &&
            !name.starts_with("embedding."))
          user_error("{}: tensor {} is on two stages", directory_.string(), name);
      }
    }
    if (!is_virtual) break;
  }
}

std::span<const std::byte> ForeignCheckpoint::bytes_of(const Chunk& chunk,
                                                       const std::string& source) const {
  const std::span<const std::byte> file = mapped(chunk.file);
  if (chunk.offset > file.size() || chunk.bytes > file.size() - chunk.offset)
    user_error("{} ends behind the file, which is too short", source);
  return file.subspan(chunk.offset, chunk.bytes);
}

StoredTensor ForeignCheckpoint::data_of(const std::string& name, const ChunkedTensor& tensor,
                                        const Chunk& chunk) const {
  if (chunk.data) return *chunk.data;
  if (chunk.file.empty())
    user_error("tensor {} lacks the chunk at {}: .metadata names no file that has it", name,
               text_of(chunk.offsets));
  const std::string source = fmt::format("{}: tensor {}", (directory_ / chunk.file).string(), name);
  const TorchFile blob(bytes_of(chunk, source), source);
  const auto data = blob.tensor(blob.root());
  if (!data) user_error("{} is no tensor", source);
  if (data->dtype != tensor.dtype || data->shape != chunk.sizes)
    user_error("{} has another type or shape than .metadata says ({})", source,
               text_of(chunk.sizes));
  return *data;
}

std::vector<std::byte> ForeignCheckpoint::read(const std::string& name, const Extents& begin,
                                               const Extents& sizes) const {
  const ChunkedTensor& tensor = tensors_.at(name);
  if (covered_.insert(name).second) check_cover(name, tensor);
  const std::size_t width = size_of(tensor.dtype.value());
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements_of(sizes, name)) * width);
  if (bytes.empty()) return bytes;
  const Extents to_strides = row_major_strides(sizes);
  const Chunk wanted{.offsets = begin, .sizes = sizes};
  for (const Chunk& chunk : tensor.chunks) {
    if (elements_of(chunk.sizes, name) == 0 || !overlap(chunk, wanted)) continue;
    const StoredTensor data = data_of(name, tensor, chunk);
    std::int64_t from = 0, to = 0;
    Extents common(sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::int64_t first = std::max(begin[i], chunk.offsets[i]);
      common[i] = std::min(begin[i] + sizes[i], chunk.offsets[i] + chunk.sizes[i]) - first;
      from += (first - chunk.offsets[i]) * data.strides[i];
      to += (first - begin[i]) * to_strides[i];
    }
    copy_block(data.data.data() + static_cast<std::size_t>(from) * width, data.strides,
               bytes.data() + static_cast<std::size_t>(to) * width, to_strides, common, width);
  }
  for (const auto& [file, mapping] : files_) mapping.check_intact();
  return bytes;
}

}  // namespace kintsugi
