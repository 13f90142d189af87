#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "core/file.h"
#include "data/sampling/token_stream.h"

namespace kintsugi {

// Items in bins: those of bin b are items[ends[b - 1]] … items[ends[b] - 1], in the order in
// which they were placed.
struct Bins {
  std::vector<std::uint32_t> items;
  std::vector<std::uint32_t> ends;  // one per bin
};

// Best-fit decreasing: the items are placed from the largest to the smallest, each into the bin
// with the least room that is enough, or into a new bin. Sizes are 1 … capacity. Items of one size
// are placed in their order, and of bins with the same room the one that got to it first is used,
// as TRL does it (strategy `bfd`). Takes O(items · log capacity + capacity).
Bins best_fit_decreasing(std::span<const std::uint32_t> sizes, std::uint32_t capacity);

// The longest sample of a packing: the work per block has tables of this size.
constexpr std::int64_t kMaxPackedLength = 1 << 24;

// Which documents share a sample.
enum class PackingRule : std::uint8_t {
  BestFit,  // as many as fit (best_fit_decreasing)
  Single,   // none: each has a sample of its own
};

// The packing of the documents of one source into samples of `length` tokens, in a file that
// is made once and mapped by all ranks.
//
// A document of at most `length` tokens is placed whole. A longer one is first split into pieces of
// `length` tokens and a rest. A piece after which its document continues also has the first token
// of the next piece, which is only a target. Blocks of kPackedBlock pieces are packed separately:
// this bounds the memory, and threads pack several blocks at once.
//
// The file: per block the end of each sample in pieces (u32) and the pieces (u64 first token of the
// stream, u32 tokens to read); per block its offset and its first sample (u64 each); a footer.
constexpr std::int64_t kPackedBlock = 1 << 20;

struct PackingSummary {
  std::int64_t samples = 0, tokens = 0;
  std::int64_t whole = 0, cut = 0;             // documents; empty ones are not counted
  double padding(std::int64_t length) const {  // fraction of all positions
    return 1.0 - static_cast<double>(tokens) / (static_cast<double>(samples) * length);
  }
};

class PackingIndex {
 public:
  // A hash of what a packing depends on: it names the file.
  static std::uint64_t fingerprint(const TokenStream& stream, std::int64_t length,
                                   std::int64_t block = kPackedBlock,
                                   PackingRule rule = PackingRule::BestFit);
  // Writes the file atomically. UserError if the documents of a store are damaged.
  static void build(const std::filesystem::path& path, const TokenStream& stream,
                    std::int64_t length, std::int64_t block = kPackedBlock,
                    PackingRule rule = PackingRule::BestFit);
  // Empty if there is no such file, or if it is truncated, damaged or made for other data. Without
  // `verify` only its ends are read.
  static std::optional<PackingIndex> open(const std::filesystem::path& path,
                                          const TokenStream& stream, std::int64_t length,
                                          bool verify, std::int64_t block = kPackedBlock,
                                          PackingRule rule = PackingRule::BestFit);
  // Packs without a file in the file system. The memory is that of the file.
  static PackingIndex in_memory(const TokenStream& stream, std::int64_t length,
                                PackingRule rule = PackingRule::BestFit);

  const PackingSummary& summary() const { return summary_; }
  std::uint64_t content() const { return content_; }  // a hash of the file
  // Appends the tokens of a sample: at most `length`, or length + 1 if the last is only a target.
  // UserError if the entries are impossible.
  void locate(std::int64_t sample, const TokenStream& stream,
              std::vector<TokenRange>& ranges) const;

 private:
  PackingIndex(MappedFile file, std::filesystem::path path, std::int64_t length)
      : file_(std::move(file)), path_(std::move(path)), length_(length) {}
  bool read_footer(std::uint64_t fingerprint);
  bool read_blocks(std::uint64_t count, std::uint64_t offset);
  [[noreturn]] void fail_at(std::int64_t sample) const;

  struct Block {
    std::uint64_t offset = 0, first_sample = 0;
  };
  MappedFile file_;
  std::filesystem::path path_;
  std::int64_t length_;
  PackingSummary summary_;
  std::uint64_t content_ = 0;
  std::vector<Block> blocks_;  // and one that marks the end
};

}  // namespace kintsugi
