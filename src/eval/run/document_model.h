#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "core/progress.h"
#include "model/files/stored_model.h"
#include "model/whole_model.h"

namespace kintsugi {

// What is read of a document.
enum class DocumentOutput : std::uint8_t {
  Mean,    // the mean of the hidden states of its tokens
  Last,    // the hidden state of its last token
  Logits,  // the logits of the labels at its last token; only classifiers
};

struct DocumentModelOptions {
  DType precision = DType::F32;
  DocumentOutput output = DocumentOutput::Last;
  std::int64_t max_length = 0;     // tokens of a document; 0: the positions of the model
  std::int64_t batch_tokens = 0;   // computed at the same time; 0: 1024 on a CPU, 16384 on a GPU
  std::int64_t memory_shares = 1;  // processes that share the backend's memory
  UnusedWeights unused = UnusedWeights::Refuse;
  ProgressCall loading = {};  // bytes of the weights
};

// A model that reads whole documents: for embeddings (hidden states after the final norm,
// transformers' last_hidden_state) and for classifiers. Short documents share a row, in which each
// sees only itself. In families without document masks each has a row of its own.
class DocumentModel {
 public:
  using Document = std::vector<std::int32_t>;

  // UserError if the directory is no such model, or there is too little memory.
  DocumentModel(Backend& backend, const std::filesystem::path& directory,
                const DocumentModelOptions& options);
  ~DocumentModel();
  DocumentModel(const DocumentModel&) = delete;
  DocumentModel& operator=(const DocumentModel&) = delete;

  const ModelConfig& config() const { return config_; }
  std::int64_t max_length() const { return options_.max_length; }
  std::int64_t batch_tokens() const { return options_.batch_tokens; }
  std::int64_t width() const;  // numbers per document

  // Computes documents of 1 to max_length() tokens: `width()` numbers each. `progress` is called
  // with the number of documents that were done since the last call.
  using Progress = std::function<void(std::size_t documents)>;
  std::vector<double> compute(std::span<const Document> documents, const Progress& progress = {});

 private:
  struct Work;
  struct Batch;

  bool packs() const;
  // Takes documents from the front of `left`.
  Batch next_batch(std::span<const Document>& left) const;
  Batch packed_batch(std::span<const Document>& left) const;
  Batch batch_of_rows(std::span<const Document>& left) const;
  MicroBatch upload(const Batch& batch);
  void read(const Batch& batch, const Tensor& rows, std::vector<double>& results);

  Backend& backend_;
  ModelConfig config_;
  DocumentModelOptions options_;
  bool pads_;  // all batches have the same size: a GPU prepares kernels for each
  ParameterSet set_;
  Arena arena_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<Work> work_;
};

}  // namespace kintsugi
