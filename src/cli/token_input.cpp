#include "cli/token_input.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "core/log.h"

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
  if (!std::filesystem::exists(directory / "config.json"))
    user_error("{} is not a model directory: it has no config.json", directory.string());
  if (!std::filesystem::exists(directory / "tokenizer.json") &&
      !std::filesystem::exists(directory / "tokenizer.model"))
    user_error("{} has no tokenizer (tokenizer.json or tokenizer.model): give --token-ids",
               directory.string());
  return load_tokenizer(directory.string());
}

namespace {

constexpr std::size_t kContext = 8;  // tokens

}  // namespace

TextOutput::TextOutput(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt)
    : tokenizer_(tokenizer) {
  for (const std::int32_t token : prompt.last(std::min(prompt.size(), kContext)))
    recent_.push_back(token);
}

std::string TextOutput::add(std::int32_t token) {
  if (token < 0 || token >= tokenizer_.vocab_size()) return "";  // padding of the vocabulary
  std::string before, after;
  tokenizer_.decode(recent_, before);
  recent_.push_back(token);
  tokenizer_.decode(recent_, after);
  if (recent_.size() > 2 * kContext)
    recent_.erase(recent_.begin(), recent_.end() - static_cast<std::ptrdiff_t>(kContext));
  return after.starts_with(before) ? after.substr(before.size()) : "";
}

std::string TerminalText::add(const std::string& text) {
  held_ += text;
  // Hold back the last character if it is incomplete.
  std::size_t end = held_.size();
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, held_.size()); ++back) {
    const auto byte = static_cast<unsigned char>(held_[held_.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const std::size_t length = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    if (length > back) end -= back;
    break;
  }
  const std::string shown = printable(std::string_view(held_).substr(0, end));
  held_.erase(0, end);
  return shown;
}

std::string TerminalText::rest() { return printable(std::exchange(held_, {})); }

}  // namespace kintsugi
