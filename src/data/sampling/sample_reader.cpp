#include "data/sampling/sample_reader.h"

#include <algorithm>

#include "core/error.h"

namespace kintsugi {

SampleBatch::SampleBatch(std::int64_t samples, const SampleOptions& options)
    : length_(static_cast<std::size_t>(options.length)) {
  const std::size_t tokens = static_cast<std::size_t>(samples) * length_;
  ids.resize(tokens);
  targets.resize(tokens);
  if (!options.document_mask) return;
  positions.resize(tokens);
  document_start.resize(tokens);
}

SampleRow SampleBatch::row(std::int64_t i) {
  const auto part = [&](std::vector<std::int32_t>& all) {
    return all.empty() ? std::span<std::int32_t>()
                       : std::span(all).subspan(static_cast<std::size_t>(i) * length_, length_);
  };
  return {part(ids), part(targets), part(positions), part(document_start)};
}

SampleReader::SampleReader(const SampleOptions& options)
    : options_(options),
      window_(static_cast<std::size_t>(options.length) + 1),
      counts_(window_.size()),
      begins_(window_.size()) {}

void SampleReader::refuse(const TokenPiece& piece, std::size_t at) const {
  const auto wrong =
      std::find_if(window_.begin() + static_cast<std::ptrdiff_t>(at), window_.end(),
                   [&](std::int32_t id) { return id < 0 || id >= options_.vocab_size; });
  const std::int64_t token =
      piece.first + (wrong - window_.begin()) - static_cast<std::int64_t>(at);
  user_error(
      "{} holds token id {} at token {}, but model.vocab_size is {}: give the model a larger "
      "vocabulary, or the data the tokenizer that it was made with",
      piece.shard->name(), *wrong, token, options_.vocab_size);
}

void SampleReader::add(const TokenPiece& piece, std::size_t at) {
  const auto count = static_cast<std::size_t>(piece.count);
  const std::span<std::int32_t> ids = std::span(window_).subspan(at, count);
  piece.shard->read(piece.first, ids);
  // As unsigned values, negative ids are beyond every vocabulary.
  std::uint32_t largest = 0;
  for (const std::int32_t id : ids) largest = std::max(largest, static_cast<std::uint32_t>(id));
  if (static_cast<std::int64_t>(largest) >= options_.vocab_size) refuse(piece, at);

  piece.shard->read_mask(piece.first, std::span(counts_).subspan(at, count));

  if (!options_.document_mask && options_.boundary_loss) return;
  std::fill_n(begins_.begin() + static_cast<std::ptrdiff_t>(at), count, std::uint8_t{0});
  begins_[at] = 1;
  const std::int64_t end = piece.first + piece.count;
  for (std::int64_t next = piece.shard->document_of(piece.first) + 1;
       next < piece.shard->documents(); ++next) {
    const std::int64_t begin = piece.shard->document_begin(next);
    if (begin >= end) break;
    if (begin > piece.first)  // whatever a damaged index says
      begins_[at + static_cast<std::size_t>(begin - piece.first)] = 1;
  }
}

void SampleReader::read(const std::vector<TokenPiece>& pieces, SampleRow row) {
  std::size_t filled = 0;
  for (const TokenPiece& piece : pieces) {
    KINTSUGI_CHECK(filled + static_cast<std::size_t>(piece.count) <= window_.size(),
                   "the pieces of a sample have more than {} tokens", window_.size());
    if (piece.count == 0) continue;
    add(piece, filled);
    filled += static_cast<std::size_t>(piece.count);
  }
  KINTSUGI_CHECK(filled == window_.size(), "a sample has {} tokens, not {}", filled,
                 window_.size());
  const std::size_t length = row.ids.size();
  for (std::size_t i = 0; i < length; ++i) {
    const bool counts = counts_[i + 1] != 0 && (options_.boundary_loss || begins_[i + 1] == 0);
    row.ids[i] = window_[i];
    row.targets[i] = counts ? window_[i + 1] : -1;
  }
  if (!options_.document_mask) return;
  std::int32_t start = 0;
  for (std::size_t i = 0; i < length; ++i) {
    const auto place = static_cast<std::int32_t>(i);
    if (begins_[i] != 0) start = place;
    row.document_start[i] = start;
    row.positions[i] = place - start;
  }
}

}  // namespace kintsugi
