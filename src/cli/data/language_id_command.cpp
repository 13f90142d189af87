#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/progress.h"
#include "core/table.h"
#include "core/units.h"
#include "data/corpora/record_reader.h"
#include "data/curation/language_training.h"

namespace kintsugi {
namespace {

// ---- kintsugi data train-language-id

struct TrainLanguageArguments {
  std::vector<std::string> inputs;
  std::string output, label_bytes = "20MB", buckets = "500k";
  LanguageCorpusOptions corpus;
  LanguageTrainingOptions training;
  bool overwrite = false;
};

// LABEL=FILES, where FILES may be a pattern. A label may occur several times.
std::vector<LanguageFiles> language_files(const std::vector<std::string>& inputs) {
  std::vector<LanguageFiles> languages;
  for (const std::string& input : inputs) {
    const std::size_t at = input.find('=');
    if (at == 0 || at == std::string::npos || at + 1 == input.size())
      user_error("--input {} is not of the form LABEL=FILES", input);
    const std::string label = input.substr(0, at);
    if (label.find_first_of(" \t\r\n\v\f") != std::string::npos)
      user_error("--input: the label '{}' has a space", label);
    auto found = std::find_if(languages.begin(), languages.end(),
                              [&](const LanguageFiles& known) { return known.label == label; });
    if (found == languages.end()) found = languages.insert(found, {label, {}});
    for (const auto& file : expand_inputs({input.substr(at + 1)})) found->files.push_back(file);
  }
  if (languages.size() < 2) user_error("--input: give the files of at least two labels");
  return languages;
}

// What the model says of the held-out documents.
struct LanguageScores {
  std::int64_t documents = 0, right_documents = 0, pieces = 0, right_pieces = 0;

  void add(const LanguageScores& other) {
    documents += other.documents;
    right_documents += other.right_documents;
    pieces += other.pieces;
    right_pieces += other.right_pieces;
  }
};

std::vector<LanguageScores> judge(const LanguageModel& model, const LanguageCorpus& corpus) {
  std::vector<LanguageScores> judged(corpus.labels.size());
  for (const LanguageCorpus::Document& document : corpus.documents) {
    if (!document.held_out) continue;
    const auto label = static_cast<std::size_t>(document.label);
    const std::string_view text = corpus.text_of(document);
    const auto is_right = [&](std::string_view part) {
      return model.guess(part).label == corpus.labels[label] ? 1 : 0;
    };
    ++judged[label].documents;
    judged[label].right_documents += is_right(text);
    for (const std::string_view piece : language_pieces(text)) {
      ++judged[label].pieces;
      judged[label].right_pieces += is_right(piece);
    }
  }
  return judged;
}

Cell fraction(std::int64_t right, std::int64_t all) {
  if (all == 0) return Cell::missing();
  return static_cast<double>(right) / static_cast<double>(all);
}

void print_judgement(const LanguageCorpus& corpus, const std::vector<LanguageScores>& judged) {
  Table table({Column::text("label"), Column::number("documents"), Column::bytes("text"),
               Column::number("held out"), Column::percent("right", "", 2),
               Column::percent("right in short pieces", "", 2)});
  std::vector<std::int64_t> documents(judged.size()), bytes(judged.size());
  for (const LanguageCorpus::Document& document : corpus.documents) {
    ++documents[static_cast<std::size_t>(document.label)];
    bytes[static_cast<std::size_t>(document.label)] += static_cast<std::int64_t>(document.length);
  }
  LanguageScores all;
  const auto add_row = [&](const std::string& label, std::int64_t count, std::int64_t size,
                           const LanguageScores& held) {
    table.add({label, count, size, held.documents, fraction(held.right_documents, held.documents),
               fraction(held.right_pieces, held.pieces)});
  };
  for (std::size_t i = 0; i < judged.size(); ++i) {
    add_row(corpus.labels[i], documents[i], bytes[i], judged[i]);
    all.add(judged[i]);
  }
  add_row("all", std::ssize(corpus.documents), std::ssize(corpus.text), all);
  fmt::print("{}", table.text());
}

void train_language_id(TrainLanguageArguments& a) {
  a.corpus.label_bytes = parse_bytes(a.label_bytes);
  a.training.arguments.bucket = static_cast<std::int32_t>(parse_count(a.buckets));
  if (a.training.arguments.min_n > a.training.arguments.max_n)
    user_error("--min-n {} is above --max-n {}", a.training.arguments.min_n,
               a.training.arguments.max_n);
  const std::vector<LanguageFiles> languages = language_files(a.inputs);
  OutputRule rule{.overwrite = a.overwrite};
  for (const LanguageFiles& language : languages)
    rule.inputs.insert(rule.inputs.end(), language.files.begin(), language.files.end());
  OutputFile output("--output", a.output, rule);

  const LanguageCorpus corpus = read_language_corpus(languages, a.corpus);
  if (corpus.invalid_lines > 0)
    log_warning("{} malformed lines skipped, one of them: {}", corpus.invalid_lines,
                corpus.first_invalid);
  warn_of_skipped(corpus.skipped);
  std::optional<Progress> progress(std::in_place, "train", 0, "pieces");
  a.training.progress = progress->callback();
  output.write(train_language_model(corpus, a.training));
  const double training_s = progress->elapsed_s();
  progress.reset();
  output.publish();
  print_judgement(corpus, judge(LanguageModel(a.output), corpus));
  log_info("{}: {} labels, trained in {}", a.output, corpus.labels.size(),
           format_duration(training_s));
}

// ---- kintsugi data language-id

struct LanguageIdArguments {
  std::vector<std::string> files;
  std::string model, text_key = "text";
  bool jsonl = false, lines = false, skip_invalid = false;
};

constexpr std::size_t kShownDocuments = 1000;

class LanguageJob {
 public:
  explicit LanguageJob(const LanguageIdArguments& arguments)
      : a_(arguments), model_(arguments.model) {}

  void run() {
    for (const auto& file : expand_inputs(a_.files)) read(file);
    warn_of_skipped(skipped_);
    if (invalid_ > 0)
      log_warning("{} malformed lines skipped, one of them: {}", invalid_, first_invalid_);
    if (!a_.jsonl) print_tables();
  }

 private:
  void read(const std::filesystem::path& path) {
    RecordReader::Options options;
    options.keys = {a_.text_key};
    options.lines = a_.lines;
    options.skip_damaged = a_.skip_invalid;
    RecordReader reader(path, {}, options);
    Record record;
    bool inside = false;  // behind the first segment of a plain text, which is enough
    while (reader.next(record)) {
      const bool first = !std::exchange(inside, !record.ends_document);
      if (!first) continue;
      if (!reader.has_objects())
        add(reader.name(), record.line, record.bytes);
      else
        add_object(reader.name(), record);
    }
    for (SkippedInput& skipped : reader.take_skipped()) skipped_.push_back(std::move(skipped));
  }

  void add_object(const std::string& file, const Record& record) {
    Document document;
    try {
      parse_document(record.bytes, {.text_key = a_.text_key, .prompt_key = ""}, file, record.line,
                     document);
    } catch (const UserError& error) {
      if (!a_.skip_invalid) throw;
      if (invalid_++ == 0) first_invalid_ = error.what();
      return;
    }
    add(file, record.line, document.text);
  }

  void add(const std::string& file, std::uint64_t line, std::string_view text) {
    const LanguageGuess guess = model_.guess(text);
    const auto probability = std::min(1.0, static_cast<double>(guess.probability));
    if (a_.jsonl) {
      nlohmann::ordered_json json = {{"file", file}, {"line", line}};
      json["label"] = guess.label;
      json["probability"] = probability;
      fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
      return;
    }
    if (documents_.rows() < kShownDocuments)
      documents_.add({file, line, Cell::or_missing(std::string(guess.label)), probability});
    ++count_;
    Count& count = counts_[std::string(guess.label)];
    ++count.documents;
    count.bytes += static_cast<std::int64_t>(text.size());
  }

  void print_tables() const {
    fmt::print("{}", documents_.text());
    if (count_ > documents_.rows())
      fmt::print("{} more: --jsonl prints all\n", count_ - documents_.rows());
    Table table({Column::text("label"), Column::number("documents"), Column::bytes("text")});
    for (const auto& [label, count] : counts_)
      table.add({Cell::or_missing(label), count.documents, count.bytes});
    fmt::print("\n{}", table.text());
  }

  struct Count {
    std::int64_t documents = 0, bytes = 0;
  };
  const LanguageIdArguments& a_;
  const LanguageModel model_;
  Table documents_{{Column::text("file"), Column::number("line"), Column::text("label"),
                    Column::number("probability", "", "{:.4f}")}};
  std::size_t count_ = 0;
  std::map<std::string, Count> counts_;
  std::vector<SkippedInput> skipped_;
  std::int64_t invalid_ = 0;
  std::string first_invalid_;
};

}  // namespace

void add_data_train_language_id(CLI::App& data) {
  auto a = std::make_shared<TrainLanguageArguments>();
  CLI::App* command =
      data.add_subcommand("train-language-id", "Train a model that tells the language of a text");
  const AddOption add(*command);
  FastTextArguments& model = a->training.arguments;
  add("--input", a->inputs, "Files and patterns of each language, as for train-tokenizer",
      TypeName{"LABEL=FILES"}, kRequired);
  add("--output", a->output, "The model, a file of fastText", TypeName{"FILE"}, kRequired);
  add("--label-bytes", a->label_bytes,
      "Read about this much text of each label, from the start of each file; 0: all",
      TypeName{"SIZE"}, byte_count(at_least(0)), kShowDefault);
  add("--held-out", a->corpus.held_out, "Fraction of the documents that the model is tested on",
      real_number(between(0, 0.9)), kShowDefault);
  add("--dim", model.dim, "Values of a vector", whole_number(between(1, 1024)), kShowDefault);
  add("--buckets", a->buckets, "Vectors of n-grams; each has 4 bytes per value",
      whole_number(between(1, 100e6)), kShowDefault);
  add("--min-n", model.min_n, "Shortest n-grams of characters", whole_number(between(1, 16)),
      kShowDefault);
  add("--max-n", model.max_n, "Longest n-grams of characters", whole_number(between(1, 16)),
      kShowDefault);
  add("--epochs", a->training.epochs, "How often the text is read", whole_number(between(1, 1000)),
      kShowDefault);
  add("--learning-rate", a->training.learning_rate, "Of the first step; it falls to 0",
      real_number(above(0)), kShowDefault);
  add("--text-key", a->corpus.text_key, "JSON key or column of the text; of Parquet also meta.text",
      kShowDefault);
  add("--skip-invalid", a->corpus.skip_invalid,
      "Skip and report malformed lines and damaged parts of files instead of stopping");
  add("--threads", a->training.threads, "0: one per core", whole_number(between(0, 4096)),
      kShowDefault);
  add_overwrite_option(*command, a->overwrite);
  command->footer(
      "Example:\n  kintsugi data train-language-id --input fi='fi/*.jsonl.zst' sv=sv.txt "
      "--output languages.bin\nThe result does not depend on the number of threads. fastText can "
      "read it.");
  command->callback([a] { train_language_id(*a); });
}

void add_data_language_id(CLI::App& data) {
  auto a = std::make_shared<LanguageIdArguments>();
  CLI::App* command = data.add_subcommand("language-id", "Print the language of each document");
  const AddOption add(*command);
  add("files", a->files,
      "Text, JSONL, Parquet or WARC files and 'patterns'; of a text the first MiB is read",
      kRequired);
  add("--model", a->model, "A model of train-language-id or fastText (.bin, .ftz)",
      TypeName{"FILE"}, kRequired);
  add("--jsonl", a->jsonl, "print a line of JSON for each document");
  add("--lines", a->lines, "each line of a plain text is a document");
  add("--text-key", a->text_key, "JSON key or column of the text; of Parquet also meta.text",
      kShowDefault);
  add("--skip-invalid", a->skip_invalid,
      "skip and report malformed lines and damaged parts of files instead of stopping");
  command->footer(
      "Example:\n  kintsugi data language-id 'crawl/*.warc.gz' --model languages.bin --jsonl");
  command->callback([a] { LanguageJob(*a).run(); });
}

}  // namespace kintsugi
