#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

enum class ReportFormat { Text, Json, Markdown, Csv, Html };
std::string_view to_string(ReportFormat format);  // "markdown"
// By the ending of its name; empty: unknown.
std::optional<ReportFormat> format_of_file(const std::filesystem::path& file);

// Writes a report of the runs in these directories and below them to `output`, or to standard
// output if it is empty. The file appears complete or not at all (core/output_file.h).
struct ReportTarget {
  std::filesystem::path output = {};
  bool overwrite = false;
};
void write_report(const std::vector<std::filesystem::path>& directories, ReportFormat format,
                  const ReportTarget& target);

}  // namespace kintsugi
