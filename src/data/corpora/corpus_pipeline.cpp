#include "data/corpora/corpus_pipeline.h"

namespace kintsugi {
namespace {

using Submit = std::function<bool(CorpusBatch)>;

// False if submitting has ended.
bool read_file(const std::filesystem::path& path, std::uint64_t file, const RecordOffset& from,
               const BatchOptions& options, std::uint64_t bytes_before, const Submit& submit) {
  RecordReader reader(path, from, options.records);
  CorpusBatch batch;
  const auto submit_batch = [&] {
    batch.objects = reader.has_objects();
    batch.skipped = reader.take_skipped();
    batch.file = reader.name();
    batch.end = {file, reader.position()};
    batch.input_bytes = bytes_before + reader.bytes_read();
    return submit(std::exchange(batch, {}));
  };
  bool in_document = !reader.has_objects() && from.text_bytes > 0;
  for (Record record; reader.next(record);) {
    batch.bytes.append(record.bytes);
    batch.entries.push_back(
        {batch.bytes.size(), record.line, !in_document, record.ends_document, record.after_break});
    in_document = !record.ends_document;
    if (batch.bytes.size() >= options.bytes && !submit_batch()) return false;
  }
  return submit_batch();  // perhaps without entries, but with what was skipped
}

}  // namespace

void read_batches(const std::vector<std::filesystem::path>& inputs, const BatchOptions& options,
                  const InputOffset& from, const Submit& submit) {
  CorpusBatch last;
  try {
    for (std::uint64_t file = 0; file < inputs.size(); ++file) {
      const RecordOffset start = file == from.file ? from.in_file : RecordOffset{};
      if (file >= from.file &&
          !read_file(inputs[file], file, start, options, last.input_bytes, submit))
        return;
      last.input_bytes += std::filesystem::file_size(inputs[file]);
    }
  } catch (...) {
    last.error = std::current_exception();
  }
  last.end.file = inputs.size();
  submit(std::move(last));
}

}  // namespace kintsugi
