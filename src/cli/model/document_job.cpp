#include "cli/model/document_job.h"

#include <cmath>
#include <cstring>

#include "cli/backends.h"
#include "cli/options.h"
#include "comm/exchange.h"
#include "core/log.h"
#include "core/units.h"
#include "eval/run/replicated_model.h"
#include "model/adapter/peft_config.h"

namespace kintsugi {
namespace {

// Blocks of documents between ranks of one program: the length of each, then its tokens.
std::string to_bytes(std::span<const InputDocument> documents) {
  std::string bytes;
  const auto append = [&](const std::int32_t* values, std::size_t count) {
    bytes.append(reinterpret_cast<const char*>(values), count * sizeof(*values));
  };
  for (const InputDocument& document : documents) {
    const auto length = static_cast<std::int32_t>(document.tokens.size());
    append(&length, 1);
    append(document.tokens.data(), document.tokens.size());
  }
  return bytes;
}

std::vector<DocumentModel::Document> from_bytes(std::string_view bytes) {
  std::vector<DocumentModel::Document> documents;
  while (!bytes.empty()) {
    std::int32_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    DocumentModel::Document& document = documents.emplace_back(static_cast<std::size_t>(length));
    std::memcpy(document.data(), bytes.data() + sizeof(length), document.size() * sizeof(length));
    bytes.remove_prefix((document.size() + 1) * sizeof(length));
  }
  return documents;
}

}  // namespace

void add_document_options(CLI::App& command, DocumentArguments& a) {
  const AddOption add(command);
  add_checkpoint_option(command, a.checkpoint);
  add("--input", a.input.path,
      "A text file with a document per line, JSONL with {\"text\": …} and optionally \"id\" and "
      "\"label\", a token store, or '-' for lines from standard input",
      TypeName{"FILE"}, kRequired);
  add("--input-format", a.input.format,
      "lines, jsonl, store or auto (by the name: .txt, .jsonl, else a store)",
      CLI::IsMember({"auto", "lines", "jsonl", "store"}), kShowDefault);
  add("--text-key", a.input.text_key, "JSONL key of the text", kShowDefault);
  add_bos_option(command, a.input.bos, "each text");
  add("--max-length", a.max_length,
      "Tokens of a document that are read, from its beginning; 0: the positions of the model",
      whole_number(between(0, 1 << 24)), kShowDefault);
  add("--batch-tokens", a.batch_tokens,
      "Tokens computed at the same time; 0: 1024 on a CPU, 16384 on a GPU, at least --max-length",
      whole_number(between(0, 1 << 24)), kShowDefault);
  add_precision_options(command, a.engine);
  add_overwrite_option(command, a.overwrite);
}

void DocumentJob::run(const Listener& listener) {
  Job job;
  job.run([&] {
    World& world = job.world();
    ModelConfig config;
    job.together([&] {
      if (world.rank() != 0) return;
      a_.checkpoint = model_directory(a_.checkpoint).string();
      if (is_adapter_directory(a_.checkpoint))
        user_error("{} holds an adapter: merge it with `kintsugi model merge-adapter` first",
                   a_.checkpoint);
      if (!a_.output.empty()) check_output_file("--output", a_.output, a_.output_rule());
      input_ = std::make_unique<DocumentInput>(a_.input, a_.checkpoint);
      config = read_hf_config(std::filesystem::path(a_.checkpoint) / "config.json");
    });
    a_.checkpoint = job.broadcast_text(a_.checkpoint);
    check_same_model(job, {a_.checkpoint});
    const std::unique_ptr<Backend> backend = make_backend(
        DeviceChoice::Auto, threads_for(a_.engine.threads, world), {}, world.local_rank());
    std::unique_ptr<DocumentModel> model;
    job.together([&] {
      std::optional<Progress> loading;
      if (world.rank() == 0) loading.emplace("load model", 0, "bytes");
      model = std::make_unique<DocumentModel>(
          *backend, a_.checkpoint,
          DocumentModelOptions{
              .precision = parse_precision(a_.engine.precision),
              .output = output_,
              .max_length = a_.max_length,
              .batch_tokens = a_.batch_tokens,
              .memory_shares = backend->host() == backend.get() ? world.local_size() : 1,
              .unused = unused_weights_of(a_.engine),
              .loading = loading ? loading->callback() : ProgressCall()});
      loading.reset();
      if (world.rank() == 0) listener.begin(config);
    });
    if (world.rank() == 0) progress_.emplace("compute", 0, "documents");
    compute_all(job, *model, listener);
    progress_.reset();
    job.together([&] {
      if (world.rank() != 0) return;
      if (input_->count() == 0) user_error("{} has no documents", a_.input.path);
      listener.end();
      if (input_->truncated() > 0)
        log_warning("{} of {} documents are longer than {} tokens: only their beginning was read",
                    input_->truncated(), input_->count(), model->max_length());
    });
  });
}

void DocumentJob::compute_all(Job& job, DocumentModel& model, const Listener& listener) {
  const bool is_first = job.world().rank() == 0;
  const std::int64_t block =
      4 * std::max<std::int64_t>(model.batch_tokens(), 1024) * job.world().size();
  std::vector<InputDocument> documents;
  while (true) {
    std::string bytes;
    job.together([&] {
      if (is_first && input_->read(documents, block, model.max_length()))
        bytes = to_bytes(documents);
    });
    if (job.world().size() > 1) bytes = job.broadcast_text(bytes);
    if (bytes.empty()) break;
    const std::vector<double> numbers = compute(job, model, from_bytes(bytes));
    job.together([&] {
      if (!is_first) return;
      for (std::size_t i = 0; i < numbers.size(); ++i)
        if (!std::isfinite(numbers[i]))
          failure("{}: the result is not finite; use --precision fp32 or check the model",
                  documents[i / static_cast<std::size_t>(model.width())].source);
      listener.add(documents, numbers);
      report_progress();
    });
  }
}

std::vector<double> DocumentJob::compute(Job& job, DocumentModel& model,
                                         std::span<const DocumentModel::Document> documents) {
  World& world = job.world();
  if (world.size() == 1) return model.compute(documents);
  std::string bytes;
  job.together([&] {
    const RequestRange range = range_of(documents.size(), world.rank(), world.size(),
                                        [&](std::size_t i) { return documents[i].size(); });
    const std::vector<double> own =
        model.compute(documents.subspan(range.begin, range.end - range.begin));
    bytes.assign(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(double));
  });
  std::vector<double> all;
  for (const std::string& part : texts_at_first(job.control(), bytes)) {
    const std::size_t at = all.size();
    all.resize(at + part.size() / sizeof(double));
    std::memcpy(all.data() + at, part.data(), part.size());
  }
  return all;
}

// The number of documents is known by the fraction of the input that was read.
void DocumentJob::report_progress() {
  const double fraction = input_->done(), count = static_cast<double>(input_->count());
  progress_->set(input_->count(),
                 fraction > 0 ? static_cast<std::int64_t>(count / std::min(fraction, 1.0)) : 0);
}

}  // namespace kintsugi
