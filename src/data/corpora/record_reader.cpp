#include "data/corpora/record_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "data/tokenizers/unicode.h"

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

constexpr std::size_t kBatchBytes = 512 * 1024;

constexpr int kMaxDepth = 512;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Whether one of eight bytes is a quote, a backslash, a control character or not ASCII.
bool any_special(std::uint64_t word) {
  constexpr std::uint64_t kOnes = 0x0101010101010101, kHigh = 0x8080808080808080;
  const auto has_zero = [](std::uint64_t v) { return (v - kOnes) & ~v & kHigh; };
  const std::uint64_t quote = has_zero(word ^ (kOnes * '"'));
  const std::uint64_t backslash = has_zero(word ^ (kOnes * '\\'));
  const std::uint64_t control = (word - kOnes * 0x20) & ~word & kHigh;
  return ((word & kHigh) | quote | backslash | control) != 0;
}

class Scanner {
 public:
  explicit Scanner(std::string_view line) : line_(line) {}

  [[noreturn]] void fail(std::string message) const {
    throw JsonLineError(std::move(message), at_ + 1);
  }
  std::size_t at() const { return at_; }
  char peek() const { return at_ < line_.size() ? line_[at_] : '\0'; }
  bool at_end() const { return at_ == line_.size(); }

  void space() {
    while (at_ < line_.size() &&
           (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r' || line_[at_] == '\n'))
      ++at_;
  }
  bool take(char c) {
    if (at_end() || line_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c, const char* where) {
    if (!take(c)) fail(fmt::format("expected '{}' {}", c, where));
  }
  // Parses a string and appends its value to `value` unless that is nullptr.
  void string(std::string* value);
  // Parses any value and discards it.
  void skip_value(int depth = 1);

 private:
  void escape(std::string* value);
  std::uint32_t four_digits();
  void number();
  void word(std::string_view name) {
    if (line_.substr(at_, name.size()) != name) fail("expected a value");
    at_ += name.size();
  }
  template <class Entry>
  void list(char close, const char* where, Entry entry);

  std::string_view line_;
  std::size_t at_ = 0;
};

void Scanner::string(std::string* value) {
  expect('"', "before a string");
  std::size_t start = at_;  // the first byte not copied yet
  const auto flush = [&] {
    if (value != nullptr) value->append(line_, start, at_ - start);
  };
  while (true) {
    std::uint64_t word = 0;
    while (at_ + 8 <= line_.size()) {
      std::memcpy(&word, line_.data() + at_, 8);
      if (any_special(word)) break;
      at_ += 8;
    }
    if (at_end()) fail("the line ends inside a string");
    const char c = line_[at_];
    if (c == '"') {
      flush();
      ++at_;
      return;
    }
    if (c == '\\') {
      flush();
      escape(value);
      start = at_;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fail(fmt::format("an unescaped control character ({:#04x}) in a string",
                       static_cast<unsigned>(c)));
    } else {
      const std::size_t length = utf8_character_length(line_.substr(at_));
      if (length == 0) fail("invalid UTF-8");
      at_ += length;
    }
  }
}

std::uint32_t Scanner::four_digits() {
  std::uint32_t code = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = peek();
    const int digit = is_digit(c)              ? c - '0'
                      : (c >= 'a' && c <= 'f') ? c - 'a' + 10
                      : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                               : -1;
    if (digit < 0) fail("expected four hexadecimal digits after \\u");
    code = code * 16 + static_cast<std::uint32_t>(digit);
    ++at_;
  }
  return code;
}

void Scanner::escape(std::string* value) {
  constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
  ++at_;  // the backslash
  const char name = peek();
  if (const std::size_t simple = kNames.find(name); simple != std::string_view::npos && !at_end()) {
    if (value != nullptr) value->push_back(kValues[simple]);
    ++at_;
    return;
  }
  if (!take('u')) fail("an unknown escape in a string");
  std::uint32_t code = four_digits();
  if (code >= 0xDC00 && code < 0xE000)
    fail("the second half of a surrogate pair without the first");
  if (code >= 0xD800 && code < 0xDC00) {
    const bool second = take('\\') && take('u');
    const std::uint32_t low = second ? four_digits() : 0;
    if (low < 0xDC00 || low >= 0xE000)
      fail("the first half of a surrogate pair without the second");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  if (value != nullptr) utf8_append(*value, code);
}

void Scanner::number() {
  const auto digits = [&] {
    if (!is_digit(peek())) fail("expected a digit");
    while (is_digit(peek())) ++at_;
  };
  take('-');
  if (!take('0')) digits();
  if (take('.')) digits();
  if (take('e') || take('E')) {
    if (!take('+')) take('-');
    digits();
  }
}

template <class Entry>
void Scanner::list(char close, const char* where, Entry entry) {
  ++at_;
  space();
  if (take(close)) return;
  do {
    space();
    entry();
    space();
  } while (take(','));
  expect(close, where);
}

void Scanner::skip_value(int depth) {
  if (depth > kMaxDepth) fail(fmt::format("nested deeper than {}", kMaxDepth));
  switch (peek()) {
    case '"':
      return string(nullptr);
    case '{':
      return list('}', "at the end of an object", [&] {
        string(nullptr);
        space();
        expect(':', "after a key");
        space();
        skip_value(depth + 1);
      });
    case '[':
      return list(']', "at the end of an array", [&] { skip_value(depth + 1); });
    case 't':
      return word("true");
    case 'f':
      return word("false");
    case 'n':
      return word("null");
    default:
      if (peek() != '-' && !is_digit(peek())) fail("expected a value");
      number();
  }
}

struct RequestedKey {
  std::string_view key;
  std::string& value;
  bool found = false;
};

std::string list_keys(const std::vector<std::string>& keys) {
  constexpr std::size_t kMaxListed = 8;
  std::string text;
  for (std::size_t i = 0; i < keys.size() && i < kMaxListed; ++i)
    text += (i > 0 ? ", '" : "'") + keys[i] + "'";
  return keys.empty() ? "no keys" : text + (keys.size() > kMaxListed ? " …" : "");
}

}  // namespace

bool RecordReader::is_jsonl(const std::filesystem::path& path) {
  std::filesystem::path name = path.filename();
  if (name.extension() == ".gz" || name.extension() == ".zst" || name.extension() == ".zstd")
    name = name.stem();
  const std::string ending = name.extension().string();
  return ending == ".jsonl" || ending == ".ndjson" || ending == ".json";
}

RecordReader::RecordReader(const std::filesystem::path& path, RecordOffset from)
    : RecordReader(path, from, Sizes{}) {}

RecordReader::RecordReader(const std::filesystem::path& path, RecordOffset from, Sizes sizes)
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

CorpusSource::CorpusSource(std::vector<std::filesystem::path> files, std::size_t lanes,
                           std::int64_t sample_bytes)
    : files_(std::move(files)), sample_bytes_(sample_bytes) {
  for (const auto& file : files_) {
    std::error_code error;  // a missing file is reported when it is opened
    const auto size = std::filesystem::file_size(file, error);
    sizes_.push_back(error ? 0 : static_cast<std::int64_t>(size));
    bytes_total_ += sizes_.back();
  }
  lanes = std::clamp<std::size_t>(lanes, 1, std::max<std::size_t>(files_.size(), 1));
  for (std::size_t i = 0; i < lanes; ++i) lanes_.push_back(std::make_unique<Lane>());
}

bool CorpusSource::next(std::size_t thread, Batch& batch) {
  for (const bool wait : {false, true})
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      Lane& lane = *lanes_[(thread + i) % lanes_.size()];
      std::unique_lock lock(lane.mutex, std::defer_lock);
      if (wait)
        lock.lock();
      else if (!lock.try_lock())
        continue;
      if (fill(lane, batch)) return true;
    }
  return false;
}

bool CorpusSource::fill(Lane& lane, Batch& batch) {
  batch.bytes.clear();
  batch.records.clear();
  while (batch.records.empty() && (lane.reader || open_next(lane))) {
    batch.file = lane.reader->name();
    batch.jsonl = lane.reader->jsonl();
    Record record;
    while (lane.reader && batch.bytes.size() < kBatchBytes) {
      if (!lane.reader->next(record)) {
        close(lane);
        break;
      }
      batch.records.push_back({batch.bytes.size(), record.bytes.size(), record.line});
      batch.bytes += record.bytes;
      lane.sample_left -= static_cast<std::int64_t>(record.bytes.size());
      if (sample_bytes_ > 0 && lane.sample_left <= 0) close(lane);
    }
    if (lane.reader) {
      const auto read = static_cast<std::int64_t>(lane.reader->bytes_read());
      bytes_read_ += read - lane.counted;
      lane.counted = read;
    }
  }
  return !batch.records.empty();
}

bool CorpusSource::open_next(Lane& lane) {
  if (next_file_ >= files_.size()) return false;
  lane.file = next_file_++;
  if (lane.file >= files_.size()) return false;
  lane.reader = std::make_unique<RecordReader>(files_[lane.file]);
  lane.counted = 0;
  const double fraction =
      bytes_total_ > 0 ? static_cast<double>(sizes_[lane.file]) / static_cast<double>(bytes_total_)
                       : 1.0;
  lane.sample_left =
      static_cast<std::int64_t>(std::ceil(static_cast<double>(sample_bytes_) * fraction));
  return true;
}

void CorpusSource::close(Lane& lane) {
  bytes_read_ += sizes_[lane.file] - lane.counted;
  lane.reader.reset();
}

void parse_json_line(std::string_view line, std::string_view text_key, std::string_view prompt_key,
                     std::string& text, std::string& prompt) {
  RequestedKey requested[2] = {{text_key, text}, {prompt_key, prompt}};
  const int count = prompt_key.empty() ? 1 : 2;
  Scanner scanner(line);
  std::vector<std::string> keys;
  std::string key;
  scanner.space();
  if (scanner.peek() != '{')
    scanner.fail("expected an object: each line of JSONL must be a JSON object");
  scanner.expect('{', "");
  scanner.space();
  if (scanner.at_end())
    scanner.fail("the line ends inside the object: each line of JSONL must be a JSON object");
  if (!scanner.take('}')) {
    do {
      scanner.space();
      key.clear();
      scanner.string(&key);
      scanner.space();
      scanner.expect(':', "after a key");
      scanner.space();
      RequestedKey* match = nullptr;
      for (int i = 0; i < count; ++i)
        if (requested[i].key == key) match = &requested[i];
      if (match != nullptr) {
        if (scanner.peek() != '"')
          scanner.fail(fmt::format("the value of '{}' is not a string", key));
        match->value.clear();
        match->found = true;
        scanner.string(&match->value);
      } else {
        keys.push_back(key);
        scanner.skip_value();
      }
      scanner.space();
    } while (scanner.take(','));
    scanner.expect('}', "at the end of the object");
  }
  scanner.space();
  if (!scanner.at_end()) scanner.fail("unexpected text after the end of the object");
  for (int i = 0; i < count; ++i)
    if (!requested[i].found)
      throw JsonLineError(
          fmt::format("no key '{}'; the object has {}", requested[i].key, list_keys(keys)), 1);
}

void parse_document(std::string_view line, const DocumentFormat& format, const std::string& file,
                    std::uint64_t line_number, Document& document) {
  document.prompt.clear();
  try {
    parse_json_line(line, format.text_key, format.prompt_key, document.text, document.prompt);
  } catch (const JsonLineError& error) {
    user_error("{}, line {}, byte {}: {}", file, line_number, error.byte(), error.what());
  }
}

}  // namespace kintsugi
