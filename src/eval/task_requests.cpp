#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "eval/task.h"
#include "eval/task_data.h"

namespace kintsugi {
namespace {

bool is_digits(const std::string& text) {
  return !text.empty() && text.size() < 10 &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

// A text of digits is the index of a choice.
EvalDocument index_or_text(const EvalTask& task, EvalDocument value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (task.choices.given() && value.is_string() && is_digits(value.get_ref<const std::string&>()))
    return std::stoll(value.get<std::string>());
  return value;
}

std::vector<std::string> texts_of(const EvalDocument& list, const std::string& what) {
  std::vector<std::string> texts;
  for (const EvalDocument& item : list) {
    if (!item.is_string()) user_error("{}: an element is not a string", what);
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

// The values of the three fields of a document.
struct Fields {
  EvalDocument text, target;
  std::vector<std::string> choices;

  Fields(const EvalTask& task, const EvalDocument& document)
      : text(index_or_text(task, task.text.value(document))),
        target(index_or_text(task, task.target.value(document))) {
    if (!task.choices.given()) return;
    const EvalDocument list = task.choices.value(document);
    if (!list.is_array()) user_error("{}: doc_to_choice is not a list", task.name);
    choices = texts_of(list, task.name + ": doc_to_choice");
  }

  const std::string& choice(const EvalTask& task, const EvalDocument& index) const {
    const auto at = index.get<std::int64_t>();
    if (at < 0 || at >= static_cast<std::int64_t>(choices.size()))
      user_error("{}: a document has {} choices, but {} is its right one", task.name,
                 choices.size(), at);
    return choices[static_cast<std::size_t>(at)];
  }
  // The question and the answer of an example.
  std::string question(const EvalTask& task) const {
    return text.is_number_integer() && task.choices.given() ? choice(task, text)
                                                            : python_text(text);
  }
  std::string answer(const EvalTask& task) const {
    if (target.is_array()) return target.empty() ? "" : python_text(target.front());
    return target.is_number_integer() && task.choices.given() ? choice(task, target)
                                                              : python_text(target);
  }
  // Choices are contexts of one continuation (WinoGrande), and the text is the right one's index.
  bool choices_are_contexts() const { return text.is_number_integer(); }
};

Gold gold_of(const EvalTask& task, const EvalDocument& value) {
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) user_error("{}: the right choice is not an index or a text", task.name);
  std::vector<std::int64_t> indices;
  for (const EvalDocument& item : value) {
    if (!item.is_number_integer()) user_error("{}: the right choices are not indices", task.name);
    indices.push_back(item.get<std::int64_t>());
  }
  return indices;
}

std::vector<FewShotExample> examples_for(const EvalTask& task, const EvalDocument& document,
                                         FewShotSampler& sampler) {
  std::vector<FewShotExample> chosen;
  for (const EvalDocument* example : sampler.sample(document)) {
    const Fields fields(task, *example);
    chosen.push_back({fields.question(task), fields.answer(task)});
  }
  return chosen;
}

// A document of a token store.
bool is_tokens(const EvalTask& task, const EvalDocument& document) {
  const auto is_id = [](const EvalDocument& id) { return id.is_number_integer() && id >= 0; };
  return task.output_type == OutputType::LoglikelihoodRolling && document.size() == 1 &&
         document.contains(kTokenColumn) && document[kTokenColumn].is_array() &&
         std::all_of(document[kTokenColumn].begin(), document[kTokenColumn].end(), is_id);
}

void add_choice_requests(const EvalTask& task, const Fields& fields, const std::string& prompt,
                         DocumentRequests& result) {
  if (fields.choices.empty()) user_error("{}: a document has no choices", task.name);
  result.choices = fields.choices;
  const std::string& delimiter = task.format.target_delimiter;
  const bool contexts = fields.choices_are_contexts();
  result.label = contexts ? fields.text : fields.target;
  result.gold = gold_of(task, result.label);
  for (const std::string& choice : fields.choices)
    result.requests.push_back(
        contexts ? EvalRequest{prompt + choice, delimiter + python_text(fields.target)}
                 : EvalRequest{prompt, delimiter + choice});
  const auto mutual = [](const TaskMetric& metric) { return metric.name == "acc_mutual_info"; };
  if (std::any_of(task.metrics.begin(), task.metrics.end(), mutual))
    for (const std::string& choice : fields.choices)
      result.unconditional.push_back({"", delimiter + choice});
}

}  // namespace

EvalDocument TaskField::value(const EvalDocument& document) const {
  if (!given_ || template_.empty()) return literal_;
  if (document.is_object() && document.contains(column_)) return document[column_];
  return template_[0].value(document);
}

DocumentRequests make_requests(const EvalTask& task, const EvalDocument& document,
                               FewShotSampler& examples) {
  DocumentRequests result;
  if (is_tokens(task, document)) {
    result.requests.emplace_back();
    result.tokens = document[kTokenColumn].get<TokenIds>();
    return result;
  }
  const Fields fields(task, document);
  result.target = fields.target;
  if (task.output_type == OutputType::LoglikelihoodRolling) {
    result.requests.push_back({python_text(fields.target), ""});
    return result;
  }
  const bool choice = task.output_type == OutputType::MultipleChoice;
  const bool contexts = choice && fields.choices_are_contexts();
  const std::string prompt = few_shot_prompt(task.format, examples_for(task, document, examples),
                                             contexts ? "" : fields.question(task));
  if (choice) {
    add_choice_requests(task, fields, prompt, result);
  } else if (task.output_type == OutputType::Loglikelihood) {
    result.requests.push_back({prompt, fields.answer(task)});
  } else {
    result.requests.push_back({prompt, ""});
    result.targets = fields.target.is_array()
                         ? texts_of(fields.target, task.name + ": doc_to_target")
                         : std::vector{fields.answer(task)};
  }
  return result;
}

FewShotSampler::FewShotSampler(const EvalTask& task, std::span<const EvalDocument> pool,
                               std::uint64_t seed)
    : task_(task), pool_(pool), random_(seed) {}

std::vector<const EvalDocument*> FewShotSampler::sample(const EvalDocument& document) {
  const auto shots = static_cast<std::size_t>(task_.shots);
  if (shots == 0) return {};
  const bool skips = task_.samples.empty() && task_.skips_itself;
  const std::size_t wanted = shots + (skips ? 1 : 0);
  if (pool_.size() < wanted)
    user_error("{}: {} examples are needed, but {} has {} documents", task_.name, wanted,
               task_.samples.empty() ? "the split '" + task_.fewshot_split + "'" : "samples",
               pool_.size());
  std::vector<const EvalDocument*> chosen;
  const auto add = [&](std::size_t index) {
    if (chosen.size() < shots && !(skips && pool_[index] == document))
      chosen.push_back(&pool_[index]);
  };
  if (task_.first_n)
    for (std::size_t i = 0; i < pool_.size() && chosen.size() < shots; ++i) add(i);
  else
    for (const std::size_t index : random_.sample(pool_.size(), wanted)) add(index);
  if (chosen.size() < shots)
    user_error("{}: {} examples are needed, but only {} of those chosen differ from the document",
               task_.name, shots, chosen.size());
  return chosen;
}

}  // namespace kintsugi
