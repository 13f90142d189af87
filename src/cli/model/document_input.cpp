#include "cli/model/document_input.h"

#include <nlohmann/json.hpp>

#include "cli/engine.h"
#include "core/error.h"
#include "core/file.h"
#include "model/config.h"

namespace kintsugi {
namespace {

using InputJson = nlohmann::json;

bool names_text(const std::filesystem::path& path) {
  std::filesystem::path name = path.filename();
  for (const char* packed : {".gz", ".zst", ".zstd", ".xz"})
    if (name.extension() == packed) {
      name = name.stem();
      break;
    }
  return name.extension() == ".txt";
}

std::string format_of(const DocumentInputOptions& options) {
  if (options.format != "auto") return options.format;
  if (RecordReader::has_objects(options.path)) return "jsonl";
  return options.path == "-" || names_text(options.path) ? "lines" : "store";
}

std::string dumped(const InputJson& json) {
  return json.dump(-1, ' ', false, InputJson::error_handler_t::replace);
}

}  // namespace

std::string parse_document_line(std::string_view line, const std::string& source,
                                const std::string& text_key, DocumentFacts& facts) {
  InputJson json;
  try {
    // Deeper levels would overflow the stack when they are written again.
    json = InputJson::parse(line, [](int level, InputJson::parse_event_t, InputJson&) {
      if (level > 64) user_error("nested deeper than 64 levels");
      return true;
    });
  } catch (const UserError& error) {
    user_error("{}: {}", source, error.what());
  } catch (const InputJson::exception&) {
    user_error("{}: not valid JSON: give an object like {{\"{}\": \"…\"}} in each line", source,
               text_key);
  }
  const auto text = json.is_object() ? json.find(text_key) : json.end();
  if (!json.is_object() || text == json.end() || !text->is_string())
    user_error("{}: there is no text under the key \"{}\": see --text-key", source, text_key);
  if (const auto id = json.find("id"); id != json.end()) {
    facts.id = dumped(*id);
    facts.number.reset();
    if (id->is_number_integer()) facts.number = id->get<std::int64_t>();
  }
  if (const auto label = json.find("label"); label != json.end() && !label->is_null()) {
    if (!label->is_string() && !label->is_number_integer())
      user_error("{}: the label must be a name or a whole number", source);
    facts.label = label->is_string() ? label->get<std::string>() : label->dump();
  }
  return text->get<std::string>();
}

DocumentInput::DocumentInput(const DocumentInputOptions& options,
                             const std::filesystem::path& directory)
    : options_(options), name_(options.path == "-" ? "standard input" : options.path) {
  const ModelConfig config = read_hf_config(directory / "config.json");
  vocab_size_ = config.vocab_size;
  tokenizer_ = load_model_tokenizer(directory);
  const std::string format = format_of(options);
  jsonl_ = format == "jsonl";
  if (format == "store") {
    open_store(options.path);
    return;
  }
  encoder_.emplace(*tokenizer_, read_prompt_settings(tokenizer_->files(config.max_positions)),
                   parse_bos_choice(options.bos), config.bos_token);
  if (options.path == "-")
    unread_ = standard_input_ = read_text_file("/dev/stdin");
  else
    file_.emplace(options.path, RecordOffset{}, RecordReader::Options{.lines = true});
}

DocumentInput::~DocumentInput() = default;

void DocumentInput::open_store(const std::string& path) {
  shards_ = open_token_store(path);
  const auto infos = read_store_infos(shards_);
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (shards_[i].is_text())
      user_error("{} is neither JSONL nor a token store: give --input-format lines for plain text",
                 path);
    if (!infos[i]) continue;
    store_labels_ = infos[i]->labels;
    if (!infos[i]->tokenizer.empty() && infos[i]->tokenizer != tokenizer_->fingerprint())
      user_error(
          "{} was made with another tokenizer ({}) than that of the model ({}): make it again from "
          "the text with the model's",
          shards_[i].name(), infos[i]->tokenizer_description, tokenizer_->description());
  }
}

bool DocumentInput::next_line(std::string_view& line, std::uint64_t& number) {
  if (file_) {
    Record record;
    if (!file_->next(record)) return false;
    line = record.bytes;
    number = record.line;
  } else {
    do {
      if (unread_.empty()) return false;
      const std::size_t end = unread_.find('\n');
      line = unread_.substr(0, end);
      unread_.remove_prefix(end == std::string_view::npos ? unread_.size() : end + 1);
      number = ++line_;
    } while (line.find_first_not_of(" \t\r") == std::string_view::npos);
  }
  if (line.ends_with('\r')) line.remove_suffix(1);
  return true;
}

void DocumentInput::encode(std::string_view text, InputDocument& document) {
  document.tokens = encoder_->encode(text, SpecialTokens::AsText);
  if (document.tokens.empty()) user_error("{}: the text is empty", document.source);
  for (const std::int32_t id : document.tokens)
    if (id >= vocab_size_)
      user_error("{}: the text has token {}, outside the model's vocabulary of {}", document.source,
                 id, vocab_size_);
}

bool DocumentInput::next_stored(InputDocument& document) {
  while (shard_ < shards_.size() && document_ >= shards_[shard_].documents()) {
    ++shard_;
    document_ = 0;
  }
  if (shard_ >= shards_.size()) return false;
  const TokenShard& shard = shards_[shard_];
  document.source = fmt::format("{}, document {}", shard.name(), document_);
  const std::int64_t begin = shard.document_begin(document_),
                     end = shard.document_begin(document_ + 1);
  if (begin == end) user_error("{}: the document is empty", document.source);
  document.tokens.resize(static_cast<std::size_t>(end - begin));
  shard.read(begin, document.tokens);
  for (const std::int32_t id : document.tokens)
    if (id < 0 || id >= vocab_size_)
      user_error("{}: token {} is outside the model's vocabulary of {}", document.source, id,
                 vocab_size_);
  if (shard.has_labels()) {
    const auto label = static_cast<std::size_t>(shard.label(document_));
    document.label = label < store_labels_.size() ? store_labels_[label] : std::to_string(label);
  }
  ++document_;
  return true;
}

bool DocumentInput::next(InputDocument& document) {
  document.id = std::to_string(count_);
  document.number = count_;
  if (!shards_.empty()) return next_stored(document);
  std::string_view line;
  std::uint64_t number = 0;
  if (!next_line(line, number)) return false;
  document.source = fmt::format("{}, line {}", name_, number);
  if (jsonl_)
    encode(parse_document_line(line, document.source, options_.text_key, document), document);
  else
    encode(line, document);
  return true;
}

bool DocumentInput::read(std::vector<InputDocument>& documents, std::int64_t tokens,
                         std::int64_t max_length) {
  documents.clear();
  for (std::int64_t taken = 0; taken < tokens; taken += std::ssize(documents.back().tokens)) {
    InputDocument document;
    if (!next(document)) break;
    ++count_;
    if (std::ssize(document.tokens) > max_length) {
      ++truncated_;
      document.tokens.resize(static_cast<std::size_t>(max_length));
    }
    documents.push_back(std::move(document));
  }
  return !documents.empty();
}

double DocumentInput::done() const {
  if (file_ && file_->bytes_total() > 0)
    return static_cast<double>(file_->bytes_read()) / static_cast<double>(file_->bytes_total());
  return -1;
}

}  // namespace kintsugi
