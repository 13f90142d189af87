#pragma once

#include <set>
#include <string>
#include <vector>

#include "launch/accept/judge.h"

namespace kintsugi {

// All that an acceptance test found.
struct AcceptReport {
  std::string program = {};  // version and build
  std::string machine = {}, device = {}, launch = {};
  int ranks = 1, nodes = 1;
  double seconds = 0, budget_s = 0, finished_s = 0;  // finished: Unix time
  AcceptChecks checks = {};
  std::vector<GroupBandwidth> bandwidths = {};
  std::vector<SpeedFacts> speed = {};
  double pairs_covered = 0;                // fraction of all pairs of features that met
  std::vector<std::string> left_out = {};  // parts and trials that were not done, and why
  std::set<std::string> missing = {};      // parts that were asked for and are not complete
};

Verdict verdict_of(const AcceptReport& report);       // Fail, Incomplete or Pass
std::string report_text(const AcceptReport& report);  // for the terminal
nlohmann::ordered_json report_json(const AcceptReport& report);
std::string report_html(const AcceptReport& report);
// How many checks have a verdict.
std::size_t count_of(const AcceptReport& report, Verdict verdict);

}  // namespace kintsugi
