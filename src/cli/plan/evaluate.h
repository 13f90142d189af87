#pragma once

#include <string>

namespace kintsugi {

// kintsugi plan --evaluate: predicts measured layouts.
struct PlanEvaluateOptions {
  std::string rows;
  std::string machine = {};
  std::string output = {};  // empty: the terminal
  bool overwrite = false;
  bool accuracy = false;  // print a table of errors instead of the rows
};
void plan_evaluate(const PlanEvaluateOptions& options);

}  // namespace kintsugi
