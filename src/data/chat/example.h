#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/chat/chat_template.h"
#include "data/corpora/record_reader.h"

namespace kintsugi {

// Parses an object of JSON from outside. UserError if it is no object, is not valid ("not valid
// JSON: expected …"), or is nested too deeply.
nlohmann::json parse_json_object(std::string_view text, const std::string& expected);

// The string at a key of an object; `what` names the object in errors.
std::string json_string(const nlohmann::json& object, const char* key, const std::string& what);

// [{"role": "…", "content": "…"}, …] at the key `name`. An answer with "train": false or
// "weight": 0 is not trained.
std::vector<ChatMessage> messages_of(const nlohmann::json& list, const std::string& name);

// What the lines of a JSONL file for fine-tuning are.
enum class ExampleKind : std::uint8_t {
  Chat,            // messages; or instruction, input (may be missing) and output
  Prompt,          // prompt and completion
  Preference,      // prompt, chosen and rejected
  Classification,  // text and label
};
std::string_view to_string(ExampleKind kind);           // as in StoreInfo::kind
ExampleKind parse_example_kind(std::string_view name);  // UserError with the known names

// One example. Texts and conversations have the same form: a text is a message without a role.
struct Example {
  bool chat = false;                              // messages have roles
  std::vector<ChatMessage> prompt;                // not trained; empty: none
  std::vector<std::vector<ChatMessage>> answers;  // one; or the preferred and the rejected one
  std::string text;                               // Classification
  std::string label;                              // its name, or a number in decimal
  bool label_is_number = false;
};

// The kind of a line by its keys.
ExampleKind kind_of_example(std::string_view line);

// Parses a line and checks it: known roles, an answer at the end that is not empty. With `as_chat`,
// a prompt and an answer that are strings become messages of a user and an assistant.
Example parse_example(std::string_view line, ExampleKind kind, bool as_chat);

// A line of a file of examples.
struct ExampleLine {
  std::string file, text;
  std::uint64_t number = 0;  // from 1
};

// Runs f; a UserError names the file and the line first.
template <class F>
auto at_line(const ExampleLine& line, F f) {
  try {
    return f();
  } catch (const UserError& error) {
    user_error("{}:{}: {}", line.file, line.number, error.what());
  }
}

// Reads the lines of several files (JSONL, plain, gzip or zstd) in order, without empty ones.
class ExampleLines {
 public:
  explicit ExampleLines(std::vector<std::filesystem::path> files);
  // Lines of about this many bytes, at least one; none at the end.
  std::vector<ExampleLine> next(std::size_t bytes);
  double fraction_read() const;  // of the bytes on disk

 private:
  std::vector<std::filesystem::path> files_;
  std::size_t opened_ = 0;
  std::unique_ptr<RecordReader> reader_;
  std::uint64_t bytes_before_ = 0, bytes_total_ = 0;
};

}  // namespace kintsugi
