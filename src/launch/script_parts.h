#pragma once

#include <string>
#include <utility>
#include <vector>

#include "plan/machines/comments.h"

namespace kintsugi {

// Lines of a job script or a word of its launcher, and why they are there.
struct ScriptPart {
  std::string text = {};
  std::string key = {};     // of the machine file: "launch.partition"; empty: not from there
  std::string reason = {};  // an option of the command line, or the program's own rule
};
using ScriptParts = std::vector<ScriptPart>;

inline ScriptPart from_machine(std::string text, std::string key, std::string reason = "") {
  return {.text = std::move(text), .key = std::move(key), .reason = std::move(reason)};
}
inline ScriptPart because(std::string reason, std::string text) {
  return {.text = std::move(text), .reason = std::move(reason)};
}

std::string text_of(const ScriptParts& parts);
// Each part with its reason as a comment below; what the machine file says of its keys is
// `comments`. Without the lines that start with kReasonStart it is the script.
inline constexpr const char* kReasonStart = "#   <- ";
std::string explained(const ScriptParts& parts, const MachineComments& comments);
// One comment for each word.
std::string explained_words(const ScriptParts& words, const MachineComments& comments);
std::string one_line(const std::string& text);  // control characters become spaces

}  // namespace kintsugi
