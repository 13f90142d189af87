#include "serve/inference_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/units.h"
#include "model/adapter/apply_adapter.h"
#include "model/initialize.h"
#include "parallel/layout.h"
#include "serve/page_pool.h"
#include "tensor/safetensors.h"

namespace kintsugi {
namespace {

std::size_t as_size(std::int64_t i) { return static_cast<std::size_t>(i); }
// Of a language model.
ModelConfig generating_config(const std::filesystem::path& directory) {
  ModelConfig config = read_hf_config(directory / "config.json");
  if (config.is_classifier())
    user_error(
        "{} is a classifier with {} labels and predicts no text: use kintsugi classify, or "
        "kintsugi embed",
        directory.string(), config.labels.size());
  return config;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr std::int64_t kFixedReads = 64;  // rows of logits at a time, if deterministic
constexpr std::int64_t kQueryRows = 64;   // of a tile of a chunk: tokens x heads per key-value head

InferenceOptions complete(InferenceOptions options, const ModelConfig& config, bool on_host) {
  if (options.max_length == 0) options.max_length = config.max_positions;
  if (config.positions() == PositionKind::Learned)
    options.max_length = std::min(options.max_length, config.max_positions);
  if (options.max_sequences == 0) options.max_sequences = on_host ? 16 : 64;
  if (options.step_tokens == 0) {
    options.step_tokens = on_host ? 256 : 4096;
    if (options.deterministic) options.step_tokens = on_host ? 64 : 256;
  }
  if (options.deterministic)  // the same for any number of sequences
    options.step_tokens = padded_singles(options.step_tokens);
  else
    options.step_tokens = std::max(options.step_tokens, padded_singles(options.max_sequences));
  return options;
}

ModelShard tensor_shard(const ModelConfig& config, const Communicator& tensor) {
  check_tensor_ranks(config, tensor.size(), "the number of ranks of a model");
  ModelShard shard = whole_model(config);
  shard.tp = tensor.size();
  shard.tp_rank = tensor.rank();
  return shard;
}

StageLayers all_layers(const ModelConfig& config) {
  return {.last_layer = static_cast<int>(config.layers)};
}

// Collects integers on the host and places them in device memory with one upload.
class IntegerUpload {
 public:
  explicit IntegerUpload(Tensor memory) : memory_(memory) {}

  Tensor add(const std::vector<std::int32_t>& values, std::int64_t columns = 0) {
    if (values.empty()) return {};
    const std::int64_t first = std::ssize(all_), count = std::ssize(values);
    all_.insert(all_.end(), values.begin(), values.end());
    const Tensor place = memory_.rows(first, count);
    return columns > 0 ? place.view({count / columns, columns}) : place;
  }
  void upload(Backend& backend) { backend.upload(memory_.rows(0, std::ssize(all_)), all_.data()); }

 private:
  Tensor memory_;
  std::vector<std::int32_t> all_;
};

// The most integers that a step uploads.
std::int64_t most_integers(const InferenceOptions& o) {
  const std::int64_t rows = o.step_tokens, sequences = padded_singles(o.max_sequences);
  const std::int64_t by_row = 3, by_read = 2, tile = 4;
  return by_row * rows + by_read * (rows + kFixedReads) + sequences +
         tile * (2 * rows + sequences) +
         sequences * ceil_div(padded_keys(o.max_length), kPageTokens);
}

// The results of `rows` rows of logits in one block of memory.
struct Results {
  Results(void* address, DType wide, std::int64_t rows, std::int64_t largest) {
    auto* next = static_cast<std::byte*>(address);
    const auto take = [&](DType dtype, Shape shape) {
      const Tensor result(next, dtype, shape);
      next += result.bytes();
      return result;
    };
    values = take(wide, {rows, largest});
    log_sum = take(wide, {rows});
    chosen = take(wide, {rows});
    ids = take(DType::I32, {rows, largest});
  }
  // The size of the block, in integers.
  static std::int64_t integers(DType wide, std::int64_t rows, std::int64_t largest) {
    const std::int64_t wide_integers = static_cast<std::int64_t>(size_of(wide)) / 4;
    return rows * (largest + 2) * wide_integers +
           ceil_div(rows * largest, wide_integers) * wide_integers;  // the next block is aligned
  }
  Tensor values, log_sum, chosen, ids;
};

// Element i of a tensor of fp32 or fp64 in host memory.
double number(const Tensor& x, std::int64_t i) {
  return x.dtype() == DType::F64 ? x.as<double>()[i] : static_cast<double>(x.as<float>()[i]);
}

// log(exp(a) + exp(b)); the other one if one is -infinity.
double log_add(double a, double b) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  if (a == kNothing) return b;
  if (b == kNothing) return a;
  const double largest = std::max(a, b);
  return largest + std::log(std::exp(a - largest) + std::exp(b - largest));
}

}  // namespace

// All memory besides weights and caches.
struct InferenceModel::Work {
  Work(Backend& backend, Arena& arena, const ParameterStore& store, const ModelConfig& config,
       const ModelGroups& groups, const InferenceOptions& o)
      : scratch(backend, arena, store, config, groups,
                {.length = o.step_tokens,
                 .max_positions = o.max_length,
                 .training = false,
                 .classifier_chunk = head_rows(backend, config, groups.tensor->size(), o)}),
        stage(scratch, arena, all_layers(config),
              allocate_stage_memory(scratch, arena, 1, {all_layers(config)}), {}, nullptr),
        wide(accumulator_of(store.dtype())) {
    const DType dtype = store.dtype();
    const std::int64_t tp = groups.tensor->size();
    output = arena.allocate(Region::Activations, "last block's output", dtype,
                            {o.step_tokens, config.hidden_size});
    gathered =
        arena.allocate(Region::Workspace, "rows to read", dtype, {head_rows(), config.hidden_size});
    integers = arena.allocate(Region::Workspace, "batch", DType::I32, {most_integers(o)});
    results = arena.allocate(Region::Communication, "results", DType::I32,
                             {tp * Results::integers(wide, head_rows(), kMostLargest)});
    if (tp > 1)
      row = arena.allocate(Region::Communication, "logits of a row", dtype,
                           {tp * ceil_div(config.vocab_size, tp)});
  }
  // Rows of logits at a time: all single tokens of a step, or as many as the backend likes.
  static std::int64_t head_rows(const Backend& backend, const ModelConfig& config, std::int64_t tp,
                                const InferenceOptions& o) {
    if (o.deterministic) return kFixedReads;
    return std::max(padded_singles(o.max_sequences),
                    Head::default_chunk(backend.classifier_elements(),
                                        ceil_div(config.vocab_size, tp), o.step_tokens));
  }
  std::int64_t head_rows() const { return stage.head().chunk(); }

  StageScratch scratch;
  Stage stage;
  DType wide;
  Tensor output, gathered;  // (tokens, hidden), (rows of logits, hidden)
  Tensor integers;          // what a step uploads
  Tensor results, row;      // of all ranks
};

// A step in device memory.
struct InferenceModel::Inputs {
  MicroBatch batch;
  CachedTokens cached;
  Tensor read_rows, targets;
  std::int64_t largest = 1;
};

// ---- construction

InferenceModel::InferenceModel(Backend& backend, Communicator& tensor,
                               const std::filesystem::path& directory,
                               const InferenceOptions& options)
    : backend_(backend),
      tensor_(tensor),
      alone_("alone", &backend),
      config_(generating_config(directory)),
      options_(complete(options, config_, backend.host() == &backend)),
      set_(config_, tensor_shard(config_, tensor)),
      arena_(backend) {
  plan();
  const SafetensorsModel files(directory);
  std::optional<StoredAdapter> adapter;
  if (!options_.adapter.empty()) adapter.emplace(options_.adapter, config_, directory);
  store_ = std::make_unique<ParameterStore>(set_, arena_, options_.precision, false);
  work_ = std::make_unique<Work>(backend_, arena_, *store_, config_,
                                 ModelGroups{.tensor = &tensor_, .context = &alone_}, options_);
  allocate_caches();
  shape_.has_pages = has_pages_;
  if (options_.deterministic) {
    shape_.fixed_rows = options_.step_tokens;
    shape_.fixed_reads = work_->head_rows();
  }
  shape_.pads_singles = !backend_.is_on_host(work_->output);
  const VerifyShare verify{tensor_.rank(), tensor_.size()};
  load_parameters(backend_, *store_, files, config_,
                  {.unused = options.unused, .verify = verify, .progress = options.loading});
  if (adapter) apply_adapter(backend_, *store_, *adapter, verify);
  work_->scratch.prepare();
  backend_.synchronize();  // from here on the weights are constant
}

InferenceModel::~InferenceModel() = default;

// Decides how many pages there are, before anything is allocated or read.
void InferenceModel::plan() {
  PlanningAllocator nothing;
  Arena weights(nothing), arena(nothing);
  const ParameterStore store(set_, weights, options_.precision, false);
  const Work work(backend_, arena, store, config_, {&tensor_, &alone_}, options_);
  std::size_t token_bytes = 0, states = 0;
  std::vector<std::string_view> labels;
  for (int layer = 0; layer < static_cast<int>(config_.layers); ++layer) {
    const Declaration declared = work.scratch.declaration(layer);
    for (const CacheSpec& spec : declared.caches()) {
      const std::size_t size = size_of(spec.wide ? work.wide : options_.precision);
      token_bytes += as_size(spec.per_token) * size;
      states += as_size(spec.fixed * options_.max_sequences) * size;
      if (spec.per_token > 0)
        shape_.tile_tokens = std::max<std::int64_t>(1, kQueryRows / spec.queries);
      if (std::find(labels.begin(), labels.end(), spec.label) == labels.end())
        labels.push_back(spec.label);
    }
  }
  has_pages_ = token_bytes > 0;
  is_recurrent_ = states > 0;
  // Ranks on CPUs share the memory of their node.
  const std::size_t free = backend_.available_bytes() / as_size(options_.memory_shares),
                    fixed = weights.total_bytes() + arena.total_bytes() + states;
  const std::int64_t one = ceil_div(options_.max_length, kPageTokens);
  std::int64_t wanted = has_pages_ ? options_.max_sequences * one : 0;
  if (has_pages_ && options_.cache_tokens > 0) {
    wanted = ceil_div(options_.cache_tokens, kPageTokens);
    if (wanted < one)
      user_error(
          "a cache of {} tokens is too small for sequences of {}: raise --cache-tokens or lower "
          "--max-length",
          options_.cache_tokens, options_.max_length);
  } else if (has_pages_) {  // what the sequences can need, or what leaves a tenth of the memory
    const std::size_t most = free > fixed ? (free - fixed) / 10 * 9 : 0;
    const auto fit = static_cast<std::int64_t>(most / (token_bytes * as_size(kPageTokens)));
    wanted = std::max(one, std::min(wanted, fit));
  }
  const std::size_t caches = states + as_size(wanted * kPageTokens) * token_bytes;
  if (fixed - states + caches > free) {
    const auto text = [](std::size_t bytes) { return format_bytes(static_cast<double>(bytes)); };
    user_error(
        "this needs {} for the weights, {} for {} and {} of work memory for sequences of {} "
        "tokens, but {} is free: use shorter sequences{} or a smaller model",
        text(weights.total_bytes()), text(caches), fmt::join(labels, " and "),
        text(arena.total_bytes()), options_.max_length, text(free),
        size_of(options_.precision) > 2 ? ", --precision bf16" : "");
  }
  // All ranks use as many pages as the one with the least memory.
  pages_ = -largest_of(backend_, tensor_, -static_cast<std::int32_t>(wanted));
  options_.cache_tokens = pages_ * kPageTokens;
}

void InferenceModel::allocate_caches() {
  for (int layer = 0; layer < static_cast<int>(config_.layers); ++layer) {
    LayerCache& cache = caches_.emplace_back();
    const Declaration declared = work_->scratch.declaration(layer);
    for (const CacheSpec& spec : declared.caches())
      cache.tensors.push_back(arena_.allocate(
          Region::Activations, std::string(spec.label), spec.wide ? work_->wide : store_->dtype(),
          spec.fixed > 0 ? Shape{options_.max_sequences, spec.fixed}
                         : Shape{options_.cache_tokens, spec.per_token}));
  }
}

// ---- one step

std::vector<std::vector<ReadLogits>> InferenceModel::compute(
    const std::vector<StepSequence>& sequences) {
  if (tensor_.size() > 1) send_step(backend_, tensor_, sequences);
  return run(sequences);
}

void InferenceModel::end() {
  if (tensor_.size() > 1) send_end(backend_, tensor_);
}

void InferenceModel::follow() {
  while (const auto sequences = receive_step(backend_, tensor_)) run(*sequences);
}

std::vector<std::vector<ReadLogits>> InferenceModel::run(
    const std::vector<StepSequence>& sequences) {
  const StepLayout layout(sequences, shape_);
  const Inputs inputs = upload(layout);
  const std::int64_t reads = layout.reads(), chunk = work_->head_rows();
  const bool recorded = layout.key != 0 && tensor_.size() == 1 && reads <= chunk;
  if (recorded)
    backend_.replay(layout.key, [&] {
      forward(inputs);
      read(inputs, 0, reads);
    });
  else
    forward(inputs);
  std::vector<ReadLogits> all;
  for (std::int64_t first = 0; first < reads; first += chunk) {
    const std::int64_t count = std::min(chunk, reads - first);
    if (!recorded) read(inputs, first, count);
    std::vector<ReadLogits> part = download(count, inputs.largest);
    for (const std::int64_t whole : layout.whole_reads)
      if (whole >= first && whole < first + count)
        part[as_size(whole - first)].all = download_row(whole - first);
    std::move(part.begin(), part.end(), std::back_inserter(all));
  }
  std::vector<std::vector<ReadLogits>> result(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i)
    for (const std::int64_t index : layout.reads_of[i])
      result[i].push_back(std::move(all[as_size(index)]));
  return result;
}

InferenceModel::Inputs InferenceModel::upload(const StepLayout& layout) {
  IntegerUpload integers(work_->integers);
  Inputs inputs;
  inputs.batch = {.sequences = 1,
                  .length = layout.rows(),
                  .ids = integers.add(layout.ids),
                  .positions = integers.add(layout.positions)};
  inputs.cached = {.deterministic = options_.deterministic,
                   .singles = layout.singles,
                   .chunks = layout.chunks,
                   .page_tokens = kPageTokens,
                   .rows = integers.add(layout.cache_rows),
                   .pages = integers.add(layout.pages, layout.page_columns),
                   .single_tiles = integers.add(layout.single_tiles, 4),
                   .chunk_tiles = integers.add(layout.chunk_tiles, 4),
                   .chunk_tile_tokens = shape_.tile_tokens,
                   .max_keys = layout.max_keys,
                   .slots = integers.add(layout.slots)};
  inputs.read_rows = integers.add(layout.read_rows);
  inputs.targets = integers.add(layout.targets);
  // The last rank may have the fewest columns of the vocabulary.
  const std::int64_t ranks = tensor_.size(), others = ceil_div(config_.vocab_size, ranks);
  inputs.largest =
      std::min({layout.largest, kMostLargest, config_.vocab_size - (ranks - 1) * others});
  integers.upload(backend_);
  return inputs;
}

void InferenceModel::forward(const Inputs& inputs) {
  MicroBatch batch = inputs.batch;
  batch.cached = &inputs.cached;
  work_->stage.forward(batch, 0, work_->output.rows(0, batch.tokens()), &caches_);
}

void InferenceModel::read(const Inputs& inputs, std::int64_t first, std::int64_t count) {
  const Tensor rows = work_->gathered.rows(0, count);
  backend_.embedding_forward(rows, inputs.read_rows.rows(first, count),
                             work_->output.rows(0, inputs.batch.tokens()), false);
  const Head& head = work_->stage.head();
  const MicroBatch batch{.sequences = 1, .length = count, .cached = &inputs.cached};
  const Tensor logits = head.logits(work_->scratch.run(batch), rows);
  const std::int64_t size = Results::integers(work_->wide, count, inputs.largest);
  const Tensor all = work_->results.rows(0, tensor_.size() * size),
               own = all.rows(tensor_.rank() * size, size);
  const Results results(own.data(), work_->wide, count, inputs.largest);
  backend_.read_logits(results.values, results.ids, results.log_sum, results.chosen, logits,
                       inputs.targets.rows(first, count), head.vocabulary().begin);
  if (tensor_.size() > 1) tensor_.wait(tensor_.all_gather(all, own));
}

// Merges the results of the ranks, each of which has a part of the vocabulary.
std::vector<ReadLogits> InferenceModel::download(std::int64_t count, std::int64_t largest) {
  const std::int64_t size = Results::integers(work_->wide, count, largest);
  std::vector<std::int32_t> host(as_size(tensor_.size() * size));
  backend_.download(host.data(), work_->results.rows(0, std::ssize(host)));
  std::vector<ReadLogits> rows(as_size(count));
  for (ReadLogits& row : rows) row.log_sum = row.chosen = -std::numeric_limits<double>::infinity();
  for (int rank = 0; rank < tensor_.size(); ++rank) {
    const Results part(host.data() + rank * size, work_->wide, count, largest);
    for (std::int64_t i = 0; i < count; ++i) {
      ReadLogits& row = rows[as_size(i)];
      row.log_sum = log_add(row.log_sum, number(part.log_sum, i));
      row.chosen = std::max(row.chosen, number(part.chosen, i));
      for (std::int64_t j = i * largest; j < (i + 1) * largest; ++j)
        row.largest.push_back({part.ids.as<std::int32_t>()[j], number(part.values, j)});
    }
  }
  for (ReadLogits& row : rows) {
    std::stable_sort(row.largest.begin(), row.largest.end(),
                     [](const auto& a, const auto& b) { return a.logit > b.logit; });
    row.largest.resize(as_size(largest));
  }
  return rows;
}

std::vector<double> InferenceModel::download_row(std::int64_t row) {
  const Tensor logits = work_->stage.head().logits_memory();
  const Tensor own = logits.rows(row, 1).view({logits.extent(1)});
  const std::int64_t part = ceil_div(config_.vocab_size, tensor_.size());
  Tensor all = own;
  if (tensor_.size() > 1) {
    const Tensor mine = work_->row.rows(tensor_.rank() * part, part);
    backend_.copy(mine.rows(0, own.extent(0)), own);
    tensor_.wait(tensor_.all_gather(work_->row, mine));
    all = work_->row.rows(0, config_.vocab_size);
  }
  std::vector<double> values(as_size(all.elements()));
  visit_float(all.dtype(), [&]<class T>() {
    std::vector<T> stored(values.size());
    backend_.download(stored.data(), all);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<double>(static_cast<Accumulator<T>>(stored[i]));
  });
  return values;
}

}  // namespace kintsugi
