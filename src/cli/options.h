#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "core/yaml_reader.h"

namespace kintsugi {

// Validators for CLI::Option::transform. They accept numbers as configurations do (4M, 30min,
// 64GiB), finite and within a range. CLI11's own range checks accept NaN.
CLI::Validator whole_number(Range range);
CLI::Validator real_number(Range range = {});  // default: any finite number
CLI::Validator seed_number();                  // 64 bits
CLI::Validator byte_count(Range range);
CLI::Validator duration(Range range);

// More about an option than its name, value and description.
enum class OptionTrait { Required, ShowDefault, Repeatable };
inline constexpr OptionTrait kRequired = OptionTrait::Required;
inline constexpr OptionTrait kShowDefault = OptionTrait::ShowDefault;  // the value that it has now
inline constexpr OptionTrait kRepeatable = OptionTrait::Repeatable;    // one value each time
struct TypeName {
  const char* word;  // for its value in --help
};

// Adds options to a command; a bool is a flag. After the description come traits: those above, a
// validator for transform, or CLI::IsMember.
class AddOption {
 public:
  explicit AddOption(CLI::App& command) : command_(command) {}

  template <class Value, class... Traits>
  CLI::Option* operator()(const std::string& name, Value& value, const std::string& description,
                          const Traits&... traits) const {
    CLI::Option* option = nullptr;
    if constexpr (std::is_same_v<Value, bool>)
      option = command_.add_flag(name, value, description);
    else
      option = command_.add_option(name, value, description);
    (set(*option, traits), ...);
    return option;
  }

 private:
  static void set(CLI::Option& option, OptionTrait trait);
  static void set(CLI::Option& option, const TypeName& type) { option.type_name(type.word); }
  static void set(CLI::Option& option, const CLI::Validator& text) { option.transform(text); }
  static void set(CLI::Option& option, const CLI::IsMember& words) { option.check(words); }

  CLI::App& command_;
};

// The value of an option, or of an environment variable if the option was not given.
std::string or_variable(const std::string& option, const char* variable);

// --overwrite: replace what exists under the name of an output (core/output_file.h).
CLI::Option* add_overwrite_option(CLI::App& command, bool& overwrite);

std::string full_name(const CLI::App& command);  // "kintsugi data tokenize"

// The error message for an unknown command on the command line; empty if there is none.
std::string unknown_command(const CLI::App& app, int argc, const char* const* argv);
// The same for an option without a value, --option=, which CLI11 would give the next argument.
std::string empty_option(int argc, const char* const* argv);
// The error message for a command line that CLI11 refused, in one line.
std::string explain(const CLI::ParseError& error, const CLI::App& app);

}  // namespace kintsugi
