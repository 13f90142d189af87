#include "data/corpora/tokenize_pipeline.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr std::string_view kContext = "a\n";

using Ids = std::vector<std::int32_t>;

Ids ids_of(Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

bool starts_with(const Ids& ids, std::size_t from, const Ids& start) {
  return ids.size() - from >= start.size() &&
         std::equal(start.begin(), start.end(), ids.begin() + static_cast<std::ptrdiff_t>(from));
}

}  // namespace

SegmentEncoder::SegmentEncoder(Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  try {
    const Ids whole = ids_of(tokenizer_, "a\na"), letter = ids_of(tokenizer_, "a");
    context_ids_ = ids_of(tokenizer_, kContext);
    Ids parts = context_ids_;
    parts.insert(parts.end(), letter.begin(), letter.end());
    plain_ = whole == parts;
    break_first_ = !starts_with(whole, 0, context_ids_);
    if (break_first_) context_ids_ = letter;
  } catch (const UserError&) {
    plain_ = true;  // it cannot encode the context
  }
}

void SegmentEncoder::encode(const TextSegment& segment, Ids& ids) {
  std::string_view text = segment.text;
  // The next segment then begins with this line break.
  if (!plain_ && break_first_ && !segment.ends_document && text.ends_with('\n'))
    text.remove_suffix(1);
  if (plain_ || segment.starts_document || (break_first_ && !segment.after_break))
    return tokenizer_.encode(text, ids);
  joined_.assign(kContext).append(text);
  const std::size_t before = ids.size();
  tokenizer_.encode(joined_, ids);
  const auto first = ids.begin() + static_cast<std::ptrdiff_t>(before);
  if (starts_with(ids, before, context_ids_)) {
    ids.erase(first, first + static_cast<std::ptrdiff_t>(context_ids_.size()));
  } else {  // the context and this text share a token
    ids.resize(before);
    tokenizer_.encode(text, ids);
  }
}

// Records of one file, concatenated.
struct TokenizePipeline::TextBatch {
  struct Entry {
    std::size_t end;
    std::uint64_t line;
    bool starts_document, ends_document, after_break;
  };
  std::uint64_t number = 0;
  std::string bytes;
  std::vector<Entry> entries;
  bool objects = false;
  std::string file;
  std::vector<SkippedInput> skipped;  // before its end
  InputOffset end;
  std::uint64_t input_bytes = 0;
  std::exception_ptr error;  // of the reader; then there are no entries
};

TokenizePipeline::TokenizePipeline(std::vector<std::filesystem::path> inputs,
                                   const Tokenizer& tokenizer, Options options, InputOffset from)
    : inputs_(std::move(inputs)), options_(std::move(options)) {
  KINTSUGI_CHECK(options_.threads > 0, "{} threads", options_.threads);
  for (int i = 0; i < options_.threads; ++i) {
    tokenizers_.push_back(tokenizer.clone());
    encoders_.emplace_back(*tokenizers_.back());
  }
  threads_.emplace_back([this, from] { read_inputs(from); });
  for (SegmentEncoder& own : encoders_)
    threads_.emplace_back([this, &own] { encode_batches(own); });
}

TokenizePipeline::~TokenizePipeline() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// ---- the reading thread

void TokenizePipeline::read_inputs(InputOffset from) {
  std::uint64_t bytes_before = 0;
  std::exception_ptr error;
  try {
    for (std::uint64_t file = 0; file < inputs_.size(); ++file) {
      if (file >= from.file)
        read_file(file, file == from.file ? from.in_file : RecordOffset{}, bytes_before);
      bytes_before += std::filesystem::file_size(inputs_[file]);
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
  } catch (...) {
    error = std::current_exception();
  }
  TextBatch last;
  last.error = error;
  last.end.file = inputs_.size();
  last.input_bytes = bytes_before;
  submit(std::move(last));
  const std::lock_guard lock(mutex_);
  all_read_ = true;
  changed_.notify_all();
}

void TokenizePipeline::read_file(std::uint64_t file, RecordOffset from,
                                 std::uint64_t bytes_before) {
  RecordReader::Options options;
  options.keys = options_.format.keys();
  options.skip_damaged = options_.skip_invalid;
  RecordReader reader(inputs_[file], from, options);
  TextBatch batch;
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
    if (batch.bytes.size() >= options_.batch_bytes && !submit_batch()) return;
  }
  submit_batch();  // perhaps without entries, but with what was skipped
}

bool TokenizePipeline::submit(TextBatch batch) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping_ || batches_read_ - batches_taken_ < capacity(); });
  if (stopping_) return false;
  batch.number = batches_read_++;
  to_encode_.push_back(std::move(batch));
  changed_.notify_all();
  return true;
}

// ---- the encoding threads

void TokenizePipeline::encode_batches(SegmentEncoder& encoder) {
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopping_ || all_read_ || !to_encode_.empty(); });
    if (stopping_ || to_encode_.empty()) return;
    const TextBatch batch = std::move(to_encode_.front());
    to_encode_.pop_front();
    lock.unlock();
    EncodedBatch result;
    try {
      result = encode(batch, encoder);
    } catch (...) {
      result.error = std::current_exception();
    }
    lock.lock();
    encoded_.emplace(batch.number, std::move(result));
    changed_.notify_all();
  }
}

EncodedBatch TokenizePipeline::encode(const TextBatch& batch, SegmentEncoder& encoder) const {
  EncodedBatch result;
  result.error = batch.error;
  result.end = batch.end;
  result.input_bytes = batch.input_bytes;
  result.skipped = batch.skipped;
  result.ids.reserve(batch.bytes.size() / 3);
  Document document;
  for (std::size_t i = 0; i < batch.entries.size(); ++i)
    encode_record(batch, i, encoder, document, result);
  return result;
}

void TokenizePipeline::encode_record(const TextBatch& batch, std::size_t record,
                                     SegmentEncoder& encoder, Document& document,
                                     EncodedBatch& result) const {
  const TextBatch::Entry& entry = batch.entries[record];
  const std::size_t begin = record == 0 ? 0 : batch.entries[record - 1].end;
  std::string_view text = std::string_view(batch.bytes).substr(begin, entry.end - begin), prompt;
  if (batch.objects) {
    try {
      parse_document(text, options_.format, batch.file, entry.line, document);
    } catch (const UserError& error) {
      if (!options_.skip_invalid) throw;
      if (result.invalid_lines++ == 0) result.first_invalid = error.what();
      return;
    }
    text = document.text;
    prompt = document.prompt;
  }
  const std::size_t before = result.ids.size();
  encoder.encode({prompt}, result.ids);
  const std::size_t prompt_tokens = result.ids.size() - before;
  encoder.encode({text, entry.starts_document, entry.ends_document, entry.after_break}, result.ids);
  if (entry.starts_document && entry.ends_document && result.ids.size() == before) {
    ++result.empty_documents;
    return;
  }
  if (entry.ends_document && options_.end_of_document)
    result.ids.push_back(*options_.end_of_document);
  if (!options_.format.prompt_key.empty()) {
    result.mask.resize(before + prompt_tokens, 0);
    result.mask.resize(result.ids.size(), 1);
  }
  result.text_bytes += static_cast<std::int64_t>(prompt.size() + text.size());
  result.records.push_back({result.ids.size(), entry.ends_document});
}

// ---- the calling thread

bool TokenizePipeline::next(EncodedBatch& batch) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return encoded_.contains(batches_taken_); };
  changed_.wait(lock, [&] { return ready() || (all_read_ && batches_taken_ == batches_read_); });
  if (!ready()) return false;
  batch = std::move(encoded_.extract(batches_taken_).mapped());
  ++batches_taken_;
  changed_.notify_all();
  if (batch.error) std::rethrow_exception(batch.error);
  return true;
}

}  // namespace kintsugi
