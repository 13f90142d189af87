#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/table.h"
#include "eval/score_rules.h"

namespace kintsugi {
namespace {

struct AggregateArguments {
  std::string rule;
  std::vector<std::string> files, only;
  bool json = false;
};

void run_aggregate(const AggregateArguments& a) {
  const ScoreRule& rule = score_rule(a.rule);
  const std::vector<RuleScore> scores = apply_rule(rule, read_results(a.files), a.only);
  if (a.json) {
    nlohmann::ordered_json json = {{"rule", rule.name}, {"scores", {}}};
    for (const RuleScore& score : scores) {
      auto& entry = json["scores"][score.name];
      entry["score"] = score.value;
      for (const auto& [name, value] : score.components) entry["components"][name] = value;
    }
    fmt::print("{}", json_lines(json));
    return;
  }
  for (const RuleScore& score : scores) {
    fmt::print("{:<28}{:>8.2f}\n", score.name, score.value);
    for (const auto& [name, value] : score.components)
      fmt::print("  {:<26}{:>8.2f}\n", name, value);
  }
}

}  // namespace

void add_eval_aggregate(CLI::App& eval) {
  const auto a = std::make_shared<AggregateArguments>();
  CLI::App* command = eval.add_subcommand(
      "aggregate", "Compute the published scores of a model from result files of lm-eval");
  const AddOption add(*command);
  add("results", a->files,
      "Result files, or directories with *.json, such as that of eval --output", kRequired);
  add("--rule", a->rule, "What is averaged: poro", kRequired);
  add("--only", a->only, "Some of the rule's scores: finnish,english,code", kRepeatable)
      ->delimiter(',');
  add("--json", a->json, "Print JSON, not rounded");
  command->footer(
      "Rule poro, in percent:\n"
      "  finnish  FIN-bench, 3-shot: mean of 11 groups, without HHH alignment\n"
      "  english  ARC-Challenge, HellaSwag, MMLU, TruthfulQA, WinoGrande, GSM8K\n"
      "  code     HumanEval and MBPP, pass@10\n\nExample:\n"
      "  kintsugi eval --checkpoint DIR --tasks arc_challenge,mmlu,… --output results\n"
      "  kintsugi eval aggregate --rule poro --only english results");
  command->callback([a] { run_aggregate(*a); });
}

}  // namespace kintsugi
