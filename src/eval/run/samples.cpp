#include <fmt/format.h>

#include "core/error.h"
#include "core/hash.h"
#include "data/tokenizers/unicode.h"
#include "eval/run/results.h"
#include "eval/text.h"

namespace kintsugi {
namespace {

// repr() of a Python string; without the rules for characters that cannot be printed above U+009F.
std::string quoted_as_python(const std::string& text) {
  const bool single = text.find('\'') != std::string::npos;
  const char quote = single && text.find('"') == std::string::npos ? '"' : '\'';
  std::string result(1, quote);
  for (const char32_t c : code_points_of(text)) {
    if (c == '\n')
      result += "\\n";
    else if (c == '\t')
      result += "\\t";
    else if (c == '\r')
      result += "\\r";
    else if (c < 32 || (c >= 127 && c < 161))
      result += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    else {
      if (c == '\\' || c == static_cast<char32_t>(quote)) result += '\\';
      utf8_append(result, c);
    }
  }
  return result + quote;
}

// str() of a Python value.
std::string as_python(const EvalDocument& value, bool nested = false) {
  if (value.is_string())
    return nested ? quoted_as_python(value.get<std::string>()) : value.get<std::string>();
  if (!value.is_structured()) return python_text(value);
  std::string text;
  for (const auto& [key, item] : value.items()) {
    if (!text.empty()) text += ", ";
    if (value.is_object()) text += quoted_as_python(key) + ": ";
    text += as_python(item, true);
  }
  return value.is_array() ? "[" + text + "]" : "{" + text + "}";
}

EvalDocument pair_json(const ContinuationScore& score) {
  return EvalDocument::array(
      {EvalDocument(score.log_probability).dump(), score.is_greedy ? "True" : "False"});
}

EvalDocument arguments_json(const PreparedTask& task, const DocumentRequests& asked) {
  EvalDocument json = EvalDocument::object();
  std::vector<EvalRequest> requests = asked.requests;
  requests.insert(requests.end(), asked.unconditional.begin(), asked.unconditional.end());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EvalDocument& entry = json[fmt::format("gen_args_{}", i)];
    entry["arg_0"] = requests[i].context;
    if (task.task.output_type == OutputType::GenerateUntil)
      entry["arg_1"] = {{"until", task.task.generation.until},
                        {"max_gen_toks", task.task.generation.max_gen_toks},
                        {"do_sample", task.task.generation.do_sample},
                        {"temperature", task.task.generation.temperature}};
    else if (task.task.output_type != OutputType::LoglikelihoodRolling)
      entry["arg_1"] = requests[i].continuation;
  }
  return json;
}

// "resps" and "filtered_resps".
void add_responses(EvalDocument& json, const PreparedTask& task, const DocumentAnswer& answer,
                   const std::vector<Response>& filtered) {
  EvalDocument all = EvalDocument::array(), kept = EvalDocument::array();
  const auto add = [&](const EvalDocument& response) {
    all.push_back(EvalDocument::array({response}));
    kept.push_back(response);
  };
  if (task.task.output_type == OutputType::GenerateUntil) {
    all.push_back(EvalDocument::array({answer.text}));
    for (const Response& response : filtered)
      kept.push_back(response ? EvalDocument(*response) : EvalDocument(nullptr));
  } else if (task.task.output_type == OutputType::LoglikelihoodRolling) {
    add(EvalDocument(answer.rolling.log_probability).dump());
  } else {
    for (const ContinuationScore& score : answer.scores) add(pair_json(score));
    for (const ContinuationScore& score : answer.unconditional) add(pair_json(score));
  }
  json["resps"] = all;
  json["filtered_resps"] = kept;
}

std::string hash_of(const std::string& text) { return sha256_hex(text); }

}  // namespace

std::vector<EvalDocument> samples_json(const PreparedTask& task, const TaskScores& scores,
                                       const TaskAnswers& answers) {
  std::vector<EvalDocument> samples;
  for (const FilteredAnswers& filter : scores.filters)
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const EvalDocument& document = task.data.documents[i];
      const DocumentRequests& asked = task.requests[i];
      EvalDocument& json = samples.emplace_back();
      const std::string target = as_python(asked.target);
      json = {{"doc_id", i}, {"doc", document}, {"target", target}};
      json["arguments"] = arguments_json(task, asked);
      add_responses(json, task, answers[i],
                    filter.responses.empty() ? std::vector<Response>() : filter.responses[i]);
      json["filter"] = filter.filter;
      json["metrics"] = EvalDocument::array();
      for (const TaskMetric& metric : task.task.metrics) json["metrics"].push_back(metric.name);
      json["doc_hash"] = hash_of(document.dump(2));
      json["prompt_hash"] = hash_of(asked.requests.front().context);
      json["target_hash"] = hash_of(target);
      for (std::size_t k = 0; k < task.task.metrics.size(); ++k)
        json[task.task.metrics[k].name] = filter.per_metric[k][i];
    }
  return samples;
}

}  // namespace kintsugi
