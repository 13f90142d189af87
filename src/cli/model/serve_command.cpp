#include <sys/resource.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "cli/commands.h"
#include "cli/engine.h"
#include "cli/model/generation_options.h"
#include "cli/options.h"
#include "cli/process.h"
#include "core/log.h"
#include "core/units.h"
#include "http/http_server.h"
#include "serve/http/service.h"

namespace kintsugi {
namespace {

struct ServeArguments {
  GenerationArguments model;  // without the options of a single text
  EngineArguments engine;
  ServiceOptions service;
  HttpServerOptions server;
  double shutdown_timeout_s = 60;
};

// The directory's name, also of "." and "runs/demo/".
std::string default_name(const std::filesystem::path& given) {
  const auto path = std::filesystem::absolute(given / "").lexically_normal();
  return path.parent_path().filename().string();
}

std::string host_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return format_bytes(1024.0 * static_cast<double>(usage.ru_maxrss));
}

// The chat format, or the reason why there is none.
void choose_chat(const ServeArguments& a, const PromptSettings& settings, ServiceOptions& service) {
  try {
    service.format =
        &choose_chat_format(a.model.chat_template, settings.chat_template, a.model.checkpoint);
  } catch (const UserError& error) {
    if (!a.model.chat_template.empty()) throw;
    service.no_chat = error.what();
  }
}

// Serves until a signal arrives.
void serve_requests(const ServeArguments& a, const ModelFiles& files, InferenceEngine& engine) {
  ServiceOptions options = a.service;
  options.api_key = or_variable(options.api_key, "KINTSUGI_API_KEY");
  options.bos = parse_bos_choice(a.model.bos);
  ModelText text = load_model_text(files, a.model);
  choose_chat(a, text.settings, options);
  HttpService service(engine, std::move(text.tokenizer), std::move(text.settings), options);
  HttpServerOptions limits = a.server;
  // Also of a client that reads slowly, with time for the last event after a timeout.
  limits.connection.reply_timeout_s = options.request_timeout_s + limits.connection.write_timeout_s;
  HttpServer server(service, limits);
  if (!server.is_local() && options.api_key.empty())
    log_warning(
        "other machines can connect and no API key is set: anyone who reaches {} can use the "
        "model; set --api-key or KINTSUGI_API_KEY",
        server.address());
  log_info(
      "serving {} at http://{}: {} sequences of up to {} tokens, {}, {} of host memory",
      printable(options.name), server.address(), engine.options().max_sequences,
      engine.options().max_length,
      options.format == nullptr ? "no chat" : fmt::format("chat format {}", options.format->name),
      host_memory());
  std::fflush(stdout);
  while (!ShutdownSignals::received()) {
    if (const auto reason = service.failure()) failure("the engine has failed: {}", *reason);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const std::int64_t open = service.open_sequences();
  log_note("shutting down{}",
           open == 0 ? "" : fmt::format(": {} sequences are finished first", open));
  if (!server.shutdown(a.shutdown_timeout_s))
    log_warning("requests were ended after {} (--shutdown-timeout)",
                format_duration(a.shutdown_timeout_s));
}

void serve(ServeArguments& a) {
  if (a.service.name.empty())
    a.service.name = default_name(a.engine.adapter.empty() ? a.model.checkpoint : a.engine.adapter);
  const ModelFiles files = find_model(a.model.checkpoint, a.engine.adapter);
  a.model.checkpoint = files.name().string();
  const ShutdownSignals signals;
  Job job;
  job.run([&] {
    with_engine(job, a.engine, files,
                [&](InferenceEngine& engine, Communicator&) { serve_requests(a, files, engine); });
  });
}

void add_model_options(CLI::App& command, ServeArguments& a) {
  const AddOption add(command);
  add_checkpoint_option(command, a.model.checkpoint);
  add("--name", a.service.name,
      "The model's name in requests and replies; default: the directory's name");
  add("--chat-template", a.model.chat_template,
      "The chat format, if the model names none that is known: " + chat_format_names(),
      TypeName{"NAME"});
  add_bos_option(command, a.model.bos, "prompts that are texts");
  add_precision_options(command, a.engine);
  add_engine_options(command, a.engine);
}

void add_network_options(CLI::App& command, ServeArguments& a) {
  const AddOption add(command);
  add("--host", a.server.host, "The address to listen on; 0.0.0.0: every network of this machine",
      kShowDefault);
  add("--port", a.server.port, "The port; 0: a free one, which is printed",
      whole_number(between(0, 65535)), kShowDefault);
  add("--api-key", a.service.api_key,
      "Clients must send this key (Authorization: Bearer KEY). Other users of the machine see "
      "options; the environment variable KINTSUGI_API_KEY hides it");
  add("--cors", a.service.cors_origin,
      "Allow web pages of this origin (https://example.org, or *) to use the server",
      TypeName{"ORIGIN"});
}

void add_limit_options(CLI::App& command, ServeArguments& a) {
  const AddOption add(command);
  const auto number = [&](const char* name, std::int64_t& value, Range range, const char* help) {
    add(name, value, help, whole_number(range), kShowDefault);
  };
  const auto time = [&](const char* name, double& value, const char* help) {
    const auto set = [&value](const std::string& text) { value = parse_duration_s(text); };
    command.add_option_function<std::string>(name, set, help)
        ->transform(duration(between(0.1, 1e9)))
        ->default_str(fmt::format("{}s", value));
  };
  std::size_t& max_body = a.server.connection.max_body;
  command
      .add_option_function<std::string>(
          "--max-body",
          [&max_body](const std::string& text) {
            max_body = static_cast<std::size_t>(parse_bytes(text));
          },
          "Bytes of a request's body")
      ->transform(byte_count(between(1024, 1 << 30)))
      ->default_str(fmt::format("{}MiB", max_body >> 20));
  number("--max-batch", a.service.limits.max_batch, between(1, 65536),
         "Texts of one request: prompts times n");
  number("--max-tokens", a.service.limits.max_tokens, between(1, 1 << 24),
         "Tokens to generate for each text, at most");
  number("--max-queue", a.service.max_queue, between(0, 1 << 20),
         "Sequences that may wait; a request beyond that gets status 429");
  number("--max-connections", a.server.max_connections, between(1, 65536), "Open connections");
  time("--request-timeout", a.service.request_timeout_s,
       "A request that takes longer is ended (status 504)");
  time("--header-timeout", a.server.connection.header_timeout_s,
       "The headers of a request must arrive within this time");
  time("--body-timeout", a.server.connection.body_timeout_s, "The same for its body (status 408)");
  time("--write-timeout", a.server.connection.write_timeout_s,
       "A client that accepts nothing of a reply for this time is disconnected");
  time("--shutdown-timeout", a.shutdown_timeout_s,
       "After SIGINT or SIGTERM, running requests may take this long to finish");
}

}  // namespace

void add_serve_command(CLI::App& app) {
  auto a = std::make_shared<ServeArguments>();
  CLI::App* command =
      app.add_subcommand("serve", "Offer a trained model over HTTP, as OpenAI's API does");
  add_model_options(*command, *a);
  add_network_options(*command, *a);
  add_limit_options(*command, *a);
  command->footer(
      "A page to try the model is at the printed address. SIGINT or SIGTERM ends the server after "
      "running requests have finished; a second one ends it at once.\n\nExamples:\n"
      "  kintsugi serve --checkpoint runs/demo --port 8000\n"
      "  curl http://127.0.0.1:8000/v1/completions -d '{\"prompt\": \"And God said\"}'\n"
      "  KINTSUGI_API_KEY=secret kintsugi serve --checkpoint DIR --host 0.0.0.0 --precision bf16\n"
      "  mpirun -n 2 kintsugi serve --checkpoint DIR          # tensor parallel over two ranks");
  command->callback([a] { serve(*a); });
}

}  // namespace kintsugi
