// Files and replies that evaluation reads, and requests to the server.
#include "core/error.h"
#include "eval/run/results.h"
#include "eval/score_rules.h"
#include "eval/scoring.h"
#include "eval/task.h"
#include "eval/translation_scores.h"
#include "http/http_handler.h"
#include "serve/http/request_bodies.h"
#include "support/completions_client.h"
#include "support/formula_model.h"
#include "support/parser_lists.h"
#include "support/paths.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

FileParser eval_results() {
  return {.name = "eval-results",
          .samples = {{{"r.json", R"({"results": {"winogrande": {"acc": 0.7, "acc_stderr": 0.1}},
                                     "config": {"num_fewshot": 5}})"}},
                      {{"r.json", R"({"results": {"winogrande": {"acc,none": 0.7, "alias": "w"}},
                                     "n-shot": {"winogrande": 5}})"}},
                      {{"r.json", R"({"winogrande": {"acc": 0.4}, "config": {"seed": 0}})"}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            const ScoreRule rule{"r", {{"s", {{"c", 5, {{{"winogrande", "acc"}}}}}}}};
            apply_rule(rule, read_results({directory.string()}));
          }};
}

FileParser completions_reply() {
  return {.name = "completions-reply",
          .samples = {{{"reply.json", R"({"choices": [{"index": 1, "logprobs": {"token_logprobs":
              [null, -1.5, -2], "top_logprobs": [null, {"a": -1.5, "b": -0.5}, {"c": -2}]}},
              {"index": 0, "logprobs": {"token_logprobs": [null, -1.5, -2, -3], "top_logprobs":
              [null, {"a": -1.5}, {"b": -1}, {"c": -2}]}}]})"}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            const std::vector<std::size_t> first_scored = {2, 1};
            score_completions(content_of(directory / "reply.json"), first_scored, "the reply");
          }};
}

FileParser segments() {
  return {
      .name = "segments",
      .samples = {{{"h", "The dog bit the man.\nÄlä!\n"}, {"r", "The dog bit him, 3-4.\nÄlä.\n"}}},
      .damaged = {},
      .read = [](const fs::path& directory) {
        const Segments hypotheses = read_segments(directory / "h");
        const References references({read_segments(directory / "r")}, hypotheses.size());
        for (const char* tokenizer : {"13a", "intl", "char", "none"})
          corpus_bleu(hypotheses, references,
                      {.tokenizer = parse_bleu_tokenizer(tokenizer), .lowercase = true});
      }};
}

FileParser task_file() {
  const std::string choices =
      "task: t\noutput_type: multiple_choice\ndataset_path: json\n"
      "dataset_kwargs: {data_files: {test: x}}\ntest_split: test\n"
      "fewshot_config: {sampler: first_n}\nnum_fewshot: 1\ndoc_to_text: 'Q: {{q.strip()}}\\nA:'\n"
      "doc_to_target: \"{{c.label.index(key)}}\"\ndoc_to_choice: \"{{c.text[:2] + ['x']}}\"\n";
  const std::string generate =
      "include: base\ndoc_to_target: \"{{' ' + q.split(' ')[-1]}}\"\n"
      "filter_list: [{name: f, filter: [{function: regex, regex_pattern: '(\\w+)|[^\\s]'}]}]\n"
      "metric_list: [{metric: exact_match, regexes_to_ignore: [',', '\\.$']}]\n";
  const std::string base =
      "task: g\ndataset_path: json\ntest_split: test\ndoc_to_text: q\n"
      "generation_kwargs: {until: [a], max_gen_toks: 5}\n";
  return {
      .name = "task-file",
      .samples = {{{"t.yaml", choices}, {"base", base}}, {{"t.yaml", generate}, {"base", base}}},
      .damaged = {},
      .read = [](const fs::path& directory) {
        const auto file = read_task_file(directory / "t.yaml");
        const EvalTask* task = std::get_if<EvalTask>(&file);
        if (task == nullptr) return;
        const auto document = EvalDocument::parse(
            R"({"q": "a b", "c": {"text": ["ä", "b"], "label": ["A", "B"]}, "key": "B"})");
        const auto example = EvalDocument::parse(
            R"({"q": "c", "c": {"text": ["y", "z"], "label": ["A", "B"]}, "key": "A"})");
        const std::vector<EvalDocument> pool = {example, document};
        FewShotSampler sampler(*task, pool);
        make_requests(*task, document, sampler);
        for (const TaskFilter& filter : task->filters)
          apply_filters(make_filters(filter), {"a, 7."});
      }};
}

// The data of a task, and everything that is made of it.
FileParser task_data() {
  const std::string task =
      "task: t\noutput_type: multiple_choice\ndataset_path: json\n"
      "dataset_kwargs: {data_files: {test: d}}\ntest_split: test\nnum_fewshot: 1\n"
      "doc_to_text: q\ndoc_to_target: g\ndoc_to_choice: c\n";
  const std::string one = R"({"q": "a b", "c": ["x", "y"], "g": 1})",
                    two = R"({"q": "ä", "c": ["x", "z"], "g": [0]})";
  return {.name = "task-data",
          .samples = {{{"t.yaml", task}, {"d", one + "\n\n" + two + "\n"}},
                      {{"t.yaml", task}, {"d", "[" + one + ",\n" + two + "]"}}},
          .damaged = {"d"},
          .read = [](const fs::path& directory) {
            const TaskEvaluation evaluation(find_tasks({directory / "t.yaml"}, {}), {});
            FormulaModel model;
            score_evaluation(evaluation, evaluation.ask(model, {}), {.bootstrap_samples = 0});
          }};
}

FileParser request_body() {
  return {.name = "request-body",
          .samples = {{{"completion.json", R"({"prompt": [[1, 2], [3]], "echo": true, "logprobs": 1,
              "max_tokens": 1, "stop": ["a", "b"], "stream": true, "stream_options":
              {"include_usage": true}, "top_p": 0.5})"},
                       {"chat.json", R"({"messages": [{"role": "user", "content":
              [{"type": "text", "text": "ä"}]}], "temperature": 0.5, "logprobs": true})"},
                       {"tokenize.json", R"({"prompt": "ä", "add_special_tokens": true})"},
                       {"detokenize.json", R"({"tokens": [1, 2]})"}}},
          .damaged = {},
          .read = [](const fs::path& directory) {
            try {
              parse_completion_body(content_of(directory / "completion.json"), {});
              parse_chat_body(content_of(directory / "chat.json"), {});
              parse_tokenize_body(content_of(directory / "tokenize.json"));
              parse_detokenize_body(content_of(directory / "detokenize.json"));
            } catch (const HttpError& error) {
              user_error("{}", error.what());
            }
          }};
}

}  // namespace

std::vector<FileParser> eval_parsers() {
  return {eval_results(), completions_reply(), segments(),
          task_file(),    task_data(),         request_body()};
}

}  // namespace kintsugi
