#include "report/watch/canvas.h"

#include <algorithm>
#include <array>

#include "core/log.h"

namespace kintsugi {
namespace {

struct CharacterRange {
  char32_t first, last;
};

bool is_in(char32_t character, const auto& ranges) {
  return std::any_of(std::begin(ranges), std::end(ranges), [=](const CharacterRange& range) {
    return character >= range.first && character <= range.last;
  });
}

// Combining marks, joiners, variation selectors, and marks that reverse the direction of writing:
// a hostile name could use them to move or to hide text.
constexpr std::array kWithoutWidth = {
    CharacterRange{0x00AD, 0x00AD}, CharacterRange{0x0300, 0x036F},
    CharacterRange{0x0483, 0x0489}, CharacterRange{0x0591, 0x05BD},
    CharacterRange{0x0610, 0x061C}, CharacterRange{0x064B, 0x065F},
    CharacterRange{0x180B, 0x180E}, CharacterRange{0x1AB0, 0x1AFF},
    CharacterRange{0x1DC0, 0x1DFF}, CharacterRange{0x200B, 0x200F},
    CharacterRange{0x2028, 0x202E}, CharacterRange{0x2060, 0x206F},
    CharacterRange{0x20D0, 0x20FF}, CharacterRange{0xFE00, 0xFE0F},
    CharacterRange{0xFE20, 0xFE2F}, CharacterRange{0xFEFF, 0xFEFF},
    CharacterRange{0xFFF9, 0xFFFB}, CharacterRange{0xE0000, 0xE0FFF}};

// East Asian scripts and pictures: two cells.
constexpr std::array kWide = {CharacterRange{0x1100, 0x115F},   CharacterRange{0x2E80, 0x303E},
                              CharacterRange{0x3041, 0xA4CF},   CharacterRange{0xA960, 0xA97F},
                              CharacterRange{0xAC00, 0xD7A3},   CharacterRange{0xF900, 0xFAFF},
                              CharacterRange{0xFE30, 0xFE6F},   CharacterRange{0xFF00, 0xFF60},
                              CharacterRange{0xFFE0, 0xFFE6},   CharacterRange{0x1F300, 0x1F64F},
                              CharacterRange{0x1F680, 0x1F6FF}, CharacterRange{0x1F900, 0x1FAFF},
                              CharacterRange{0x20000, 0x3FFFD}};

int width_of(char32_t character) {
  if (character < 0x300) return character == 0xAD ? 0 : 1;
  if (is_in(character, kWithoutWidth)) return 0;
  return is_in(character, kWide) ? 2 : 1;
}

// Takes the first character off a valid UTF-8 text.
char32_t take_character(std::string_view& text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  char32_t character = length == 1 ? first : first & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i)
    character = (character << 6) | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  text.remove_prefix(length);
  return character;
}

void append_utf8(char32_t c, std::string& text) {
  const auto byte = [&](char32_t value) { text += static_cast<char>(value); };
  if (c < 0x80) return byte(c);
  if (c < 0x800) {
    byte(0xC0 | (c >> 6));
  } else {
    if (c < 0x10000) {
      byte(0xE0 | (c >> 12));
    } else {
      byte(0xF0 | (c >> 18));
      byte(0x80 | ((c >> 12) & 0x3F));
    }
    byte(0x80 | ((c >> 6) & 0x3F));
  }
  byte(0x80 | (c & 0x3F));
}

const char* escape_of(CellStyle style) {
  switch (style) {
    case CellStyle::Plain:
      return "\x1b[0m";
    case CellStyle::Bold:
      return "\x1b[0;1m";
    case CellStyle::Dim:
      return "\x1b[0;2m";
    case CellStyle::Good:
      return "\x1b[0;32m";
    case CellStyle::Warning:
      return "\x1b[0;33m";
    case CellStyle::Bad:
      return "\x1b[0;31m";
    case CellStyle::Curve:
      return "\x1b[0;36m";
    case CellStyle::Mark:
      return "\x1b[0;35m";
    case CellStyle::Chosen:
      return "\x1b[0;7m";
  }
  return "";
}

// One line of what files contain: line ends and tabs are spaces.
std::string on_one_row(std::string_view text) {
  std::string row = printable(text);
  std::replace(row.begin(), row.end(), '\n', ' ');
  std::replace(row.begin(), row.end(), '\t', ' ');
  return row;
}

}  // namespace

Canvas::Canvas(int columns, int rows)
    : columns_(std::max(columns, 0)),
      rows_(std::max(rows, 0)),
      cells_(static_cast<std::size_t>(columns_) * static_cast<std::size_t>(rows_)) {}

void Canvas::put(int row, int column, char32_t character, CellStyle style) {
  if (row < 0 || row >= rows_ || column < 0 || column >= columns_) return;
  at(row, column) = {character, style};
}

int Canvas::text(int row, int column, int end, std::string_view text, CellStyle style) {
  const std::string shown = on_one_row(text);
  end = std::min(end, columns_);
  for (std::string_view rest = shown; !rest.empty();) {
    const char32_t character = take_character(rest);
    const int width = width_of(character);
    if (width == 0) continue;
    if (column + width > end) break;
    put(row, column, character, style);
    if (width == 2) put(row, column + 1, 0, style);
    column += width;
  }
  return column;
}

std::vector<std::string> Canvas::lines(bool colours) const {
  std::vector<std::string> lines;
  for (int row = 0; row < rows_; ++row) {
    const auto begin = cells_.begin() + static_cast<std::ptrdiff_t>(row) * columns_;
    const auto is_drawn = [](const Cell& cell) {
      return cell.character != U' ' || cell.style == CellStyle::Chosen;
    };
    const auto last = std::find_if(std::make_reverse_iterator(begin + columns_),
                                   std::make_reverse_iterator(begin), is_drawn)
                          .base();
    std::string line;
    CellStyle style = CellStyle::Plain;
    for (auto cell = begin; cell != last; ++cell) {
      if (colours && cell->style != style) line += escape_of(cell->style);
      style = cell->style;
      if (cell->character != 0) append_utf8(cell->character, line);
    }
    if (colours && style != CellStyle::Plain) line += escape_of(CellStyle::Plain);
    lines.push_back(std::move(line));
  }
  return lines;
}

int display_width(std::string_view text) {
  const std::string shown = on_one_row(text);
  int width = 0;
  for (std::string_view rest = shown; !rest.empty();) width += width_of(take_character(rest));
  return width;
}

}  // namespace kintsugi
