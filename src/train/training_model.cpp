#include "train/training_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "comm/exchange.h"
#include "data/chat/prompt_encoder.h"
#include "eval/run/engine_model.h"
#include "train/checkpoint/tokenizer_files.h"

namespace kintsugi {
namespace {

// A document of `count` tokens from `first` on.
void write_document(SampleRow row, std::size_t first, std::size_t count) {
  if (row.positions.empty()) return;
  const auto from = [&](std::span<std::int32_t> x) { return x.subspan(first, count); };
  std::iota(from(row.positions).begin(), from(row.positions).end(), 0);
  std::fill_n(from(row.document_start).begin(), count, static_cast<std::int32_t>(first));
}

}  // namespace

std::size_t tokens_read(const TokenPair& pair) {
  const std::size_t tokens = pair.context.size() + pair.continuation.size();
  return tokens == 0 ? 0 : tokens - 1;
}

ScoringRows::ScoringRows(std::span<const TokenPair> pairs, std::span<const std::size_t> requests,
                         std::size_t length, bool packed)
    : pairs_(pairs), length_(length) {
  std::size_t used = length;  // of the last row
  for (const std::size_t i : requests) {
    const std::size_t tokens = std::min(tokens_read(pairs[i]), length);
    if (!packed || used + tokens > length) {
      rows_.push_back(pieces_.size());
      used = 0;
    }
    pieces_.push_back({i, used});
    used += tokens;
  }
  rows_.push_back(pieces_.size());
}

std::span<const ScoringRows::Piece> ScoringRows::pieces_of(std::int64_t row) const {
  const auto at = static_cast<std::size_t>(row);
  return std::span(pieces_).subspan(rows_[at], rows_[at + 1] - rows_[at]);
}

std::size_t ScoringRows::requests(std::int64_t first, std::int64_t end) const {
  return rows_[end] - rows_[first];
}

void ScoringRows::fill(std::int64_t row, SampleRow to) const {
  std::ranges::fill(to.targets, -1);
  std::size_t used = 0;
  for (const Piece& piece : pieces_of(row)) {
    const TokenPair& pair = pairs_[piece.request];
    const LocalInput input = local_input(pair, length_);
    std::copy(input.ids.begin(), input.ids.end(), to.ids.begin() + static_cast<long>(piece.first));
    used = piece.first + input.ids.size();
    std::copy(pair.continuation.begin(), pair.continuation.end(),
              to.targets.begin() + static_cast<long>(used - input.scored));
    write_document(to, piece.first, input.ids.size());
  }
  std::fill(to.ids.begin() + static_cast<long>(used), to.ids.end(), 0);
  write_document(to, used, length_ - used);
}

std::size_t ScoringRows::request_at(std::int64_t row, std::size_t token) const {
  const std::span<const Piece> pieces = pieces_of(row);
  const auto after =
      std::upper_bound(pieces.begin(), pieces.end(), token,
                       [](std::size_t at, const Piece& piece) { return at < piece.first; });
  return (after - 1)->request;
}

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

// Micro-batches are dealt to the data ranks in turn, as in a validation: all of them compute as
// many of the same size, a rank with fewer rows some without targets.
void TrainingModel::add_rows(const ScoringRows& rows, Sums& sums, const ScoringProgress& progress) {
  const Groups& groups = engine_->groups();
  const auto length = static_cast<std::int64_t>(rows.length());
  const std::int64_t micro = engine_->micro_sequences(length), round = micro * groups.grid.dp;
  SampleBatch batch(micro, {.length = length, .document_mask = engine_->options().documents});
  for (std::int64_t first = 0; first < rows.size(); first += round) {
    const std::int64_t own = first + micro * groups.coordinates.dp;
    const std::int64_t count = std::clamp<std::int64_t>(rows.size() - own, 0, micro);
    batch.resize(std::min(rows.size() - first, micro));
    std::ranges::fill(batch.targets, -1);
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

namespace {

// Requests as bytes: the lengths of context and continuation, then their ids. An empty text ends
// the evaluation.
std::string text_of_pairs(std::span<const TokenPair> pairs) {
  std::vector<std::int32_t> values;
  for (const TokenPair& pair : pairs) {
    values.push_back(static_cast<std::int32_t>(pair.context.size()));
    values.push_back(static_cast<std::int32_t>(pair.continuation.size()));
    values.insert(values.end(), pair.context.begin(), pair.context.end());
    values.insert(values.end(), pair.continuation.begin(), pair.continuation.end());
  }
  std::string text(values.size() * sizeof(std::int32_t), '\0');
  if (!values.empty()) std::memcpy(text.data(), values.data(), text.size());
  return text;
}

std::size_t tokens_of(const TokenPair& pair) {
  return pair.context.size() + pair.continuation.size();
}

std::vector<TokenPair> pairs_of_text(const std::string& text) {
  std::vector<std::int32_t> values(text.size() / sizeof(std::int32_t));
  if (!values.empty()) std::memcpy(values.data(), text.data(), text.size());
  std::vector<TokenPair> pairs;
  for (auto at = values.begin(); at != values.end();) {
    const std::int32_t context = *at++, continuation = *at++;
    TokenPair& pair = pairs.emplace_back();
    pair.context.assign(at, at + context);
    at += context;
    pair.continuation.assign(at, at + continuation);
    at += continuation;
  }
  return pairs;
}

}  // namespace

LedModel::LedModel(ScoringModel& model, Communicator& group, std::function<bool()> interrupts,
                   std::size_t block_tokens)
    : model_(&model),
      group_(&group),
      interrupts_(std::move(interrupts)),
      block_tokens_(block_tokens) {}

std::vector<ContinuationScore> LedModel::score(std::span<const TokenPair> pairs,
                                               const ScoringProgress& progress) {
  // Requests of about the same length share a block.
  std::vector<std::size_t> order(pairs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return tokens_of(pairs[a]) < tokens_of(pairs[b]);
  });
  std::vector<ContinuationScore> scores(pairs.size());
  std::vector<TokenPair> block;
  for (std::size_t done = 0; done < order.size(); done += block.size()) {
    block.clear();
    std::size_t tokens = 0;
    for (std::size_t i = done; i < order.size(); ++i) {
      tokens += tokens_of(pairs[order[i]]);
      if (!block.empty() && tokens > block_tokens_) break;
      block.push_back(pairs[order[i]]);
    }
    const std::vector<ContinuationScore> found = score_block(block, progress);
    for (std::size_t i = 0; i < found.size(); ++i) scores[order[done + i]] = found[i];
  }
  return scores;
}

std::vector<ContinuationScore> LedModel::score_block(const std::vector<TokenPair>& block,
                                                     const ScoringProgress& progress) {
  ended_ = true;  // if anything is thrown from here on, the others end by themselves
  if (interrupts_()) throw Interrupted();
  text_of(*group_, 0, group_->size() > 1 ? text_of_pairs(block) : "");
  std::vector<ContinuationScore> scores = model_->score(block, progress);
  ended_ = false;
  return scores;
}

void LedModel::finish() {
  if (std::exchange(ended_, true)) return;
  if (!interrupts_()) text_of(*group_, 0, "");
}

void LedModel::follow() {
  while (!interrupts_()) {
    const std::string block = text_of(*group_, 0, "");
    if (block.empty()) return;
    model_->score(pairs_of_text(block), {});
  }
}

}  // namespace kintsugi
