#include "data/tokenizer_training/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "core/error.h"
#include "core/units.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/pre_tokenizer.h"
#include "data/tokenizers/tokenizer_formats.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

constexpr std::int32_t kBoundary = -1, kInside = -2;
constexpr std::uint64_t kNoKey = ~std::uint64_t{0};
constexpr std::size_t kPrefetchDistance = 12;

// The pre-tokens of a corpus as tokens, with exact counts of all adjacent pairs, updated at each
// merge.
//
// All pre-tokens are stored in one array with a slot per byte. A token stores its id in the slots
// of its first and its last byte, so both neighbours of a token are found in one access and nothing
// is ever moved. Each pair has the list of slots where it starts; a slot that has changed since is
// recognized by its id. Counts of existing pairs only decrease, so a heap with stale counts, which
// are corrected when they reach the top, gives the best pair.
class MergeLearner {
 public:
  // byte_ids: the id of each byte, 256 consecutive ids in any order. Pairs below min_frequency are
  // dropped: their counts cannot grow again.
  MergeLearner(std::span<const PreTokenCount> pre_tokens, std::span<const std::int32_t> byte_ids,
               std::int64_t min_frequency)
      : min_frequency_(std::max<std::int64_t>(min_frequency, 1)),
        first_byte_(*std::min_element(byte_ids.begin(), byte_ids.end())),
        lengths_(static_cast<std::size_t>(first_byte_) + 256, 1) {
    fill_slots(pre_tokens, byte_ids);
    count_byte_pairs();
  }

  // Empty if none is left.
  std::optional<TrainedBpe::Merge> best() {
    while (!heap_.empty()) {
      const Candidate top = heap_.front();
      const std::int64_t count = pairs_[top.pair].count;
      if (count == top.count)  // it stays in the heap; once merged or forgotten its count is 0
        return TrainedBpe::Merge{static_cast<std::int32_t>(top.key >> 32),
                                 static_cast<std::int32_t>(top.key & 0xFFFFFFFF)};
      std::pop_heap(heap_.begin(), heap_.end());
      if (count == 0) {
        heap_.pop_back();
      } else {
        heap_.back().count = count;
        std::push_heap(heap_.begin(), heap_.end());
      }
    }
    return std::nullopt;
  }

  // Never merge it.
  void forget(TrainedBpe::Merge pair) {
    const auto found = index_.find(key(pair.left, pair.right));
    KINTSUGI_CHECK(found, "no pair {} {}", pair.left, pair.right);
    retire(pairs_[*found]);
  }

  // token: larger than any id so far.
  void merge(TrainedBpe::Merge pair, std::int32_t token) {
    const auto found = index_.find(key(pair.left, pair.right));
    KINTSUGI_CHECK(found && pairs_[*found].count > 0, "no pair {} {}", pair.left, pair.right);
    KINTSUGI_CHECK(static_cast<std::size_t>(token) >= lengths_.size(), "token {} exists", token);
    const auto left = static_cast<std::size_t>(pair.left),
               right = static_cast<std::size_t>(pair.right);
    lengths_.resize(static_cast<std::size_t>(token) + 1);
    lengths_.back() = lengths_[left] + lengths_[right];

    const Positions positions = std::move(pairs_[*found].positions);
    retire(pairs_[*found]);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      if (i + kPrefetchDistance < positions.size())
        __builtin_prefetch(&slots_[positions[i + kPrefetchDistance]], 1);
      const std::uint32_t position = positions[i];
      if (slots_[position].token == pair.left &&
          slots_[position + lengths_[left]].token == pair.right)
        merge_at(position, pair, token);
    }
    for (const auto& seen : lefts_.seen()) {
      reduce(key(seen.token, pair.left), seen.count);
      introduce(key(seen.token, token), seen.count, seen.positions);
    }
    for (const auto& seen : rights_.seen()) {
      reduce(key(pair.right, seen.token), seen.count);
      introduce(key(token, seen.token), seen.count, seen.positions);
    }
    for (const auto& seen : repeats_.seen()) {
      reduce(key(pair.right, pair.left), seen.count);
      introduce(key(token, token), seen.count, seen.positions);
    }
    lefts_.clear();
    rights_.clear();
    repeats_.clear();
  }

  std::int64_t corpus_bytes() const { return corpus_bytes_; }
  std::int64_t corpus_tokens() const { return corpus_tokens_; }

 private:
  using Key = std::uint64_t;  // left id, right id; ordered by the tie rule
  using Positions = std::vector<std::uint32_t>;
  static Key key(std::int32_t left, std::int32_t right) {
    return static_cast<Key>(left) << 32 | static_cast<std::uint32_t>(right);
  }

  struct Slot {
    std::int32_t token;
    std::uint32_t pre_token;
  };
  struct Pair {
    std::int64_t count = 0;  // 0: merged, forgotten or too rare
    Positions positions;     // ascending
  };
  struct Candidate {
    std::int64_t count;
    Key key;
    std::uint32_t pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  // Open addressing, linear probing; entries are never removed.
  class PairIndex {
   public:
    PairIndex() : entries_(std::size_t{1} << 17, Entry{kNoKey, 0}) {}

    std::optional<std::uint32_t> find(Key key) const {
      const Entry& entry = entries_[slot_of(key)];
      if (entry.key == kNoKey) return std::nullopt;
      return entry.pair;
    }

    void insert(Key key, std::uint32_t pair) {
      if (2 * ++used_ > entries_.size()) {
        const std::vector<Entry> old = std::move(entries_);
        entries_.assign(2 * old.size(), Entry{kNoKey, 0});
        for (const Entry& entry : old)
          if (entry.key != kNoKey) entries_[slot_of(entry.key)] = entry;
      }
      entries_[slot_of(key)] = {key, pair};
    }

   private:
    struct Entry {
      Key key;
      std::uint32_t pair;
    };

    std::size_t slot_of(Key key) const {
      const std::size_t mask = entries_.size() - 1;
      std::uint64_t hash = key * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
      std::size_t position = hash & mask;
      while (entries_[position].key != key && entries_[position].key != kNoKey)
        position = (position + 1) & mask;
      return position;
    }

    std::vector<Entry> entries_;
    std::size_t used_ = 0;
  };

  // The neighbours on one side during one merge: count and start positions of each new pair.
  class Neighbours {
   public:
    struct Seen {
      std::int32_t token;
      std::int64_t count;
      Positions positions;
    };

    void add(std::int32_t token, std::int64_t count, std::uint32_t position) {
      const auto id = static_cast<std::size_t>(token);
      if (id >= index_.size()) index_.resize(2 * id + 1, -1);
      if (index_[id] < 0) {
        index_[id] = static_cast<std::int32_t>(used_);
        if (used_ == seen_.size()) seen_.emplace_back();
        seen_[used_].token = token;
        seen_[used_].count = 0;
        ++used_;
      }
      Seen& seen = seen_[static_cast<std::size_t>(index_[id])];
      seen.count += count;
      seen.positions.push_back(position);
    }

    std::span<Seen> seen() { return {seen_.data(), used_}; }

    void clear() {
      for (Seen& seen : this->seen()) {
        index_[static_cast<std::size_t>(seen.token)] = -1;
        seen.positions.clear();
      }
      used_ = 0;
    }

   private:
    std::vector<std::int32_t> index_;  // by token; -1: not seen
    std::vector<Seen> seen_;           // entries are reused to keep their memory
    std::size_t used_ = 0;
  };

  void fill_slots(std::span<const PreTokenCount> pre_tokens,
                  std::span<const std::int32_t> byte_ids) {
    std::uint64_t slots = 1;
    for (const PreTokenCount& pre_token : pre_tokens) slots += pre_token.text.size() + 1;
    if (slots > std::numeric_limits<std::uint32_t>::max())
      user_error(
          "the distinct pre-tokens of the corpus take {}, too much to train a tokenizer; train it "
          "on a sample (--sample-bytes)",
          format_bytes(static_cast<double>(slots)));
    slots_.reserve(slots);
    counts_.reserve(pre_tokens.size());
    slots_.push_back({kBoundary, 0});
    for (const PreTokenCount& pre_token : pre_tokens) {
      const auto number = static_cast<std::uint32_t>(counts_.size());
      for (const char letter : pre_token.text)
        slots_.push_back({byte_ids[static_cast<unsigned char>(letter)], number});
      slots_.push_back({kBoundary, number});
      counts_.push_back(pre_token.count);
      corpus_bytes_ += pre_token.count * static_cast<std::int64_t>(pre_token.text.size());
    }
    corpus_tokens_ = corpus_bytes_;
  }

  void count_byte_pairs() {
    std::vector<Pair> found(256 * 256);
    std::vector<std::uint32_t> positions(found.size());
    const auto each_pair = [&](const auto& action) {
      for (std::size_t position = 1; position + 1 < slots_.size(); ++position) {
        const std::int32_t left = slots_[position].token, right = slots_[position + 1].token;
        if (left == kBoundary || right == kBoundary) continue;
        action(static_cast<std::size_t>((left - first_byte_) * 256 + right - first_byte_),
               position);
      }
    };
    each_pair([&](std::size_t pair, std::size_t position) {
      found[pair].count += counts_[slots_[position].pre_token];
      ++positions[pair];
    });
    for (std::size_t pair = 0; pair < found.size(); ++pair)
      if (found[pair].count >= min_frequency_) found[pair].positions.reserve(positions[pair]);
    each_pair([&](std::size_t pair, std::size_t position) {
      if (found[pair].count >= min_frequency_)
        found[pair].positions.push_back(static_cast<std::uint32_t>(position));
    });
    for (std::int32_t left = 0; left < 256; ++left)
      for (std::int32_t right = 0; right < 256; ++right) {
        Pair& pair = found[static_cast<std::size_t>(left * 256 + right)];
        introduce(key(first_byte_ + left, first_byte_ + right), pair.count, pair.positions);
        pair.positions = Positions();
      }
  }

  // Merges the pair that starts at `position` and records its neighbours: (left neighbour,
  // pair.left) becomes (left neighbour, token), and (pair.right, right neighbour) becomes (token,
  // right neighbour). If the same pair follows directly, the next call finds `token` on its left
  // and records the two adjacent tokens as a repeat.
  void merge_at(std::uint32_t position, TrainedBpe::Merge pair, std::int32_t token) {
    const std::uint32_t second = position + lengths_[static_cast<std::size_t>(pair.left)];
    const std::uint32_t after = second + lengths_[static_cast<std::size_t>(pair.right)];
    const std::int64_t count = counts_[slots_[position].pre_token];
    const std::int32_t left = slots_[position - 1].token, right = slots_[after].token;

    if (left != kBoundary)
      (left == token ? repeats_ : lefts_)
          .add(left, count, position - lengths_[static_cast<std::size_t>(left)]);
    if (right != kBoundary) {
      const bool same_follows =
          right == pair.left && slots_[after + (second - position)].token == pair.right;
      if (!same_follows) rights_.add(right, count, position);
    }
    slots_[second - 1].token = kInside;
    slots_[second].token = kInside;
    slots_[position].token = token;
    slots_[after - 1].token = token;
    corpus_tokens_ -= count;
  }

  void introduce(Key key, std::int64_t count, const Positions& positions) {
    if (count < min_frequency_) return;
    const auto number = static_cast<std::uint32_t>(pairs_.size());
    pairs_.push_back({count, Positions(positions.begin(), positions.end())});
    index_.insert(key, number);
    heap_.push_back({count, key, number});
    std::push_heap(heap_.begin(), heap_.end());
  }

  void reduce(Key key, std::int64_t count) {
    const auto found = index_.find(key);
    if (!found) return;
    Pair& pair = pairs_[*found];
    if (pair.count == 0) return;
    pair.count -= count;
    KINTSUGI_CHECK(pair.count >= 0, "pair {:x} counted {} times", key, pair.count);
    if (pair.count < min_frequency_) retire(pair);
  }

  void retire(Pair& pair) {
    pair.count = 0;
    pair.positions = Positions();
  }

  std::int64_t min_frequency_;
  std::int32_t first_byte_;  // the smallest byte id
  std::int64_t corpus_bytes_ = 0, corpus_tokens_ = 0;
  std::vector<std::int64_t> counts_;    // by pre-token
  std::vector<Slot> slots_;             // a boundary before and after each pre-token
  std::vector<std::uint32_t> lengths_;  // by token, in bytes
  std::vector<Pair> pairs_;
  PairIndex index_;
  std::vector<Candidate> heap_;
  Neighbours lefts_, rights_, repeats_;  // repeats: the merged pair next to itself
};

constexpr std::int64_t kBytes = 256, kMostTokens = std::int64_t{1} << 30;
constexpr std::size_t kMergesPerReport = 256;

// The bytes by the code points of their letters, the order of ids in Hugging Face's trainer.
std::array<std::uint8_t, kBytes> bytes_by_letter() {
  std::array<std::uint8_t, kBytes> bytes;
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  std::sort(bytes.begin(), bytes.end(), [](std::uint8_t a, std::uint8_t b) {
    return detail::kByteAlphabet.letter[a] < detail::kByteAlphabet.letter[b];
  });
  return bytes;
}

using Json = nlohmann::ordered_json;

std::vector<std::string> letters_of_tokens(const TrainedBpe& bpe) {
  std::vector<std::string> letters;
  letters.reserve(bpe.tokens.size());
  for (const std::string& token : bpe.tokens)
    letters.push_back(static_cast<std::int64_t>(letters.size()) < bpe.special_tokens
                          ? token
                          : to_byte_alphabet(token));
  return letters;
}

Json model_json(const TrainedBpe& bpe) {
  const std::vector<std::string> letters = letters_of_tokens(bpe);
  Json vocabulary = Json::object();
  auto& entries = vocabulary.get_ref<Json::object_t&>();
  entries.reserve(letters.size());
  // Bypasses ordered_json's own insertion, which searches the whole object for each key.
  for (std::size_t id = 0; id < letters.size(); ++id) entries.emplace_back(letters[id], id);
  // Every version of Hugging Face's library reads "a b", only newer ones read ["a", "b"]. No letter
  // is a space.
  Json merges = Json::array();
  for (const auto& [left, right] : bpe.merges)
    merges.push_back(letters[static_cast<std::size_t>(left)] + " " +
                     letters[static_cast<std::size_t>(right)]);
  return bpe_model_json(std::move(vocabulary), std::move(merges));
}

}  // namespace

// ---- by pair

// ---- by neighbour

void check_bpe_options(const BpeTrainerOptions& options) {
  std::unordered_set<std::string> seen;
  for (const std::string& token : options.special_tokens) {
    if (token.empty()) user_error("a special token is empty");
    if (valid_utf8_prefix(token) != token.size()) user_error("a special token is not UTF-8");
    const auto bytes = from_byte_alphabet(token);
    if (bytes && bytes->size() == 1)
      user_error("the special token '{}' is a letter of the byte alphabet; give it a longer name",
                 token);
    if (!seen.insert(token).second) user_error("the special token '{}' is given twice", token);
  }
  const std::int64_t least = kBytes + static_cast<std::int64_t>(options.special_tokens.size());
  if (options.vocab_size < least)
    user_error("a vocabulary of {} is too small: the 256 bytes and {} special token{} need {}",
               options.vocab_size, options.special_tokens.size(),
               options.special_tokens.size() == 1 ? "" : "s", least);
  if (options.vocab_size > kMostTokens)
    user_error("a vocabulary of {} is too large", options.vocab_size);
  if (options.min_frequency < 0)
    user_error("the minimum frequency of a pair is {}, it must not be negative",
               options.min_frequency);
}

TrainedBpe train_bpe(std::span<const PreTokenCount> pre_tokens, const BpeTrainerOptions& options) {
  check_bpe_options(options);
  TrainedBpe bpe;
  bpe.tokens = options.special_tokens;
  bpe.special_tokens = static_cast<std::int64_t>(bpe.tokens.size());
  std::array<std::int32_t, kBytes> byte_ids;
  for (const std::uint8_t byte : bytes_by_letter()) {
    byte_ids[byte] = static_cast<std::int32_t>(bpe.tokens.size());
    bpe.tokens.emplace_back(1, static_cast<char>(byte));
  }
  std::unordered_set<std::string> reserved;  // bytes whose letters spell a special token
  for (const std::string& token : options.special_tokens)
    if (auto bytes = from_byte_alphabet(token)) reserved.insert(std::move(*bytes));

  MergeLearner learner(pre_tokens, byte_ids, options.min_frequency);
  while (bpe.vocab_size() < options.vocab_size) {
    const auto pair = learner.best();
    if (!pair) break;
    std::string token = bpe.tokens[static_cast<std::size_t>(pair->left)] +
                        bpe.tokens[static_cast<std::size_t>(pair->right)];
    if (reserved.contains(token)) {
      learner.forget(*pair);
      continue;
    }
    learner.merge(*pair, static_cast<std::int32_t>(bpe.tokens.size()));
    bpe.tokens.push_back(std::move(token));
    bpe.merges.push_back(*pair);
    if (options.progress && bpe.merges.size() % kMergesPerReport == 0)
      options.progress(bpe.vocab_size());
  }
  bpe.corpus_bytes = learner.corpus_bytes();
  bpe.corpus_tokens = learner.corpus_tokens();
  return bpe;
}

std::vector<Tokenizer::File> trained_tokenizer_files(const TrainedBpe& bpe, std::string_view family,
                                                     const std::string& end_of_document) {
  const Json byte_level = byte_level_json(true);
  Json post_processor = byte_level;  // changes offsets only: keep the leading space
  post_processor["trim_offsets"] = false;
  Json added = Json::array();
  for (std::size_t id = 0; id < static_cast<std::size_t>(bpe.special_tokens); ++id)
    added.push_back(special_token_json(id, bpe.tokens[id]));
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added},
                          {"normalizer", Json::parse(normalizer_json_of_family(family))},
                          {"pre_tokenizer", Json::parse(PreTokenizer::of_family(family).json())},
                          {"post_processor", post_processor},
                          {"decoder", byte_level},
                          {"model", model_json(bpe)}};
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"eos_token", end_of_document},
                       {"add_prefix_space", false},
                       {"clean_up_tokenization_spaces", false}};
  return {{"tokenizer_config.json", config.dump(2) + "\n"},
          {"tokenizer.json", tokenizer.dump(1) + "\n"}};
}

}  // namespace kintsugi
