#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/new_file.h"

namespace kintsugi {

// The rule for whatever a command writes under a name that the user gives (docs/outputs.md): what
// exists is refused without --overwrite, and what the command reads is never replaced.
struct OutputRule {
  bool overwrite = false;
  // What the command reads: files, directories with all that is in them, prefixes of token stores.
  // Names that are no files, such as "-" or a preset, are ignored.
  std::vector<std::filesystem::path> inputs = {};
  // Recognizes files that the command wrote itself: these may be replaced also inside an input
  // directory. Without it, none.
  std::function<bool(const std::filesystem::path&)> is_own = {};
  bool is_private = false;  // only its owner may read the file
};

// UserError if `output`, a file or a directory, is one of the inputs, through any links; a
// directory also if it contains one.
void refuse_inputs_as_output(const std::string& option, const std::filesystem::path& output,
                             const OutputRule& rule);

// UserError unless the rule allows to write this file. To be called before the work.
void check_output_file(const std::string& option, const std::filesystem::path& path,
                       const OutputRule& rule);
// Whether a file begins with this text: to recognize one that a command wrote.
bool begins_with(const std::filesystem::path& file, std::string_view text);
// UserError if two options name the same file.
void refuse_same_output(const std::string& first_option, const std::filesystem::path& first,
                        const std::string& second_option, const std::filesystem::path& second);

// A file that a command writes: checked when it is made, opened by begin() or the first write(),
// and in place after publish(), complete or not at all.
class OutputFile {
 public:
  OutputFile(std::string option, std::filesystem::path path, OutputRule rule);

  const std::filesystem::path& path() const { return path_; }
  void begin();
  void write(std::string_view content);
  // Replaces the first bytes. Checks the rule again: a file may have appeared meanwhile.
  void publish(std::string_view first_bytes = {});

 private:
  std::string option_;
  std::filesystem::path path_;
  OutputRule rule_;
  std::optional<NewFile> file_;
};

void write_output_file(const std::string& option, const std::filesystem::path& path,
                       const OutputRule& rule, std::string_view content);

}  // namespace kintsugi
