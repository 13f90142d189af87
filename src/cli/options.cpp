#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {
namespace {

// `parse` reads a text or throws UserError. Unless keep_text, the text is replaced by the plain
// number, which CLI11 then reads.
template <class Parse>
CLI::Validator checked(Range range, bool keep_text, Parse parse) {
  const auto check = [=](std::string& text) -> std::string {
    try {
      const auto value = parse(text);
      if (!std::isfinite(static_cast<double>(value)))
        return fmt::format("'{}' is not a finite number", text);
      if (!range.holds(static_cast<double>(value)))
        return fmt::format("it is {}, but must be {}", text, range.text());
      if (!keep_text) text = fmt::format("{}", value);
      return {};
    } catch (const UserError& error) {
      return error.what();
    }
  };
  // The range shown by --help.
  const bool closed = std::isfinite(range.low) && std::isfinite(range.high) && !range.low_open;
  return CLI::Validator(check,
                        closed ? fmt::format("{} to {}", range.low, range.high) : range.text());
}

std::vector<std::string> names_of(const std::vector<const CLI::App*>& commands) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  return names;
}

// The remedy in an error message: the name that was probably meant, and where all are listed.
std::string remedy(const CLI::App& command, const std::string& near) {
  const std::string list = full_name(command) + " --help lists them";
  return near.empty() ? list : fmt::format("did you mean '{}'? {}", near, list);
}

// Options that became commands, and a command that left: the answer to an old spelling.
struct MovedSpelling {
  std::string_view old, now;
};
constexpr std::string_view kPlanAccuracy = "plan_accuracy, another program (make plan-accuracy)";
constexpr std::array kMovedSpellings = {
    MovedSpelling{"kintsugi plan --machines", "kintsugi plan machines"},
    MovedSpelling{"kintsugi plan --tune", "kintsugi plan tune CONFIG"},
    MovedSpelling{"kintsugi plan --evaluate", kPlanAccuracy},
    MovedSpelling{"kintsugi plan evaluate", kPlanAccuracy},
    MovedSpelling{"kintsugi plan --parameters", "kintsugi plan calculate --parameters"},
    MovedSpelling{"kintsugi plan --days", "kintsugi plan calculate --days"},
    MovedSpelling{"kintsugi plan --stages", "kintsugi plan schedule --stages"},
    MovedSpelling{"kintsugi plan --micro-batches", "kintsugi plan schedule --micro-batches"},
};

std::string moved_spelling(const CLI::App& command, const std::string& word) {
  const std::string old = full_name(command) + " " + word.substr(0, word.find('='));
  for (const MovedSpelling& moved : kMovedSpellings)
    if (moved.old == old) return fmt::format("{} is now {}", old, moved.now);
  return "";
}

// The innermost subcommand on the command line.
const CLI::App& innermost(const CLI::App& app) {
  const std::vector<CLI::App*> named = app.get_subcommands();
  return named.empty() ? app : innermost(*named.front());
}

// Whether a word after the command may be its argument: kintsugi model llama-8b.
bool takes_words(const CLI::App& command) {
  const auto options = command.get_options();
  return std::any_of(options.begin(), options.end(),
                     [](const CLI::Option* option) { return option->get_positional(); });
}

std::string unexpected(const CLI::App& command) {
  const std::vector<std::string> words = command.remaining();
  if (words.empty()) return "";
  const std::string& word = words.front();
  if (!word.starts_with("-"))
    return fmt::format("{} does not take '{}'; {} --help lists its arguments", full_name(command),
                       word, full_name(command));
  const std::string name = word.substr(0, word.find('='));
  std::vector<std::string> options;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& one : option->get_lnames()) options.push_back("--" + one);
  return fmt::format("{} has no option '{}'; {}", full_name(command), name,
                     remedy(command, nearest_word(name, options)));
}

}  // namespace

CLI::Validator whole_number(Range range) { return checked(range, false, parse_count); }
CLI::Validator real_number(Range range) { return checked(range, false, parse_real); }
CLI::Validator seed_number() {
  return checked(at_least(0), false, YamlScalar<std::uint64_t>::parse);
}
CLI::Validator byte_count(Range range) { return checked(range, true, parse_bytes); }
CLI::Validator duration(Range range) { return checked(range, true, parse_duration_s); }

void AddOption::set(CLI::Option& option, OptionTrait trait) {
  if (trait == OptionTrait::Required) option.required();
  if (trait == OptionTrait::ShowDefault) option.capture_default_str();
  if (trait == OptionTrait::Repeatable) option.allow_extra_args(false);
}

std::string or_variable(const std::string& option, const char* variable) {
  const char* const value = std::getenv(variable);
  return !option.empty() || value == nullptr ? option : value;
}

CLI::Option* add_overwrite_option(CLI::App& command, bool& overwrite) {
  return command.add_flag("--overwrite", overwrite,
                          "Replace an output that exists; inputs are never replaced");
}

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : full_name(*parent) + " " + command.get_name();
}

std::string unknown_command(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* command = &app;
  for (int i = 1; i < argc; ++i) {
    const auto inner = command->get_subcommands([](const CLI::App*) { return true; });
    if (inner.empty()) return "";
    const std::string word = argv[i];
    if (const std::string moved = moved_spelling(*command, word); !moved.empty()) return moved;
    if (word.starts_with("-")) {
      const CLI::Option* option = command->get_option_no_throw(word);  // none with --option=value
      if (option != nullptr && option->get_items_expected_min() > 0) ++i;
      continue;
    }
    const auto named = std::find_if(inner.begin(), inner.end(),
                                    [&](const CLI::App* one) { return one->get_name() == word; });
    const bool more = i + 1 < argc && argv[i + 1][0] != '-';
    if (named == inner.end() && takes_words(*command) &&
        (!more || nearest_word(word, names_of(inner)).empty()))
      return "";
    if (named == inner.end())
      return fmt::format("{} has no command '{}'; {}", full_name(*command), word,
                         remedy(*command, nearest_word(word, names_of(inner))));
    command = *named;
  }
  return "";
}

std::string empty_option(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") return "";  // what follows is another program's
    if (word.size() > 3 && word.starts_with("--") && word.find('=') == word.size() - 1)
      return fmt::format("{} is empty: give it a value, or remove it",
                         word.substr(0, word.size() - 1));
  }
  return "";
}

std::string explain(const CLI::ParseError& error, const CLI::App& app) {
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
    if (const std::string text = unexpected(innermost(app)); !text.empty()) return text;
  return std::string(error.what()) + "; see --help";
}

}  // namespace kintsugi
