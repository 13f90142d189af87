// Which samples and sequences occur several times, and the marks that say so.
#include "core/error.h"
#include "core/file.h"
#include "data/dedup/cluster_sizes.h"
#include "data/dedup/mark_reader.h"
#include "data/dedup/record_sorter.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = DedupDirectory::Json;

// A bucket of a file that BucketFile has written.
RecordRange bucket_range(const DedupDirectory& directory, DedupStage stage, std::size_t unit,
                         std::size_t bucket, const RecordForm& form) {
  const Json description = directory.require(stage, unit);
  const auto bytes = description.at("bytes").get<std::vector<std::uint64_t>>();
  const fs::path path = directory.records(stage, unit);
  std::uint64_t begin = 0, total = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    begin += i < bucket ? bytes[i] : 0;
    total += bytes[i];
  }
  if (!fs::exists(path) || fs::file_size(path) != total || bytes[bucket] % form.bytes() != 0)
    user_error(
        "{} is damaged (it should have {} bytes): remove it with {}, and run --stage {} again",
        path.string(), total, directory.description(stage, unit).string(), to_string(stage));
  return {.file = path,
          .begin = begin,
          .end = begin + bytes[bucket],
          .checksum = from_hex(description.at("xxh3").at(bucket)),
          .stage = to_string(stage)};
}

struct Place {
  std::size_t task = 0;
  std::uint64_t place = 0;
};

// Groups of equal records, in the order of the corpus.
class CopyFinder {
 public:
  CopyFinder(const DedupDirectory& directory, DedupStage stage, std::size_t bucket,
             std::int64_t memory)
      : samples_(stage == DedupStage::Repeats),
        length_(directory.sequence_length()),
        sorter_(kMarkForm, directory.tasks(),
                directory.description(stage, bucket).replace_extension(".runs"), memory) {}

  void add(const Place& place, bool as_before) {
    if (!as_before) {
      end_group();
      first_ = place;
      size_ = 1;
      return;
    }
    if (size_++ == 1 && samples_) mark(first_, 0);
    mark(place, samples_ ? 0 : overlap(place));
  }
  void end_group() {
    if (size_ > 1) sizes_.add(size_);
    size_ = 0;
  }

  RecordSorter& sorter() { return sorter_; }
  const ClusterSizes& sizes() const { return sizes_; }

 private:
  // The first pieces of a copy that belong to the first one too.
  std::uint32_t overlap(const Place& copy) const {
    const bool near = copy.task == first_.task &&
                      document_of(copy.place) == document_of(first_.place) &&
                      copy.place < first_.place + length_;
    return near ? static_cast<std::uint32_t>(first_.place + length_ - copy.place) : 0;
  }
  void mark(const Place& place, std::uint32_t skipped) {
    char record[12];
    std::memcpy(record, &place.place, 8);
    std::memcpy(record + 8, &skipped, 4);
    sorter_.add(place.task, {record, sizeof record});
  }

  bool samples_;
  std::size_t length_;
  RecordSorter sorter_;
  ClusterSizes sizes_;
  Place first_;
  std::uint64_t size_ = 0;
};

}  // namespace

void find_copies(const DedupDirectory& directory, DedupStage stage, std::size_t bucket,
                 std::int64_t memory, const DedupProgress& progress) {
  const bool samples = stage == DedupStage::Repeats;
  const DedupStage from = samples ? DedupStage::Samples : DedupStage::Sequences;
  const RecordForm form = samples ? kSampleForm : kSequenceForm;
  std::vector<RecordRange> ranges;
  std::vector<std::size_t> tasks;
  for (std::size_t task = 0; task < directory.tasks(); ++task) {
    RecordRange range = bucket_range(directory, from, task, bucket, form);
    if (range.begin == range.end) continue;
    ranges.push_back(std::move(range));
    tasks.push_back(task);
  }
  RecordMerge merge(form, std::move(ranges), memory / 2);
  CopyFinder finder(directory, stage, bucket, memory / 2);
  std::string last;
  std::int64_t records = 0;
  const char* record = nullptr;
  for (std::size_t range; merge.next(record, range);) {
    const bool as_before = !last.empty() && form.compare(last.data(), record, false) == 0;
    finder.add({tasks[range], form.number(record)}, as_before);
    last.assign(record, form.bytes());
    if (++records % 65536 != 0) continue;
    progress.add(65536);
    if (progress.stop()) throw DedupStopped();
  }
  finder.end_group();
  progress.add(records % 65536);
  BucketFile file(directory.records(stage, bucket), directory.tasks());
  finder.sorter().finish(
      [&](std::size_t task, std::string_view marks) { file.write(task, marks); });
  const Json description = {{"records", records},
                            {"marks", finder.sorter().records()},
                            {"sizes", finder.sizes().json()},
                            {"bytes", file.bytes()},
                            {"xxh3", file.checksums()}};
  file.publish();
  directory.finish(stage, bucket, description);
}

MarkReader::MarkReader(const DedupDirectory& directory, DedupStage stage, std::size_t task,
                       std::int64_t memory)
    : directory_(directory), stage_(stage), task_(task) {
  std::vector<RecordRange> ranges;
  for (std::size_t bucket = 0; bucket < directory.options().buckets; ++bucket)
    if (RecordRange range = bucket_range(directory, stage, bucket, task, kMarkForm);
        range.begin < range.end)
      ranges.push_back(std::move(range));
  merge_ = std::make_unique<RecordMerge>(kMarkForm, std::move(ranges), memory);
  advance();
}

void MarkReader::advance() {
  const char* record = nullptr;
  std::size_t range = 0;
  done_ = !merge_->next(record, range);
  if (done_) return;
  place_ = kMarkForm.value(record, 0);
  number_ = static_cast<std::uint32_t>(kMarkForm.number(record));
}

void MarkReader::take(std::uint32_t document, std::vector<Mark>& marks) {
  marks.clear();
  for (; !done_ && document_of(place_) == document; advance())
    marks.push_back({.piece = piece_of(place_), .skipped = number_});
}

void MarkReader::check_end() const {
  if (!done_)
    user_error("the marks of --stage {} name document {} of task {}, which does not exist",
               to_string(stage_), document_of(place_), task_);
}

}  // namespace kintsugi
