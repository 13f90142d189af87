#include "serve/text_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

constexpr std::size_t kContext = 8;  // tokens

}  // namespace

std::size_t complete_characters(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const std::size_t length = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

TextOutput::TextOutput(const Tokenizer* tokenizer, std::span<const std::int32_t> prompt)
    : tokenizer_(tokenizer) {
  for (const std::int32_t token : prompt.last(std::min(prompt.size(), kContext)))
    if (tokenizer != nullptr && token < tokenizer->vocab_size()) recent_.push_back(token);
}

std::string TextOutput::add(std::int32_t token) {
  if (tokenizer_ == nullptr) return fmt::format("{} ", token);
  if (token < 0 || token >= tokenizer_->vocab_size()) return "";  // padding of the vocabulary
  std::string before, after;
  tokenizer_->decode(recent_, before);
  recent_.push_back(token);
  tokenizer_->decode(recent_, after);
  if (recent_.size() > 2 * kContext)
    recent_.erase(recent_.begin(), recent_.end() - static_cast<std::ptrdiff_t>(kContext));
  return after.starts_with(before) ? after.substr(before.size()) : "";
}

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (const std::string& text : strings_) {
    if (text.empty()) user_error("a stop string is empty: give at least one character");
    if (valid_utf8_prefix(text) != text.size())
      user_error("the stop string '{}' is not UTF-8", text);
  }
  std::stable_sort(strings_.begin(), strings_.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
}

std::size_t StopStrings::held_beginning() const {
  std::size_t most = 0;
  for (const std::string& stop : strings_)
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > most; --n)
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) most = n;
  return most;
}

std::string StopStrings::add(std::string_view text) {
  if (found_) return "";
  for (const char c : text) {
    held_ += c;
    for (const std::string& stop : strings_) {
      if (!held_.ends_with(stop)) continue;
      found_ = true;
      held_.resize(held_.size() - stop.size());
      return std::exchange(held_, {});
    }
  }
  const std::size_t shown = std::min(held_.size() - held_beginning(), complete_characters(held_));
  std::string result = held_.substr(0, shown);
  held_.erase(0, shown);
  return result;
}

std::string StopStrings::rest() { return std::exchange(held_, {}); }

}  // namespace kintsugi
