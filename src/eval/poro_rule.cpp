// The rule behind the published scores of Poro 34B.
#include <fmt/format.h>

#include <string_view>

#include "core/error.h"
#include "eval/score_rules.h"
#include "eval/text.h"

namespace kintsugi {
namespace {

using Component = ScoreRule::Component;

constexpr std::string_view kMmluSubjects =
    "abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology "
    "college_chemistry college_computer_science college_mathematics college_medicine "
    "college_physics computer_security conceptual_physics econometrics electrical_engineering "
    "elementary_mathematics formal_logic global_facts high_school_biology high_school_chemistry "
    "high_school_computer_science high_school_european_history high_school_geography "
    "high_school_government_and_politics high_school_macroeconomics high_school_mathematics "
    "high_school_microeconomics high_school_physics high_school_psychology "
    "high_school_statistics high_school_us_history high_school_world_history human_aging "
    "human_sexuality international_law jurisprudence logical_fallacies machine_learning "
    "management marketing medical_genetics miscellaneous moral_disputes moral_scenarios "
    "nutrition philosophy prehistory professional_accounting professional_law "
    "professional_medicine professional_psychology public_relations security_studies sociology "
    "us_foreign_policy virology world_religions";

// `kintsugi eval` and lm-evaluation-harness since v0.4 call the metric acc.
Component finbench(const std::string& name, const std::vector<std::string>& tasks) {
  Component component{.name = name, .shots = 3, .tasks = {}};
  for (const std::string& task : tasks)
    component.tasks.push_back(
        {{"bigbench_" + task, "multiple_choice_grade"}, {"bigbench_" + task, "acc"}});
  return component;
}

// FIN-bench in 11 groups; HHH alignment is not among them.
ScoreRule::Score finnish() {
  std::vector<std::string> arithmetic;
  for (int digits = 1; digits <= 5; ++digits)
    for (const char* operation : {"addition", "division", "multiplication", "subtraction"})
      arithmetic.push_back(fmt::format("{}_digit_{}", digits, operation));
  ScoreRule::Score score{
      "finnish",
      {finbench("arithmetic", arithmetic),
       finbench("cause_and_effect", {"one_sentence", "one_sentence_no_prompt", "two_sentences"})}};
  for (const char* task :
       {"analogies", "emotions", "empirical_judgments", "general_knowledge", "intent_recognition",
        "misconceptions", "paraphrase", "sentence_ambiguity", "similarities_abstraction"})
    score.components.push_back(finbench(task, {task}));
  return score;
}

// The six tasks of the first Open LLM Leaderboard, under their names before and since v0.4.
ScoreRule::Score english() {
  Component mmlu{.name = "mmlu", .shots = 5, .tasks = {}};
  for (const std::string_view subject : split_at_spaces(kMmluSubjects))
    mmlu.tasks.push_back({{fmt::format("hendrycksTest-{}", subject), "acc"},
                          {fmt::format("mmlu_{}", subject), "acc"}});
  return {"english",
          {{"arc_challenge", 25, {{{"arc_challenge", "acc_norm"}}}},
           {"hellaswag", 10, {{{"hellaswag", "acc_norm"}}}},
           mmlu,
           {"truthfulqa", 0, {{{"truthfulqa_mc", "mc2"}, {"truthfulqa_mc2", "acc"}}}},
           {"winogrande", 5, {{{"winogrande", "acc"}}}},
           {"gsm8k", 5, {{{"gsm8k", "acc"}, {"gsm8k", "exact_match,strict-match"}}}}}};
}

ScoreRule::Score code() {
  return {"code",
          {{"humaneval", std::nullopt, {{{"humaneval", "pass@10"}}}},
           {"mbpp", std::nullopt, {{{"mbpp", "pass@10"}}}}}};
}

}  // namespace

const ScoreRule& score_rule(std::string_view name) {
  static const ScoreRule poro{"poro", {finnish(), english(), code()}};
  if (name != poro.name) user_error("unknown rule '{}': the rules are: poro", name);
  return poro;
}

}  // namespace kintsugi
