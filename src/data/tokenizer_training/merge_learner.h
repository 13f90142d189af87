#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/tokenizer_training/bpe_trainer.h"

namespace kintsugi {

// The pieces of a corpus as tokens, and the counts of all pairs of neighbours in them, kept exact
// while pairs are merged.
//
// All pieces lie in one array with a slot per byte. A token has its id in the slot of its first and
// of its last byte, so both neighbours of a token are one look away and nothing ever moves. Each
// pair knows the slots where it starts; a slot whose token has changed since is recognised by its
// id. Counts of existing pairs only fall, so a heap with stale counts, corrected when they come to
// the top, gives the best pair.
class MergeLearner {
 public:
  // byte_ids: by byte, 256 that follow each other in some order. Pairs below min_frequency are
  // forgotten, they cannot come back.
  MergeLearner(std::span<const PieceCount> pieces, std::span<const std::int32_t> byte_ids,
               std::int64_t min_frequency);

  std::optional<TrainedBpe::Merge> best();                 // none left: empty
  void forget(TrainedBpe::Merge pair);                     // never merge it
  void merge(TrainedBpe::Merge pair, std::int32_t token);  // token: larger than any id so far

  std::int64_t corpus_bytes() const { return corpus_bytes_; }
  std::int64_t corpus_tokens() const { return corpus_tokens_; }

 private:
  using Key = std::uint64_t;  // left id, right id: its order is that of the rule for ties
  using Places = std::vector<std::uint32_t>;
  static Key key(std::int32_t left, std::int32_t right) {
    return static_cast<Key>(left) << 32 | static_cast<std::uint32_t>(right);
  }

  struct Slot {
    std::int32_t token;
    std::uint32_t piece;
  };
  struct Pair {
    std::int64_t count = 0;  // 0: merged, forgotten or too rare
    Places places;           // ascending
  };
  struct Candidate {
    std::int64_t count;
    Key key;
    std::uint32_t pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  // Open addressing, linear probing; nothing is ever taken out.
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
    std::size_t place_of(Key key) const;
    std::vector<Entry> entries_;
    std::size_t used_ = 0;
  };

  // What one merge sees on one side: by neighbour, how often and where the new pair starts.
  class Neighbours {
   public:
    struct Seen {
      std::int32_t token;
      std::int64_t count;
      Places places;
    };
    void add(std::int32_t token, std::int64_t count, std::uint32_t place);
    std::span<Seen> seen() { return {seen_.data(), used_}; }
    void clear();

   private:
    std::vector<std::int32_t> index_;  // by token; -1: not seen
    std::vector<Seen> seen_;           // kept with its memory
    std::size_t used_ = 0;
  };

  void lay_out(std::span<const PieceCount> pieces, std::span<const std::int32_t> byte_ids);
  void count_byte_pairs();
  void merge_at(std::uint32_t place, TrainedBpe::Merge pair, std::int32_t token);
  void introduce(Key key, std::int64_t count, const Places& places);
  void reduce(Key key, std::int64_t count);
  void retire(Pair& pair);

  std::int64_t min_frequency_;
  std::int32_t first_byte_;  // the smallest id of a byte
  std::int64_t corpus_bytes_ = 0, corpus_tokens_ = 0;
  std::vector<std::int64_t> counts_;    // by piece
  std::vector<Slot> slots_;             // a boundary before and after each piece
  std::vector<std::uint32_t> lengths_;  // by token, in bytes
  std::vector<Pair> pairs_;
  PairIndex index_;
  std::vector<Candidate> heap_;
  Neighbours lefts_, rights_, runs_;  // runs: the merged pair beside itself
};

}  // namespace kintsugi
