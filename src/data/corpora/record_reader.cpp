#include "data/corpora/record_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
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

constexpr std::size_t kBatchBytes = 512 * 1024;

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

}  // namespace kintsugi
