#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/model/generation_options.h"
#include "cli/options.h"
#include "comm/communicator.h"
#include "core/error.h"
#include "core/log.h"
#include "serve/generation.h"
#include "serve/prompts.h"
#include "serve/text_output.h"

namespace kintsugi {
namespace {

constexpr int kLookEvery_ms = 50;

std::atomic<bool> interrupt_noted = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void note_interrupt(int signal) {
  if (!interrupt_noted.exchange(true)) return;
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void handle_interrupts(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // a write of the answer is not disturbed
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
}

// While it exists, Ctrl-C (SIGINT) is noted and does not end the process. A second one before the
// first was taken ends it as usual.
class InterruptGuard {
 public:
  InterruptGuard() {
    interrupt_noted = false;
    handle_interrupts(note_interrupt);
  }
  ~InterruptGuard() { handle_interrupts(SIG_DFL); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool pending() const { return interrupt_noted; }
  bool take() { return interrupt_noted.exchange(false); }  // one was noted since the last call
};

// Reads standard input line by line. Unlike std::getline it notices a signal while it waits.
class LineInput {
 public:
  enum class Result : std::uint8_t { Line, End, Interrupted };
  // Its line end is removed.
  Result next(std::string& line) {
    std::size_t end = 0;
    while ((end = buffer_.find('\n')) == std::string::npos && !ended_) {
      // A signal may arrive before poll() or in another thread, so it is looked for now and then.
      pollfd ready{STDIN_FILENO, POLLIN, 0};
      if (::poll(&ready, 1, kLookEvery_ms) <= 0) {
        if (interrupt_noted) return Result::Interrupted;
        continue;
      }
      std::array<char, 65536> some;
      const ssize_t bytes = ::read(STDIN_FILENO, some.data(), some.size());
      if (bytes < 0) user_error("cannot read standard input: {}", std::strerror(errno));
      ended_ = bytes == 0;
      buffer_.append(some.data(), static_cast<std::size_t>(bytes));
    }
    if (buffer_.empty()) return Result::End;
    line = buffer_.substr(0, end);
    buffer_.erase(0, end == std::string::npos ? end : end + 1);
    if (line.ends_with('\r')) line.pop_back();
    ++number_;
    return Result::Line;
  }
  std::uint64_t number() const { return number_; }  // of the last line, from 1

 private:
  std::string buffer_;
  std::uint64_t number_ = 0;
  bool ended_ = false;
};

constexpr std::int64_t kLongestDefault = 8192;  // tokens of context

constexpr const char* kChatHelp =
    "/reset         forget the conversation\n"
    "/system TEXT   begin again with this system message; without TEXT: with none\n"
    "/quit          end (also Ctrl-D)\n"
    "/help          this list\n"
    "Ctrl-C stops an answer. A message that begins with '/' needs a space before it.";

struct ChatArguments : GenerationArguments {
  std::string system;
  std::int64_t context = 0;
};

// The number of tokens that the conversation and the answer may have.
std::int64_t context_length(const ModelConfig& config, std::int64_t wanted) {
  const std::int64_t longest = config.max_positions;
  if (wanted > longest && config.positions() == PositionKind::Learned)
    user_error("--context is {}, but the model has {} positions", wanted, longest);
  if (wanted > 0) return wanted;
  return longest > 0 ? std::min(longest, kLongestDefault) : kLongestDefault;
}

class ChatSession {
 public:
  ChatSession(const ChatArguments& arguments, const ChatFormat& format, const ModelText& text,
              InferenceEngine& model, std::int64_t context)
      : a_(arguments),
        format_(format),
        text_(text),
        model_(model),
        context_(context),
        conversation_(format, arguments.system) {}

  void run() {
    if (interactive_)
      log_note("chat format {}, {} tokens of context; /help lists the commands", format_.name,
               context_);
    for (std::string line; read(line);) {
      try {
        if (line.starts_with("/")) {
          if (!command(line)) return;
        } else if (line.find_first_not_of(" \t") != line.npos) {
          if (!answer(line)) return;
        }
      } catch (const UserError& error) {
        if (!interactive_) user_error("standard input, line {}: {}", input_.number(), error.what());
        log_message(LogLevel::Error, error.what());
      }
    }
  }

 private:
  // Returns false at the end of the input.
  bool read(std::string& line) {
    while (true) {
      interrupts_.take();
      if (interactive_) {
        std::fputs("> ", stdout);
        std::fflush(stdout);
      }
      switch (input_.next(line)) {
        case LineInput::Result::Line:
          return true;
        case LineInput::Result::End:
          if (interactive_) std::puts("");
          return false;
        case LineInput::Result::Interrupted:
          break;
      }
      if (!interrupts_.take()) continue;
      if (!interactive_) {  // there is no answer to stop
        ::signal(SIGINT, SIG_DFL);
        ::raise(SIGINT);
      }
      std::puts("");
      log_note("/quit or Ctrl-D ends the chat");
    }
  }

  // Returns false for /quit.
  bool command(const std::string& line) {
    const std::size_t end = line.find_first_of(" \t");
    const std::string name = line.substr(0, end);
    const std::size_t first = end == line.npos ? end : line.find_first_not_of(" \t", end);
    const std::string rest = first == line.npos ? "" : line.substr(first);
    if (name != "/system" && !rest.empty()) user_error("{} takes no text", name);
    if (name == "/quit") return false;
    if (name == "/help") {
      log_note("{}", kChatHelp);
    } else if (name == "/reset") {
      conversation_.reset();
    } else if (name == "/system") {
      conversation_.set_system(rest);
    } else {
      user_error("there is no command '{}': /help lists them; put a space before a message", name);
    }
    return true;
  }

  // Returns false if standard output cannot be written any more.
  bool answer(const std::string& message) {
    const Conversation before = conversation_;
    conversation_.add_user(message.substr(message.starts_with(" /") ? 1 : 0));
    GenerationRequest request;
    try {
      request = next_request();
    } catch (const UserError&) {
      conversation_ = before;
      throw;
    }
    bool writable = true;
    TextPrinter printer;
    const GenerationResult result =
        generate_text(model_, text_.tokenizer.get(), request, [&](std::string_view text) {
          writable = printer.print(text);
          return writable && !interrupts_.pending();
        });
    conversation_.add_answer(result.text);
    writable = printer.end_line() && writable;
    if (interactive_ && result.finish == FinishReason::Length)
      log_note("the answer was cut off after {} tokens", result.tokens.size());
    return writable;
  }

  // Drops the oldest messages if the context is full.
  GenerationRequest next_request() {
    // A message cannot end its own turn.
    const auto encode = [&](std::span<const ChatText> pieces) {
      return text_.encoder.encode(pieces, SpecialTokens::AsText);
    };
    // At least half of a short context is left for the conversation.
    const std::int64_t limit =
        context_ - std::max<std::int64_t>(1, std::min(a_.max_tokens, context_ / 2));
    const std::size_t dropped = conversation_.fit(limit, [&](std::span<const ChatText> pieces) {
      return static_cast<std::int64_t>(encode(pieces).size());
    });
    GenerationRequest request{
        .prompt = encode(conversation_.pieces()), .sampling = a_.sampling, .stop = a_.stop};
    const auto tokens = static_cast<std::int64_t>(request.prompt.size());
    if (tokens > limit)
      user_error(
          "the message is too long: {} tokens with the template, but {} of {} are left for it; "
          "shorten it, or change --context or --max-tokens",
          tokens, limit, context_);
    if (dropped > 0)
      log_note("the context of {} tokens is full: the oldest {} messages were dropped", context_,
               dropped);
    request.max_tokens = std::min(a_.max_tokens, context_ - tokens);
    stop_at_end_of_turn(request, format_, *text_.tokenizer);
    return request;
  }

  const ChatArguments& a_;
  const ChatFormat& format_;
  const ModelText& text_;
  InferenceEngine& model_;
  std::int64_t context_;
  Conversation conversation_;
  InterruptGuard interrupts_;
  LineInput input_;
  bool interactive_ = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
};

void chat(ChatArguments& a) {
  const ModelFiles files = find_model(a.checkpoint, a.engine.adapter);
  check_adapter(files, a.engine.allow_other_base);
  StopStrings{a.stop};  // checks them
  const ModelText text = load_model_text(files, a);
  const ChatFormat& format =
      choose_chat_format(a.chat_template, text.settings.chat_template, files.name().string());
  const ModelConfig config = read_hf_config(files.model / "config.json");
  const std::int64_t context = context_length(config, a.context);
  with_engine_alone(a.engine, files, context, [&](InferenceEngine& model) {
    ChatSession(a, format, text, model, context).run();
  });
}

}  // namespace

void add_chat_command(CLI::App& app) {
  auto a = std::make_shared<ChatArguments>();
  a->max_tokens = 512;
  CLI::App* command = app.add_subcommand("chat", "Talk to a trained model in the terminal");
  const AddOption add(*command);
  add_generation_options(*command, *a);
  add_adapter_option(*command, a->engine);
  add("--system", a->system, "The system message: how the model should answer", TypeName{"TEXT"});
  add("--context", a->context,
      "Tokens of conversation and answer, after which the oldest messages are dropped; 0: what the "
      "model was trained with, at most 8192",
      whole_number(between(0, 1 << 24)), kShowDefault);
  command->footer(
      "Reads one message per line, from the terminal or a pipe. Commands: /reset, /system TEXT, "
      "/quit, /help; Ctrl-C stops an answer.\n\nExamples:\n"
      "  kintsugi chat --checkpoint DIR --system 'Answer briefly.'\n"
      "  echo 'What is 2 + 2?' | kintsugi chat --checkpoint runs/demo --chat-template chatml");
  command->callback([a] { chat(*a); });
}

}  // namespace kintsugi
