#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/tokenizer_training/bpe_trainer.h"

namespace kintsugi {

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
               std::int64_t min_frequency);

  std::optional<TrainedBpe::Merge> best();                 // empty if none is left
  void forget(TrainedBpe::Merge pair);                     // never merge it
  void merge(TrainedBpe::Merge pair, std::int32_t token);  // token: larger than any id so far

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
    PairIndex();
    std::optional<std::uint32_t> find(Key key) const;
    void insert(Key key, std::uint32_t pair);

   private:
    struct Entry {
      Key key;
      std::uint32_t pair;
    };
    std::size_t slot_of(Key key) const;
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
    void add(std::int32_t token, std::int64_t count, std::uint32_t position);
    std::span<Seen> seen() { return {seen_.data(), used_}; }
    void clear();

   private:
    std::vector<std::int32_t> index_;  // by token; -1: not seen
    std::vector<Seen> seen_;           // entries are reused to keep their memory
    std::size_t used_ = 0;
  };

  void fill_slots(std::span<const PreTokenCount> pre_tokens,
                  std::span<const std::int32_t> byte_ids);
  void count_byte_pairs();
  void merge_at(std::uint32_t position, TrainedBpe::Merge pair, std::int32_t token);
  void introduce(Key key, std::int64_t count, const Positions& positions);
  void reduce(Key key, std::int64_t count);
  void retire(Pair& pair);

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

}  // namespace kintsugi
