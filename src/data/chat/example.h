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
#include "data/chat/prompt_encoder.h"
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

// Reads the objects of several files (lines of JSONL, rows of Parquet) in order.
class ExampleLines {
 public:
  explicit ExampleLines(std::vector<std::filesystem::path> files, bool skip_damaged = false);
  // Lines of about this many bytes, at least one; none at the end.
  std::vector<ExampleLine> next(std::size_t bytes);
  double fraction_read() const;  // of the bytes on disk
  const std::vector<SkippedInput>& skipped() const { return skipped_; }

 private:
  std::vector<std::filesystem::path> files_;
  std::size_t opened_ = 0;
  std::unique_ptr<RecordReader> reader_;
  std::uint64_t bytes_before_ = 0, bytes_total_ = 0;
  bool skip_damaged_;
  std::vector<SkippedInput> skipped_;
};

// Which tokens of a conversation are trained.
enum class ExampleLoss : std::uint8_t {
  Assistant,   // all answers
  Completion,  // the last answer
  All,         // every token
};
ExampleLoss parse_example_loss(std::string_view name);  // UserError with the known names

// How examples become tokens.
struct ExampleFormat {
  const ChatFormat* chat = nullptr;  // nullptr: only texts
  bool as_chat = false;              // prompts and completions that are strings are messages
  ExampleLoss loss = ExampleLoss::Assistant;
  PromptSettings settings = {};
  std::optional<std::int32_t> eos = {};  // ends a completion that is text
};
// `chat_template` is the name of a format; empty: the one of the tokenizer's files, if there is
// one.
ExampleFormat example_format(const Tokenizer& tokenizer, const std::string& chat_template);

struct EncodedExample {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;  // 1: trained
  std::vector<std::size_t> ends;   // of its sequences: one, of a pair two
  std::int64_t text_bytes = 0;
};

// Converts examples to tokens. For one thread.
class ExampleEncoder {
 public:
  ExampleEncoder(const Tokenizer& tokenizer, const ExampleFormat& format);
  // UserError if the chat format cannot express a conversation.
  EncodedExample encode(const Example& example);

 private:
  void add_sequence(const Example& example, const std::vector<ChatMessage>& answer,
                    EncodedExample& to) const;
  std::vector<ChatText> pieces_of(const Example& example,
                                  const std::vector<ChatMessage>& answer) const;

  std::unique_ptr<Tokenizer> tokenizer_;
  ExampleFormat format_;
  PromptEncoder encoder_;
};

}  // namespace kintsugi
