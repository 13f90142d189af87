#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpora/corpus_pipeline.h"
#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// A part of a document that is too long to encode at once (record_reader.h).
struct TextSegment {
  std::string_view text;
  bool starts_document = true, ends_document = true;
  bool after_break = false;  // the text before it ends with a line break
};

// Encodes the segments of a document to the tokens of the whole document. Many tokenizers treat the
// start of a text in another way: they put a space before it (SentencePiece's add_dummy_prefix,
// Prepend, Metaspace), which only the start of the document must get. So a later segment is encoded
// after a short context, whose tokens are removed.
class SegmentEncoder {
 public:
  explicit SegmentEncoder(Tokenizer& tokenizer);  // it must outlive this object
  void encode(const TextSegment& segment, std::vector<std::int32_t>& ids);

 private:
  Tokenizer& tokenizer_;
  bool plain_ = false;        // the start of a text is like any other position
  bool break_first_ = false;  // a line break may be one token with the text after it
  std::vector<std::int32_t> context_ids_;
  std::string joined_;
};

// Encoded records of one file.
struct EncodedBatch {
  struct Record {
    std::size_t end = 0;  // of its tokens in `ids`
    bool ends_document = true;
  };
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;  // (ids) 0: prompt, no loss; empty without a prompt key
  std::vector<Record> records;
  std::int64_t text_bytes = 0, empty_documents = 0, invalid_lines = 0;
  std::string first_invalid;
  std::vector<SkippedInput> skipped;
  InputOffset end;                // the position after this batch
  std::uint64_t input_bytes = 0;  // of all files on disk up to `end`
};

// Encodes the inputs on several threads and returns the results in the order of the inputs.
class TokenizePipeline {
 public:
  struct Options {
    DocumentFormat format;
    std::optional<std::int32_t> end_of_document;
    bool skip_invalid = false;  // also damaged parts of the inputs
    int threads = 1;
    std::size_t batch_bytes = 256 * 1024;
  };
  TokenizePipeline(std::vector<std::filesystem::path> inputs, const Tokenizer& tokenizer,
                   Options options, InputOffset from = {});

  // False at the end. The error of a batch is thrown when that batch is due.
  bool next(EncodedBatch& batch) { return pipeline_->next(batch); }

  std::size_t capacity() const { return pipeline_->capacity(); }
  std::uint64_t batches_read() const { return pipeline_->batches_read(); }

 private:
  EncodedBatch encode(const CorpusBatch& batch, SegmentEncoder& encoder) const;
  void encode_record(const CorpusBatch& batch, std::size_t record, SegmentEncoder& encoder,
                     Document& document, EncodedBatch& result) const;

  Options options_;
  std::vector<std::unique_ptr<Tokenizer>> tokenizers_;
  std::vector<SegmentEncoder> encoders_;  // one of each tokenizer
  std::optional<CorpusPipeline<EncodedBatch>> pipeline_;
};

}  // namespace kintsugi
