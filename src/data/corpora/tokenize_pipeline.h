#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "data/corpora/document.h"
#include "data/corpora/record_reader.h"
#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// Where a job stands in its inputs.
struct InputPlace {
  std::uint64_t file = 0;  // of the list
  RecordPlace in_file;
};

// Some records of one file, encoded.
struct EncodedBatch {
  struct Piece {
    std::size_t tokens = 0;  // of all pieces up to and with this one
    bool ends_document = true;
  };
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;  // where prompts are told apart
  std::vector<Piece> pieces;
  std::int64_t text_bytes = 0, empty_documents = 0, invalid_lines = 0;
  std::string first_invalid;
  InputPlace end;                 // everything before it has been handed out
  std::uint64_t input_bytes = 0;  // of all files up to there, as they lie
  std::exception_ptr error;
};

// Reads, encodes on several threads, and hands out the results in the order of the inputs:
// one thread cuts the files into batches, the others parse and encode. At most capacity() batches
// exist at a time.
class TokenizePipeline {
 public:
  struct Options {
    DocumentFormat format;
    std::optional<std::int32_t> end_of_document;
    bool skip_invalid = false;
    int threads = 1;
    std::size_t batch_bytes = 256 * 1024;
  };
  TokenizePipeline(std::vector<std::filesystem::path> inputs, const Tokenizer& tokenizer,
                   Options options, InputPlace from = {});
  ~TokenizePipeline();

  // False at the end. An error comes where its batch would have come.
  bool next(EncodedBatch& batch);

  std::size_t capacity() const { return 2 * static_cast<std::size_t>(options_.threads) + 2; }
  std::uint64_t batches_read() const { return batches_read_; }

 private:
  struct TextBatch;
  void read_inputs(InputPlace from);
  void read_file(std::uint64_t file, RecordPlace from, std::uint64_t bytes_before);
  bool submit(TextBatch batch);  // false when the work is to stop
  void encode_batches(Tokenizer& tokenizer);
  EncodedBatch encode(const TextBatch& batch, Tokenizer& tokenizer) const;
  void encode_record(const TextBatch& batch, std::size_t record, Tokenizer& tokenizer,
                     Document& document, EncodedBatch& result) const;

  std::vector<std::filesystem::path> inputs_;
  Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TextBatch> to_encode_;
  std::map<std::uint64_t, EncodedBatch> encoded_;
  std::atomic<std::uint64_t> batches_read_ = 0;
  std::uint64_t batches_taken_ = 0;
  bool all_read_ = false, stopping_ = false;
  std::vector<std::unique_ptr<Tokenizer>> tokenizers_;
  std::vector<std::thread> threads_;
};

}  // namespace kintsugi
