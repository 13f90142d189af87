#include "cli/data/model_classifier.h"

#include <cmath>

#include "cli/backends.h"
#include "cli/engine.h"
#include "core/error.h"
#include "data/chat/prompt_encoder.h"
#include "eval/classification_scores.h"
#include "eval/run/document_model.h"

namespace kintsugi {
namespace {

class ModelClassifier : public TextClassifier {
 public:
  explicit ModelClassifier(const Classify& settings)
      : directory_(settings.model),
        backend_(make_backend(DeviceChoice::Cpu, 1)),
        model_(*backend_, directory_,
               {.output = DocumentOutput::Logits, .max_length = settings.max_length}),
        tokenizer_(load_model_tokenizer(directory_)),
        encoder_(*tokenizer_,
                 read_prompt_settings(tokenizer_->files(model_.config().max_positions)),
                 parse_bos_choice("auto"), model_.config().bos_token) {}

  std::vector<std::string> labels() const override { return model_.config().labels; }

  // One document at a time, so that no other one changes the order of a sum.
  std::vector<double> probabilities(std::string_view text) override {
    std::vector<std::vector<std::int32_t>> document = {
        encoder_.encode(std::string(text), SpecialTokens::AsText)};
    std::vector<std::int32_t>& tokens = document.front();
    if (tokens.empty()) return {};
    tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(model_.max_length())));
    for (const std::int32_t id : tokens)
      if (id >= model_.config().vocab_size)
        user_error("{}: its tokenizer has token {}, outside the model's vocabulary of {}",
                   directory_, id, model_.config().vocab_size);
    const std::vector<double> logits = model_.compute(document);
    for (const double logit : logits)
      if (!std::isfinite(logit))
        failure("{}: the result is not finite: check the model", directory_);
    return probabilities_of(logits);
  }

 private:
  std::string directory_;
  std::unique_ptr<Backend> backend_;
  DocumentModel model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  PromptEncoder encoder_;
};

}  // namespace

std::unique_ptr<TextClassifier> open_classifier(const Classify& settings) {
  return std::make_unique<ModelClassifier>(settings);
}

}  // namespace kintsugi
