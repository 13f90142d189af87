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

}  // namespace

CorpusFormat RecordReader::format_of(const std::filesystem::path& path) {
  std::filesystem::path name = path.filename();
  if (name.extension() == ".parquet") return CorpusFormat::Parquet;
  for (const char* packed : {".gz", ".zst", ".zstd", ".xz"})
    if (name.extension() == packed) {
      name = name.stem();
      break;
    }
  const std::string ending = name.extension().string();
  if (ending == ".jsonl" || ending == ".ndjson" || ending == ".json") return CorpusFormat::Jsonl;
  return ending == ".warc" || ending == ".wet" ? CorpusFormat::Warc : CorpusFormat::Text;
}

bool RecordReader::is_jsonl(const std::filesystem::path& path) {
  return format_of(path) == CorpusFormat::Jsonl;
}
bool RecordReader::has_objects(const std::filesystem::path& path) {
  return format_of(path) != CorpusFormat::Text;
}
const char* RecordReader::unit_of(const std::filesystem::path& path) {
  const CorpusFormat format = format_of(path);
  return format == CorpusFormat::Parquet ? "row" : format == CorpusFormat::Warc ? "record" : "line";
}

RecordReader::RecordReader(const std::filesystem::path& path, RecordOffset from)
    : RecordReader(path, from, Options{}) {}

RecordReader::RecordReader(const std::filesystem::path& path, RecordOffset from, Options options)
    : name_(path.string()),
      format_(format_of(path)),
      options_(std::move(options)),
      position_(from),
      bytes_total_(std::filesystem::is_regular_file(path) ? std::filesystem::file_size(path) : 0) {
  if (format_ == CorpusFormat::Parquet) {
    open_parquet(path);
    return;
  }
  stream_.emplace(path);
  if (from.text_bytes > 0) skip_text(from.text_bytes);
}

void RecordReader::open_parquet(const std::filesystem::path& path) {
  try {
    parquet_.emplace(path, options_.keys, position_.line);
  } catch (const DamagedInput& error) {
    if (!options_.skip_damaged) throw;
    skipped_.push_back({name_, "byte", 0, bytes_total_, error.reason(), {}});
  }
}

void RecordReader::skip_text(std::uint64_t bytes) {
  stream_->skip(bytes - 1, options_.skip_damaged);
  char last = 0;
  while (true) {
    try {
      if (stream_->read({&last, 1}) > 0) break;
      user_error("{} has changed: its text is shorter than before", name_);
    } catch (const DamagedInput&) {
      if (!options_.skip_damaged) throw;
      stream_->resume();
    }
  }
  after_break_ = last == '\n';
}

std::uint64_t RecordReader::bytes_read() const {
  if (stream_) return stream_->bytes_read();
  if (!parquet_ || parquet_->rows() == 0) return bytes_total_;
  return static_cast<std::uint64_t>(static_cast<double>(bytes_total_) *
                                    static_cast<double>(parquet_->row()) /
                                    static_cast<double>(parquet_->rows()));
}

bool RecordReader::next(Record& record) {
  switch (format_) {
    case CorpusFormat::Parquet:
      return next_row(record);
    case CorpusFormat::Warc:
      return next_archived(record);
    case CorpusFormat::Jsonl:
      return next_line(record);
    case CorpusFormat::Text:
      break;
  }
  return options_.lines ? next_line(record) : next_segment(record);
}

bool RecordReader::fill() {
  if (finished_) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  // The old and the new memory exist at once, so it does not double near the limit.
  if (buffer_.size() < end_ + kReadBytes)
    buffer_.resize(end_ + std::max(kReadBytes, std::min(end_, options_.longest_line / 8)));
  std::size_t got = 0;
  do {
    try {
      got = stream_->read(std::span(buffer_).subspan(end_));
    } catch (const DamagedInput& damage) {
      if (!options_.skip_damaged) throw;
      damage_ = damage;
    }
    // The one document of a text goes on.
  } while (damage_ && format_ == CorpusFormat::Text && !options_.lines && pass_damage());
  end_ += got;
  finished_ = got == 0;
  return !finished_;
}

void RecordReader::take(std::size_t bytes) {
  begin_ += bytes;
  position_.text_bytes += bytes;
}

// Notes the damage and goes on behind it; false at the end.
bool RecordReader::pass_damage() {
  const bool more = stream_->resume();
  const std::uint64_t end = stream_->bytes_read();
  if (!skipped_.empty() && skipped_.back().unit == "byte" && !returned_)
    skipped_.back().end = std::max(skipped_.back().end, end);
  else
    skipped_.push_back({name_, "byte", damage_->position(), end, damage_->reason(), {}});
  returned_ = false;
  damage_.reset();
  return more;
}

// Leaves out the record that begins before the damage.
bool RecordReader::go_on_behind_damage() {
  if (!damage_) return false;
  take(unread().size());
  finished_ = !pass_damage();
  return !finished_;
}

// Reads over a line that is too long.
void RecordReader::skip_line() {
  const auto at = position_.line + 1;
  skipped_.push_back(
      {name_, "line", at, at, fmt::format("longer than {} bytes", options_.longest_line), 1});
  std::size_t end = 0;
  while ((end = unread().find('\n')) == std::string_view::npos) {
    take(unread().size());
    if (!fill()) return;
  }
  take(end + 1);
  ++position_.line;
}

bool RecordReader::next_line(Record& record) {
  while (true) {
    std::size_t searched = 0, length = std::string_view::npos;
    bool too_long = false;
    while ((length = unread().find('\n', searched)) == std::string_view::npos) {
      searched = unread().size();
      too_long = searched > options_.longest_line;
      if (too_long || !fill()) break;
    }
    if (too_long) {
      if (!options_.skip_damaged)
        user_error("{}, line {}: longer than {} bytes, the maximum for a document", name_,
                   position_.line + 1, options_.longest_line);
      skip_line();
      continue;
    }
    const bool last = length == std::string_view::npos;
    if (last && damage_) {
      if (!go_on_behind_damage()) return false;
      continue;
    }
    if (last && unread().empty()) return false;
    std::string_view line = unread().substr(0, length);
    const bool first = position_.text_bytes == 0;
    take(line.size() + (last ? 0 : 1));
    ++position_.line;
    if (first && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);  // a byte order mark
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    record = {line, position_.line};
    returned_ = true;
    return true;
  }
}

bool RecordReader::next_row(Record& record) {
  while (parquet_) {
    object_.clear();
    try {
      if (!parquet_->next(object_)) break;
      position_ = {parquet_->row(), parquet_->row()};
      if (object_.size() > options_.longest_line)
        throw DamagedInput(fmt::format("{}, row {}: longer than {} bytes, the maximum for a "
                                       "document",
                                       name_, position_.line, options_.longest_line),
                           "", 0);
    } catch (const DamagedInput& damage) {
      if (!options_.skip_damaged) throw;
      if (object_.size() > options_.longest_line)
        skipped_.push_back({name_, "row", position_.line, position_.line + 1,
                            fmt::format("longer than {} bytes", options_.longest_line), 1});
      else
        skip_rows(damage);
      continue;
    }
    record = {object_, position_.line};
    return true;
  }
  return false;
}

// Neighbours with one reason are reported together.
void RecordReader::skip_rows(const DamagedInput& damage) {
  SkippedInput more = parquet_->skip_damage(damage);
  position_ = {parquet_->row(), parquet_->row()};
  if (!skipped_.empty() && skipped_.back().unit == "row" && skipped_.back().end == more.begin) {
    skipped_.back().end = more.end;
    *skipped_.back().documents += *more.documents;
  } else {
    skipped_.push_back(std::move(more));
  }
}

// The header of the next record; empty: there is none.
std::optional<WarcHeader> RecordReader::next_header() {
  while (true) {
    // Empty lines end a record; there may be more of them.
    while (!unread().empty() && (unread().front() == '\n' || unread().front() == '\r')) take(1);
    if (unread().empty() && !fill()) {
      if (!go_on_behind_damage()) return {};
      continue;
    }
    if (unread().empty() || unread().front() == '\n' || unread().front() == '\r') continue;
    if (auto header = parse_warc_header(unread())) return header;
    if (fill()) continue;
    if (!damage_) throw WarcError("the file ends inside a header");
    if (!go_on_behind_damage()) return {};
  }
}

// False: the text ends before.
bool RecordReader::fill_to(std::uint64_t bytes) {
  while (unread().size() < bytes)
    if (!fill()) return false;
  return true;
}

bool RecordReader::skip_bytes(std::uint64_t bytes) {
  while (bytes > 0) {
    if (unread().empty() && !fill()) return false;
    const std::size_t some = std::min<std::uint64_t>(bytes, unread().size());
    take(some);
    bytes -= some;
  }
  return true;
}

bool RecordReader::next_archived(Record& record) {
  while (true) {
    ++position_.line;
    try {
      const std::optional<WarcHeader> header = next_header();
      if (!header) {
        --position_.line;
        return false;
      }
      if (read_archived(*header)) {
        record = {object_, position_.line};
        returned_ = true;
        return true;
      }
    } catch (const WarcError& error) {
      lose_records(error.what());
    }
  }
}

// Makes an object of the record that begins here. False: it is no document, or behind damage.
bool RecordReader::read_archived(const WarcHeader& header) {
  const std::uint64_t size = header.header_bytes + header.content_bytes;
  const auto end_inside = [&]() -> bool {
    if (damage_) {
      go_on_behind_damage();
      return false;
    }
    throw WarcError(fmt::format("the file ends inside a record of {} bytes", size));
  };
  constexpr std::uint64_t kLarge = 1 << 20;
  if (!may_have_document(header) && size > kLarge) return !skip_bytes(size) && end_inside();
  if (header.content_bytes > options_.longest_line)
    throw WarcError(
        fmt::format("longer than {} bytes, the maximum for a document", options_.longest_line));
  constexpr std::size_t kBehind = 16;  // enough to see whether another record begins there
  if (!fill_to(size + kBehind) && unread().size() < size) return end_inside();
  const std::string_view behind = unread().substr(size);
  const std::size_t next = std::min(behind.find_first_not_of("\r\n"), behind.size());
  constexpr std::string_view kNext = "WARC/1.";
  const bool ends = behind.starts_with("\r\n\r\n");
  const bool follows = kNext.starts_with(behind.substr(next, kNext.size()));
  if (!ends && (!follows || (next == 0 && !behind.empty())))
    throw WarcError(
        fmt::format("it does not end where its Content-Length says, behind {} bytes", size));
  object_.clear();
  const bool document = append_warc_object(
      header, unread().substr(header.header_bytes, header.content_bytes), object_);
  take(size);
  return document;
}

// Goes on with the next record behind what is wrong here.
void RecordReader::lose_records(const std::string& reason) {
  if (!options_.skip_damaged)
    user_error("{}, record {}, byte {} of its text: {}", name_, position_.line,
               position_.text_bytes, reason);
  SkippedInput skipped{name_,
                       "record",
                       position_.line,
                       position_.line + 1,
                       fmt::format("byte {} of the text: {}", position_.text_bytes, reason),
                       {}};
  std::size_t from = 1;  // not the record itself
  while (!unread().empty() || fill()) {
    const std::size_t at = find_warc_record(unread(), from);
    if (at != std::string_view::npos) {
      take(at);
      break;
    }
    constexpr std::size_t kKept = 16;  // of a beginning that is not complete
    if (unread().size() > kKept) {
      take(unread().size() - kKept);
      from = 0;
    }
    if (!fill()) {
      if (!go_on_behind_damage()) take(unread().size());
      break;
    }
  }
  skipped_.push_back(std::move(skipped));
}

bool RecordReader::next_segment(Record& record) {
  std::size_t length = 0;
  // One byte more than a segment tells whether the document continues.
  while (unread().size() <= options_.segment && fill()) {
  }
  while (true) {
    const std::string_view text = unread();
    if (text.empty()) return false;
    if (finished_ && text.size() <= options_.segment) {
      length = text.size();
      break;
    }
    const std::size_t limit = std::min(text.size() - 1, options_.longest_segment);
    length = last_safe_boundary(text, options_.segment);
    // Without a safe boundary in these bytes, take the first one after them.
    for (std::size_t at = options_.segment + 1; length == 0 && at <= limit; ++at)
      if (safe_boundary(text, at)) length = at;
    if (length > 0) break;
    if (finished_ && text.size() <= options_.longest_segment) {
      length = text.size();
      break;
    }
    if (text.size() > options_.longest_segment) {
      length = character_boundary(text, options_.longest_segment);
      break;
    }
    fill();
  }
  const std::string_view segment = unread().substr(0, length);
  take(length);
  record = {segment, position_.line + 1, finished_ && begin_ == end_, after_break_};
  after_break_ = segment.ends_with('\n');
  returned_ = true;
  position_.line += static_cast<std::uint64_t>(std::count(segment.begin(), segment.end(), '\n'));
  return true;
}

CorpusSource::CorpusSource(std::vector<std::filesystem::path> files, std::size_t lanes,
                           std::int64_t sample_bytes, RecordReader::Options options)
    : files_(std::move(files)), sample_bytes_(sample_bytes), options_(std::move(options)) {
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
    batch.objects = lane.reader->has_objects();
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
  lane.reader = std::make_unique<RecordReader>(files_[lane.file], RecordOffset{}, options_);
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
  {
    const std::lock_guard lock(skipped_mutex_);
    for (SkippedInput& one : lane.reader->take_skipped()) skipped_.push_back(std::move(one));
  }
  lane.reader.reset();
}

std::vector<SkippedInput> CorpusSource::take_skipped() {
  const std::lock_guard lock(skipped_mutex_);
  return std::exchange(skipped_, {});
}

}  // namespace kintsugi
