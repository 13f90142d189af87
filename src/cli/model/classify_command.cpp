#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "cli/commands.h"
#include "cli/model/document_job.h"
#include "cli/options.h"
#include "eval/classification_scores.h"

namespace kintsugi {
namespace {

using ClassJson = nlohmann::ordered_json;

struct ClassifyArguments : DocumentArguments {
  std::int64_t top = 0;
};

// Writes a line for each document, and counts right answers if the input has labels.
class ClassifyJob {
 public:
  explicit ClassifyJob(ClassifyArguments& arguments) : a_(arguments) {}

  void run() {
    DocumentJob(a_, DocumentOutput::Logits)
        .run({.begin = [&](const ModelConfig& config) { begin(config); },
              .add = [&](auto documents, auto logits) { add(documents, logits); },
              .end = [&] { end(); }});
  }

 private:
  void begin(const ModelConfig& config) {
    labels_ = config.labels;
    matrix_.emplace(labels_.size());
    if (a_.output.empty()) return;
    file_.emplace("--output", a_.output, a_.output_rule());
    file_->begin();
  }

  void add(std::span<const InputDocument> documents, std::span<const double> logits) {
    std::string lines;
    for (std::size_t i = 0; i < documents.size(); ++i) {
      const auto own = logits.subspan(i * labels_.size(), labels_.size());
      if (documents[i].label) matrix_->add(label_of(documents[i]), predicted_label(own));
      labelled_ += documents[i].label.has_value() ? 1 : 0;
      lines += line(documents[i], own);
    }
    if (file_)
      file_->write(lines);
    else
      std::fwrite(lines.data(), 1, lines.size(), stdout);
    documents_ += std::ssize(documents);
  }

  std::string line(const InputDocument& document, std::span<const double> logits) const {
    const std::vector<double> probabilities = probabilities_of(logits);
    const auto label = static_cast<std::size_t>(predicted_label(logits));
    std::vector<std::size_t> order(labels_.size());
    std::iota(order.begin(), order.end(), 0);
    if (a_.top > 0) {  // the most likely ones first
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return probabilities[a] > probabilities[b];
      });
      order.resize(std::min(order.size(), static_cast<std::size_t>(a_.top)));
    }
    ClassJson json = {{"id", ClassJson::parse(document.id)},
                      {"label", labels_[label]},
                      {"probability", probabilities[label]}};
    for (const std::size_t i : order) json["probabilities"][labels_[i]] = probabilities[i];
    return json.dump(-1, ' ', false, ClassJson::error_handler_t::replace) + "\n";
  }

  // The label of the input, by its name or its number.
  std::int32_t label_of(const InputDocument& document) const {
    const std::string& text = *document.label;
    const auto found = std::find(labels_.begin(), labels_.end(), text);
    if (found != labels_.end()) return static_cast<std::int32_t>(found - labels_.begin());
    std::int32_t number = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < 0 ||
        static_cast<std::size_t>(number) >= labels_.size())
      user_error("{}: the model has no label '{}': its labels are {}", document.source, text,
                 fmt::join(labels_, ", "));
    return number;
  }

  void end() {
    if (file_) {
      file_->publish();
    } else {
      std::fflush(stdout);
    }
    if (labelled_ == 0) return;
    fmt::print(stderr, "{} of {} documents have a label: accuracy {:.4f}, macro F1 {:.4f}\n{}",
               labelled_, documents_, matrix_->accuracy(), matrix_->macro_f1(),
               scores_table(*matrix_, labels_));
  }

  ClassifyArguments& a_;
  std::vector<std::string> labels_;
  std::optional<ConfusionMatrix> matrix_;
  std::optional<OutputFile> file_;
  std::int64_t documents_ = 0, labelled_ = 0;
};

}  // namespace

void add_classify_command(CLI::App& app) {
  auto a = std::make_shared<ClassifyArguments>();
  CLI::App* command = app.add_subcommand("classify", "Label texts with a trained classifier");
  const AddOption add(*command);
  add_document_options(*command, *a);
  add("--output", a->output, "A JSONL file; without it, standard output", TypeName{"FILE"});
  add("--top", a->top,
      "Write the probabilities of this many labels, the most likely first; 0: of all, in the order "
      "of their ids",
      whole_number(between(0, 1 << 20)), kShowDefault);
  command->footer(
      "Each line of the output is {\"id\", \"label\", \"probability\", \"probabilities\"}. If the "
      "input has\nlabels, accuracy and F1 are printed at the end.\n"
      "Examples:\n"
      "  kintsugi classify --checkpoint runs/languages --input texts.txt --output labels.jsonl\n"
      "  kintsugi classify --checkpoint runs/languages --input test.jsonl --top 1 > labels.jsonl\n"
      "  echo 'Hyvää huomenta' | kintsugi classify --checkpoint runs/languages --input -\n"
      "  mpirun -n 4 kintsugi classify --checkpoint DIR --input texts.jsonl.gz --output out.jsonl");
  command->callback([a] { ClassifyJob(*a).run(); });
}

}  // namespace kintsugi
