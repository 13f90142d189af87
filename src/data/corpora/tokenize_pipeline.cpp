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

TokenizePipeline::TokenizePipeline(std::vector<std::filesystem::path> inputs,
                                   const Tokenizer& tokenizer, Options options, InputOffset from)
    : options_(std::move(options)) {
  KINTSUGI_CHECK(options_.threads > 0, "{} threads", options_.threads);
  for (int i = 0; i < options_.threads; ++i) {
    tokenizers_.push_back(tokenizer.clone());
    encoders_.emplace_back(*tokenizers_.back());
  }
  std::vector<CorpusPipeline<EncodedBatch>::Process> processes;
  for (SegmentEncoder& own : encoders_)
    processes.emplace_back([this, &own](const CorpusBatch& batch) { return encode(batch, own); });
  BatchOptions batches{.bytes = options_.batch_bytes};
  batches.records.keys = options_.format.keys();
  batches.records.skip_damaged = options_.skip_invalid;
  pipeline_.emplace(std::move(inputs), std::move(batches), std::move(processes), from);
}

EncodedBatch TokenizePipeline::encode(const CorpusBatch& batch, SegmentEncoder& encoder) const {
  EncodedBatch result;
  result.end = batch.end;
  result.input_bytes = batch.input_bytes;
  result.skipped = batch.skipped;
  result.ids.reserve(batch.bytes.size() / 3);
  Document document;
  for (std::size_t i = 0; i < batch.entries.size(); ++i)
    encode_record(batch, i, encoder, document, result);
  return result;
}

void TokenizePipeline::encode_record(const CorpusBatch& batch, std::size_t record,
                                     SegmentEncoder& encoder, Document& document,
                                     EncodedBatch& result) const {
  const CorpusBatch::Entry& entry = batch.entries[record];
  std::string_view text = batch.record(record), prompt;
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

}  // namespace kintsugi
