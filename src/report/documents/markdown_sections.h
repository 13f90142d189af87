#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "report/documents/markdown.h"

namespace kintsugi {

// The sections of a Markdown report with figures. Each is empty if no run has what it shows.
std::string loss_section(const std::vector<DocumentRun>& runs,
                         const std::vector<std::int64_t>& table_steps);
std::string speed_section(const std::vector<DocumentRun>& runs);
std::string goodput_section(const std::vector<DocumentRun>& runs);
std::string energy_section(const std::vector<DocumentRun>& runs);

inline std::string markdown_number(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "–";
}

}  // namespace kintsugi
