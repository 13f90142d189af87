#include "cli/data/work_units.h"

#include <fmt/format.h>

#include "cli/options.h"
#include "core/error.h"
#include "data/corpora/input_files.h"

namespace kintsugi {
namespace {

constexpr const char* kLater = "later";

}  // namespace

void add_units_option(CLI::App& command, std::string& units) {
  const AddOption add(command);
  add("--units", units,
      "only print the stages of the work, with their units and which are missing, as JSON; later: "
      "the inputs need not be there yet",
      CLI::IsMember({"now", kLater}));
}

std::vector<std::filesystem::path> inputs_for(const std::vector<std::string>& patterns,
                                              const std::string& units) {
  if (units != kLater) return expand_inputs(patterns);
  try {
    return expand_inputs(patterns);
  } catch (const UserError&) {
    return {};
  }
}

void print_work(const std::string& units, const WorkPlan& plan, bool overwrite) {
  if (overwrite) user_error("--overwrite has no effect with --units {}: leave it out", units);
  fmt::print("{}", to_json(plan));
}

}  // namespace kintsugi
