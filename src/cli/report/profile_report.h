#pragma once

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace kintsugi {

// kintsugi report --profile FILE: what a profile of `train --profile` says.
struct ProfileReportOptions {
  std::string file = {};     // empty: no profile is asked for
  std::string against = {};  // a profile to compare it with
  std::string machine = {};  // of the prediction to compare it with
  std::optional<int> rank = {};
};
void add_profile_options(CLI::App& command, ProfileReportOptions& options);
void report_profile(const ProfileReportOptions& options, bool json);

}  // namespace kintsugi
