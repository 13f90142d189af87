#include <fmt/format.h>

#include <cerrno>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

using Json = nlohmann::json;

struct CodecArguments {
  std::string tokenizer;
  bool special = false;
};

[[noreturn]] void line_error(std::int64_t number, const std::string& what) {
  user_error("standard input, line {}: {}", number, what);
}

// The error message without nlohmann's "[json.exception.…] " prefix.
std::string reason(const Json::exception& error) {
  const std::string text = error.what();
  const std::size_t end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

Json parse_line(const std::string& line, std::int64_t number, const char* what,
                Json::value_t type) {
  Json json;
  try {
    json = Json::parse(line);
  } catch (const Json::exception& error) {
    line_error(number, fmt::format("not a JSON {} ({})", what, reason(error)));
  }
  if (json.type() != type) line_error(number, fmt::format("not a JSON {}", what));
  return json;
}

// Calls work() for each input line and writes one output line for it. Output is buffered while more
// input is available and flushed otherwise.
template <class Work>
void for_each_line(Work&& work) {
  std::ios::sync_with_stdio(false);
  std::string line, output;
  const auto flush = [&] {
    std::cout.write(output.data(), static_cast<std::streamsize>(output.size())).flush();
  };
  for (std::int64_t number = 1; std::getline(std::cin, line); ++number) {
    try {
      work(line, number, output);
    } catch (...) {  // write the results of the lines before the error
      flush();
      throw;
    }
    output += '\n';
    if (output.size() < (1 << 16) && std::cin.rdbuf()->in_avail() > 0) continue;
    flush();
    if (!std::cout) throw std::system_error(errno, std::generic_category());
    output.clear();
  }
  flush();
  if (!std::cout) throw std::system_error(errno, std::generic_category());
}

void encode_lines(const CodecArguments& arguments) {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(arguments.tokenizer);
  std::vector<std::int32_t> ids;
  for_each_line([&](const std::string& line, std::int64_t number, std::string& output) {
    const Json text = parse_line(line, number, "string", Json::value_t::string);
    ids.clear();
    tokenizer->encode(text.get_ref<const std::string&>(), ids,
                      arguments.special ? SpecialTokens::Honoured : SpecialTokens::AsText);
    fmt::format_to(std::back_inserter(output), "[{}]", fmt::join(ids, ","));
  });
}

std::vector<std::int32_t> parse_ids(const std::string& line, std::int64_t number) {
  const Json list = parse_line(line, number, "array of token ids", Json::value_t::array);
  std::vector<std::int32_t> ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
      line_error(number,
                 id.dump(-1, ' ', false, Json::error_handler_t::replace) + " is not a token id");
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

void decode_lines(const CodecArguments& arguments) {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(arguments.tokenizer);
  std::string text;
  for_each_line([&](const std::string& line, std::int64_t number, std::string& output) {
    text.clear();
    const auto ids = parse_ids(line, number);
    try {
      tokenizer->decode(ids, text,
                        arguments.special ? SpecialTokens::Honoured : SpecialTokens::AsText);
    } catch (const UserError& error) {
      line_error(number, error.what());
    }
    output += Json(replace_invalid_utf8(text)).dump();
  });
}

void add_tokenizer_option(CLI::App& command, CodecArguments& arguments) {
  const AddOption add(command);
  add("--tokenizer", arguments.tokenizer,
      "bytes, a tokenizer.json or a directory with one, a run directory, a SentencePiece .model, "
      "or ranks.tiktoken:FAMILY (gpt2, llama3, cl100k, qwen, o200k)",
      kRequired);
}

}  // namespace

void add_data_encode(CLI::App& data) {
  auto a = std::make_shared<CodecArguments>();
  CLI::App* command = data.add_subcommand(
      "encode",
      "Encode text: reads one JSON string per line, writes one JSON array of ids per line");
  const AddOption add(*command);
  add_tokenizer_option(*command, *a);
  add("--special", a->special,
      "Encode special tokens in the text (<|endoftext|>) as their ids, not as text");
  command->footer("Example:\n  echo '\"Hello world\"' | kintsugi data encode --tokenizer gpt2/");
  command->callback([a] { encode_lines(*a); });
}

void add_data_decode(CLI::App& data) {
  auto a = std::make_shared<CodecArguments>();
  a->special = true;
  CLI::App* command = data.add_subcommand(
      "decode", "Decode token ids: reads one JSON array per line, writes one JSON string per line");
  const AddOption add(*command);
  add_tokenizer_option(*command, *a);
  add("--special,!--no-special", a->special, "Write special tokens (the default) or omit them");
  command->footer(
      "Invalid UTF-8, for example when the ids end inside a character, becomes U+FFFD.\n"
      "Example:\n  echo '[15496,995]' | kintsugi data decode --tokenizer gpt2/");
  command->callback([a] { decode_lines(*a); });
}

}  // namespace kintsugi
