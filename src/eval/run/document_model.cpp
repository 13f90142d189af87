#include "eval/run/document_model.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/units.h"
#include "model/families/family.h"
#include "model/initialize.h"
#include "tensor/dtype.h"
#include "tensor/safetensors.h"

namespace kintsugi {
namespace {

std::size_t index_of(std::int64_t i) { return static_cast<std::size_t>(i); }

ModelConfig checked_config(const std::filesystem::path& directory,
                           const DocumentModelOptions& options) {
  const ModelConfig config = read_hf_config(directory / "config.json");
  if (options.output == DocumentOutput::Logits && !config.is_classifier())
    user_error(
        "{} is a language model, not a classifier: train one with `objective: classification`, or "
        "use kintsugi generate or kintsugi eval",
        directory.string());
  return config;
}

DocumentModelOptions completed(DocumentModelOptions options, const ModelConfig& config,
                               bool on_host) {
  if (options.max_length == 0) options.max_length = config.max_positions;
  if (config.positions() == PositionKind::Learned)
    options.max_length = std::min(options.max_length, config.max_positions);
  if (options.batch_tokens == 0) options.batch_tokens = on_host ? 1024 : 16384;
  options.batch_tokens = std::max(options.batch_tokens, options.max_length);
  return options;
}

}  // namespace

// All memory besides the weights.
struct DocumentModel::Work {
  Work(Backend& backend, Arena& arena, const ParameterStore& store, const ModelConfig& config,
       const DocumentModelOptions& o, bool packs)
      : model(backend, arena, store, config,
              {.sequences = packs ? 1 : o.batch_tokens / o.max_length,
               .length = packs ? o.batch_tokens : o.max_length,
               .training = false}) {
    const auto take = [&] {
      return arena.allocate(Region::Workspace, "batch", DType::I32, {o.batch_tokens});
    };
    ids = take();
    positions = take();
    if (packs) starts = take();
  }

  WholeModel model;
  Tensor ids, positions, starts;  // (tokens)
};

// Rows of tokens on the host.
struct DocumentModel::Batch {
  std::int64_t sequences = 1, length = 0;
  std::vector<std::int32_t> ids = {}, positions = {}, starts = {};
  struct Range {
    std::int64_t begin = 0, end = 0;  // tokens of the batch
  };
  std::vector<Range> documents = {};
};

DocumentModel::DocumentModel(Backend& backend, const std::filesystem::path& directory,
                             const DocumentModelOptions& options)
    : backend_(backend),
      config_(checked_config(directory, options)),
      options_(completed(options, config_, backend.host() == &backend)),
      pads_(backend.host() != &backend),
      set_(config_),
      arena_(backend) {
  PlanningAllocator nothing;
  Arena planned(nothing);
  const ParameterStore store(set_, planned, options_.precision, false);
  const std::size_t weights = planned.total_bytes();
  const Work work(backend_, planned, store, config_, options_, packs());
  const std::size_t free = backend_.available_bytes() / index_of(options_.memory_shares);
  if (planned.total_bytes() > free)
    user_error(
        "this needs {} for the weights and {} of work memory for {} tokens at a time, but {} is "
        "free: lower --batch-tokens or --max-length, or use a smaller model",
        format_bytes(static_cast<double>(weights)),
        format_bytes(static_cast<double>(planned.total_bytes() - weights)), options_.batch_tokens,
        format_bytes(static_cast<double>(free)));
  const SafetensorsModel files(directory);
  store_ = std::make_unique<ParameterStore>(set_, arena_, options_.precision, false);
  work_ = std::make_unique<Work>(backend_, arena_, *store_, config_, options_, packs());
  load_parameters(backend_, *store_, files, config_,
                  {.unused = options_.unused, .progress = options_.loading});
  work_->model.prepare();
  backend_.synchronize();
}

DocumentModel::~DocumentModel() = default;

std::int64_t DocumentModel::width() const {
  return options_.output == DocumentOutput::Logits ? std::ssize(config_.labels)
                                                   : config_.hidden_size;
}

bool DocumentModel::packs() const { return family_info(config_.family).document_masks; }

DocumentModel::Batch DocumentModel::next_batch(std::span<const Document>& left) const {
  return packs() ? packed_batch(left) : batch_of_rows(left);
}

// Documents one after the other, as many as fit.
DocumentModel::Batch DocumentModel::packed_batch(std::span<const Document>& left) const {
  Batch batch;
  while (!left.empty() && batch.length + std::ssize(left.front()) <= options_.batch_tokens) {
    const Document& document = left.front();
    const std::int64_t begin = batch.length;
    batch.length += std::ssize(document);
    batch.documents.push_back({begin, batch.length});
    batch.ids.insert(batch.ids.end(), document.begin(), document.end());
    batch.positions.resize(index_of(batch.length));
    std::iota(batch.positions.begin() + begin, batch.positions.end(), 0);
    batch.starts.resize(index_of(batch.length), static_cast<std::int32_t>(begin));
    left = left.subspan(1);
  }
  if (!pads_) return batch;
  const auto end = static_cast<std::int32_t>(batch.length);  // padding is a document of its own
  batch.length = options_.batch_tokens;
  batch.ids.resize(index_of(batch.length), 0);
  batch.positions.resize(index_of(batch.length));
  std::iota(batch.positions.begin() + end, batch.positions.end(), 0);
  batch.starts.resize(index_of(batch.length), end);
  return batch;
}

// One document per row. Padding follows the document, so that it changes nothing.
DocumentModel::Batch DocumentModel::batch_of_rows(std::span<const Document>& left) const {
  Batch batch;
  const std::int64_t most = options_.batch_tokens / options_.max_length;
  const auto documents = left.first(std::min(index_of(most), left.size()));
  batch.sequences = pads_ ? most : std::ssize(documents);
  batch.length = pads_ ? options_.max_length : 0;
  for (const Document& document : documents)
    batch.length = std::max<std::int64_t>(batch.length, std::ssize(document));
  for (const Document& document : documents) {
    const std::int64_t begin = std::ssize(batch.ids);
    batch.documents.push_back({begin, begin + std::ssize(document)});
    batch.ids.insert(batch.ids.end(), document.begin(), document.end());
    batch.ids.resize(index_of(begin + batch.length), 0);
  }
  batch.ids.resize(index_of(batch.sequences * batch.length), 0);
  for (std::int64_t i = 0; i < batch.sequences * batch.length; ++i)
    batch.positions.push_back(static_cast<std::int32_t>(i % batch.length));
  left = left.subspan(documents.size());
  return batch;
}

MicroBatch DocumentModel::upload(const Batch& batch) {
  const std::int64_t tokens = batch.sequences * batch.length;
  const auto put = [&](const Tensor& to, const std::vector<std::int32_t>& values) {
    const Tensor rows = to.rows(0, tokens);
    backend_.upload(rows, values.data());
    return rows;
  };
  MicroBatch micro{.sequences = batch.sequences,
                   .length = batch.length,
                   .ids = put(work_->ids, batch.ids),
                   .positions = put(work_->positions, batch.positions)};
  if (packs())
    micro.document_start = put(work_->starts, batch.starts).view({batch.sequences, batch.length});
  return micro;
}

// Rows may have padding between them.
void DocumentModel::read(const Batch& batch, const Tensor& rows, std::vector<double>& results) {
  const std::int64_t stride = rows.stride(0), count = rows.extent(0), columns = width();
  const Tensor flat(rows.data(), rows.dtype(), {(count - 1) * stride + columns});
  std::vector<std::byte> stored(flat.bytes());
  backend_.download(stored.data(), flat);
  std::vector<double> row(index_of(columns));
  for (const auto& [begin, end] : batch.documents) {
    const std::int64_t first = options_.output == DocumentOutput::Mean ? begin : end - 1;
    const std::size_t at = results.size();
    results.resize(at + row.size());
    for (std::int64_t token = first; token < end; ++token) {
      to_doubles(stored.data() + index_of(token * stride) * size_of(rows.dtype()), rows.dtype(),
                 row);
      for (std::size_t i = 0; i < row.size(); ++i)
        results[at + i] += row[i] / static_cast<double>(end - first);
    }
  }
}

std::vector<double> DocumentModel::compute(std::span<const Document> documents,
                                           const Progress& progress) {
  for (const Document& document : documents)
    KINTSUGI_CHECK(!document.empty() && std::ssize(document) <= options_.max_length,
                   "a document of {} tokens", document.size());
  std::vector<double> results;
  while (!documents.empty()) {
    const Batch batch = next_batch(documents);
    const MicroBatch micro = upload(batch);
    read(batch,
         options_.output == DocumentOutput::Logits ? work_->model.all_logits(micro)
                                                   : work_->model.hidden_states(micro),
         results);
    if (progress) progress(batch.documents.size());
  }
  return results;
}

}  // namespace kintsugi
