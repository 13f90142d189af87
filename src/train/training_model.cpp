#include "train/training_model.h"

#include <algorithm>
#include <cmath>

#include "data/chat/prompt_encoder.h"
#include "eval/run/engine_model.h"
#include "train/checkpoint/tokenizer_files.h"

namespace kintsugi {
TaskTokenizer::TaskTokenizer(const Tokenizer& tokenizer, const ModelConfig& model)
    : tokenizer_(tokenizer.clone()),
      vocab_size_(model.vocab_size),
      prefix_token_(prefix_token_of(
          tokenizer, read_prompt_settings(tokenizer_files(tokenizer, model)).bos, model)) {}

const TokenIds& TaskTokenizer::encode(const std::string& text) {
  const auto [found, is_new] = known_.try_emplace(text);
  TokenIds& ids = found->second;
  if (is_new) tokenizer_->encode(text, ids, SpecialTokens::Honoured);
  for (const std::int32_t id : ids)
    if (id < 0 || id >= vocab_size_)
      user_error("a text has token {}, but model.vocab_size is {}: raise it", id, vocab_size_);
  return ids;
}

std::string TaskTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  tokenizer_->decode(ids, text, SpecialTokens::AsText);
  return text;
}

// Of all requests; each token is counted by one rank.
struct TrainingModel::Sums {
  explicit Sums(std::size_t requests) : values(2 * requests) {}
  double& nats(std::size_t request) { return values[2 * request]; }
  double& unlikely(std::size_t request) { return values[2 * request + 1]; }  // tokens

  std::vector<double> values;
};

namespace {

constexpr std::size_t kShortestRow = 32;

}  // namespace

// With document masks, short requests share rows. Context parallelism has a fixed length.
std::vector<std::size_t> row_lengths(const Engine& engine) {
  const EngineOptions& options = engine.options();
  const auto rows =
      static_cast<std::size_t>(options.layout.sequence_parallel ? options.layout.tp : 1);
  std::vector<std::size_t> lengths = {static_cast<std::size_t>(options.length)};
  if (options.documents || options.layout.cp > 1) return lengths;
  while (lengths.front() % (2 * rows) == 0 && lengths.front() / 2 >= kShortestRow)
    lengths.insert(lengths.begin(), lengths.front() / 2);
  return lengths;
}

// Micro-batches are dealt to the data ranks in turn, as in a validation: all of them compute the
// same number, a rank without rows one row without targets.
void TrainingModel::add_rows(const ScoringRows& rows, Sums& sums, const ScoringProgress& progress) {
  const Groups& groups = engine_->groups();
  const auto length = static_cast<std::int64_t>(rows.length());
  const std::int64_t micro = engine_->micro_sequences(length), round = micro * groups.grid.dp;
  SampleBatch batch(micro, {.length = length, .document_mask = engine_->options().documents});
  for (std::int64_t first = 0; first < rows.size(); first += round) {
    const std::int64_t own = first + micro * groups.coordinates.dp;
    const std::int64_t count = std::clamp<std::int64_t>(rows.size() - own, 0, micro);
    batch.resize(std::max<std::int64_t>(count, 1));
    if (count == 0) std::fill(batch.targets.begin(), batch.targets.end(), -1);
    for (std::int64_t i = 0; i < count; ++i) rows.fill(own + i, batch.row(i));
    engine_->score({.ids = batch.ids,
                    .targets = batch.targets,
                    .positions = batch.positions,
                    .document_start = batch.document_start,
                    .length = length},
                   [&](std::size_t token, double loss, double smallest) {
                     const std::size_t request =
                         rows.request_at(own + static_cast<std::int64_t>(token / rows.length()),
                                         token % rows.length());
                     sums.nats(request) += loss;
                     if (loss != smallest) ++sums.unlikely(request);
                   });
    if (progress) progress(rows.requests(first, std::min(first + round, rows.size())));
  }
}

std::vector<ContinuationScore> TrainingModel::score(std::span<const TokenPair> pairs,
                                                    const ScoringProgress& progress) {
  Sums sums(pairs.size());
  std::size_t shorter = 0;  // the next row length
  for (const std::size_t length : row_lengths(*engine_)) {
    std::vector<std::size_t> requests;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const std::size_t tokens = std::min(tokens_read(pairs[i]), max_length());
      if (!pairs[i].continuation.empty() && tokens > shorter && tokens <= length)
        requests.push_back(i);
    }
    add_rows(ScoringRows(pairs, requests, length, engine_->options().documents), sums, progress);
    shorter = length;
  }
  Communicator& world = engine_->groups()[GroupKind::World];
  world.wait(world.all_reduce(
      Tensor(sums.values.data(), DType::F64, {static_cast<std::int64_t>(sums.values.size())})));
  std::vector<ContinuationScore> scores;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    scores.push_back({-sums.nats(i), sums.unlikely(i) == 0});
    if (!std::isfinite(sums.nats(i)))
      throw ScoreNotFinite(fmt::format("the log-probability of a request is {}", -sums.nats(i)));
  }
  return scores;
}

}  // namespace kintsugi
