#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/process.h"
#include "cli/report/page_server.h"
#include "core/json_members.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/units.h"
#include "data/explore/explored_directory.h"
#include "report/documents/html.h"
#include "report/explore/explore_service.h"
#include "report/explore/page.h"
#include "train/startup.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// Of random documents: in one sample, and samples in a page without a server.
constexpr std::size_t kSampledDocuments = 12;
constexpr std::uint64_t kPageSamples = 4;

struct ExploreCommand {
  std::vector<std::string> directories;
  std::string output;
  bool overwrite = false;
  PageServer server;
};

std::vector<ExploredSource> sources_of(const std::vector<std::string>& directories) {
  std::vector<ExploredSource> sources;
  for (const std::string& given : directories) {
    const fs::path directory = given;
    check_explored_directory(directory);
    sources.push_back({.name = printable(given),
                       .overview = [=] { return compact_json(explored_overview(directory)); },
                       .sample =
                           [=](std::uint64_t seed) {
                             return compact_json(
                                 explored_sample(directory, seed, kSampledDocuments));
                           }});
  }
  return sources;
}

void write_page(const ExploreCommand& command, const std::vector<ExploredSource>& sources) {
  const OutputRule rule{.overwrite = command.overwrite,
                        .inputs = {command.directories.begin(), command.directories.end()}};
  check_output_file("--output", command.output, rule);
  const std::string page =
      html_report(explore_page_html(), explore_report_data(sources, unix_time_s(), kPageSamples));
  write_output_file("--output", command.output, rule, page);
  log_info("{}: {}", command.output, format_bytes(static_cast<double>(page.size())));
}

void run_explore(const ExploreCommand& command) {
  const std::vector<ExploredSource> sources = sources_of(command.directories);
  if (!command.output.empty()) {
    write_page(command, sources);
    return;
  }
  const ShutdownSignals signals;
  for (const ExploredSource& source : sources) source.overview();  // a damaged file ends it now
  ExploreService service(sources, token_of(command.server));
  serve_page(service, command.server,
             sources.size() == 1 ? "1 directory" : fmt::format("{} directories", sources.size()),
             "the documents");
}

}  // namespace

void add_data_explore(CLI::App& data) {
  const auto command = std::make_shared<ExploreCommand>();
  CLI::App* app = data.add_subcommand(
      "explore", "Show what data curate and data dedup did, in a web page with examples");
  const AddOption add(*app);
  add("directories", command->directories, "The --output of data curate or data dedup",
      TypeName{"DIR"}, kRequired);
  add("--output", command->output,
      "Write the page to this file, which needs no server, instead of serving it",
      TypeName{"FILE"});
  add_overwrite_option(*app, command->overwrite);
  add_page_server_options(add, command->server);
  app->footer(
      "The page only reads. Its texts are documents of the corpus, also such as were masked or "
      "removed: keep it as you keep the corpus. Ctrl-C ends the server.\n\nExamples:\n"
      "  kintsugi data explore curated\n"
      "  kintsugi data explore curated dedup --port 0\n"
      "  kintsugi data explore curated --output curated.html");
  app->callback([command] { run_explore(*command); });
}

}  // namespace kintsugi
