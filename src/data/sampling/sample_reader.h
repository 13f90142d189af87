#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/sampling/token_stream.h"

namespace kintsugi {

struct SampleOptions {
  std::int64_t length = 0;
  std::int64_t vocab_size = 0;  // an id beyond it is a UserError
  bool document_mask = false;   // positions and document starts are wanted
  bool boundary_loss = true;    // the first token of a document counts as a prediction
};

// Where one sample goes: `length` values each.
struct SampleRow {
  std::span<std::int32_t> ids;
  std::span<std::int32_t> targets;         // what follows each id; -1: no loss there
  std::span<std::int32_t> positions;       // within the document; empty without document_mask
  std::span<std::int32_t> document_start;  // place in the row; likewise
};

// Samples of one shape, side by side in the host's memory.
class SampleBatch {
 public:
  SampleBatch(std::int64_t samples, const SampleOptions& options);
  SampleRow row(std::int64_t i);

  std::vector<std::int32_t> ids, targets, positions, document_start;  // (samples, length)

 private:
  std::size_t length_;
};

// Turns places into samples. Serves one thread; allocates nothing once it is made.
class SampleReader {
 public:
  explicit SampleReader(const SampleOptions& options);

  // `pieces`: length + 1 tokens in all. Each piece begins a document of its own, also where its
  // document began before the sample did.
  void read(const std::vector<TokenPiece>& pieces, SampleRow row);

 private:
  void add(const TokenPiece& piece, std::size_t at);
  [[noreturn]] void refuse(const TokenPiece& piece, std::size_t at) const;

  SampleOptions options_;
  std::vector<std::int32_t> window_;  // (length + 1) ids
  std::vector<std::uint8_t> counts_;  // (length + 1) whether a token counts in the loss
  std::vector<std::uint8_t> begins_;  // (length + 1) whether it begins a document
};

}  // namespace kintsugi
