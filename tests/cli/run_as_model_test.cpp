// A run directory in place of a model, an adapter or a tokenizer, and the chat format that a
// checkpoint keeps.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/chat/chat_template.h"
#include "support/program_test.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class RunAsModel : public ProgramTest {
 protected:
  RunAsModel() {
    directory_.write("corpus.txt", small_corpus(60));
    directory_.write("demo.yaml",
                     small_config("corpus.txt", "runs/demo", "steps: 2", "device: cpu\n"));
    succeeds("train demo.yaml");
  }

  std::string succeeds(const std::string& arguments, const std::string& input = "") {
    const Outcome outcome = run_kintsugi(arguments, input);
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.error;
    return outcome.out;
  }
  // A run that starts from runs/demo and has its tokenizer.
  void write_config(const std::string& name, const std::string& data, const std::string& rest) {
    directory_.write(name + ".yaml",
                     fmt::format("run: {{dir: runs/{}}}\nmodel: {{init: runs/demo}}\n"
                                 "data: {{train: [{{path: {}}}], tokenizer: runs/demo, "
                                 "sequence_length: 96}}\nbatch: {{global: 2, micro: 2}}\n"
                                 "optimizer: {{lr: 1e-1, warmup_steps: 1}}\n"
                                 "train: {{steps: 10, eval_every: 0}}\ndevice: cpu\n{}",
                                 name, data, rest));
  }
  void prepare_chats(const std::string& options) {
    directory_.write("chats.jsonl",
                     "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": "
                     "\"assistant\", \"content\": \"Yes\"}]}\n");
    succeeds("data prepare-chat --input chats.jsonl --tokenizer runs/demo " + options);
  }
};

TEST_F(RunAsModel, IsATokenizer) {
  EXPECT_EQ(succeeds("data encode --tokenizer runs/demo", "\"ab\"\n"),
            succeeds("data encode --tokenizer bytes", "\"ab\"\n"));
  succeeds("data tokenize --input corpus.txt --tokenizer runs/demo --output tokens");
  succeeds("data verify tokens --tokenizer runs/demo/checkpoints");
  succeeds("data inspect tokens --tokenizer runs/demo");
  write_config("more", "tokens", "");
  succeeds("train more.yaml");
}

// Its tokenizer is that of bytes: a corpus of text needs no store.
TEST_F(RunAsModel, IsTheTokenizerOfBytes) {
  write_config("more", "corpus.txt", "");
  succeeds("train more.yaml");
}

TEST_F(RunAsModel, WithoutACheckpointSaysSo) {
  fs::create_directories(directory_ / "empty/checkpoints");
  const Outcome outcome = run_kintsugi("data encode --tokenizer empty", "\"ab\"\n");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.error, HasSubstr("the run in empty has no checkpoint yet"));
}

TEST_F(RunAsModel, KeepsTheChatFormatItWasTrainedWith) {
  prepare_chats("--template chatml --output chats");
  write_config("sft", "chats", "objective: sft\n");
  succeeds("train sft.yaml");
  const json config = json::parse(content_of("runs/sft/checkpoints/latest/tokenizer_config.json"));
  const ChatFormat* format = recognize_chat_format(config.value("chat_template", ""));
  ASSERT_NE(format, nullptr);
  EXPECT_EQ(format->name, "chatml");
  const std::string greedy = " --temperature 0 --max-tokens 8 --context 128 --threads 1";
  const std::string answer = succeeds("chat --checkpoint runs/sft" + greedy, "Hi\n");
  EXPECT_EQ(answer, succeeds("chat --checkpoint runs/sft --chat-template chatml" + greedy, "Hi\n"));
  // The next data set needs no --template, and the model of text has none.
  succeeds("data prepare-chat --input chats.jsonl --tokenizer runs/sft --output again");
  EXPECT_THAT(succeeds("data inspect again"), HasSubstr("chatml"));
  EXPECT_THAT(content_of("runs/demo/checkpoints/latest/tokenizer_config.json"),
              Not(HasSubstr("chat_template")));
}

TEST_F(RunAsModel, ChatTakesAnAdapter) {
  prepare_chats("--template chatml --output chats");
  write_config("lora", "chats", "objective: sft\nadapter: {kind: lora, r: 2}\n");
  succeeds("train lora.yaml");
  const std::string rest = " --temperature 0 --max-tokens 16 --context 128 --threads 1";
  const std::string answer =
      succeeds("chat --checkpoint runs/demo --adapter runs/lora" + rest, "Hi\n");
  EXPECT_EQ(answer, succeeds("chat --checkpoint runs/lora" + rest, "Hi\n"));
  EXPECT_NE(answer, succeeds("chat --checkpoint runs/demo --chat-template chatml" + rest, "Hi\n"))
      << "the adapter changes nothing";
}

}  // namespace
}  // namespace kintsugi
