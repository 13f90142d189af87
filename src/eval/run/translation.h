#pragma once

#include <cstdint>
#include <string>

#include "eval/scoring_model.h"
#include "eval/translation_scores.h"

namespace kintsugi {

// Translation with examples in the prompt, as Poro and Viking were evaluated: examples
// "{src}={trg}\nEND\n" joined by line ends, then "{src}=". The translation ends before END.
struct TranslationPrompt {
  std::string form = "{src}={trg}", end = "END";
  Segments sources, targets;  // of the examples

  void check() const;  // UserError if the form does not have {src} before {trg} at its end
  std::string text(const std::string& source) const;
};

// The translations of all sources, one line each. UserError if a prompt is too long for the model.
Segments translate(ScoringModel& model, const TranslationPrompt& prompt, const Segments& sources,
                   std::int64_t max_tokens, const ScoringProgress& progress);

}  // namespace kintsugi
