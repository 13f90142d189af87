// The man page and the shell completions, made from the descriptions that --help prints.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/build_info.h"
#include "model/config.h"
#include "plan/machines/machine.h"

namespace kintsugi {
namespace {

std::vector<const CLI::App*> subcommands_of(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

void for_each_command(const CLI::App& command, const std::function<void(const CLI::App&)>& use) {
  use(command);
  for (const CLI::App* inner : subcommands_of(command)) for_each_command(*inner, use);
}

// "--set", "--special", "--no-special"; empty for a positional argument.
std::vector<std::string> flags_of(const CLI::Option& option) {
  std::vector<std::string> flags;
  for (const std::string& name : option.get_snames()) flags.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flags.push_back("--" + name);
  return flags;
}

bool takes_value(const CLI::Option& option) { return option.get_expected_max() > 0; }

// The values that an option accepts, if they are a known list.
std::vector<std::string> values_of(const CLI::Option& option) {
  const std::string name =
      option.get_lnames().empty() ? option.get_name(true) : option.get_lnames().front();
  if (name == "machine") return machine_names();
  if (name == "model" || name == "MODEL") return preset_names();
  const std::string type = option.get_type_name();  // "TEXT:{auto,never}"
  const std::size_t open = type.find('{'), close = type.find('}');
  std::vector<std::string> values;
  if (open == std::string::npos || close == std::string::npos) return values;
  std::string_view list = std::string_view(type).substr(open + 1, close - open - 1);
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    values.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return values;
}

// ---- man page

// Text as troff prints it literally.
std::string troff(std::string_view text) {
  std::string result;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\')
      result += "\\e";
    else if (c == '-')
      result += "\\-";
    else
      result += c;
    line_start = c == '\n';
  }
  return result;
}

std::string option_title(const CLI::Option& option) {
  const std::vector<std::string> flags = flags_of(option);
  if (flags.empty()) return fmt::format("\\fI{}\\fR", troff(option.get_name(true)));
  std::string title = fmt::format("\\fB{}\\fR", troff(fmt::format("{}", fmt::join(flags, ", "))));
  if (takes_value(option))
    title += fmt::format(" \\fI{}\\fR",
                         troff(option.get_type_name().substr(0, option.get_type_name().find(':'))));
  return title;
}

std::string option_entry(const CLI::Option& option) {
  std::string text = option.get_description();
  if (const auto values = values_of(option); !values.empty() && values.size() < 8)
    text += fmt::format(" ({})", fmt::join(values, ", "));
  if (!option.get_default_str().empty())
    text += fmt::format(" [default: {}]", option.get_default_str());
  if (option.get_required()) text += " (required)";
  return fmt::format(".TP\n{}\n{}\n", option_title(option), troff(text));
}

std::string command_section(const CLI::App& command) {
  std::string text =
      fmt::format(".SS {}\n{}\n", troff(full_name(command)), troff(command.get_description()));
  for (const CLI::Option* option : command.get_options()) text += option_entry(*option);
  if (!command.get_footer().empty())
    text += fmt::format(".PP\n.nf\n{}\n.fi\n", troff(command.get_footer()));
  return text;
}

// ---- completion

// A word in single quotes, for both shells.
std::string in_quotes(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string all_paths(const CLI::App& app) {
  std::vector<std::string> paths;
  for_each_command(app, [&](const CLI::App& command) {
    if (command.get_parent() != nullptr) paths.push_back(in_quotes(full_name(command)));
  });
  return fmt::format("{}", fmt::join(paths, "|"));
}

// The words that may follow a command: subcommands and options.
std::vector<std::string> words_of(const CLI::App& command) {
  std::vector<std::string> words;
  for (const CLI::App* inner : subcommands_of(command)) words.push_back(inner->get_name());
  for (const CLI::Option* option : command.get_options())
    for (const std::string& flag : flags_of(*option)) words.push_back(flag);
  for (const CLI::Option* option : command.get_options())
    if (flags_of(*option).empty())
      for (const std::string& value : values_of(*option)) words.push_back(value);
  return words;
}

// Inside '…[…]' and '…:…' of zsh's _arguments.
std::string zsh_text(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, text.find('\n'))) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

std::string zsh_action(const CLI::Option& option) {
  const std::vector<std::string> values = values_of(option);
  return values.empty() ? "_files" : fmt::format("({})", fmt::join(values, " "));
}

std::string zsh_arguments(const CLI::App& command) {
  const std::vector<const CLI::App*> inner = subcommands_of(command);
  std::string text, first_words;  // the values of an argument that a subcommand may replace
  int position = 0;
  for (const CLI::Option* option : command.get_options()) {
    const std::string description = zsh_text(option->get_description());
    const std::vector<std::string> flags = flags_of(*option);
    if (flags.empty() && !inner.empty()) {
      first_words = fmt::format(" {}", fmt::join(values_of(*option), " "));
    } else if (flags.empty()) {
      const bool many = option->get_expected_max() > 1;
      text += " \\\n        " +
              in_quotes(fmt::format("{}:{}:{}", many ? "*" : std::to_string(++position),
                                    zsh_text(option->get_name(true)), zsh_action(*option)));
    }
    for (const std::string& flag : flags)
      text += " \\\n        " +
              in_quotes(fmt::format(
                  "{}{}[{}]{}", option->get_expected_max() > 1 ? "*" : "", flag, description,
                  takes_value(*option) ? fmt::format(":value:{}", zsh_action(*option)) : ""));
  }
  if (!inner.empty()) {
    std::string names;
    for (const CLI::App* one : inner)
      names += fmt::format("{}{}\\:{}", names.empty() ? "" : " ", one->get_name(),
                           fmt::format("\"{}\"", zsh_text(one->get_description())));
    text += " \\\n        " + in_quotes(fmt::format("1:command:(({}{}))", names, first_words));
  }
  return text;
}

std::string man_page(const CLI::App& app) {
  std::string text = fmt::format(
      ".TH KINTSUGI 1 \"\" \"kintsugi {}\" \"User Commands\"\n"
      ".SH NAME\nkintsugi \\- pre\\-trains large language models\n"
      ".SH SYNOPSIS\n\\fBkintsugi\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n"
      ".SH DESCRIPTION\n{}\n",
      program_version(), troff(app.get_description()));
  for (const CLI::Option* option : app.get_options()) text += option_entry(*option);
  text += ".SH COMMANDS\n";
  for_each_command(app, [&](const CLI::App& command) {
    if (command.get_parent() != nullptr) text += command_section(command);
  });
  text +=
      ".SH EXIT STATUS\n.TP\n0\nsuccess, also of a run that a signal stopped and that saved\n"
      ".TP\n1\nfailure, such as a full disk\n"
      ".TP\n2\na mistake in the command line, the configuration or an input file\n";
  return text;
}

std::string bash_completion(const CLI::App& app) {
  std::string values, words;
  for_each_command(app, [&](const CLI::App& command) {
    words += fmt::format("    {}) words={} ;;\n", in_quotes(full_name(command)),
                         in_quotes(fmt::format("{}", fmt::join(words_of(command), " "))));
    for (const CLI::Option* option : command.get_options())
      if (const auto known = values_of(*option); !known.empty())
        for (const std::string& flag : flags_of(*option))
          values += fmt::format("    {}) words={} ;;\n", in_quotes(full_name(command) + " " + flag),
                                in_quotes(fmt::format("{}", fmt::join(known, " "))));
  });
  return fmt::format(
      "# bash completion for kintsugi, written by `kintsugi completion bash`\n"
      "_kintsugi() {{\n"
      "  local current=\"${{COMP_WORDS[COMP_CWORD]}}\" previous=\"${{COMP_WORDS[COMP_CWORD-1]}}\"\n"
      "  local command=kintsugi word words=\n"
      "  for word in \"${{COMP_WORDS[@]:1:COMP_CWORD-1}}\"; do\n"
      "    case \"$command $word\" in\n"
      "    {}) command=\"$command $word\" ;;\n"
      "    esac\n"
      "  done\n"
      "  case \"$command $previous\" in\n{}    *) case \"$command\" in\n{}    esac ;;\n"
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "  if [[ $current != -* ]]; then COMPREPLY+=($(compgen -f -- \"$current\")); fi\n"
      "}}\n"
      "complete -o filenames -o bashdefault -F _kintsugi kintsugi\n",
      all_paths(app), values, words);
}

std::string zsh_completion(const CLI::App& app) {
  std::string cases;
  for_each_command(app, [&](const CLI::App& command) {
    cases += fmt::format("    ({}) _arguments{} ;;\n", in_quotes(full_name(command)),
                         zsh_arguments(command));
  });
  return fmt::format(
      "#compdef kintsugi\n"
      "# zsh completion for kintsugi, written by `kintsugi completion zsh`\n"
      "_kintsugi() {{\n"
      "  local command=kintsugi word\n"
      "  while (( CURRENT > 2 )); do\n"
      "    case \"$command $words[2]\" in\n"
      "    ({}) command=\"$command $words[2]\" ;;\n"
      "    (*) break ;;\n"
      "    esac\n"
      "    shift words\n"
      "    (( CURRENT-- ))\n"
      "  done\n"
      "  case \"$command\" in\n{}  esac\n"
      "}}\n"
      "_kintsugi \"$@\"\n",
      all_paths(app), cases);
}

}  // namespace

void add_completion_command(CLI::App& app) {
  auto kind = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("completion", "Print the completion script of a shell, or the man page");
  const AddOption add(*command);
  add("kind", *kind, "What to print", CLI::IsMember({"bash", "zsh", "man"}), kRequired);
  command->footer(
      "Installing puts all three where the system looks for them. Examples:\n"
      "  source <(kintsugi completion bash)\n"
      "  kintsugi completion zsh > ~/.zfunc/_kintsugi\n"
      "  kintsugi completion man > kintsugi.1 && man ./kintsugi.1");
  command->callback([kind, &app] {
    fmt::print("{}", *kind == "bash"  ? bash_completion(app)
                     : *kind == "zsh" ? zsh_completion(app)
                                      : man_page(app));
  });
}

}  // namespace kintsugi
