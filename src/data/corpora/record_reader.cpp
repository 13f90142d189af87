#include "data/corpora/record_reader.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr std::size_t kReadBytes = 256 * 1024;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// A place no tokenizer joins across, whatever it does with white space: one line break, after
// something printable and before a letter.
bool good_cut(std::string_view text, std::size_t at) {
  const char before = text[at - 2];
  return text[at - 1] == '\n' && before > ' ' && before < 0x7F && is_letter(text[at]);
}

// The last good place at or before `most`; 0 if there is none.
std::size_t last_good_cut(std::string_view text, std::size_t most) {
  for (std::size_t at = std::min(most, text.size() - 1); at >= 2; --at)
    if (good_cut(text, at)) return at;
  return 0;
}

std::size_t character_boundary(std::string_view text, std::size_t at) {
  for (std::size_t back = 0; back < 4 && back < at; ++back)
    if ((static_cast<unsigned char>(text[at - back]) & 0xC0) != 0x80) return at - back;
  return at;  // not UTF-8
}

}  // namespace

bool RecordReader::is_jsonl(const std::filesystem::path& path) {
  std::filesystem::path name = path.filename();
  if (name.extension() == ".gz" || name.extension() == ".zst" || name.extension() == ".zstd")
    name = name.stem();
  const std::string ending = name.extension().string();
  return ending == ".jsonl" || ending == ".ndjson" || ending == ".json";
}

RecordReader::RecordReader(const std::filesystem::path& path, RecordPlace from)
    : RecordReader(path, from, Sizes{}) {}

RecordReader::RecordReader(const std::filesystem::path& path, RecordPlace from, Sizes sizes)
    : name_(path.string()), jsonl_(is_jsonl(path)), sizes_(sizes), stream_(path), place_(from) {
  stream_.skip(from.text_bytes);
}

bool RecordReader::next(Record& record) { return jsonl_ ? next_line(record) : next_part(record); }

bool RecordReader::fill() {
  if (finished_) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() < end_ + kReadBytes) buffer_.resize(std::max(end_ * 2, end_ + kReadBytes));
  const std::size_t got = stream_.read(std::span(buffer_).subspan(end_));
  end_ += got;
  finished_ = got == 0;
  return !finished_;
}

bool RecordReader::next_line(Record& record) {
  while (true) {
    std::size_t searched = 0, length = std::string_view::npos;
    while ((length = waiting().find('\n', searched)) == std::string_view::npos) {
      searched = waiting().size();
      if (searched > sizes_.longest_line)
        user_error("{}, line {}: longer than {} bytes, which is not one document", name_,
                   place_.line + 1, sizes_.longest_line);
      if (!fill()) break;
    }
    const bool last = length == std::string_view::npos;
    if (last && waiting().empty()) return false;
    std::string_view line = waiting().substr(0, length);
    const std::size_t taken = line.size() + (last ? 0 : 1);
    const bool first = place_.text_bytes == 0;
    begin_ += taken;
    place_.text_bytes += taken;
    ++place_.line;
    if (first && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);  // a byte order mark
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    record = {line, place_.line, true};
    return true;
  }
}

bool RecordReader::next_part(Record& record) {
  std::size_t length = 0;
  // One byte more than a part decides whether the document goes on.
  while (waiting().size() <= sizes_.part && fill()) {
  }
  while (true) {
    const std::string_view text = waiting();
    if (text.empty()) return false;
    if (finished_ && text.size() <= sizes_.part) {
      length = text.size();
      break;
    }
    const std::size_t most = std::min(text.size() - 1, sizes_.longest_part);
    length = last_good_cut(text, sizes_.part);
    // No good place among the first bytes: the first one behind them.
    for (std::size_t at = sizes_.part + 1; length == 0 && at <= most; ++at)
      if (good_cut(text, at)) length = at;
    if (length > 0) break;
    if (finished_ && text.size() <= sizes_.longest_part) {
      length = text.size();
      break;
    }
    if (text.size() > sizes_.longest_part) {
      length = character_boundary(text, sizes_.longest_part);
      break;
    }
    fill();
  }
  const std::string_view part = waiting().substr(0, length);
  begin_ += length;
  record = {part, place_.line + 1, finished_ && begin_ == end_};
  place_.text_bytes += length;
  place_.line += static_cast<std::uint64_t>(std::count(part.begin(), part.end(), '\n'));
  return true;
}

}  // namespace kintsugi
