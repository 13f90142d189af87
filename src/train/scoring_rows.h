#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/sampling/sample_reader.h"
#include "eval/requests.h"

namespace kintsugi {

// The rows of tokens that score requests: one request in each row or, with document masks, several,
// each as a document of its own. What is left of a row is padding without a loss.
class ScoringRows {
 public:
  // Rows for some of the pairs, which must outlive them. Requests of more than `length` tokens lose
  // the first ones, as in local_input().
  ScoringRows(std::span<const TokenPair> pairs, std::span<const std::size_t> requests,
              std::size_t length, bool packed);

  std::int64_t size() const { return static_cast<std::int64_t>(rows_.size()) - 1; }
  std::size_t requests(std::int64_t first, std::int64_t end) const;  // in these rows
  std::size_t length() const { return length_; }
  void fill(std::int64_t row, SampleRow to) const;
  // The request of a token with a target.
  std::size_t request_at(std::int64_t row, std::size_t token) const;

 private:
  struct Piece {
    std::size_t request, first;  // the index of its first token in the row
  };
  std::span<const Piece> pieces_of(std::int64_t row) const;

  std::span<const TokenPair> pairs_;
  std::size_t length_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> rows_;  // the first piece of each row, and the number of pieces
};

// The number of tokens that a model reads for a request.
std::size_t tokens_read(const TokenPair& pair);

}  // namespace kintsugi
