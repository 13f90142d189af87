#include "data/corpora/record_reader.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr std::size_t kReadBytes = 256 * 1024;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// No tokenizer merges across such a position, however it handles white space: a single line break
// after a printable character and before a letter.
bool safe_boundary(std::string_view text, std::size_t at) {
  const char before = text[at - 2];
  return text[at - 1] == '\n' && before > ' ' && before < 0x7F && is_letter(text[at]);
}

// The last safe boundary at or before `limit`; 0 if there is none.
std::size_t last_safe_boundary(std::string_view text, std::size_t limit) {
  for (std::size_t at = std::min(limit, text.size() - 1); at >= 2; --at)
    if (safe_boundary(text, at)) return at;
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

RecordReader::RecordReader(const std::filesystem::path& path, RecordPosition from)
    : RecordReader(path, from, Sizes{}) {}

RecordReader::RecordReader(const std::filesystem::path& path, RecordPosition from, Sizes sizes)
    : name_(path.string()), jsonl_(is_jsonl(path)), sizes_(sizes), stream_(path), position_(from) {
  if (from.text_bytes == 0) return;
  stream_.skip(from.text_bytes - 1);
  char last = 0;
  if (stream_.read({&last, 1}) == 0)
    user_error("{} has changed: its text is shorter than before", name_);
  after_break_ = last == '\n';
}

bool RecordReader::next(Record& record) {
  return jsonl_ || sizes_.lines ? next_line(record) : next_segment(record);
}

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
    while ((length = unread().find('\n', searched)) == std::string_view::npos) {
      searched = unread().size();
      if (searched > sizes_.longest_line)
        user_error("{}, line {}: longer than {} bytes, the maximum for a document", name_,
                   position_.line + 1, sizes_.longest_line);
      if (!fill()) break;
    }
    const bool last = length == std::string_view::npos;
    if (last && unread().empty()) return false;
    std::string_view line = unread().substr(0, length);
    const std::size_t taken = line.size() + (last ? 0 : 1);
    const bool first = position_.text_bytes == 0;
    begin_ += taken;
    position_.text_bytes += taken;
    ++position_.line;
    if (first && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);  // a byte order mark
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    record = {line, position_.line};
    return true;
  }
}

bool RecordReader::next_segment(Record& record) {
  std::size_t length = 0;
  // One byte more than a segment tells whether the document continues.
  while (unread().size() <= sizes_.segment && fill()) {
  }
  while (true) {
    const std::string_view text = unread();
    if (text.empty()) return false;
    if (finished_ && text.size() <= sizes_.segment) {
      length = text.size();
      break;
    }
    const std::size_t limit = std::min(text.size() - 1, sizes_.longest_segment);
    length = last_safe_boundary(text, sizes_.segment);
    // Without a safe boundary in these bytes, take the first one after them.
    for (std::size_t at = sizes_.segment + 1; length == 0 && at <= limit; ++at)
      if (safe_boundary(text, at)) length = at;
    if (length > 0) break;
    if (finished_ && text.size() <= sizes_.longest_segment) {
      length = text.size();
      break;
    }
    if (text.size() > sizes_.longest_segment) {
      length = character_boundary(text, sizes_.longest_segment);
      break;
    }
    fill();
  }
  const std::string_view segment = unread().substr(0, length);
  begin_ += length;
  record = {segment, position_.line + 1, finished_ && begin_ == end_, after_break_};
  after_break_ = segment.ends_with('\n');
  position_.text_bytes += length;
  position_.line += static_cast<std::uint64_t>(std::count(segment.begin(), segment.end(), '\n'));
  return true;
}

}  // namespace kintsugi
