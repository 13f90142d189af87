#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/sampling/token_stream.h"

namespace kintsugi {

// What the samples are read for.
enum class SampleKind : std::uint8_t {
  Text,    // the next token of every document
  Labels,  // the label of each document, as the target of its last token
  Pairs,   // documents of two sequences, the preferred one and the rejected one: each has its own
           // positions and sees only itself; SampleBatch::sequences lists them
};

struct SampleOptions {
  SampleKind kind = SampleKind::Text;
  std::int64_t length = 0;
  std::int64_t vocab_size = 0;  // a larger id is a UserError
  std::int64_t classes = 0;     // SampleKind::Labels: a larger label is a UserError
  bool document_mask = false;   // also compute positions and document starts
  bool boundary_loss = true;    // the first token of a document is a target
  // Samples hold documents, not windows. They may be shorter: the rest is padding, which has id 0,
  // no loss, and with document_mask a document of its own. A range that starts inside a document
  // does not start with a target: that token is a target of the range before it.
  bool packed = false;
};

// The buffers of one sample: `length` values each.
struct SampleRow {
  std::span<std::int32_t> ids;
  std::span<std::int32_t> targets;         // the next token or the label; -1: no loss
  std::span<std::int32_t> positions;       // within the document; empty without document_mask
  std::span<std::int32_t> document_start;  // index in the row; empty without document_mask
};

// One sequence of a preference pair in a batch; preferred and rejected ones take turns.
struct SampleSequence {
  std::int64_t row = 0, begin = 0, end = 0;  // tokens [begin, end) of a row
  const TokenShard* shard = nullptr;
  std::int64_t sequence = 0;  // its number in the shard
};

// A batch of samples in host memory.
class SampleBatch {
 public:
  SampleBatch(std::int64_t samples, const SampleOptions& options);
  void resize(std::int64_t samples);  // allocates memory only above the largest size so far
  SampleRow row(std::int64_t i);

  std::vector<std::int32_t> ids, targets, positions, document_start;  // (samples, length)
  std::vector<SampleSequence> sequences;  // SampleKind::Pairs, in the order of rows

 private:
  std::size_t length_;
  bool document_mask_;
};

// Reads the tokens of samples. For one thread; read() allocates no memory, except for the list of
// sequences of pairs.
class SampleReader {
 public:
  explicit SampleReader(const SampleOptions& options);

  // `ranges` have length + 1 tokens in total (with `packed`, at most). Each range counts as the
  // start of a document, even if it starts in the middle of one.
  void read(const std::vector<TokenRange>& ranges, SampleRow row);
  // Reads row i of a batch and lists its sequences. Rows are read in ascending order; reading a row
  // again drops the sequences of the rows from there on.
  void read(const std::vector<TokenRange>& ranges, SampleBatch& batch, std::int64_t i);

 private:
  void add(const TokenRange& range, std::size_t at);
  void add_starts(const TokenRange& range, std::size_t at);
  void add_labels(const TokenRange& range, std::size_t at);
  void write_targets(SampleRow row) const;
  void pad(std::size_t from);
  [[noreturn]] void fail_at_bad_id(const TokenRange& range, std::size_t at) const;

  SampleOptions options_;
  std::vector<std::int32_t> window_;  // (length + 1) ids
  std::vector<std::uint8_t> mask_;    // (length + 1) 1: the token counts in the loss
  std::vector<std::uint8_t> starts_;  // (length + 1) 1: the token starts a document or sequence
  std::vector<std::int32_t> labels_;  // (length + 1) at the last token of a document, else -1
};

}  // namespace kintsugi
