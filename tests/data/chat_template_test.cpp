// Chat formats: the text around messages, and which format a Jinja template is.
#include "data/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Messages = std::vector<ChatMessage>;

const Messages kLong = {{"system", "You are a helpful assistant"},
                        {"user", "Hello"},
                        {"assistant", "Hi there"},
                        {"user", "Who are you"},
                        {"assistant", "   I am an assistant   "},
                        {"user", "Another question"}};
const Messages kOneUser = {{"user", "Hello"}};
const Messages kAnswered = {
    {"system", "Answer briefly."}, {"user", "What is 2 + 2?"}, {"assistant", "4"}};

// What llama.cpp renders for the three conversations, without and with the generation prompt.
struct Rendering {
  const char *name, *generation_prompt;
  const char *long_text, *one_user, *answered;
};
const Rendering kRenderings[] = {
    {"chatml", "<|im_start|>assistant\n",
     "<|im_start|>system\nYou are a helpful "
     "assistant<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi "
     "there<|im_end|>\n<|im_start|>user\nWho are you<|im_end|>\n<|im_start|>assistant\n   I am an "
     "assistant   <|im_end|>\n<|im_start|>user\nAnother question<|im_end|>\n",
     "<|im_start|>user\nHello<|im_end|>\n",
     "<|im_start|>system\nAnswer briefly.<|im_end|>\n<|im_start|>user\nWhat is 2 + "
     "2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"},
    {"llama3", "<|start_header_id|>assistant<|end_header_id|>\n\n",
     "<|start_header_id|>system<|end_header_id|>\n\nYou are a helpful "
     "assistant<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|><|start_header_"
     "id|>assistant<|end_header_id|>\n\nHi "
     "there<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho are "
     "you<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nI am an "
     "assistant<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnother question<|eot_id|>",
     "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>",
     "<|start_header_id|>system<|end_header_id|>\n\nAnswer "
     "briefly.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWhat is 2 + "
     "2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n4<|eot_id|>"},
    {"mistral-v1", "",
     " [INST] You are a helpful assistant\n\nHello [/INST] Hi there</s> [INST] Who are you [/INST] "
     "   I am an assistant   </s> [INST] Another question [/INST]",
     " [INST] Hello [/INST]", " [INST] Answer briefly.\n\nWhat is 2 + 2? [/INST] 4</s>"},
    {"mistral-v7", "",
     "[SYSTEM_PROMPT] You are a helpful assistant[/SYSTEM_PROMPT][INST] Hello[/INST] Hi "
     "there</s>[INST] Who are you[/INST]    I am an assistant   </s>[INST] Another question[/INST]",
     "[INST] Hello[/INST]",
     "[SYSTEM_PROMPT] Answer briefly.[/SYSTEM_PROMPT][INST] What is 2 + 2?[/INST] 4</s>"},
    {"gemma", "<start_of_turn>model\n",
     "<start_of_turn>user\nYou are a helpful "
     "assistant\n\nHello<end_of_turn>\n<start_of_turn>model\nHi "
     "there<end_of_turn>\n<start_of_turn>user\nWho are you<end_of_turn>\n<start_of_turn>model\nI "
     "am an assistant<end_of_turn>\n<start_of_turn>user\nAnother question<end_of_turn>\n",
     "<start_of_turn>user\nHello<end_of_turn>\n",
     "<start_of_turn>user\nAnswer briefly.\n\nWhat is 2 + "
     "2?<end_of_turn>\n<start_of_turn>model\n4<end_of_turn>\n"},
    {"vicuna", "ASSISTANT:",
     "You are a helpful assistant\n\nUSER: Hello\nASSISTANT: Hi there</s>\nUSER: Who are "
     "you\nASSISTANT:    I am an assistant   </s>\nUSER: Another question\n",
     "USER: Hello\n", "Answer briefly.\n\nUSER: What is 2 + 2?\nASSISTANT: 4</s>\n"},
    {"deepseek", "### Response:\n",
     "You are a helpful assistant### Instruction:\nHello\n### Response:\nHi there\n<|EOT|>\n### "
     "Instruction:\nWho are you\n### Response:\n   I am an assistant   \n<|EOT|>\n### "
     "Instruction:\nAnother question\n",
     "### Instruction:\nHello\n",
     "Answer briefly.### Instruction:\nWhat is 2 + 2?\n### Response:\n4\n<|EOT|>\n"},
    {"phi4", "<|im_start|>assistant<|im_sep|>",
     "<|im_start|>system<|im_sep|>You are a helpful "
     "assistant<|im_end|><|im_start|>user<|im_sep|>Hello<|im_end|><|im_start|>assistant<|im_sep|>"
     "Hi there<|im_end|><|im_start|>user<|im_sep|>Who are "
     "you<|im_end|><|im_start|>assistant<|im_sep|>   I am an assistant   "
     "<|im_end|><|im_start|>user<|im_sep|>Another question<|im_end|>",
     "<|im_start|>user<|im_sep|>Hello<|im_end|>",
     "<|im_start|>system<|im_sep|>Answer briefly.<|im_end|><|im_start|>user<|im_sep|>What is 2 + "
     "2?<|im_end|><|im_start|>assistant<|im_sep|>4<|im_end|>"},
    {"openchat", "GPT4 Correct Assistant:",
     "You are a helpful assistant<|end_of_turn|>GPT4 Correct User: Hello<|end_of_turn|>GPT4 "
     "Correct Assistant: Hi there<|end_of_turn|>GPT4 Correct User: Who are you<|end_of_turn|>GPT4 "
     "Correct Assistant:    I am an assistant   <|end_of_turn|>GPT4 Correct User: Another "
     "question<|end_of_turn|>",
     "GPT4 Correct User: Hello<|end_of_turn|>",
     "Answer briefly.<|end_of_turn|>GPT4 Correct User: What is 2 + 2?<|end_of_turn|>GPT4 Correct "
     "Assistant: 4<|end_of_turn|>"},
    {"command-r", "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
     "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>You are a helpful "
     "assistant<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hello<|END_OF_TURN_TOKEN|>"
     "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Hi "
     "there<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Who are "
     "you<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>I am an "
     "assistant<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Another "
     "question<|END_OF_TURN_TOKEN|>",
     "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hello<|END_OF_TURN_TOKEN|>",
     "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Answer "
     "briefly.<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>What is 2 + "
     "2?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>4<|END_OF_TURN_TOKEN|>"},
    {"granite", "<|start_of_role|>assistant<|end_of_role|>",
     "<|start_of_role|>system<|end_of_role|>You are a helpful "
     "assistant<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>Hello<|end_of_text|>\n<|start_"
     "of_role|>assistant<|end_of_role|>Hi "
     "there<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>Who are "
     "you<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>   I am an assistant   "
     "<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>Another question<|end_of_text|>\n",
     "<|start_of_role|>user<|end_of_role|>Hello<|end_of_text|>\n",
     "<|start_of_role|>system<|end_of_role|>Answer "
     "briefly.<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>What is 2 + "
     "2?<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>4<|end_of_text|>\n"},
};

TEST(ChatTemplate, RendersAsOtherProgramsDo) {
  EXPECT_EQ(std::size(kRenderings), chat_formats().size());
  for (const Rendering& expected : kRenderings) {
    const ChatFormat& format = find_chat_format(expected.name);
    const auto check = [&](const Messages& messages, const std::string& text) {
      EXPECT_EQ(render_chat(format, messages, false), text) << expected.name;
      EXPECT_EQ(render_chat(format, messages, true), text + expected.generation_prompt)
          << expected.name;
    };
    check(kLong, expected.long_text);
    check(kOneUser, expected.one_user);
    check(kAnswered, expected.answered);
  }
}

// The answer that a model generates is rendered again as the model wrote it.
TEST(ChatTemplate, AnAnswerBecomesAMessageWithTheSameText) {
  for (const ChatFormat& format : chat_formats()) {
    const std::string prompt = render_chat(format, kOneUser, true);
    Messages messages = kOneUser;
    messages.push_back({"assistant", "Good day"});
    const std::string whole = render_chat(format, messages, false);
    ASSERT_TRUE(whole.starts_with(prompt)) << format.name;
    const std::string generated =
        whole.substr(prompt.size(), whole.find(format.end_of_turn, prompt.size()) - prompt.size());
    EXPECT_EQ(answer_content(format, generated), "Good day") << format.name;
    EXPECT_EQ(answer_content(format, ""), "") << format.name;
  }
}

TEST(ChatTemplate, AnEmptySystemMessageIsJoinedUnlessTrimmed) {
  const Messages messages = {{"system", ""}, {"user", "Hello"}};
  EXPECT_EQ(render_chat(find_chat_format("gemma"), messages, false),
            "<start_of_turn>user\nHello<end_of_turn>\n");
  EXPECT_EQ(render_chat(find_chat_format("mistral-v1"), messages, false),
            " [INST] \n\nHello [/INST]");
}

TEST(ChatTemplate, PiecesSeparateContentsFromTheFormat) {
  const Messages messages = {{"system", " S "}, {"user", "<end_of_turn>"}};
  EXPECT_THAT(chat_pieces(find_chat_format("gemma"), messages, true),
              testing::ElementsAre(ChatText{"<start_of_turn>user\n", false}, ChatText{"S", true},
                                   ChatText{"\n\n", false}, ChatText{"<end_of_turn>", true},
                                   ChatText{"<end_of_turn>\n<start_of_turn>model\n", false}));
}

TEST(ChatTemplate, IsRecognizedByItsTokens) {
  const std::pair<const char*, const char*> templates[] = {
      {"chatml", "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>"},
      {"phi4", "<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>"},
      {"llama3", "'<|start_header_id|>' + role + '<|end_header_id|>' + text | trim + '<|eot_id|>'"},
      {"gemma", "{{ '<start_of_turn>' + role + '\n' + text | trim + '<end_of_turn>\n' }}"},
      {"mistral-v1", "{{ ' [INST] ' + system_text + '\n\n' + text + ' [/INST]' }}"},
      {"mistral-v7", "'[SYSTEM_PROMPT] ' + s + '[/SYSTEM_PROMPT]' '[INST] ' + text + '[/INST]'"},
      {"vicuna", "{{ 'USER: ' + text }}{{ 'ASSISTANT: ' + text + '</s>' }}"},
      {"deepseek", "'### Instruction:\n' + text '### Response:\n' + text + '\n<|EOT|>\n'"},
      {"openchat", "{{ 'GPT4 Correct ' + role.title() + ': ' + text + '<|end_of_turn|>' }}"},
      {"command-r",
       "<|START_OF_TURN_TOKEN|><|USER_TOKEN|> <|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
      {"granite", "'<|start_of_role|>' + role + '<|end_of_role|>' + text + '<|end_of_text|>'"},
  };
  EXPECT_EQ(std::size(templates), chat_formats().size());
  for (const auto& [name, jinja] : templates) {
    const ChatFormat* format = recognize_chat_format(jinja);
    ASSERT_NE(format, nullptr) << name;
    EXPECT_EQ(format->name, name);
  }
  for (const char* unknown :
       {"", "{{ messages }}", "<|user|>\n{{ text }}<|end|>", "'[INST] ' + text + ' [/INST]'",
        "' [INST] <<SYS>>' + system + ' [/INST] [INST] '", "'[SYSTEM_PROMPT]' + s '[INST]' + t",
        "SYSTEM: USER: ASSISTANT: ", "<|im_start|> <|im_end|> <end_of_utterance>"})
    EXPECT_EQ(recognize_chat_format(unknown), nullptr) << unknown;
}

// Compared with jinja2 when it was written: see jinja_template().
TEST(ChatTemplate, ItsJinjaIsRecognized) {
  for (const ChatFormat& format : chat_formats()) {
    EXPECT_EQ(recognize_chat_format(jinja_template(format, "")), &format) << format.name;
    EXPECT_EQ(recognize_chat_format(jinja_template(format, "<s>")), &format) << format.name;
  }
  EXPECT_EQ(jinja_template(find_chat_format("chatml"), "<s>"),
            "{{ '<s>' }}{% for message in messages %}{% set content = message['content'] %}"
            "{% if message['role'] == 'system' %}{{ '<|im_start|>system\\n' + content + "
            "'<|im_end|>\\n' }}{% elif message['role'] == 'user' %}{{ '<|im_start|>user\\n' + "
            "content + '<|im_end|>\\n' }}{% elif message['role'] == 'assistant' %}"
            "{{ '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
}

TEST(ChatTemplate, UnknownFormatsAreRefusedWithARemedy) {
  EXPECT_EQ(choose_chat_format("vicuna", "<|im_start|><|im_end|>", "m").name, "vicuna");
  EXPECT_EQ(choose_chat_format("", "<|im_start|><|im_end|>", "m").name, "chatml");
  for (const char* jinja : {"", "{{ strange }}"})
    EXPECT_THAT(user_error_of([&] { choose_chat_format("", jinja, "models/x"); }),
                AllOf(HasSubstr("models/x"), HasSubstr("--chat-template NAME"), HasSubstr("chatml"),
                      HasSubstr("mistral-v7")));
  EXPECT_THAT(user_error_of([] { find_chat_format("lama3"); }),
              AllOf(HasSubstr("'lama3'"), HasSubstr("did you mean 'llama3'")));
}

TEST(ChatTemplate, MessagesAreChecked) {
  const auto error = [](const char* format, const Messages& messages) {
    return user_error_of([&] { render_chat(find_chat_format(format), messages, true); });
  };
  EXPECT_THAT(error("chatml", {}), HasSubstr("no messages"));
  EXPECT_THAT(error("chatml", {{"user", "a"}, {"tool", "b"}}),
              AllOf(HasSubstr("message 2"), HasSubstr("'tool'")));
  EXPECT_THAT(error("gemma", {{"user", "a"}, {"system", "b"}}),
              AllOf(HasSubstr("message 2"), HasSubstr("gemma"), HasSubstr("first")));
  EXPECT_THAT(error("gemma", {{"system", "a"}}), HasSubstr("user message"));
  for (const char* strict : {"gemma", "mistral-v1", "mistral-v7", "command-r"}) {
    EXPECT_THAT(error(strict, {{"user", "a"}, {"user", "b"}}),
                AllOf(HasSubstr("message 2"), HasSubstr("alternate"), HasSubstr(strict)));
    EXPECT_THAT(error(strict, {{"system", "s"}, {"assistant", "a"}}), HasSubstr("message 2"));
  }
  EXPECT_EQ(
      render_chat(find_chat_format("chatml"), Messages{{"user", "a"}, {"system", "b"}}, false),
      "<|im_start|>user\na<|im_end|>\n<|im_start|>system\nb<|im_end|>\n");
}

}  // namespace
}  // namespace kintsugi
