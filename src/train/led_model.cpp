#include "train/led_model.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "comm/exchange.h"

namespace kintsugi {
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
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
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
