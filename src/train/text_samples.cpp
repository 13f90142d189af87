#include "train/text_samples.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "data/chat/prompt_encoder.h"
#include "data/sampling/sample_reader.h"
#include "serve/text_output.h"
#include "train/checkpoint/tokenizer_files.h"
#include "train/training_model.h"

namespace kintsugi {

SamplePrompts::SamplePrompts(const RunConfig& config, const Tokenizer& tokenizer)
    : tokenizer_(tokenizer.clone()) {
  const PromptSettings settings = read_prompt_settings(tokenizer_files(tokenizer, config.model));
  const PromptEncoder encoder(*tokenizer_, settings, BosChoice::Auto, config.model.bos_token);
  for (const std::string& prompt : config.train.samples.prompts) {
    const TokenIds& ids = ids_.emplace_back(encoder.encode(prompt, SpecialTokens::Honoured));
    if (ids.empty()) user_error("train.samples.prompts: '{}' has no tokens", prompt);
    if (std::ssize(ids) > config.data.sequence_length)
      user_error(
          "train.samples.prompts: '{}' has {} tokens, but data.sequence_length is {}: shorten it",
          prompt, ids.size(), config.data.sequence_length);
    for (const std::int32_t id : ids)
      if (id < 0 || id >= config.model.vocab_size)
        user_error("train.samples.prompts: '{}' has token {}, but model.vocab_size is {}: raise it",
                   prompt, id, config.model.vocab_size);
  }
}

std::string SamplePrompts::text(std::size_t prompt, std::span<const std::int32_t> tokens) const {
  TextOutput output(tokenizer_.get(), ids_[prompt]);
  std::string text;
  for (const std::int32_t token : tokens) text += output.add(token);
  return text;
}

namespace {

// The next token of each text. Micro-batches are dealt to the data ranks in turn, as in a
// validation: all of them compute as many of the same size, perhaps rows without targets.
class NextTokens {
 public:
  explicit NextTokens(Engine& engine) : engine_(engine), lengths_(row_lengths(engine)) {}

  std::vector<std::int32_t> find(const std::vector<const TokenIds*>& texts) {
    std::size_t longest = 0;
    for (const TokenIds* text : texts) longest = std::max(longest, text->size());
    const auto length = static_cast<std::int64_t>(
        *std::ranges::find_if(lengths_, [&](std::size_t one) { return one >= longest; }));
    logits_.assign(texts.size(), -std::numeric_limits<double>::infinity());
    ids_.assign(texts.size(), std::numeric_limits<std::int32_t>::max());
    const Groups& groups = engine_.groups();
    const std::int64_t micro = engine_.micro_sequences(length), round = micro * groups.grid.dp;
    for (std::int64_t first = 0; first < std::ssize(texts); first += round)
      compute(texts, first + micro * groups.coordinates.dp,
              std::min(micro, std::ssize(texts) - first), length);
    return reduced();
  }

 private:
  // Up to `rows` texts from `first` on.
  void compute(const std::vector<const TokenIds*>& texts, std::int64_t first, std::int64_t rows,
               std::int64_t length) {
    const std::int64_t count = std::clamp<std::int64_t>(std::ssize(texts) - first, 0, rows);
    SampleBatch batch(rows, {.length = length, .document_mask = engine_.options().documents});
    std::ranges::fill(batch.ids, 0);
    std::ranges::fill(batch.targets, -1);
    for (std::int64_t i = 0; i < rows; ++i) {
      const SampleRow row = batch.row(i);
      std::iota(row.positions.begin(), row.positions.end(), 0);
      std::ranges::fill(row.document_start, 0);
      if (i >= count) continue;
      const TokenIds& text = *texts[first + i];
      std::copy(text.begin(), text.end(), row.ids.begin());
      row.targets[text.size() - 1] = 0;  // marks the token whose successor is predicted
    }
    engine_.predict({.ids = batch.ids,
                     .targets = batch.targets,
                     .positions = batch.positions,
                     .document_start = batch.document_start,
                     .length = length},
                    [&](std::size_t token, double logit, std::int32_t id) {
                      const auto text = static_cast<std::size_t>(first) +
                                        token / static_cast<std::size_t>(length);
                      logits_[text] = logit;
                      ids_[text] = id;
                    });
  }

  // Of the shards of the vocabulary, the one with the largest logit decides; of equals the lowest.
  std::vector<std::int32_t> reduced() {
    Communicator& world = engine_.groups()[GroupKind::World];
    const std::int64_t count = std::ssize(logits_);
    std::vector<double> largest = logits_;
    world.wait(world.all_reduce(Tensor(largest.data(), DType::F64, {count}), ReduceOp::Max));
    std::vector<std::int64_t> ids(ids_.begin(), ids_.end());
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (logits_[i] != largest[i]) ids[i] = std::numeric_limits<std::int32_t>::max();
    // The lowest by Max, because not every communicator has Min.
    for (std::int64_t& id : ids) id = -id;
    world.wait(world.all_reduce(Tensor(ids.data(), DType::I64, {count}), ReduceOp::Max));
    std::vector<std::int32_t> result;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!std::isfinite(largest[i]))
        throw LogitsNotFinite("the logits of the model are not finite");
      result.push_back(static_cast<std::int32_t>(-ids[i]));
    }
    return result;
  }

  Engine& engine_;
  std::vector<std::size_t> lengths_;
  std::vector<double> logits_;  // by text, on this rank; -infinity: another rank has it
  std::vector<std::int32_t> ids_;
};

}  // namespace

std::optional<std::vector<TokenIds>> continue_greedily(Engine& engine,
                                                       const std::vector<TokenIds>& prompts,
                                                       const GreedyOptions& options) {
  NextTokens next(engine);
  std::vector<TokenIds> texts = prompts, results(prompts.size());
  std::vector<bool> ended(prompts.size());
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    std::vector<const TokenIds*> open;
    std::vector<std::size_t> numbers;
    for (std::size_t k = 0; k < texts.size(); ++k) {
      if (ended[k] || std::ssize(texts[k]) > engine.options().length) continue;
      open.push_back(&texts[k]);
      numbers.push_back(k);
    }
    if (open.empty()) break;
    if (options.interrupts && options.interrupts()) return std::nullopt;
    const std::vector<std::int32_t> found = next.find(open);
    for (std::size_t j = 0; j < found.size(); ++j) {
      const std::size_t k = numbers[j];
      ended[k] = found[j] == options.end_token;
      if (ended[k]) continue;
      texts[k].push_back(found[j]);
      results[k].push_back(found[j]);
    }
  }
  return results;
}

}  // namespace kintsugi
