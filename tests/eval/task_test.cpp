// Task files, templates and the requests that they make.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include "eval/task_data.h"
#include "support/errors.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const EvalDocument kDocument = EvalDocument::parse(R"({
  "text": "She read the letter", "question": "Which?\n", "n": 3, "empty": "", "yes": true,
  "choices": {"text": ["iron", "water"], "label": ["A", "B"]}, "answerKey": "B",
  "word": "żółw🙂", "list": ["a", "b", "c"], "good": "The cat.", "bad": "Cat the."})");

DocumentRequests requests_of(const EvalTask& task, const EvalDocument& document,
                             std::span<const EvalDocument> examples) {
  FewShotSampler sampler(task, examples);
  return make_requests(task, document, sampler);
}

std::string rendered(const std::string& text) { return TaskTemplate(text, "t").render(kDocument); }

TEST(TaskTemplate, RendersWhatJinjaRenders) {
  EXPECT_EQ(rendered("Question: {{question}}\nAnswer:"), "Question: Which?\n\nAnswer:");
  EXPECT_EQ(rendered("{{text.split(' ')[:-1]|join(' ')}}"), "She read the");
  EXPECT_EQ(rendered("{{' '+text.split(' ')[-1]}}"), " letter");
  EXPECT_EQ(rendered("{{choices.label.index(answerKey)}}"), "1");
  EXPECT_EQ(rendered("{{ choices['text'][0] }}-{{choices.text[-1]}}\n"), "iron-water\n");
  EXPECT_EQ(rendered("{{word[1:3]}} {{word[-1]}} {{word[4:]}} {{word[9:]}}"), "ół 🙂 🙂 ");
  EXPECT_EQ(rendered("{{list[1:]|join}}{{(list + ['d'])[-2:]|join(\", \")}}"), "bcc, d");
  EXPECT_EQ(rendered("{{question.strip().upper()}}{{question|trim|lower}}"), "WHICH?which?");
  EXPECT_EQ(rendered("{{text.replace('the', 'a')}} {{n}} {{yes}} {{n + 1}}"),
            "She read a letter 3 True 4");
  EXPECT_EQ(rendered("{{'a\\n}}\\'' + empty}}"), "a\n}}'");
  EXPECT_EQ(rendered("{{text.index('read')}}{{' a  b '.split()|join('_')}}"), "4a_b");
  EXPECT_EQ(rendered("{ } }}"), "{ } }}");
  EXPECT_EQ(rendered(""), "");
  EXPECT_EQ(TaskTemplate("{{[good, bad]}}", "t").value(kDocument),
            EvalDocument({"The cat.", "Cat the."}));
  EXPECT_EQ(TaskTemplate(" {{n}}", "t").value(kDocument), " 3");
}

TEST(TaskTemplate, RefusesTheRestByName) {
  const auto error = [](const std::string& text) {
    return user_error_of([&] { TaskTemplate(text, "arc.yaml: doc_to_text"); });
  };
  EXPECT_THAT(error("{{a|tojson}}"),
              AllOf(HasSubstr("arc.yaml: doc_to_text"), HasSubstr("filter 'tojson'")));
  EXPECT_THAT(error("{{a.title()}}"), HasSubstr("method 'title'"));
  EXPECT_THAT(error("{{range(3)}}"), HasSubstr("'range'"));
  EXPECT_THAT(error("{{cycler(3)}}"), HasSubstr("function 'cycler'"));
  EXPECT_THAT(error("{% if a %}b{% endif %}"), HasSubstr("{% %}"));
  EXPECT_THAT(error("{# no #}"), HasSubstr("{# #}"));
  EXPECT_THAT(error("{{a if b else c}}"), HasSubstr("'if'"));
  EXPECT_THAT(error("{{a * 2}}"), HasSubstr("'*'"));
  EXPECT_THAT(error("{{a == b}}"), HasSubstr("'='"));
  EXPECT_THAT(error("{{a"), HasSubstr("}}"));
  EXPECT_THAT(error("{{'a}}"), HasSubstr("no end"));
  EXPECT_THAT(error("{{a.split(1, 2)}}"), HasSubstr("2 arguments"));
  EXPECT_THROW(TaskTemplate("{{" + std::string(500, '(') + "a", "t"), UserError);
}

TEST(TaskTemplate, RefusesDocumentsThatDoNotFit) {
  const auto error = [](const std::string& text) { return user_error_of([&] { rendered(text); }); };
  EXPECT_THAT(error("{{nothing}}"), AllOf(HasSubstr("t: "), HasSubstr("'nothing'")));
  EXPECT_THAT(error("{{choices.nothing}}"), HasSubstr("'nothing'"));
  EXPECT_THAT(error("{{list[3]}}"), HasSubstr("3"));
  EXPECT_THAT(error("{{list}}"), HasSubstr("a list"));
  EXPECT_THAT(error("{{n.split()}}"), HasSubstr("a number"));
  EXPECT_THAT(error("{{list.index('z')}}"), HasSubstr("index"));
  EXPECT_THAT(error("{{n + text}}"), HasSubstr("a number and a string"));
}

class TaskFile : public testing::Test {
 protected:
  EvalTask task(const std::string& yaml) {
    return std::get<EvalTask>(read_task_file(directory_.write("t.yaml", yaml)));
  }
  std::string mistake(const std::string& yaml) {
    return user_error_of([&] { task(yaml); });
  }
  std::vector<EvalDocument> documents(const EvalTask& task, const std::string& split = "test") {
    return read_documents(task, split, read_whole_text).documents;
  }
  std::string data(const std::string& lines) {
    return "\ndataset_path: json\ntest_split: test\ndataset_kwargs: {data_files: {test: " +
           directory_.write("d.jsonl", lines) + "}}\n";
  }

  TemporaryDirectory directory_;
};

const std::string kArc = R"(task: arc
output_type: multiple_choice
fewshot_config: {sampler: first_n}
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_target: "{{choices.label.index(answerKey)}}"
doc_to_choice: "{{choices.text}}"
metadata: {version: 1.0}
)";
const std::string kArcData =
    R"({"question": "q0", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"}
{"question": "q1", "choices": {"text": ["c", "d"], "label": ["1", "2"]}, "answerKey": "1"}

{"question": "q2", "choices": {"text": ["e"], "label": ["A"]}, "answerKey": "A"}
)";

TEST_F(TaskFile, MultipleChoiceHasOneRequestPerChoice) {
  const EvalTask arc = task(kArc + data(kArcData));
  EXPECT_EQ(arc.version, "1.0");
  ASSERT_EQ(arc.metrics.size(), 2u);
  EXPECT_EQ(arc.metrics[1].name, "acc_norm");
  const std::vector<EvalDocument> all = documents(arc);
  ASSERT_EQ(all.size(), 3u);
  const DocumentRequests first = requests_of(arc, all[0], all);
  EXPECT_THAT(first.requests, ElementsAre(EvalRequest{"Question: q0\nAnswer:", " a"},
                                          EvalRequest{"Question: q0\nAnswer:", " b"}));
  EXPECT_EQ(first.gold, Gold(std::int64_t{1}));
  EXPECT_THAT(first.choices, ElementsAre("a", "b"));
  EXPECT_TRUE(first.unconditional.empty());
}

// The first documents of the same split, without the one that is scored.
TEST_F(TaskFile, ExamplesAreTheFirstOtherDocuments) {
  const EvalTask arc =
      task(kArc + "num_fewshot: 1\nfewshot_split: test\ndescription: \"D\\n\"\n" + data(kArcData));
  const std::vector<EvalDocument> all = documents(arc);
  EXPECT_EQ(requests_of(arc, all[0], all).requests[0].context,
            "D\nQuestion: q1\nAnswer: c\n\nQuestion: q0\nAnswer:");
  EXPECT_EQ(requests_of(arc, all[2], all).requests[0].context,
            "D\nQuestion: q0\nAnswer: b\n\nQuestion: q2\nAnswer:");
  EXPECT_THAT(user_error_of([&] { requests_of(arc, all[0], std::span(all).first(1)); }),
              HasSubstr("2 examples"));
}

TEST_F(TaskFile, OtherOutputTypes) {
  const EvalTask lambada = task(
      "task: lambada\noutput_type: loglikelihood\n"
      "doc_to_text: \"{{text.split(' ')[:-1]|join(' ')}}\"\n"
      "doc_to_target: \"{{' '+text.split(' ')[-1]}}\"" +
      data(R"({"text": "read the letter"})"));
  EXPECT_THAT(requests_of(lambada, documents(lambada)[0], {}).requests,
              ElementsAre(EvalRequest{"read the", " letter"}));
  EXPECT_EQ(lambada.metrics[0].name, "perplexity");
  EXPECT_FALSE(lambada.metrics[0].higher_is_better);

  const EvalTask rolling =
      task("task: wiki\noutput_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: text" +
           data(R"({"text": " a b\n"})"));
  EXPECT_THAT(requests_of(rolling, documents(rolling)[0], {}).requests,
              ElementsAre(EvalRequest{" a b\n", ""}));
  EXPECT_EQ(rolling.metrics.size(), 3u);

  const EvalTask generate = task(
      "task: g\ndoc_to_text: 'Q: {{question}}'\ndoc_to_target: '{{answers}}'\n"
      "generation_kwargs: {until: [\"\\n\", q], max_gen_toks: 12, temperature: 0.0}\n"
      "filter_list: [{name: f, filter: [{function: regex, regex_pattern: '\\d+', group_select: -1},"
      " {function: map, mapping_dict: {'4': four}, default_value: none}, {function: "
      "take_first}]}]\n"
      "metric_list: [{metric: exact_match, aggregation: mean, ignore_case: true}]" +
      data(R"({"question": "2+2?", "answers": ["4", "FOUR"]})"));
  const DocumentRequests asked = requests_of(generate, documents(generate)[0], {});
  EXPECT_THAT(asked.requests, ElementsAre(EvalRequest{"Q: 2+2?", ""}));
  EXPECT_THAT(asked.targets, ElementsAre("4", "FOUR"));
  EXPECT_THAT(generate.generation.until, ElementsAre("\n", "q"));
  EXPECT_EQ(generate.generation.max_gen_toks, 12);
  const std::vector<Response> answer =
      apply_filters(make_filters(generate.filters[0]), {"2 + 2 = 4", "5"});
  EXPECT_THAT(answer, ElementsAre("four"));
  EXPECT_EQ(ExactMatch(generate.metrics[0].exact_match).score(answer[0], asked.targets), 1);
}

// BLiMP has no context; in WinoGrande the choices are contexts.
TEST_F(TaskFile, TheChoicesMayBeWholeSentencesOrContexts) {
  const EvalTask blimp = task(
      "task: blimp\noutput_type: multiple_choice\ndoc_to_text: ''\ndoc_to_target: 0\n"
      "doc_to_choice: '{{[good, bad]}}'\nmetric_list: [{metric: acc_mutual_info}]" +
      data(R"({"good": "The cat.", "bad": "Cat the."})"));
  const DocumentRequests cat = requests_of(blimp, documents(blimp)[0], {});
  EXPECT_THAT(cat.requests,
              ElementsAre(EvalRequest{"", " The cat."}, EvalRequest{"", " Cat the."}));
  EXPECT_THAT(cat.unconditional,
              ElementsAre(EvalRequest{"", " The cat."}, EvalRequest{"", " Cat the."}));
  EXPECT_EQ(cat.gold, Gold(std::int64_t{0}));
  const EvalTask winogrande = task(
      "task: w\noutput_type: multiple_choice\ndoc_to_text: answer\ndoc_to_target: rest\n"
      "doc_to_choice: [Ann, Bob]" +
      data(R"({"answer": 1, "rest": "slept."})"));
  const DocumentRequests slept = requests_of(winogrande, documents(winogrande)[0], {});
  EXPECT_THAT(slept.requests,
              ElementsAre(EvalRequest{"Ann", " slept."}, EvalRequest{"Bob", " slept."}));
  EXPECT_EQ(slept.gold, Gold(std::int64_t{1}));
}

TEST_F(TaskFile, IncludesAndGroups) {
  directory_.write(
      "base",
      "output_type: multiple_choice\ndoc_to_text: a\ndoc_to_target: 0\n"
      "doc_to_choice: [x, y]\nnum_fewshot: 3\ndataset_path: org/data\ntest_split: test\n");
  const EvalTask included = task("include: base\ntask: t\nnum_fewshot: 0\n");
  EXPECT_EQ(included.shots, 0);
  EXPECT_THAT(user_error_of([&] { documents(included); }),
              AllOf(HasSubstr("org/data"), HasSubstr("JSON lines")));
  directory_.write("loop", "include: loop\n");
  EXPECT_THAT(mistake("include: loop\ntask: t\n"), HasSubstr("include each other"));
  const auto group = std::get<EvalGroup>(read_task_file(directory_.write(
      "g.yaml",
      "group: g\ntask: [a, b]\naggregate_metric_list: [{metric: acc, weight_by_size: false}]\n")));
  EXPECT_THAT(group.tasks, ElementsAre("a", "b"));
  ASSERT_EQ(group.means.size(), 1u);
  EXPECT_FALSE(group.means[0].weight_by_size);
}

// The keys of a published task, with examples of another split.
TEST_F(TaskFile, ReadsGsm8k) {
  const EvalTask gsm8k = task(R"(tag: [math_word_problems]
task: gsm8k
dataset_path: openai/gsm8k
dataset_name: main
output_type: generate_until
training_split: train
fewshot_split: train
test_split: test
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_target: "{{answer}}"
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    ignore_case: true
    ignore_punctuation: false
    regexes_to_ignore: [",", "\\$", "(?s).*#### ", "\\.$"]
generation_kwargs:
  until: ["Question:", "</s>", "<|im_end|>"]
  do_sample: false
  temperature: 0.0
repeats: 1
num_fewshot: 1
fewshot_config: {sampler: first_n}
filter_list:
  - name: strict-match
    filter: [{function: regex, regex_pattern: '#### (\-?[0-9\.\,]+)'}, {function: take_first}]
  - name: flexible-extract
    filter:
      - {function: regex, group_select: -1, regex_pattern: '(-?[$0-9.,]{2,})|(-?[0-9]+)'}
      - function: take_first
metadata: {version: 3.0}
)");
  EXPECT_EQ(gsm8k.dataset, "openai/gsm8k/main");
  EXPECT_EQ(gsm8k.filters.at(1).name, "flexible-extract");
  const EvalDocument document = {{"question", "3+4?"}, {"answer", "3+4=7\n#### 7"}};
  const std::vector<EvalDocument> train = {{{"question", "1+1?"}, {"answer", "#### 2"}}, document};
  const DocumentRequests asked = requests_of(gsm8k, document, train);
  EXPECT_THAT(
      asked.requests,
      ElementsAre(EvalRequest{"Question: 1+1?\nAnswer: #### 2\n\nQuestion: 3+4?\nAnswer:", ""}));
  ExactMatch match(gsm8k.metrics.at(0).exact_match);
  const auto scored = [&](std::size_t filter, const char* response) {
    return match.score(apply_filters(make_filters(gsm8k.filters[filter]), {response})[0],
                       asked.targets);
  };
  EXPECT_EQ(scored(0, "So it is\n#### 7"), 1);
  EXPECT_EQ(scored(0, "So it is 7."), 0);
  EXPECT_EQ(scored(1, "3 and 4 are 7."), 1);
}

TEST_F(TaskFile, MistakesAreNamed) {
  const std::string good = kArc + data(kArcData);
  EXPECT_THAT(mistake(good + "num_fewshots: 3\n"),
              AllOf(HasSubstr("t.yaml"), HasSubstr("'num_fewshots'"), HasSubstr("'num_fewshot'")));
  EXPECT_THAT(mistake(good + "process_docs: !function utils.f\n"), HasSubstr("process_docs"));
  EXPECT_THAT(mistake("task: t\ndataset_path: json\ntest_split: a\ndoc_to_target: !function u.f\n"),
              AllOf(HasSubstr("doc_to_target"), HasSubstr("Python function")));
  EXPECT_THAT(mistake(good + "metric_list: [{metric: bleu}]\n"), HasSubstr("'bleu'"));
  EXPECT_THAT(mistake(good + "metric_list: [{metric: acc, aggregation: median}]\n"),
              HasSubstr("'median'"));
  EXPECT_THAT(mistake(good + "filter_list: [{name: f, filter: [{function: vote}]}]\n"),
              HasSubstr("'vote'"));
  EXPECT_THAT(mistake(good + "num_fewshot: many\n"),
              AllOf(HasSubstr("num_fewshot"), HasSubstr("many")));
  EXPECT_THAT(mistake(good + "repeats: 2\n"), HasSubstr("repeats is 2"));
  EXPECT_THAT(mistake("task: t\noutput_type: choice\n"), HasSubstr("'choice'"));
  EXPECT_THAT(mistake("task: t\n"), HasSubstr("test_split"));
  EXPECT_THAT(mistake("- a\n"), HasSubstr("map"));
  // A value of any kind under any key is an error in our own words, or accepted.
  const std::string all =
      good +
      "fewshot_split: test\nnum_fewshot: 1\ngeneration_kwargs: {until: [a]}\ntag: b\n"
      "metric_list: [{metric: acc}]\nfilter_list: [{name: f, filter: [{function: map, "
      "mapping_dict: {a: b}}]}]\nrepeats: 1\ngen_prefix: x\n";
  const YAML::Node keys = YAML::Load(all);
  for (const auto& item : keys)
    for (const char* value : {"{}", "[]", "null", "[{}]", "[null]", "{a: {}}", "7", "x"}) {
      YAML::Node changed = YAML::Clone(keys);
      changed[item.first.Scalar()] = YAML::Load(value);
      try {
        task(YAML::Dump(changed));
      } catch (const UserError&) {
      } catch (const std::exception& error) {
        ADD_FAILURE() << item.first.Scalar() << ": " << value << ": " << error.what();
      }
    }
  const EvalTask broken = task(kArc + data("{\"question\": 1\n"));
  EXPECT_THAT(user_error_of([&] { documents(broken); }), HasSubstr("d.jsonl line 1"));
  EXPECT_THAT(user_error_of([&] { documents(broken, "train"); }), HasSubstr("'train'"));
}

}  // namespace
}  // namespace kintsugi
