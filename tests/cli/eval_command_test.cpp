// kintsugi eval bleu, chrf and aggregate, as a user runs them.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "support/program_test.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class EvalCommand : public ProgramTest {
 protected:
  json result(const std::string& arguments, const std::string& input = "") {
    const Outcome outcome = run_kintsugi("eval " + arguments + " --json", input);
    EXPECT_EQ(outcome.code, 0) << arguments << outcome.error;
    return json::parse(outcome.out, nullptr, false);
  }
  std::string mistake(const std::string& arguments, const std::string& input = "") {
    const Outcome outcome = run_kintsugi("eval " + arguments, input);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_THAT(outcome.error, testing::StartsWith("error: "));
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  }
};

class EvalTranslation : public EvalCommand {
 protected:
  void SetUp() override {
    directory_.write("dog",
                     "The dog bit the man.\nIt wasn't surprising.\nThe man had just bitten him.\n");
    directory_.write("a", "The dog bit the man.\nIt was not unexpected.\nThe man bit him first.\n");
    directory_.write(
        "b", "The dog had bit the man.\nNo one was surprised.\nThe man had bitten the dog.\n");
  }
};

TEST_F(EvalTranslation, BleuOfTwoReferences) {
  const Outcome text = run_kintsugi("eval bleu --hypotheses dog --references a b");
  EXPECT_EQ(text.out,
            "BLEU|nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0 = 48.53 "
            "82.4/50.0/45.5/37.5 (BP = 0.943 ratio = 0.944 hyp_len = 17 ref_len = 18)\n");
  const json bleu = result("bleu --hypotheses dog --references a b");
  EXPECT_NEAR(bleu["score"], 48.530827009929865, 1e-9);
  EXPECT_EQ(bleu["counts"], json({14, 7, 5, 3}));
  EXPECT_EQ(bleu["totals"], json({17, 14, 11, 8}));
  EXPECT_NEAR(bleu["bp"], 0.9428731438548749, 1e-12);
  EXPECT_EQ(bleu["sys_len"], 17);
  EXPECT_EQ(bleu["ref_len"], 18);
  EXPECT_NEAR(result("bleu --hypotheses dog --references a b --tokenize none")["score"],
              49.19195660047277, 1e-9);
  EXPECT_NEAR(result("bleu --hypotheses dog --references a b --max-order 3")["score"],
              53.93393139430307, 1e-9);
}

TEST_F(EvalTranslation, StandardInputAndSentences) {
  directory_.write("sugar", "producţia de zahăr brut se exprimă în zahăr alb;\n");
  const std::string output =
      "Producția de zahăr primă va fi exprimată în ceea ce privește zahărul alb;\n";
  const std::string common = "bleu --hypotheses - --references sugar --sentences";
  EXPECT_NEAR(result(common, output)["sentences"][0]["score"], 8.493098745313148, 1e-9);
  EXPECT_NEAR(
      result(common + " --smooth floor --smooth-value 0.5", output)["sentences"][0]["score"],
      10.100053456347073, 1e-9);
  const json added = result(common + " --smooth add-k", output);
  EXPECT_NEAR(added["sentences"][0]["score"], 14.882560178972215, 1e-9);
  EXPECT_THAT(added["signature"].get<std::string>(),
              AllOf(HasSubstr("eff:yes"), HasSubstr("smooth:add-k[1.00]")));
  const Outcome lines = run_kintsugi("eval chrf --hypotheses dog --references a --sentences");
  EXPECT_EQ(std::count(lines.out.begin(), lines.out.end(), '\n'), 3) << lines.out;
  EXPECT_THAT(lines.out, testing::StartsWith("chrF2|nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no"
                                             "|version:2.6.0 = 100.00\n"));
}

TEST_F(EvalTranslation, ChrfWithWords) {
  directory_.write("h", "Sää on kaunis.\n");
  directory_.write("r", "Sää on tänään Helsingissä todella kaunis ja lämmin.\n");
  EXPECT_NEAR(result("chrf --hypotheses h --references r")["score"], 17.113923029911792, 1e-9);
  const json words = result("chrf --hypotheses h --references r --word-order 2");
  EXPECT_NEAR(words["score"], 20.97728450433269, 1e-9);
  EXPECT_EQ(words["name"], "chrF2++");
}

TEST_F(EvalTranslation, MistakesAreReportedInOneLine) {
  directory_.write("short", "one line\n");
  directory_.write("gap", "a\n\nb\n");
  directory_.write("none", "");
  EXPECT_THAT(mistake("bleu --hypotheses dog --references short"),
              AllOf(HasSubstr("short has 1 lines"), HasSubstr("dog has 3")));
  EXPECT_THAT(mistake("bleu --hypotheses dog --references gap"), HasSubstr("segment 2"));
  EXPECT_THAT(mistake("bleu --hypotheses nowhere --references a"), HasSubstr("nowhere"));
  EXPECT_THAT(mistake("chrf --hypotheses none --references a"), HasSubstr("none has no lines"));
  EXPECT_THAT(mistake("bleu --hypotheses - --references -"), HasSubstr("once"));
  EXPECT_THAT(mistake("bleu --hypotheses dog --references a --tokenize zh"),
              AllOf(HasSubstr("'zh'"), HasSubstr("13a")));
  EXPECT_THAT(mistake("bleu --hypotheses dog --references a --smooth-value 1"), HasSubstr("add-k"));
  EXPECT_THAT(mistake("bleu --hypotheses dog"), HasSubstr("--references"));
  EXPECT_THAT(mistake("blue --hypotheses dog"), HasSubstr("did you mean 'bleu'"));
}

// Options of eval itself take values, which are no commands.
TEST_F(EvalCommand, ScoresATextWithoutASubcommand) {
  EXPECT_THAT(mistake("--text bleu"), HasSubstr("--checkpoint"));
  EXPECT_THAT(mistake("--checkpoint nowhere --text x"), HasSubstr("nowhere"));
  EXPECT_THAT(mistake("--checkpoint=nowhere --text x"), HasSubstr("nowhere"));
}

// Results of Poro 34B, as published with the model.
const std::map<std::string, double> kFinBench = {{"1_digit_addition", 0.68},
                                                 {"1_digit_division", 0.9565217391304348},
                                                 {"1_digit_multiplication", 0.79},
                                                 {"1_digit_subtraction", 0.88},
                                                 {"2_digit_addition", 0.51},
                                                 {"2_digit_division", 0.8},
                                                 {"2_digit_multiplication", 0.29},
                                                 {"2_digit_subtraction", 0.72},
                                                 {"3_digit_addition", 0.5},
                                                 {"3_digit_division", 0.59},
                                                 {"3_digit_multiplication", 0.3},
                                                 {"3_digit_subtraction", 0.63},
                                                 {"4_digit_addition", 0.31},
                                                 {"4_digit_division", 0.48},
                                                 {"4_digit_multiplication", 0.29},
                                                 {"4_digit_subtraction", 0.53},
                                                 {"5_digit_addition", 0.49},
                                                 {"5_digit_division", 0.31},
                                                 {"5_digit_multiplication", 0.26},
                                                 {"5_digit_subtraction", 0.54},
                                                 {"analogies", 0.7769230769230769},
                                                 {"emotions", 0.55},
                                                 {"empirical_judgments", 0.6262626262626263},
                                                 {"general_knowledge", 0.7571428571428571},
                                                 {"harmless", 0.43103448275862066},
                                                 {"helpful", 0.4067796610169492},
                                                 {"honest", 0.4067796610169492},
                                                 {"intent_recognition", 0.8323699421965318},
                                                 {"misconceptions", 0.5373134328358209},
                                                 {"one_sentence", 0.43137254901960786},
                                                 {"one_sentence_no_prompt", 0.9215686274509803},
                                                 {"other", 0.5813953488372093},
                                                 {"paraphrase", 0.585},
                                                 {"sentence_ambiguity", 0.6666666666666666},
                                                 {"similarities_abstraction", 0.7368421052631579},
                                                 {"two_sentences", 0.6862745098039216}};
const std::map<std::string, double> kMmlu = {
    {"abstract_algebra", 0.24},
    {"anatomy", 0.42962962962962964},
    {"astronomy", 0.46710526315789475},
    {"business_ethics", 0.49},
    {"clinical_knowledge", 0.47924528301886793},
    {"college_biology", 0.4583333333333333},
    {"college_chemistry", 0.34},
    {"college_computer_science", 0.41},
    {"college_mathematics", 0.36},
    {"college_medicine", 0.4508670520231214},
    {"college_physics", 0.27450980392156865},
    {"computer_security", 0.61},
    {"conceptual_physics", 0.3872340425531915},
    {"econometrics", 0.2543859649122807},
    {"electrical_engineering", 0.496551724137931},
    {"elementary_mathematics", 0.3201058201058201},
    {"formal_logic", 0.29365079365079366},
    {"global_facts", 0.28},
    {"high_school_biology", 0.5129032258064516},
    {"high_school_chemistry", 0.2955665024630542},
    {"high_school_computer_science", 0.46},
    {"high_school_european_history", 0.4909090909090909},
    {"high_school_geography", 0.5505050505050505},
    {"high_school_government_and_politics", 0.6476683937823834},
    {"high_school_macroeconomics", 0.41025641025641024},
    {"high_school_mathematics", 0.27037037037037037},
    {"high_school_microeconomics", 0.39915966386554624},
    {"high_school_physics", 0.33774834437086093},
    {"high_school_psychology", 0.6055045871559633},
    {"high_school_statistics", 0.3287037037037037},
    {"high_school_us_history", 0.5686274509803921},
    {"high_school_world_history", 0.5991561181434599},
    {"human_aging", 0.5381165919282511},
    {"human_sexuality", 0.5190839694656488},
    {"international_law", 0.6528925619834711},
    {"jurisprudence", 0.5185185185185185},
    {"logical_fallacies", 0.5828220858895705},
    {"machine_learning", 0.375},
    {"management", 0.5339805825242718},
    {"marketing", 0.6452991452991453},
    {"medical_genetics", 0.58},
    {"miscellaneous", 0.6730523627075351},
    {"moral_disputes", 0.4913294797687861},
    {"moral_scenarios", 0.2860335195530726},
    {"nutrition", 0.45098039215686275},
    {"philosophy", 0.5112540192926045},
    {"prehistory", 0.5216049382716049},
    {"professional_accounting", 0.3120567375886525},
    {"professional_law", 0.35071707953063885},
    {"professional_medicine", 0.4852941176470588},
    {"professional_psychology", 0.4673202614379085},
    {"public_relations", 0.5363636363636364},
    {"security_studies", 0.4897959183673469},
    {"sociology", 0.5373134328358209},
    {"us_foreign_policy", 0.71},
    {"virology", 0.46987951807228917},
    {"world_religions", 0.6257309941520468}};

class EvalAggregate : public EvalCommand {
 protected:
  // lm-eval before v0.4.
  void write_old(const std::string& file, int shots, const json& results) {
    directory_.write(file, json{{"results", results}, {"config", {{"num_fewshot", shots}}}}.dump());
  }
  void SetUp() override {
    json finnish, mmlu;
    for (const auto& [task, value] : kFinBench)
      finnish["bigbench_" + task] = {{"multiple_choice_grade", value}};
    write_old("r-fi.json", 3, finnish);
    for (const auto& [task, value] : kMmlu)
      mmlu["hendrycksTest-" + task] = {{"acc", value}, {"acc_norm", 0.5}};
    write_old("r-mmlu.json", 5, mmlu);
    write_old("r-arc.json", 25,
              {{"arc_challenge", {{"acc", 0.4735494880546075}, {"acc_norm", 0.5315699658703071}}}});
    // lm-eval since v0.4.
    directory_.write("r-hs.json", json{{"results",
                                        {{"hellaswag",
                                          {{"alias", "hellaswag"},
                                           {"acc,none", 0.58},
                                           {"acc_norm,none", 0.777733519219279}}}}},
                                       {"n-shot", {{"hellaswag", 10}}}}
                                      .dump());
    write_old("r-tqa.json", 0, {{"truthfulqa_mc", {{"mc1", 0.26}, {"mc2", 0.41660451899117734}}}});
    write_old("r-wg.json", 5, {{"winogrande", {{"acc", 0.7277032359905288}}}});
    write_old("r-gsm.json", 5, {{"gsm8k", {{"acc", 0.11751326762699014}}}});
    // A code harness has the tasks at the top level.
    directory_.write("r-he1.json", R"({"humaneval": {"pass@1": 0.256}, "config": {"seed": 0}})");
    directory_.write("r-he.json", R"({"humaneval": {"pass@1": 0.259, "pass@10": 0.3719512195121951},
                                      "config": {"seed": 0}})");
    directory_.write("r-mbpp.json", R"({"mbpp": {"pass@10": 0.464}, "config": {"seed": 0}})");
  }
};

TEST_F(EvalAggregate, ReproducesThePublishedScoresOfPoro) {
  const json scores = result("aggregate --rule poro r-*.json")["scores"];
  EXPECT_NEAR(scores["finnish"]["score"], 66.2825941485342, 1e-9);
  EXPECT_NEAR(scores["english"]["score"], 50.56644281430234, 1e-9);
  EXPECT_NEAR(scores["code"]["score"], 41.797560975609755, 1e-9);
  EXPECT_EQ(scores["finnish"]["components"].size(), 11u);
  EXPECT_NEAR(scores["finnish"]["components"]["arithmetic"], 54.28260869565216, 1e-9);
  EXPECT_NEAR(scores["english"]["components"]["mmlu"], 46.2862061159858, 1e-9);
  const Outcome text = run_kintsugi("eval aggregate --rule poro r-*.json");
  for (const char* line :
       {"finnish                        66.28\n", "english                        50.57\n",
        "code                           41.80\n", "  gsm8k                        11.75\n"})
    EXPECT_THAT(text.out, HasSubstr(line));
  EXPECT_EQ(run_kintsugi("eval aggregate --rule poro .").out, text.out) << "a directory";
}

TEST_F(EvalAggregate, TakesTheNamesOfNewerVersions) {
  std::filesystem::remove(directory_ / "r-mmlu.json");
  std::filesystem::remove(directory_ / "r-gsm.json");
  std::filesystem::remove(directory_ / "r-tqa.json");
  json tasks = {
      {"gsm8k",
       {{"exact_match,strict-match", 0.11751326762699014}, {"exact_match,flexible-extract", 0.2}}},
      {"truthfulqa_mc2", {{"acc,none", 0.41660451899117734}}},
      {"mmlu", {{"acc,none", 0.99}}}};
  for (const auto& [task, value] : kMmlu) tasks["mmlu_" + task] = {{"acc,none", value}};
  directory_.write("new.json", json{{"results", tasks}}.dump());
  const json scores = result("aggregate --rule poro --only english new.json r-*.json")["scores"];
  EXPECT_EQ(scores.size(), 1u);
  EXPECT_NEAR(scores["english"]["score"], 50.56644281430234, 1e-9);
}

TEST_F(EvalAggregate, MissingResultsAreNamed) {
  EXPECT_THAT(mistake("aggregate --rule poro r-fi.json r-he1.json r-mbpp.json --only finnish,code"),
              AllOf(HasSubstr("humaneval (pass@10)"), testing::Not(HasSubstr("mbpp"))));
  EXPECT_THAT(mistake("aggregate --rule poro r-fi.json"), HasSubstr("and 59 more"));
  EXPECT_THAT(mistake("aggregate --rule poro nowhere.json"), HasSubstr("nowhere.json"));
  EXPECT_THAT(mistake("aggregate --rule poro r-fi.json --only german"),
              AllOf(HasSubstr("'german'"), HasSubstr("finnish")));
  EXPECT_THAT(mistake("aggregate --rule viking r-fi.json"),
              AllOf(HasSubstr("'viking'"), HasSubstr("poro")));
  directory_.write("list.json", "[1, 2]");
  EXPECT_THAT(mistake("aggregate --rule poro list.json"), HasSubstr("list.json has no results"));
  directory_.write("text.json", "results");
  EXPECT_THAT(mistake("aggregate --rule poro text.json"), HasSubstr("text.json is not JSON"));
}

TEST_F(EvalAggregate, ResultsMustFitTheRule) {
  write_old("r-wg.json", 0, {{"winogrande", {{"acc", 0.7}}}});
  EXPECT_THAT(mistake("aggregate --rule poro r-*.json"),
              HasSubstr("winogrande (acc; 0-shot in r-wg.json, not 5-shot)"));
  write_old("r-wg5.json", 5, {{"winogrande", {{"acc", 0.7277032359905288}}}});
  EXPECT_NEAR(result("aggregate --rule poro r-*.json")["scores"]["english"]["score"],
              50.56644281430234, 1e-9);
  write_old("r-wg6.json", 5, {{"winogrande", {{"acc", 0.5}}}});
  EXPECT_THAT(mistake("aggregate --rule poro r-*.json"),
              AllOf(HasSubstr("r-wg5.json"), HasSubstr("r-wg6.json"), HasSubstr("winogrande")));
}

}  // namespace
}  // namespace kintsugi
