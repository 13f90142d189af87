#include <fmt/ranges.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/model/document_job.h"
#include "cli/options.h"
#include "core/log.h"
#include "tensor/safetensors.h"

namespace kintsugi {
namespace {

struct EmbedArguments : DocumentArguments {
  std::string pool = "mean";
  bool normalize = false;
};

// A file of embeddings. The number of documents is known at the end only.
class EmbeddingFile {
 public:
  explicit EmbeddingFile(const DocumentArguments& a)
      : file_("--output", a.output, a.output_rule()) {
    file_.begin();
  }
  virtual ~EmbeddingFile() = default;
  virtual void add(const InputDocument& document, std::span<const float> embedding) = 0;
  virtual void finish() { file_.publish(); }

 protected:
  OutputFile file_;
};

class JsonlEmbeddings final : public EmbeddingFile {
 public:
  using EmbeddingFile::EmbeddingFile;

  void add(const InputDocument& document, std::span<const float> embedding) override {
    // fmt writes the shortest digits that read back to the same number.
    const std::string line = fmt::format("{{\"id\": {}{}, \"embedding\": [{}]}}\n", document.id,
                                         label_of(document), fmt::join(embedding, ", "));
    file_.write(line);
  }

 private:
  static std::string label_of(const InputDocument& document) {
    if (!document.label) return "";
    return ", \"label\": " + nlohmann::json(*document.label)
                                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
};

// The header is written last, into the space that was left for it.
class SafetensorsEmbeddings final : public EmbeddingFile {
 public:
  SafetensorsEmbeddings(const DocumentArguments& a, std::int64_t width)
      : EmbeddingFile(a), path_(a.output), width_(width) {
    file_.write(std::string(kHeader, ' '));
  }

  void add(const InputDocument& document, std::span<const float> embedding) override {
    write_bytes(embedding);
    ++documents_;
    if (document.number) ids_.push_back(*document.number);
    if (document.label)
      labels_.push_back(
          names_.try_emplace(*document.label, static_cast<std::int32_t>(names_.size()))
              .first->second);
  }

  void finish() override {
    std::vector<SafetensorsWriter::Announced> tensors = {
        {"embeddings", DType::F32, {documents_, width_}}};
    SafetensorsMetadata metadata = {{"format", "pt"}};
    if (complete(ids_, "ids", "whole numbers")) {
      tensors.push_back({"ids", DType::I64, {documents_}});
      write_bytes(std::span<const std::int64_t>(ids_));
    }
    if (complete(labels_, "labels", "given")) {
      tensors.push_back({"labels", DType::I32, {documents_}});
      write_bytes(std::span<const std::int32_t>(labels_));
      metadata["labels"] = names_json();
    }
    const SafetensorsWriter::Plan plan = SafetensorsWriter::plan(tensors, path_, metadata);
    if (plan.header.size() > kHeader)
      user_error("{}: the names of {} labels are too long for the header of safetensors: use JSONL",
                 path_, names_.size());
    std::string header = plan.header;
    header.resize(kHeader, ' ');  // JSON may end with spaces
    const std::uint64_t length = kHeader - sizeof(std::uint64_t);
    std::memcpy(header.data(), &length, sizeof(length));
    file_.publish(header);
  }

 private:
  static constexpr std::size_t kHeader = 64 << 10;

  template <class T>
  void write_bytes(std::span<const T> values) {
    file_.write({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  }

  // Whether all documents have the value.
  template <class T>
  bool complete(const std::vector<T>& values, const char* name, const char* expected) const {
    const bool all = std::ssize(values) == documents_;
    if (!all && !values.empty())
      log_warning("{} has no {}: they are not {} in all documents", path_, name, expected);
    return all;
  }

  std::string names_json() const {
    std::vector<std::string> names(names_.size());
    for (const auto& [name, number] : names_) names[static_cast<std::size_t>(number)] = name;
    return nlohmann::json(names).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  std::string path_;
  std::int64_t width_, documents_ = 0;
  std::vector<std::int64_t> ids_;
  std::vector<std::int32_t> labels_;
  std::map<std::string, std::int32_t> names_;  // numbered as they appear
};

class EmbedJob {
 public:
  explicit EmbedJob(EmbedArguments& arguments) : a_(arguments) {}

  void run() {
    const std::string ending = std::filesystem::path(a_.output).extension().string();
    if (ending != ".safetensors" && ending != ".jsonl")
      user_error("--output {}: the name must end with .safetensors or .jsonl", a_.output);
    DocumentJob(a_, a_.pool == "mean" ? DocumentOutput::Mean : DocumentOutput::Last)
        .run({.begin = [&](const ModelConfig& config) { begin(config, ending == ".jsonl"); },
              .add = [&](auto documents, auto numbers) { add(documents, numbers); },
              .end = [&] { file_->finish(); }});
  }

 private:
  void begin(const ModelConfig& config, bool jsonl) {
    if (jsonl)
      file_ = std::make_unique<JsonlEmbeddings>(a_);
    else
      file_ = std::make_unique<SafetensorsEmbeddings>(a_, config.hidden_size);
  }

  void add(std::span<const InputDocument> documents, std::span<const double> numbers) {
    const std::size_t width = numbers.size() / documents.size();
    std::vector<float> embedding(width);
    for (std::size_t i = 0; i < documents.size(); ++i) {
      const auto own = numbers.subspan(i * width, width);
      double squares = 0;
      for (const double x : own) squares += x * x;
      const double factor = a_.normalize && squares > 0 ? 1 / std::sqrt(squares) : 1;
      for (std::size_t j = 0; j < width; ++j) embedding[j] = static_cast<float>(factor * own[j]);
      file_->add(documents[i], embedding);
    }
  }

  EmbedArguments& a_;
  std::unique_ptr<EmbeddingFile> file_;
};

}  // namespace

void add_embed_command(CLI::App& app) {
  auto a = std::make_shared<EmbedArguments>();
  CLI::App* command =
      app.add_subcommand("embed", "Write embeddings of documents: hidden states of a model");
  const AddOption add(*command);
  add_document_options(*command, *a);
  add("--output", a->output,
      "FILE.safetensors (embeddings, ids, labels) or FILE.jsonl ({\"id\", \"embedding\"} per line)",
      TypeName{"FILE"}, kRequired);
  add("--pool", a->pool, "mean (of the hidden states of all tokens) or last (of the last token)",
      CLI::IsMember({"mean", "last"}), kShowDefault);
  add("--normalize", a->normalize, "Scale each embedding to length 1");
  command->footer(
      "Examples:\n"
      "  kintsugi embed --checkpoint runs/demo --input texts.txt --output texts.safetensors\n"
      "  kintsugi embed --checkpoint DIR --input corpus.jsonl.gz --pool last --output last.jsonl\n"
      "  kintsugi embed --checkpoint DIR --input store/fi --normalize --output fi.safetensors\n"
      "  mpirun -n 4 kintsugi embed --checkpoint DIR --input store/fi --output fi.safetensors");
  command->callback([a] { EmbedJob(*a).run(); });
}

}  // namespace kintsugi
