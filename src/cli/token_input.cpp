#include "cli/token_input.h"

#include <charconv>

#include "core/error.h"
#include "core/file.h"
#include "data/byte_tokenizer.h"

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
      user_error(
          "'{}' is not a list of token ids: whole numbers with spaces or commas between them",
          text);
    ids.push_back(id);
    next = result.ptr;
  }
  return ids;
}

void require_byte_tokenizer(const std::filesystem::path& checkpoint) {
  if (!std::filesystem::exists(checkpoint / "config.json"))
    user_error("{} is not a model directory: it has no config.json", checkpoint.string());
  const std::filesystem::path file = checkpoint / "tokenizer.json";
  if (!std::filesystem::exists(file) || !is_byte_tokenizer(read_text_file(file)))
    user_error(
        "{} has no byte tokenizer, the only one this version runs: give the prompt as --token-ids",
        checkpoint.string());
}

}  // namespace kintsugi
