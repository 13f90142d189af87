// Prompts of users: files, BOS, and the context of a chat.
#include "serve/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/chat/prompt_encoder.h"
#include "support/errors.h"
#include "support/paths.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Files = std::vector<Tokenizer::File>;

TEST(Prompts, AreOnePerLine) {
  const auto prompts =
      parse_prompts("\xEF\xBB\xBFone two\r\n\n  \n{\"prompt\": 3}", "p.txt", false);
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0].text, "one two");
  EXPECT_EQ(prompts[0].source, "p.txt, line 1");
  EXPECT_EQ(prompts[1].text, "{\"prompt\": 3}");
  EXPECT_EQ(prompts[1].source, "p.txt, line 4");
  EXPECT_TRUE(parse_prompts("\n\n", "p.txt", false).empty());
}

TEST(Prompts, AreObjectsOfJsonl) {
  const auto prompts = parse_prompts(
      "{\"prompt\": \"a\\nb\", \"id\": 7}\n"
      "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, "
      "{\"content\": \"ü\", \"role\": \"user\"}]}\n",
      "p.jsonl", true);
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0].text, "a\nb");
  EXPECT_TRUE(prompts[0].messages.empty());
  EXPECT_THAT(prompts[1].messages,
              ElementsAre(ChatMessage{"system", "s"}, ChatMessage{"user", "ü"}));
}

TEST(Prompts, ErrorsNameFileAndLine) {
  const auto error = [](const std::string& line) {
    const std::string text = user_error_of(
        [&] { parse_prompts("{\"prompt\": \"fine\"}\n\n" + line + "\n", "p.jsonl", true); });
    EXPECT_THAT(text, testing::StartsWith("p.jsonl, line 3: "));
    return text;
  };
  EXPECT_THAT(error("plain text"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error("{}"), AllOf(HasSubstr("prompt"), HasSubstr("messages")));
  EXPECT_THAT(error(R"({"prompt": "a", "messages": []})"), HasSubstr("either"));
  EXPECT_THAT(error(R"({"prompt": 5})"), HasSubstr("not a string"));
  EXPECT_THAT(error(R"({"messages": []})"), HasSubstr("list of messages"));
  EXPECT_THAT(error(R"({"messages": ["a"]})"), HasSubstr("message 1"));
  EXPECT_THAT(error(R"({"messages": [{"role": "user"}]})"), HasSubstr("\"content\""));
  EXPECT_THAT(error(R"({"messages": [{"role": "user", "content": ["a"]}]})"),
              HasSubstr("\"content\" of message 1"));
  EXPECT_THAT(error("{\"prompt\": " + std::string(100, '[') + std::string(100, ']') + "}"),
              HasSubstr("nested"));
}

// ---- settings of the tokenizer

TEST(PromptSettings, AddBosTokenOfTheConfigurationCounts) {
  const Files files = {
      {"tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "add_bos_token": true})"}};
  EXPECT_EQ(read_prompt_settings(files).bos, "<s>");
  EXPECT_TRUE(read_prompt_settings(files).adds_bos);
  EXPECT_FALSE(
      read_prompt_settings(Files{{"tokenizer_config.json", R"({"bos_token": "<s>"})"}}).adds_bos);
  EXPECT_FALSE(
      read_prompt_settings(Files{{"tokenizer_config.json", R"({"add_bos_token": true})"}}).adds_bos)
      << "there is none to add";
  EXPECT_FALSE(read_prompt_settings(Files{}).adds_bos);
}

TEST(PromptSettings, OtherwiseThePostProcessorCounts) {
  const std::string processor =
      R"({"model": {"vocab": {}}, "post_processor": {"type": "Sequence", "processors": [
         {"type": "ByteLevel"}, {"type": "TemplateProcessing", "single": [
         {"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A"}}]}]}})";
  const std::string after =
      R"({"post_processor": {"type": "TemplateProcessing", "single": [
         {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}]}})";
  EXPECT_TRUE(read_prompt_settings(Files{{"tokenizer.json", processor}}).adds_bos);
  EXPECT_EQ(read_prompt_settings(Files{{"tokenizer.json", processor}}).bos, "<|begin|>");
  EXPECT_FALSE(read_prompt_settings(Files{{"tokenizer.json", after}}).adds_bos);
  EXPECT_FALSE(read_prompt_settings(Files{{"tokenizer.json", processor},
                                          {"tokenizer_config.json", R"({"add_bos_token": false})"}})
                   .adds_bos);
}

TEST(PromptSettings, FindTheChatTemplate) {
  const Tokenizer::File text = {"tokenizer_config.json", R"({"chat_template": "one"})"};
  const Tokenizer::File list = {"tokenizer_config.json",
                                R"({"chat_template": [{"name": "rag", "template": "two"},
                            {"name": "default", "template": "three"}]})"};
  EXPECT_EQ(read_prompt_settings(Files{text}).chat_template, "one");
  EXPECT_EQ(read_prompt_settings(Files{list}).chat_template, "three");
  EXPECT_EQ(read_prompt_settings(Files{text, {"chat_template.jinja", "four"}}).chat_template,
            "four");
  EXPECT_EQ(read_prompt_settings(Files{{"tokenizer_config.json", "{}"}}).chat_template, "");
  EXPECT_THAT(user_error_of([] {
                read_prompt_settings(Files{{"tokenizer_config.json", "{"}});
              }),
              HasSubstr("tokenizer_config.json"));
}

TEST(PromptEncoder, AddsBosOnce) {
  const auto tokenizer = load_tokenizer(test_data_directory() + "/tokenizers/llama3");
  const std::int32_t bos = tokenizer->token_id("<|begin_of_text|>").value();
  std::vector<std::int32_t> plain;
  tokenizer->encode("Hello", plain);
  std::vector<std::int32_t> with_bos = {bos};
  with_bos.insert(with_bos.end(), plain.begin(), plain.end());
  EXPECT_EQ(read_prompt_settings(tokenizer->files(64)).bos, "<|begin_of_text|>");
  EXPECT_TRUE(read_prompt_settings(tokenizer->files(64)).adds_bos) << "by its post_processor";
  const PromptSettings adds{.bos = "<|begin_of_text|>", .adds_bos = true},
      names{.bos = "<|begin_of_text|>"};
  const auto encode = [&](const PromptSettings& settings, BosChoice choice, const char* text,
                          SpecialTokens special = SpecialTokens::Honoured) {
    return PromptEncoder(*tokenizer, settings, choice, -1).encode(text, special);
  };
  EXPECT_EQ(encode(adds, BosChoice::Auto, "Hello"), with_bos);
  EXPECT_EQ(encode(names, BosChoice::Auto, "Hello"), plain);
  EXPECT_EQ(encode(names, BosChoice::Yes, "Hello"), with_bos);
  EXPECT_EQ(encode(adds, BosChoice::No, "Hello"), plain);
  EXPECT_EQ(encode(adds, BosChoice::Auto, "<|begin_of_text|>Hello"), with_bos);
  EXPECT_GT(encode(adds, BosChoice::Auto, "<|begin_of_text|>Hello", SpecialTokens::AsText).size(),
            with_bos.size() + 1);
  EXPECT_EQ(encode(adds, BosChoice::Auto, ""), std::vector<std::int32_t>{bos});
  EXPECT_EQ(PromptEncoder(*tokenizer, {}, BosChoice::Yes, 3).encode("", SpecialTokens::AsText),
            std::vector<std::int32_t>{3});
  EXPECT_THAT(user_error_of([&] { PromptEncoder(*tokenizer, {}, BosChoice::Yes, -1); }),
              HasSubstr("--bos no"));
  EXPECT_THAT(user_error_of([&] {
                PromptEncoder(*tokenizer, {.bos = "<nope>", .adds_bos = true}, BosChoice::Auto, -1);
              }),
              AllOf(HasSubstr("<nope>"), HasSubstr("--bos no")));
}

// ---- the context of a chat

// The text of a special token in a message is the token (as in transformers) or only text.
TEST(PromptEncoder, AMessageCannotEndItsTurnUnlessAllowed) {
  const auto tokenizer = load_tokenizer(test_data_directory() + "/tokenizers/qwen");
  const ChatFormat& format = find_chat_format("chatml");
  const PromptEncoder encoder(*tokenizer, {}, BosChoice::No, -1);
  const std::int32_t end = tokenizer->token_id("<|im_end|>").value();
  const auto ends = [&](const char* content, SpecialTokens special) {
    const std::vector<ChatMessage> messages = {{"system", "Be kind."}, {"user", content}};
    const std::vector<ChatText> pieces = chat_pieces(format, messages, true);
    const auto ids = encoder.encode(pieces, special);
    std::string text;
    tokenizer->decode(ids, text);
    EXPECT_EQ(text, text_of(pieces));
    if (std::string_view(content).find("<|") == std::string_view::npos) {
      EXPECT_EQ(ids, encoder.encode(text_of(pieces), SpecialTokens::Honoured));
    }
    return std::count(ids.begin(), ids.end(), end);
  };
  EXPECT_EQ(ends("Hello you", SpecialTokens::AsText), 2);
  EXPECT_EQ(ends("Hello you", SpecialTokens::Honoured), 2);
  EXPECT_EQ(ends("Hello<|im_end|> you", SpecialTokens::AsText), 2);
  EXPECT_EQ(ends("Hello<|im_end|> you", SpecialTokens::Honoured), 3);
}

TEST(Conversation, DropsTheOldestTurns) {
  const auto bytes = [](std::span<const ChatText> pieces) {
    return static_cast<std::int64_t>(text_of(pieces).size());
  };
  Conversation chat(find_chat_format("vicuna"), "S");
  chat.add_user("one");
  chat.add_answer(" 1");
  chat.add_user("two");
  chat.add_answer(" 2");
  chat.add_user("three");
  const std::int64_t length = bytes(chat.pieces());
  EXPECT_EQ(text_of(chat.pieces()),
            "S\n\nUSER: one\nASSISTANT: 1</s>\nUSER: two\nASSISTANT: 2</s>\nUSER: three\n"
            "ASSISTANT:");
  EXPECT_EQ(chat.fit(length, bytes), 0u);
  EXPECT_EQ(chat.fit(length - 1, bytes), 2u);
  EXPECT_EQ(text_of(chat.pieces()), "S\n\nUSER: two\nASSISTANT: 2</s>\nUSER: three\nASSISTANT:");
  EXPECT_EQ(chat.fit(1, bytes), 2u) << "the last user message stays";
  EXPECT_EQ(text_of(chat.pieces()), "S\n\nUSER: three\nASSISTANT:");
  chat.set_system("");
  EXPECT_TRUE(chat.turns().empty());
  chat.add_user("four");
  EXPECT_EQ(text_of(chat.pieces()), "USER: four\nASSISTANT:");
}

}  // namespace
}  // namespace kintsugi
