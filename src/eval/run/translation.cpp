#include "eval/run/translation.h"

#include <algorithm>

#include "core/error.h"
#include "eval/text.h"

namespace kintsugi {
namespace {

constexpr std::string_view kSource = "{src}", kTarget = "{trg}";

std::string filled(std::string text, std::string_view name, std::string_view value) {
  const std::size_t at = text.find(name);
  return at == std::string::npos ? text : text.replace(at, name.size(), value);
}

// A hypothesis is one line of a file.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::replace(text.begin(), text.end(), '\r', ' ');
  return std::string(strip(text));
}

}  // namespace

void TranslationPrompt::check() const {
  const std::size_t source = form.find(kSource), target = form.find(kTarget);
  if (source == std::string::npos || target == std::string::npos || source > target ||
      target + kTarget.size() != form.size())
    user_error("the prompt '{}' must have {{src}}, and end with {{trg}}", form);
  if (end.empty()) user_error("the text that ends a translation is empty");
  if (sources.size() != targets.size())
    user_error("there are {} sources but {} targets of examples", sources.size(), targets.size());
}

std::string TranslationPrompt::text(const std::string& source) const {
  const std::string query = form.substr(0, form.size() - kTarget.size());
  std::string prompt;
  for (std::size_t i = 0; i < sources.size(); ++i)
    prompt += filled(query, kSource, sources[i]) + targets[i] + "\n" + end + "\n\n";
  return prompt + filled(query, kSource, source);
}

Segments translate(ScoringModel& model, const TranslationPrompt& prompt, const Segments& sources,
                   std::int64_t max_tokens, const ScoringProgress& progress) {
  prompt.check();
  std::vector<TextRequest> requests;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    TextRequest& request = requests.emplace_back();
    request.prompt = model.encode(prompt.text(sources[i]));
    request.options.until = {prompt.end};
    request.options.max_gen_toks = max_tokens;
    const std::size_t all = request.prompt.size() + static_cast<std::size_t>(max_tokens);
    if (all > model.max_length())
      user_error(
          "source {}: the prompt with {} examples has {} tokens; with {} more for the translation "
          "it exceeds the model's {}: give fewer --shots or --max-tokens",
          i + 1, prompt.sources.size(), request.prompt.size(), max_tokens, model.max_length());
  }
  Segments translations;
  for (std::string& text : model.generate(requests, progress))
    translations.push_back(one_line(std::move(text)));
  return translations;
}

}  // namespace kintsugi
