#include "train/scoring_rows.h"

#include <algorithm>
#include <numeric>

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
  return rows_[static_cast<std::size_t>(end)] - rows_[static_cast<std::size_t>(first)];
}

void ScoringRows::fill(std::int64_t row, SampleRow to) const {
  std::fill(to.targets.begin(), to.targets.end(), -1);
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

}  // namespace kintsugi
