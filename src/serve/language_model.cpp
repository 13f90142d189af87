#include "serve/language_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/units.h"
#include "model/initialize.h"
#include "tensor/safetensors.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kPrefill = 256;  // prompt tokens per forward

std::vector<float> to_host(Backend& backend, const Tensor& row) {
  std::vector<float> values(static_cast<std::size_t>(row.elements()));
  visit_float(row.dtype(), [&]<class T>() {
    std::vector<T> stored(values.size());
    backend.download(stored.data(), row);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(static_cast<Accumulator<T>>(stored[i]));
  });
  return values;
}

// Device buffers for a forward over one sequence.
struct Inputs {
  Inputs(Arena& arena, std::int64_t capacity)
      : ids(arena.allocate(Region::Workspace, "batch", DType::I32, {capacity})),
        targets(arena.allocate(Region::Workspace, "batch", DType::I32, {capacity})),
        positions(arena.allocate(Region::Workspace, "batch", DType::I32, {capacity})) {}

  MicroBatch upload(Backend& backend, std::span<const std::int32_t> tokens,
                    std::int64_t first_position) const {
    const auto n = static_cast<std::int64_t>(tokens.size());
    std::vector<std::int32_t> at(tokens.size());
    std::iota(at.begin(), at.end(), static_cast<std::int32_t>(first_position));
    const MicroBatch batch{.sequences = 1,
                           .length = n,
                           .ids = ids.rows(0, n),
                           .targets = targets.rows(0, n),
                           .positions = positions.rows(0, n)};
    backend.upload(batch.ids, tokens.data());
    backend.upload(batch.positions, at.data());
    return batch;
  }

  Tensor ids, targets, positions;
};

// Everything that one sequence needs besides the weights: model, inputs and caches.
struct Session {
  // `tokens` in total, at most `length` per forward.
  Session(Backend& backend, Arena& arena, const ParameterStore& store, const ModelConfig& config,
          std::int64_t length, std::int64_t tokens, bool with_caches)
      : model(backend, arena, store, config,
              {.length = length, .max_positions = tokens, .training = false}),
        inputs(arena, length),
        total(arena.allocate(Region::Workspace, "scalars", accumulator_of(store.dtype()), {1})) {
    if (with_caches) caches = model.allocate_caches(arena, tokens);
  }

  WholeModel model;
  Inputs inputs;
  Tensor total;  // sum of the losses
  std::vector<LayerCache> caches;
};

Session scoring(Backend& backend, Arena& arena, const ParameterStore& store,
                const ModelConfig& config, std::int64_t tokens) {
  return {backend, arena, store, config, tokens, tokens, false};
}

Session generation(Backend& backend, Arena& arena, const ParameterStore& store,
                   const ModelConfig& config, std::int64_t tokens) {
  return {backend, arena, store, config, std::min(kPrefill, tokens), tokens, true};
}

}  // namespace

LanguageModel::LanguageModel(Backend& backend, const std::filesystem::path& directory,
                             DType precision)
    : backend_(backend),
      config_(read_hf_config(directory / "config.json")),
      precision_(precision),
      set_(config_),
      arena_(backend),
      store_(set_, arena_, precision, false) {
  load_parameters(backend, store_, SafetensorsModel(directory));
}

void LanguageModel::check_memory(Backend& backend, const std::filesystem::path& directory,
                                 DType precision, Use use, std::int64_t tokens) {
  const ModelConfig config = read_hf_config(directory / "config.json");
  const ParameterSet set(config);
  PlanningAllocator nothing;
  Arena weights(nothing), arena(nothing);
  const ParameterStore store(set, weights, precision, false);
  const Session session = use == Use::Scoring ? scoring(backend, arena, store, config, tokens)
                                              : generation(backend, arena, store, config, tokens);
  std::size_t caches = 0;
  for (const LayerCache& cache : session.caches)
    for (const Tensor& x : cache.tensors) caches += x.bytes();
  const std::size_t rest = arena.total_bytes() - caches;
  const std::size_t available = backend.available_bytes();
  if (weights.total_bytes() + caches + rest <= available) return;
  const auto text = [](std::size_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  const std::string cached = caches == 0
                                 ? ""
                                 : fmt::format(", {} for {}", text(caches),
                                               fmt::join(session.caches.front().labels, " and "));
  user_error(
      "this needs {} for the weights{} and {} of work memory for {} tokens, but {} is free: use "
      "fewer tokens{} or a smaller model",
      text(weights.total_bytes()), cached, text(rest), tokens, text(available),
      size_of(precision) > 2 ? ", --precision bf16" : "");
}

void LanguageModel::check_tokens(const ModelConfig& config, std::span<const std::int32_t> tokens,
                                 std::int64_t length) {
  if (tokens.empty()) user_error("the prompt is empty: give at least one token");
  for (const std::int32_t token : tokens)
    if (token < 0 || token >= config.vocab_size)
      user_error("token id {} is outside the model's vocabulary of {}", token, config.vocab_size);
  if (config.positions() == PositionKind::Learned && length > config.max_positions)
    user_error("{} tokens are too many for a model with {} positions", length,
               config.max_positions);
}

void LanguageModel::check_prompt(const ModelConfig& config, std::span<const std::int32_t> prompt,
                                 std::int64_t max_tokens) {
  // The last generated token is not an input.
  check_tokens(config, prompt, static_cast<std::int64_t>(prompt.size()) + max_tokens - 1);
}

std::vector<double> LanguageModel::log_probabilities(std::span<const std::int32_t> tokens) {
  const auto n = static_cast<std::int64_t>(tokens.size()) - 1;
  check_tokens(config_, tokens, n);
  if (n == 0) return {};
  Arena arena(backend_);
  Session session = scoring(backend_, arena, store_, config_, n);
  WholeModel& model = session.model;
  model.prepare();
  const MicroBatch batch =
      session.inputs.upload(backend_, tokens.first(static_cast<std::size_t>(n)), 0);
  backend_.upload(batch.targets, tokens.data() + 1);
  backend_.fill(session.total, 0.0);
  model.evaluate(batch, session.total);
  std::vector<double> result;
  for (const float loss : to_host(backend_, model.losses(n))) {
    if (!std::isfinite(loss))
      not_finite(fmt::format("the loss of token {} is {}", result.size() + 1,
                             std::isnan(loss) ? "NaN" : "infinite"));
    result.push_back(-static_cast<double>(loss));
  }
  return result;
}

std::vector<SampledToken> LanguageModel::score(std::span<const std::int32_t> tokens,
                                               std::int64_t from, std::int64_t top) {
  Arena arena(backend_);
  const auto n = static_cast<std::int64_t>(tokens.size());
  Session session = generation(backend_, arena, store_, config_, n);
  session.model.prepare();
  std::vector<SampledToken> result;
  for (std::int64_t i = 0; i + 1 < n; ++i) {
    const auto logits = to_host(
        backend_,
        session.model.next_logits(
            session.inputs.upload(backend_, tokens.subspan(static_cast<std::size_t>(i), 1), i),
            session.caches));
    if (i + 1 < from) continue;
    SampledToken token = sample_token(
        logits, {.temperature = 0, .logprobs = static_cast<std::int64_t>(logits.size())}, 0);
    token.id = tokens[static_cast<std::size_t>(i + 1)];
    for (const TokenLogprob& t : token.top)
      if (t.id == token.id) token.logprob = t.logprob;
    token.top.resize(static_cast<std::size_t>(std::min<std::int64_t>(top, std::ssize(token.top))));
    result.push_back(std::move(token));
  }
  return result;
}

Finish LanguageModel::generate(std::span<const std::int32_t> prompt, std::int64_t max_tokens,
                               const SamplingOptions& options,
                               const std::function<bool(const SampledToken&)>& on_token) {
  check_prompt(config_, prompt, max_tokens);
  const std::int64_t capacity = static_cast<std::int64_t>(prompt.size()) + max_tokens - 1;
  Arena arena(backend_);
  Session session = generation(backend_, arena, store_, config_, capacity);
  session.model.prepare();

  Tensor logits;
  std::vector<std::int32_t> seen;
  const auto feed = [&](std::span<const std::int32_t> tokens) {
    logits = session.model.next_logits(
        session.inputs.upload(backend_, tokens, static_cast<std::int64_t>(seen.size())),
        session.caches);
    seen.insert(seen.end(), tokens.begin(), tokens.end());
  };
  for (std::size_t first = 0; first < prompt.size(); first += kPrefill)
    feed(prompt.subspan(first, std::min<std::size_t>(kPrefill, prompt.size() - first)));
  for (std::int64_t i = 0; i < max_tokens; ++i) {
    const SampledToken token = sample_token(to_host(backend_, logits), options, seen.size(), seen);
    if (token.id == config_.eos_token) return Finish::EndOfText;
    if (!on_token(token)) return Finish::Stopped;
    if (i + 1 < max_tokens) feed({&token.id, 1});
  }
  return Finish::Length;
}

}  // namespace kintsugi
