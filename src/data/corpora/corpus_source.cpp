#include "data/corpora/corpus_source.h"

#include <algorithm>
#include <cmath>

namespace kintsugi {
namespace {

constexpr std::size_t kBatchBytes = 512 * 1024;

}  // namespace

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
