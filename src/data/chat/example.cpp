#include "data/chat/example.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace kintsugi {
namespace {

using Json = nlohmann::json;
using Messages = std::vector<ChatMessage>;

constexpr int kDeepestObject = 64;  // levels of JSON

bool is_trained(const Json& message, const std::string& what) {
  bool trained = true;
  if (const auto found = message.find("train"); found != message.end()) {
    if (!found->is_boolean()) user_error("\"train\" of {} is not true or false", what);
    trained = found->get<bool>();
  }
  if (const auto found = message.find("weight"); found != message.end()) {
    if (!found->is_number() || (*found != 0 && *found != 1))
      user_error("\"weight\" of {} is not 0 or 1", what);
    trained &= *found == 1;
  }
  return trained;
}

constexpr std::array<std::string_view, 4> kKindNames = {"chat", "prompt", "preference",
                                                        "classification"};
constexpr std::string_view kKeys =
    "messages; prompt and completion; instruction and output; chosen and rejected; or text and "
    "label";

Json object_of(std::string_view line) { return parse_json_object(line, "an object on one line"); }

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

std::string listed_keys(const Json& object) {
  constexpr std::size_t kMostListed = 8;
  std::vector<std::string> keys;
  for (const auto& entry : object.items()) keys.push_back("'" + entry.key().substr(0, 40) + "'");
  const bool more = keys.size() > kMostListed;
  keys.resize(std::min(keys.size(), kMostListed));
  return keys.empty() ? "no keys" : fmt::format("{}{}", fmt::join(keys, ", "), more ? " …" : "");
}

// The value of a key: messages, or a string, which is one message with the role `role`.
Messages messages_at(const Json& object, const char* key, const char* role) {
  const auto found = object.find(key);
  if (found == object.end()) user_error("no key '{}'; the object has {}", key, listed_keys(object));
  if (found->is_string()) return {{role, found->get<std::string>()}};
  if (!found->is_array()) user_error("'{}' is neither a string nor a list of messages", key);
  if (found->empty()) user_error("'{}' has no messages", key);
  return messages_of(*found, key);
}

bool is_list(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_array();
}

void check_roles(const Messages& messages, std::string_view name) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant")
      user_error("message {} of '{}' has the role '{}': use system, user or assistant", i + 1, name,
                 role.substr(0, 40));
    if (role == "assistant" && is_blank(messages[i].content))
      user_error("message {} of '{}' is an answer without content", i + 1, name);
  }
}

// The messages that an example ends with.
void check_answer(const Messages& messages, std::string_view name) {
  check_roles(messages, name);
  const auto is_answer = [](const ChatMessage& m) { return m.role == "assistant"; };
  if (std::none_of(messages.begin(), messages.end(), is_answer))
    user_error("'{}' has no message of the assistant", name);
  if (!is_answer(messages.back()))
    user_error("the last message of '{}' is not from the assistant but from the {}", name,
               messages.back().role);
  if (std::none_of(messages.begin(), messages.end(),
                   [&](const ChatMessage& m) { return is_answer(m) && m.trained; }))
    user_error("'{}' has no answer that is trained", name);
}

Example chat_example(const Json& object) {
  Example example;
  example.chat = true;
  if (object.contains("messages")) {
    if (!is_list(object, "messages")) user_error("'messages' is not a list of messages");
    example.answers = {messages_at(object, "messages", "")};
    check_answer(example.answers[0], "messages");
    return example;
  }
  std::string question = json_string(object, "instruction", "the example");
  if (object.contains("input") && !object["input"].is_null()) {
    const std::string input = json_string(object, "input", "the example");
    if (!input.empty()) question += "\n\n" + input;
  }
  const std::string output = json_string(object, "output", "the example");
  if (is_blank(output)) user_error("'output' is empty");
  example.answers = {{{"user", question}, {"assistant", output}}};
  return example;
}

// A prompt and one answer for each key.
Example prompt_example(const Json& object, const std::vector<const char*>& keys, bool as_chat) {
  Example example;
  example.chat = as_chat || is_list(object, "prompt");
  for (const char* key : keys) example.chat |= is_list(object, key);
  example.prompt = messages_at(object, "prompt", example.chat ? "user" : "");
  for (ChatMessage& message : example.prompt) message.trained = false;
  if (example.chat) check_roles(example.prompt, "prompt");
  for (const char* key : keys) {
    Messages answer = messages_at(object, key, example.chat ? "assistant" : "");
    if (is_blank(answer[0].content) && answer[0].role != "system") user_error("'{}' is empty", key);
    if (example.chat) check_answer(answer, key);
    example.answers.push_back(std::move(answer));
  }
  return example;
}

// Two whole conversations: what they have in common is the prompt.
Example two_conversations(const Json& object) {
  Example example;
  example.chat = true;
  if (!is_list(object, "chosen") || !is_list(object, "rejected"))
    user_error("no key 'prompt': only conversations in 'chosen' and 'rejected' have their own");
  Messages chosen = messages_at(object, "chosen", ""),
           rejected = messages_at(object, "rejected", "");
  check_answer(chosen, "chosen");
  check_answer(rejected, "rejected");
  const auto differ =
      std::mismatch(chosen.begin(), chosen.end() - 1, rejected.begin(), rejected.end() - 1);
  if (differ.first == chosen.begin())
    user_error("no key 'prompt', and 'chosen' and 'rejected' begin with different messages");
  example.prompt.assign(chosen.begin(), differ.first);
  for (ChatMessage& message : example.prompt) message.trained = false;
  example.answers = {{differ.first, chosen.end()}, {differ.second, rejected.end()}};
  return example;
}

Example labelled_text(const Json& object) {
  Example example;
  example.text = json_string(object, "text", "the example");
  if (example.text.empty()) user_error("'text' is empty");
  const auto label = object.find("label");
  if (label == object.end()) user_error("no key 'label'; the object has {}", listed_keys(object));
  if (label->is_string()) {
    example.label = label->get<std::string>();
    if (example.label.empty()) user_error("'label' is empty");
  } else if (label->is_number_integer()) {
    example.label = label->dump();
    example.label_is_number = true;
  } else {
    user_error("'label' is neither a name nor an integer");
  }
  return example;
}

// An example is a text for a context of at most some million tokens.
constexpr std::size_t kLongestExample = std::size_t{1} << 28;

}  // namespace

Json parse_json_object(std::string_view text, const std::string& expected) {
  const Json::parser_callback_t depth = [](int level, Json::parse_event_t, Json&) {
    if (level > kDeepestObject) user_error("nested deeper than {} levels", kDeepestObject);
    return true;
  };
  Json json;
  try {
    json = Json::parse(text, depth);
  } catch (const Json::exception&) {
    user_error("not valid JSON: expected {}", expected);
  }
  if (!json.is_object()) user_error("not a JSON object");
  return json;
}

std::string json_string(const Json& object, const char* key, const std::string& what) {
  const auto found = object.find(key);
  if (found == object.end()) user_error("{} has no \"{}\"", what, key);
  if (!found->is_string()) user_error("\"{}\" of {} is not a string", key, what);
  return found->get<std::string>();
}

std::vector<ChatMessage> messages_of(const Json& list, const std::string& name) {
  if (!list.is_array() || list.empty()) user_error("\"{}\" is not a list of messages", name);
  std::vector<ChatMessage> messages;
  for (const Json& entry : list) {
    const std::string what = fmt::format("message {}", messages.size() + 1);
    if (!entry.is_object()) user_error("{} is not an object", what);
    messages.push_back({json_string(entry, "role", what), json_string(entry, "content", what),
                        is_trained(entry, what)});
  }
  return messages;
}

std::string_view to_string(ExampleKind kind) {
  return kKindNames.at(static_cast<std::size_t>(kind));
}

ExampleKind parse_example_kind(std::string_view name) {
  for (std::size_t i = 0; i < kKindNames.size(); ++i)
    if (kKindNames[i] == name) return static_cast<ExampleKind>(i);
  user_error("--kind is '{}': use {}", name, fmt::join(kKindNames, ", "));
}

ExampleKind kind_of_example(std::string_view line) {
  const Json object = object_of(line);
  const auto has = [&](const char* key) { return object.contains(key); };
  if (has("messages") || (has("instruction") && has("output"))) return ExampleKind::Chat;
  if (has("chosen") && has("rejected")) return ExampleKind::Preference;
  if (has("prompt") && has("completion")) return ExampleKind::Prompt;
  if (has("text") && has("label")) return ExampleKind::Classification;
  user_error("unknown kind of example: the object has {}; expected {}", listed_keys(object), kKeys);
}

Example parse_example(std::string_view line, ExampleKind kind, bool as_chat) {
  const Json object = object_of(line);
  switch (kind) {
    case ExampleKind::Chat:
      return chat_example(object);
    case ExampleKind::Prompt:
      return prompt_example(object, {"completion"}, as_chat);
    case ExampleKind::Preference:
      return object.contains("prompt") ? prompt_example(object, {"chosen", "rejected"}, as_chat)
                                       : two_conversations(object);
    case ExampleKind::Classification:
      break;
  }
  return labelled_text(object);
}

ExampleLines::ExampleLines(std::vector<std::filesystem::path> files, bool skip_damaged)
    : files_(std::move(files)), skip_damaged_(skip_damaged) {
  for (const auto& file : files_) bytes_total_ += std::filesystem::file_size(file);
}

std::vector<ExampleLine> ExampleLines::next(std::size_t bytes) {
  std::vector<ExampleLine> lines;
  std::size_t read = 0;
  Record record;
  while (lines.empty() || read < bytes) {
    if (!reader_) {
      if (opened_ == files_.size()) break;
      RecordReader::Options options;
      options.longest_line = kLongestExample;
      options.skip_damaged = skip_damaged_;
      reader_ = std::make_unique<RecordReader>(files_[opened_++], RecordOffset{}, options);
    }
    const bool more = reader_->next(record);
    for (SkippedInput& one : reader_->take_skipped()) skipped_.push_back(std::move(one));
    if (!more) {
      bytes_before_ += reader_->bytes_total();
      reader_.reset();
      continue;
    }
    std::string_view text = record.bytes;
    if (record.line == 1 && text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) continue;
    lines.push_back({reader_->name(), std::string(text), record.line});
    read += text.size();
  }
  return lines;
}

double ExampleLines::fraction_read() const {
  const std::uint64_t read = bytes_before_ + (reader_ ? reader_->bytes_read() : 0);
  return static_cast<double>(read) / static_cast<double>(std::max<std::uint64_t>(bytes_total_, 1));
}

ExampleLoss parse_example_loss(std::string_view name) {
  if (name == "assistant") return ExampleLoss::Assistant;
  if (name == "completion") return ExampleLoss::Completion;
  if (name == "all") return ExampleLoss::All;
  user_error("--loss is '{}': use assistant, completion or all", name);
}

ExampleFormat example_format(const Tokenizer& tokenizer, const std::string& chat_template) {
  ExampleFormat format;
  format.settings = read_prompt_settings(tokenizer.files(0));
  format.as_chat = !chat_template.empty();
  format.chat = chat_template.empty() ? recognize_chat_format(format.settings.chat_template)
                                      : &find_chat_format(chat_template);
  if (!format.settings.eos.empty()) format.eos = tokenizer.token_id(format.settings.eos);
  if (!format.eos) format.eos = tokenizer.end_of_document();
  return format;
}

ExampleEncoder::ExampleEncoder(const Tokenizer& tokenizer, const ExampleFormat& format)
    : tokenizer_(tokenizer.clone()),
      format_(format),
      encoder_(*tokenizer_, format.settings, BosChoice::Auto, -1) {}

std::vector<ChatText> ExampleEncoder::pieces_of(const Example& example,
                                                const std::vector<ChatMessage>& answer) const {
  if (!example.chat) {
    std::vector<ChatText> pieces;
    for (const ChatMessage& message : example.prompt) pieces.push_back({message.content, true});
    for (const ChatMessage& message : answer) pieces.push_back({message.content, true, true});
    return pieces;
  }
  if (format_.chat == nullptr)
    user_error("messages need a chat template, and the tokenizer has {}: give --template NAME ({})",
               format_.settings.chat_template.empty() ? "none" : "one of an unknown format",
               chat_format_names());
  std::vector<ChatMessage> messages = example.prompt;
  messages.insert(messages.end(), answer.begin(), answer.end());
  if (format_.loss == ExampleLoss::Completion)
    for (std::size_t i = 0; i + 1 < messages.size(); ++i) messages[i].trained = false;
  return chat_pieces(*format_.chat, messages, false);
}

void ExampleEncoder::add_sequence(const Example& example, const std::vector<ChatMessage>& answer,
                                  EncodedExample& to) const {
  const std::vector<ChatText> pieces = pieces_of(example, answer);
  PromptEncoder::Marked marked = encoder_.encode_answers(pieces);
  if (!example.chat && format_.eos) {
    marked.ids.push_back(*format_.eos);
    marked.answer.push_back(1);
  }
  if (format_.loss == ExampleLoss::All)
    std::fill(marked.answer.begin(), marked.answer.end(), std::uint8_t{1});
  to.ids.insert(to.ids.end(), marked.ids.begin(), marked.ids.end());
  to.mask.insert(to.mask.end(), marked.answer.begin(), marked.answer.end());
  to.ends.push_back(to.ids.size());
  for (const ChatText& piece : pieces) to.text_bytes += std::ssize(piece.text);
}

EncodedExample ExampleEncoder::encode(const Example& example) {
  EncodedExample encoded;
  for (const std::vector<ChatMessage>& answer : example.answers)
    add_sequence(example, answer, encoded);
  if (!example.answers.empty()) return encoded;
  encoded.ids = encoder_.encode(example.text, SpecialTokens::AsText);
  encoded.mask.assign(encoded.ids.size(), 1);
  encoded.ends = {encoded.ids.size()};
  encoded.text_bytes = std::ssize(example.text);
  return encoded;
}

}  // namespace kintsugi
