// kintsugi generate and kintsugi chat, with a small model that was trained on bytes.
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/program_test.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class GenerationTest : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    shared_ = std::make_unique<TemporaryDirectory>();
    shared_->write("corpus.txt", small_corpus(300));
    run_training(small_config((*shared_ / "corpus.txt").string(), (*shared_ / "run").string(),
                              "steps: 30, eval_every: 0, log_every: 30"));
  }
  static void TearDownTestSuite() { shared_.reset(); }
  static std::string model() { return (*shared_ / "run" / "checkpoints" / "latest").string(); }

  Outcome generate(const std::string& arguments, const std::string& input = "") {
    return run_kintsugi("generate --threads 1 --checkpoint '" + model() + "' " + arguments, input);
  }
  std::vector<json> generate_json(const std::string& arguments, const std::string& input = "") {
    const Outcome outcome = generate("--jsonl " + arguments, input);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    std::vector<json> lines;
    std::istringstream text(outcome.out);
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
  }
  Outcome chat(const std::string& arguments, const std::string& input) {
    return run_kintsugi("chat --threads 1 --checkpoint '" + model() + "' " + arguments, input);
  }
  static std::string mistake(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 2) << outcome.error;
    EXPECT_THAT(outcome.error, StartsWith("error: "));
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  }

 private:
  static inline std::unique_ptr<TemporaryDirectory> shared_;
};

TEST_F(GenerationTest, PromptsAreIndependentOfEachOther) {
  directory_.write("p.txt", "the river\n\nher brother\n");
  directory_.write("p.jsonl", "{\"prompt\": \"a stone\", \"id\": 3}\n");
  const std::string options = " --max-tokens 15 --temperature 1 --seed 4";
  const std::vector<json> all =
      generate_json("--prompt 'the' --input p.txt --input p.jsonl --input -" + options, "no\n");
  ASSERT_EQ(all.size(), 5u);
  const char* prompts[] = {"the", "the river", "her brother", "a stone", "no"};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(all[i]["index"], i);
    EXPECT_EQ(all[i]["prompt"], prompts[i]);
    EXPECT_EQ(all[i]["prompt_tokens"], std::string(prompts[i]).size());
    EXPECT_EQ(all[i]["completion_tokens"], 15);
    EXPECT_EQ(all[i]["finish_reason"], "length");
    const auto alone = generate_json("--prompt '" + std::string(prompts[i]) + "'" + options);
    EXPECT_EQ(alone.at(0)["text"], all[i]["text"]) << prompts[i];
  }
  const Outcome text = generate("--prompt 'the' --prompt 'a' --temperature 0 --max-tokens 4");
  EXPECT_THAT(text.out, AllOf(StartsWith("the"), HasSubstr("\n\na")));
  EXPECT_THAT(text.error, StartsWith("2/2 prompts, 8 tokens in "));
}

TEST_F(GenerationTest, StopStringsEndTheText) {
  const std::string options = "--prompt 'the river' --temperature 0 --max-tokens 30";
  const std::string whole = generate_json(options).at(0)["text"];
  ASSERT_EQ(whole.size(), 30u);
  const std::string stop = whole.substr(6, 3);  // three tokens
  const json ended = generate_json(options + " --stop NEVER --stop '" + stop + "'").at(0);
  EXPECT_EQ(ended["text"], whole.substr(0, whole.find(stop)));
  EXPECT_EQ(ended["finish_reason"], "stop");
  EXPECT_EQ(ended["completion_tokens"], whole.find(stop) + 3);
  EXPECT_EQ(generate(options + " --stop '" + stop + "'").out,
            "the river" + whole.substr(0, whole.find(stop)) + "\n");
}

TEST_F(GenerationTest, LogprobsAreThoseOfEval) {
  const json line = generate_json(
                        "--token-ids '116 104' --max-tokens 6 --seed 2 --repetition-penalty 1.4 "
                        "--min-p 0.01 --logprobs 3")
                        .at(0);
  std::string ids = "116 104";
  ASSERT_EQ(line["token_ids"].size(), 6u);
  for (const json& id : line["token_ids"]) ids += " " + id.dump();
  const Outcome scored = run_kintsugi("eval --threads 1 --checkpoint '" + model() +
                                      "' --logprobs --token-ids '" + ids + "'");
  const auto expected = json::parse(scored.out).get<std::vector<double>>();
  ASSERT_EQ(expected.size(), 7u);
  for (std::size_t i = 0; i < 6; ++i) {
    const json& token = line["logprobs"][i];
    EXPECT_EQ(token["id"], line["token_ids"][i]);
    EXPECT_NEAR(token["logprob"].get<double>(), expected[i + 1], 1e-4);
    ASSERT_EQ(token["top"].size(), 3u);
    EXPECT_GE(token["top"][0]["logprob"], token["top"][1]["logprob"]);
    EXPECT_GE(token["top"][0]["logprob"], token["logprob"]);
  }
}

TEST_F(GenerationTest, ARepetitionPenaltyChangesTheText) {
  const std::string options = "--prompt 'the the the' --temperature 0 --max-tokens 20";
  EXPECT_NE(generate_json(options).at(0)["text"],
            generate_json(options + " --repetition-penalty 5").at(0)["text"]);
}

TEST_F(GenerationTest, MessagesAreRenderedWithAChatFormat) {
  directory_.write("m.jsonl", R"({"messages": [{"role": "user", "content": "Hi"}]})");
  const json answer =
      generate_json("--input m.jsonl --chat-template vicuna --temperature 0 --max-tokens 5").at(0);
  EXPECT_EQ(answer["messages"][0]["content"], "Hi");
  const json same =
      generate_json("--prompt \"$(printf 'USER: Hi\\nASSISTANT:')\" --temperature 0 --max-tokens 5")
          .at(0);
  EXPECT_EQ(answer["text"], same["text"]);
  EXPECT_EQ(answer["prompt_tokens"], 19);
}

TEST_F(GenerationTest, MistakesAreNamed) {
  const auto error = [&](const std::string& arguments, const std::string& input = "") {
    const Outcome outcome = generate(arguments, input);
    EXPECT_EQ(outcome.out, "") << arguments;
    return mistake(outcome);
  };
  EXPECT_THAT(error(""), AllOf(HasSubstr("--prompt"), HasSubstr("--input")));
  EXPECT_THAT(error("--prompt ''"), HasSubstr("--prompt: the prompt is empty"));
  EXPECT_THAT(error("--input nofile.txt"), HasSubstr("nofile.txt"));
  EXPECT_THAT(error("--input -", "\n"), HasSubstr("standard input has no prompts"));
  EXPECT_THAT(error("--input - --input-format jsonl", "{\"prompt\": \"a\"}\n{\"text\": \"b\"}"),
              HasSubstr("standard input, line 2"));
  EXPECT_THAT(error("--prompt a --input-format jsonl"), HasSubstr("--input"));
  EXPECT_THAT(error("--prompt a --logprobs 3"), HasSubstr("--jsonl"));
  EXPECT_THAT(error("--prompt a --stop ''"), HasSubstr("stop string"));
  EXPECT_THAT(error("--token-ids 5 --stop x"), HasSubstr("--stop"));
  EXPECT_THAT(error("--prompt a --bos perhaps"), HasSubstr("perhaps"));
  EXPECT_THAT(error("--prompt a --bos yes"), HasSubstr("--bos no"));
  EXPECT_THAT(error("--prompt a --special-tokens drop"), HasSubstr("drop"));
  EXPECT_THAT(error("--prompt a --min-p 2"), HasSubstr("--min-p"));
  EXPECT_THAT(error("--prompt a --repetition-penalty 0"), HasSubstr("--repetition-penalty"));
  EXPECT_THAT(error("--prompt a --chat-template chatml"), HasSubstr("messages"));
  directory_.write("m.jsonl",
                   "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n"
                   "{\"messages\": [{\"role\": \"assistant\", \"content\": \"Hi\"}]}\n");
  EXPECT_THAT(error("--input m.jsonl"),
              AllOf(HasSubstr("no chat template"), HasSubstr("--chat-template NAME")));
  EXPECT_THAT(error("--input m.jsonl --chat-template lama3"), HasSubstr("did you mean 'llama3'"));
  EXPECT_THAT(error("--input m.jsonl --chat-template llama3"),
              AllOf(HasSubstr("m.jsonl, line 2"), HasSubstr("assistant")));
}

// ---- kintsugi chat

TEST_F(GenerationTest, ChatAnswersEachLineOfAPipe) {
  const std::string options = "--chat-template vicuna --temperature 0 --max-tokens 6";
  const Outcome one = chat(options, "Hi\n");
  ASSERT_EQ(one.code, 0) << one.error;
  EXPECT_EQ(one.error, "");
  EXPECT_EQ(one.out.size(), 7u);
  EXPECT_EQ(chat(options, "Hi").out, one.out) << "a last line without a line end";
  EXPECT_EQ(chat(options, "\n  \n/reset\nHi\n/reset\nHi\n/quit\nHi\n").out, one.out + one.out);
  EXPECT_EQ(chat(options, "").out, "");
  const Outcome help = chat(options, "/help\n");
  EXPECT_EQ(help.out, "");
  EXPECT_THAT(help.error, AllOf(HasSubstr("/reset"), HasSubstr("/system")));
}

// The prompt of the second answer has the first one.
TEST_F(GenerationTest, ChatRemembersTheConversation) {
  const std::string options = "--chat-template vicuna --temperature 0 --max-tokens 5";
  const std::string first = chat(options, "Hi\n").out.substr(0, 5);
  const Outcome both = chat(options, "Hi\nyou\n");
  ASSERT_EQ(both.code, 0) << both.error;
  const std::string content = first.starts_with(" ") ? first.substr(1) : first;
  directory_.write("p.txt", "USER: Hi\nASSISTANT: " + content + "</s>\nUSER: you\nASSISTANT:");
  const json expected =
      generate_json("--prompt \"$(cat p.txt)\" --temperature 0 --max-tokens 5").at(0);
  EXPECT_EQ(both.out, first + "\n" + expected["text"].get<std::string>() + "\n");
  const std::string with_system = chat(options, "/system Be kind.\nHi\n").out;
  EXPECT_EQ(chat(options + " --system 'Be kind.'", "Hi\n").out, with_system);
}

TEST_F(GenerationTest, ChatDropsTheOldestMessages) {
  const Outcome outcome =
      chat("--chat-template vicuna --temperature 0 --max-tokens 8", "Hi\nHello\nx\n");
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.error, HasSubstr("the context of 64 tokens is full: the oldest 2 messages"));
}

TEST_F(GenerationTest, ChatErrorsNameTheLine) {
  const std::string options = "--chat-template vicuna --temperature 0 --max-tokens 4";
  EXPECT_THAT(mistake(chat(options, "Hi\n/nope\n")),
              AllOf(HasSubstr("standard input, line 2"), HasSubstr("'/nope'")));
  EXPECT_THAT(mistake(chat(options, "/quit now\n")), HasSubstr("/quit takes no text"));
  EXPECT_EQ(chat(options, " /nope\n").code, 0) << "a space makes it a message";
  EXPECT_THAT(mistake(chat(options, "Hi\n" + std::string(100, 'x') + "\n")),
              AllOf(HasSubstr("line 2"), HasSubstr("too long"), HasSubstr("--context")));
  EXPECT_THAT(mistake(chat("", "Hi\n")), HasSubstr("--chat-template NAME"));
}

TEST_F(GenerationTest, ChatRecognizesTheTemplateOfTheModel) {
  fs::copy(fs::canonical(model()), directory_ / "copy", fs::copy_options::recursive);
  json config = json::parse(content_of("copy/tokenizer_config.json"));
  const auto with = [&](const std::string& jinja) {
    config["chat_template"] = jinja;
    directory_.write("copy/tokenizer_config.json", config.dump());
    return run_kintsugi("chat --threads 1 --checkpoint copy --temperature 0 --max-tokens 4",
                        "Hi\n");
  };
  const Outcome found = with("{{ 'USER: ' + text + 'ASSISTANT: ' + answer + eos_token }}");
  EXPECT_EQ(found.code, 0) << found.error;
  EXPECT_EQ(found.out, chat("--chat-template vicuna --temperature 0 --max-tokens 4", "Hi\n").out);
  EXPECT_THAT(mistake(with("{{ strange }}")),
              AllOf(HasSubstr("copy"), HasSubstr("unknown format"), HasSubstr("--chat-template")));
}

// The program in a terminal of its own.
class ChatTerminal {
 public:
  ChatTerminal(const std::string& program, const std::string& checkpoint) {
    pid_ = ::forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      ::execl(program.c_str(), "kintsugi", "chat", "--threads", "1", "--checkpoint",
              checkpoint.c_str(), "--chat-template", "vicuna", "--context", "200000",
              "--max-tokens", "100000", nullptr);
      ::_exit(127);
    }
  }
  ~ChatTerminal() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
    ::close(terminal_);
  }
  void type(const std::string& keys) { EXPECT_GT(::write(terminal_, keys.data(), keys.size()), 0); }
  // Reads until `enough(text)` since the last call, at most 60 s.
  template <class Enough>
  bool wait_until(Enough enough) {
    text.clear();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!enough(text) && std::chrono::steady_clock::now() < end) {
      pollfd ready{terminal_, POLLIN, 0};
      char some[4096];
      if (::poll(&ready, 1, 1000) <= 0) continue;
      const ssize_t bytes = ::read(terminal_, some, sizeof some);
      if (bytes <= 0) break;
      text.append(some, static_cast<std::size_t>(bytes));
    }
    return enough(text);
  }
  int exit_code() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string text;

 private:
  pid_t pid_ = -1;
  int terminal_ = -1;
};

TEST_F(GenerationTest, ControlCStopsTheAnswerAndNotTheProgram) {
  ChatTerminal terminal(kintsugi_binary(), model());
  const auto prompted = [](const std::string& text) { return text.ends_with("> "); };
  ASSERT_TRUE(terminal.wait_until(prompted)) << terminal.text;
  EXPECT_THAT(terminal.text, HasSubstr("chat format vicuna"));
  for (int round = 0; round < 2; ++round) {
    terminal.type("Hello\n");
    ASSERT_TRUE(terminal.wait_until([](const std::string& text) { return text.size() > 40; }))
        << "the answer is shown while it is generated";
    terminal.type("\x03");
    ASSERT_TRUE(terminal.wait_until(prompted)) << terminal.text.size();
    EXPECT_LT(terminal.text.size(), 90000u);
  }
  terminal.type("\x03");  // nothing to stop: a hint
  ASSERT_TRUE(terminal.wait_until([&](const std::string& text) {
    return prompted(text) && text.find("/quit") != text.npos;
  })) << terminal.text;
  terminal.type("/nope\n");
  ASSERT_TRUE(terminal.wait_until([&](const std::string& text) {
    return prompted(text) && text.find("error") != text.npos;
  })) << terminal.text;
  terminal.type("/quit\n");
  EXPECT_EQ(terminal.exit_code(), 0);
}

}  // namespace
}  // namespace kintsugi
