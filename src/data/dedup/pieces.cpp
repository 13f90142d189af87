#include "data/dedup/pieces.h"

#include <algorithm>
#include <array>

#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

struct Character {
  std::size_t length;
  bool space, single;  // single: a letter of a script that puts no spaces between words
  bool letter;         // or number

  Character(std::string_view text, std::size_t at) {
    const char byte = text[at];
    if (static_cast<unsigned char>(byte) < 0x80) {
      length = 1;
      space = byte == ' ' || (byte >= '\t' && byte <= '\r');
      single = false;
      letter = (byte >= '0' && byte <= '9') || ((byte | 32) >= 'a' && (byte | 32) <= 'z');
      return;
    }
    const char32_t c = utf8_decode(text, at, length);
    const unsigned bits = UnicodeClasses::get().of(c);
    space = (bits & UnicodeClasses::Space) != 0;
    letter = (bits & (UnicodeClasses::Letter | UnicodeClasses::Number)) != 0;
    single = (bits & UnicodeClasses::Letter) != 0 && is_in_such_a_script(c);
  }

  static bool is_in_such_a_script(char32_t c) {
    constexpr std::array<std::array<char32_t, 2>, 8> kBlocks = {{{0x0E00, 0x0FFF},  // Thai, Tibetan
                                                                 {0x1000, 0x109F},  // Myanmar
                                                                 {0x1780, 0x17FF},  // Khmer
                                                                 {0x3005, 0x3007},
                                                                 {0x3041, 0x30FF},  // Kana
                                                                 {0x3400, 0x9FFF},  // Han
                                                                 {0xF900, 0xFAFF},
                                                                 {0x20000, 0x3FFFF}}};
    return std::any_of(kBlocks.begin(), kBlocks.end(),
                       [c](const auto& block) { return c >= block[0] && c <= block[1]; });
  }
};

// Where the ASCII characters from `at` on end that are no white space.
std::size_t skip_ascii_word(std::string_view text, std::size_t at) {
  static constexpr std::array<bool, 256> kIsInWord = [] {
    std::array<bool, 256> is{};
    for (std::size_t c = 0; c < 0x80; ++c) is[c] = c != ' ' && (c < '\t' || c > '\r');
    return is;
  }();
  while (at < text.size() && kIsInWord[static_cast<unsigned char>(text[at])]) ++at;
  return at;
}

// Marks and punctuation behind a single letter belong to it.
void find_words(std::string_view text, Pieces& pieces) {
  bool after_space = true, after_single = false;
  for (std::size_t at = 0; at < text.size();) {
    const Character c(text, at);
    const std::size_t begin = at;
    at += c.length;
    after_single &= !after_space;
    after_space = after_space || (after_single && c.letter);
    if (!c.space && (after_space || c.single)) {
      pieces.begins.push_back(static_cast<std::uint32_t>(begin));
      pieces.ends.emplace_back();
      after_single = c.single;
    }
    if (!c.space && !after_single) at = skip_ascii_word(text, at);
    if (!c.space) pieces.ends.back() = static_cast<std::uint32_t>(at);
    after_space = c.space;
  }
}

void find_lines(std::string_view text, bool paragraphs, Pieces& pieces) {
  bool after_empty = true;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = std::min(text.find('\n', begin), text.size());
    std::size_t last = begin;  // where its last word ends
    for (std::size_t at = begin; at < end;) {
      const Character c(text, at);
      at += c.length;
      if (!c.space) last = at;
    }
    if (last > begin) {
      if (!paragraphs || after_empty) {
        pieces.begins.push_back(static_cast<std::uint32_t>(begin));
        pieces.ends.emplace_back();
      }
      pieces.ends.back() = static_cast<std::uint32_t>(last);
    }
    after_empty = last == begin;
    begin = end + 1;
  }
}

}  // namespace

PieceKind piece_kind(DedupBy by) {
  if (by == DedupBy::Lines) return PieceKind::Lines;
  return by == DedupBy::Paragraphs ? PieceKind::Paragraphs : PieceKind::Words;
}

void cut_into_pieces(std::string_view text, PieceKind kind, Pieces& pieces) {
  pieces.begins.clear();
  pieces.ends.clear();
  if (kind == PieceKind::Words)
    find_words(text, pieces);
  else
    find_lines(text, kind == PieceKind::Paragraphs, pieces);
}

void SequenceSamples::compute(std::span<const std::uint64_t> words) {
  hashes_.clear();
  samples_.clear();
  if (words.size() < length_) return;
  // A polynomial modulo 2^64, updated word by word; its bits are mixed so that the least is random.
  constexpr std::uint64_t kBase = 0x9E3779B97F4A7C15, kMix = 0xD6E8FEB86659FD93;
  std::uint64_t first = 1;  // of the word that leaves
  for (std::size_t i = 0; i < sample_; ++i) first *= kBase;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    sum = sum * kBase + words[i] - (i >= sample_ ? first * words[i - sample_] : 0);
    if (i + 1 < sample_) continue;
    const std::uint64_t mixed = (sum ^ sum >> 32) * kMix;
    hashes_.push_back(mixed ^ mixed >> 32);
  }
  std::size_t least = 0;
  for (std::size_t i = 0; i < hashes_.size(); ++i) {
    const std::size_t begin = i + 1 >= window_ ? i + 1 - window_ : 0;
    // Of equal ones the last, so that a text of equal words is not searched again and again.
    if (hashes_[i] <= hashes_[least]) {
      least = i;
    } else if (least < begin) {
      least = begin;
      for (std::size_t j = begin + 1; j <= i; ++j)
        if (hashes_[j] <= hashes_[least]) least = j;
    }
    if (i + 1 >= window_) samples_.push_back(static_cast<std::uint32_t>(least));
  }
}

std::string without_pieces(std::string_view text, const Pieces& pieces,
                           std::span<const PieceRange> removed) {
  const auto begin_of = [&](std::size_t piece) {
    return piece < pieces.size() ? pieces.begins[piece] : text.size();
  };
  std::string left;
  std::size_t next = 0, written = 0;  // a piece, bytes
  std::size_t end_of_last = 0;        // of `left`, without white space
  const auto keep_up_to = [&](std::size_t piece) {
    if (piece <= next) return;
    left += text.substr(written, begin_of(piece) - written);
    end_of_last = left.size() - (begin_of(piece) - pieces.ends[piece - 1]);
    next = piece;
  };
  for (const PieceRange& range : removed) {
    keep_up_to(range.begin);
    next = std::max(next, range.end);
    written = begin_of(next);
  }
  const bool to_the_end = next == pieces.size();
  keep_up_to(pieces.size());
  if (to_the_end) left.resize(end_of_last);
  return left;
}

}  // namespace kintsugi
