#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dedup/dedup_job.h"

namespace kintsugi {

// What a text is cut into.
enum class PieceKind : std::uint8_t {
  // What is between white space; each letter of a script without spaces, such as Han or Thai.
  Words,
  Lines,
  Paragraphs  // lines up to an empty one
};

PieceKind piece_kind(DedupBy by);

// The pieces of a text, in bytes. Up to the next one, a piece has the white space behind it.
struct Pieces {
  std::vector<std::uint32_t> begins, ends;

  std::size_t size() const { return begins.size(); }
  std::string_view of(std::string_view text, std::size_t piece) const {
    return text.substr(begins[piece], ends[piece] - begins[piece]);
  }
};
void cut_into_pieces(std::string_view text, PieceKind kind, Pieces& pieces);

// Samples of the sequences of `length` words of a text: of the sequences of half that length in
// each, the one with the least hash. So each sequence that occurs twice has a sample that does, and
// there are about 4 / `length` samples per word.
class SequenceSamples {
 public:
  explicit SequenceSamples(std::size_t length)
      : length_(length), sample_(length - length / 2), window_(length - sample_ + 1) {}

  void compute(std::span<const std::uint64_t> words);
  // Of the text: sequence i begins at word i.
  std::size_t sequences() const { return samples_.size(); }
  std::size_t sample_of(std::size_t sequence) const { return samples_[sequence]; }  // not falling
  std::uint64_t hash(std::size_t sample) const { return hashes_[sample]; }

 private:
  std::size_t length_, sample_, window_;
  std::vector<std::uint64_t> hashes_;
  std::vector<std::uint32_t> samples_;
};

struct PieceRange {
  std::size_t begin, end;
};

// A text without these pieces, which may overlap and are sorted by their begins. White space that
// would be its end is removed too.
std::string without_pieces(std::string_view text, const Pieces& pieces,
                           std::span<const PieceRange> removed);

}  // namespace kintsugi
