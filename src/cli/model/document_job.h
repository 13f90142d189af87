#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/engine.h"
#include "cli/model/document_input.h"
#include "core/output_file.h"
#include "core/progress.h"
#include "eval/run/document_model.h"

namespace kintsugi {

// What `classify` and `embed` share: a model on each rank, and documents that the ranks share.
struct DocumentArguments {
  std::string checkpoint;
  DocumentInputOptions input;
  EngineArguments engine;  // precision and threads
  std::int64_t max_length = 0, batch_tokens = 0;
  std::string output;
  bool overwrite = false;

  OutputRule output_rule() const { return {overwrite, {input.path, checkpoint}}; }
};
void add_document_options(CLI::App& command, DocumentArguments& arguments);

class DocumentJob {
 public:
  DocumentJob(DocumentArguments& arguments, DocumentOutput output)
      : a_(arguments), output_(output) {}

  // Called on rank 0 only: before the first document, with each block of documents and `width`
  // numbers for each, and at the end.
  struct Listener {
    std::function<void(const ModelConfig& config)> begin;
    std::function<void(std::span<const InputDocument> documents, std::span<const double> numbers)>
        add;
    std::function<void()> end;
  };
  void run(const Listener& listener);

 private:
  void compute_all(Job& job, DocumentModel& model, const Listener& listener);
  // The numbers of all documents on rank 0.
  std::vector<double> compute(Job& job, DocumentModel& model,
                              std::span<const DocumentModel::Document> documents);
  void report_progress();

  DocumentArguments& a_;
  DocumentOutput output_;
  std::unique_ptr<DocumentInput> input_;  // on rank 0
  std::optional<Progress> progress_;      // on rank 0
};

}  // namespace kintsugi
