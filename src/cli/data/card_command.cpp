#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/progress.h"
#include "core/table.h"
#include "core/units.h"
#include "data/provenance/card.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCroissant = "croissant.json";

struct CardCommand {
  std::vector<std::string> data, overrides;
  std::string output, details;
  bool check_inputs = false, overwrite = false;
};

void check(DataHistory& history, const CardCommand& command) {
  std::optional<Progress> progress(std::in_place, "check", 0, "bytes");
  const std::vector<std::string> problems = check_outputs(history, progress->callback());
  if (problems.empty() && command.check_inputs) {
    progress.emplace("check inputs", 0, "bytes");
    check_originals(history, progress->callback());
  }
  progress.reset();
  if (!problems.empty())
    user_error("{}; restore the data, or write it again", fmt::join(problems, "; "));
}

void report(const DataCard& card, const CardCommand& command) {
  std::int64_t gone = 0;
  for (const OriginalFile& file : card.history.originals) gone += file.state.empty() ? 0 : 1;
  for (const OriginalFile& file : card.history.originals)
    if (!file.state.empty() && gone <= 20) log_warning("{}: {}", file.input.path, file.state);
  if (gone > 20)
    log_warning("{} are missing or have changed", format_number(gone, "original file"));
  for (const DataStage& stage : card.history.stages)
    for (const std::string& what : stage.unknown)
      log_warning("{} does not say: {}", stage.directory.string(), what);
  std::int64_t to_add = 0;
  for (const auto& row : training_summary(card))
    to_add += row["answer"].get<std::string>().find(kToAdd) == std::string::npos ? 0 : 1;
  const TextCount text = card.text();
  log_info("{}: {} from {} in {}; {} to be added", command.output,
           format_number(text.documents, "document"),
           format_number(std::ssize(card.sources()), "source"),
           format_number(std::ssize(card.history.stages), "stage"),
           format_number(to_add, "answer"));
}

void run_card(const CardCommand& command) {
  const std::vector<fs::path> data(command.data.begin(), command.data.end());
  CardDetails details =
      read_card_details(command.details.empty() ? "{}" : read_text_file(command.details),
                        command.details.empty() ? "--set" : command.details, command.overrides);
  OutputRule rule{.overwrite = command.overwrite, .inputs = data};
  if (!command.details.empty()) rule.inputs.emplace_back(command.details);
  DataHistory history = read_history(data, details.sources);
  for (const OriginalFile& file : history.originals) rule.inputs.push_back(file.input.path);
  refuse_inputs_as_output("--output", command.output, rule);
  NewDirectory output(
      command.output, command.overwrite,
      {.name = "a data card", .required = kCroissant, .is_member = [](const std::string& name) {
         return name == kCroissant || name == "card.html" || name == "card.md" ||
                name == "inputs.csv" || name == "domains.csv";
       }});
  check(history, command);
  const DataCard card = make_card(std::move(details), std::move(history), command.output);
  const CardPage page = card_page(card);
  output.write("card.html", page.html);
  output.write("card.md", page.markdown);
  output.write("inputs.csv", inputs_csv(card));
  if (const std::string domains = domains_csv(card); !domains.empty())
    output.write("domains.csv", domains);
  output.write(kCroissant, json_lines(croissant(card)));
  output.publish();
  report(card, command);
}

}  // namespace

void add_data_card(CLI::App& data) {
  CLI::App* app = data.add_subcommand(
      "card", "Describe data for people and programs: sources, stages, files (docs/curation.md)");
  const AddOption add(*app);
  const auto command = std::make_shared<CardCommand>();
  add("data", command->data,
      "directories of curate or dedup, token stores, or the run directory that read them",
      kRequired);
  add("--output", command->output,
      "DIR of card.html, card.md, croissant.json, inputs.csv and domains.csv", TypeName{"DIR"},
      kRequired);
  add("--details", command->details,
      "YAML file with what only people know: name, description, license, url, creator, "
      "date_published, …",
      TypeName{"FILE"});
  add("--set", command->overrides, "one of its keys: --set license=CC0-1.0 (repeatable)",
      TypeName{"KEY=VALUE"}, kRepeatable);
  add("--check-inputs", command->check_inputs,
      "read the original files too, and name those that have changed");
  add_overwrite_option(*app, command->overwrite);
  app->footer(
      "Example:\n"
      "  kintsugi data card tokens/fi --output card --set name=fi-web --set creator='A. Person'\n"
      "All files of the data are read and compared with the checksums that were recorded.");
  app->callback([command] { run_card(*command); });
}

}  // namespace kintsugi
