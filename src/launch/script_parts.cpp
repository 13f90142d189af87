#include "launch/script_parts.h"

#include <fmt/format.h>

#include <algorithm>

namespace kintsugi {
namespace {

// The comment of the key, or of the nearest key above that has one.
std::string comment_of(std::string key, const MachineComments& comments) {
  while (true) {
    if (const auto found = comments.find(key); found != comments.end() && !found->second.empty())
      return found->second;
    const std::size_t end = key.find_last_of(".[");
    if (end == std::string::npos || key.find('.') == std::string::npos) return "";
    key.resize(end);
  }
}

std::string reason_of(const ScriptPart& part, const MachineComments& comments) {
  std::string text;
  if (!part.key.empty()) {
    const bool given = comments.contains(part.key);
    const std::string comment = given ? comment_of(part.key, comments) : "the default";
    text = part.key + (comment.empty() ? "" : ": " + comment);
  }
  if (!part.reason.empty()) text += (text.empty() ? "" : "; ") + part.reason;
  return one_line(text);
}

}  // namespace

std::string text_of(const ScriptParts& parts) {
  std::string text;
  for (const ScriptPart& part : parts) text += part.text;
  return text;
}

std::string explained(const ScriptParts& parts, const MachineComments& comments) {
  std::string text;
  for (const ScriptPart& part : parts) {
    text += part.text;
    if (const std::string reason = reason_of(part, comments); !reason.empty())
      text += kReasonStart + reason + "\n";
  }
  return text;
}

std::string explained_words(const ScriptParts& words, const MachineComments& comments) {
  std::string text;
  for (const ScriptPart& word : words)
    text +=
        fmt::format("#   {}\n{}{}\n", one_line(word.text), kReasonStart, reason_of(word, comments));
  return text;
}

std::string one_line(const std::string& text) {
  std::string line = text;
  std::ranges::replace_if(
      line, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, ' ');
  return line;
}

}  // namespace kintsugi
