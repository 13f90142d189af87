#include "cli/token_input.h"

#include <charconv>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "model/adapter/peft_config.h"
#include "serve/text_output.h"

namespace kintsugi {

std::vector<std::int32_t> parse_token_ids(std::string_view text) {
  std::vector<std::int32_t> ids;
  const char *next = text.data(), *end = text.data() + text.size();
  while (next != end) {
    if (*next == ' ' || *next == ',' || *next == '\n' || *next == '\t') {
      ++next;
      continue;
    }
    std::int32_t id = 0;
    const auto result = std::from_chars(next, end, id);
    if (result.ec != std::errc())
      user_error("'{}' is not a list of token ids: give integers separated by spaces or commas",
                 text);
    ids.push_back(id);
    next = result.ptr;
  }
  return ids;
}

std::unique_ptr<Tokenizer> load_model_tokenizer(const std::filesystem::path& directory) {
  if (!std::filesystem::exists(directory / "config.json") && !is_adapter_directory(directory))
    user_error("{} is not a model directory: it has no config.json", directory.string());
  if (!std::filesystem::exists(directory / "tokenizer.json") &&
      !std::filesystem::exists(directory / "tokenizer.model"))
    user_error("{} has no tokenizer (tokenizer.json or tokenizer.model): give --token-ids",
               directory.string());
  return load_tokenizer(directory.string());
}

std::string TerminalText::add(const std::string& text) {
  held_ += text;
  const std::size_t end = complete_characters(held_);
  const std::string shown = printable(std::string_view(held_).substr(0, end));
  held_.erase(0, end);
  return shown;
}

std::string TerminalText::rest() { return printable(std::exchange(held_, {})); }

}  // namespace kintsugi
