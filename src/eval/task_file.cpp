#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/units.h"
#include "core/yaml_reader.h"
#include "eval/task.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

// A map of a task file. Each key is read once; finish() refuses the others.
class TaskMap {
 public:
  TaskMap(YAML::Node node, std::string source)
      : node_(std::move(node)), source_(std::move(source)) {
    if (!node_.IsMap()) user_error("{} is not a map", source_);
  }

  const std::string& source() const { return source_; }
  bool has(const std::string& key) const { return node_[key].IsDefined(); }
  // yaml-cpp throws if the type of a missing value is asked for.
  bool is_map(const std::string& key) const { return has(key) && node_[key].IsMap(); }
  // Undefined if the key is missing or null.
  YAML::Node take(const std::string& key) {
    known_.push_back(key);
    const YAML::Node node = std::as_const(node_)[key];  // does not insert the key
    if (!node.IsDefined() || node.IsNull()) return YAML::Node(YAML::NodeType::Undefined);
    return node;
  }
  template <class T>
  void read(const std::string& key, T& value) {
    const YAML::Node node = take(key);
    if (!node.IsDefined()) return;
    if (!node.IsScalar()) user_error("{}: {} must be {}", source_, key, YamlScalar<T>::expected());
    try {
      value = YamlScalar<T>::parse(node.Scalar());
    } catch (const UserError& error) {
      user_error("{}: {}: {}", source_, key, error.what());
    }
  }
  void read(const std::string& key, std::string& value) {
    const YAML::Node node = take(key);
    if (!node.IsDefined()) return;
    if (!node.IsScalar()) user_error("{}: {} must be a string", source_, key);
    value = node.Scalar();
  }
  // One string or a list of strings.
  void read(const std::string& key, std::vector<std::string>& values) {
    const YAML::Node node = take(key);
    if (!node.IsDefined()) return;
    values.clear();
    if (node.IsScalar()) return values.push_back(node.Scalar());
    if (!node.IsSequence()) user_error("{}: {} must be a list of strings", source_, key);
    for (const YAML::Node& item : node) {
      if (!item.IsScalar()) user_error("{}: {} must be a list of strings", source_, key);
      values.push_back(item.Scalar());
    }
  }
  std::vector<TaskMap> read_maps(const std::string& key) {
    std::vector<TaskMap> maps;
    const YAML::Node node = take(key);
    if (!node.IsDefined()) return maps;
    if (!node.IsSequence()) user_error("{}: {} must be a list of maps", source_, key);
    for (const YAML::Node& item : node)
      maps.emplace_back(item, fmt::format("{}: {}", source_, key));
    return maps;
  }
  std::optional<TaskMap> read_map(const std::string& key) {
    const YAML::Node node = take(key);
    if (!node.IsDefined()) return std::nullopt;
    return TaskMap(node, fmt::format("{}: {}", source_, key));
  }
  const YAML::Node& node() const { return node_; }
  void ignore(const std::vector<std::string>& keys) {
    known_.insert(known_.end(), keys.begin(), keys.end());
  }
  void finish() const {
    for (const auto& item : node_) {
      const std::string& key = item.first.Scalar();
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      const std::string near = nearest_word(key, known_);
      user_error("{}: unknown key '{}'{}", source_, key,
                 near.empty() ? "" : fmt::format(": did you mean '{}'?", near));
    }
  }

 private:
  YAML::Node node_;
  std::string source_;
  std::vector<std::string> known_;
};

// The keys of a file, after those of the files that it includes.
YAML::Node load_task_yaml(const fs::path& path, int depth = 0) {
  if (depth > 8) user_error("{}: files include each other", path.string());
  const YAML::Node node = load_yaml(read_text_file(path), path.string());
  if (!node.IsMap()) user_error("{} is not a map of keys", path.string());
  YAML::Node merged(YAML::NodeType::Map);
  if (const YAML::Node include = node["include"]; include.IsDefined()) {
    if (!include.IsScalar()) user_error("{}: include must be a file name", path.string());
    merged = load_task_yaml(path.parent_path() / include.Scalar(), depth + 1);
  }
  for (const auto& item : node)
    if (item.first.Scalar() != "include") merged[item.first.Scalar()] = item.second;
  return merged;
}

// What to do instead of calling the Python function of a key.
std::string without_python(const std::string& key) {
  if (key.starts_with("process_docs") || key == "custom_dataset")
    return "preprocess the data set: call the function once in Python, save its documents as JSON "
           "lines, name them in dataset_kwargs.data_files and remove the key";
  if (key.starts_with("doc_to_"))
    return "write it as a template, or preprocess the data set: add the text as a column and name "
           "the column";
  return "remove the key, or use a task file without it";
}

// `key` is that of the node.
void refuse_functions(const YAML::Node& node, const std::string& key, const fs::path& path) {
  if (node.Tag() == "!function")
    user_error("{}: {} is a Python function ({}), which needs Python: {}", path.string(), key,
               node.IsScalar() ? node.Scalar() : "of a task", without_python(key));
  if (node.IsSequence())
    for (const auto& item : node) refuse_functions(item, key, path);
  if (node.IsMap())
    for (const auto& item : node) refuse_functions(item.second, item.first.Scalar(), path);
}

// The value as Python's YAML reader sees it.
EvalDocument json_of_yaml(const YAML::Node& node) {
  if (node.IsMap()) {
    EvalDocument map = EvalDocument::object();
    for (const auto& item : node) map[item.first.Scalar()] = json_of_yaml(item.second);
    return map;
  }
  if (node.IsSequence()) {
    EvalDocument list = EvalDocument::array();
    for (const auto& item : node) list.push_back(json_of_yaml(item));
    return list;
  }
  if (node.IsNull() || !node.IsDefined()) return nullptr;
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;  // in quotes
  if (text == "true" || text == "false") return text == "true";
  const EvalDocument number = EvalDocument::parse(text, nullptr, false);
  return number.is_number() ? number : EvalDocument(text);
}

EvalDocument literal_of(const YAML::Node& node, const std::string& source) {
  if (node.IsScalar()) return node.Scalar();
  EvalDocument list = EvalDocument::array();
  for (const auto& item : node) {
    const YAML::Node value = node.IsMap() ? item.second : YAML::Node(item);
    if (!value.IsScalar()) user_error("{} has an element that is not a string", source);
    list.push_back(value.Scalar());
  }
  return list;
}

TaskField field_of(TaskMap& map, const std::string& key) {
  const YAML::Node node = map.take(key);
  const std::string source = fmt::format("{}: {}", map.source(), key);
  if (!node.IsDefined()) return {};
  if (!node.IsScalar()) return TaskField(literal_of(node, source));
  const std::string& text = node.Scalar();
  const bool plain = node.Tag() != "!";  // not in quotes
  std::int64_t number = 0;
  if (plain && !text.empty() && text.find_first_not_of("0123456789") == std::string::npos) {
    map.read(key, number);
    return TaskField(EvalDocument(number));
  }
  return TaskField(text, source);
}

OutputType output_type_of(const std::string& word, const std::string& source) {
  static constexpr std::string_view kWords[] = {"multiple_choice", "loglikelihood",
                                                "loglikelihood_rolling", "generate_until"};
  for (std::size_t i = 0; i < std::size(kWords); ++i)
    if (kWords[i] == word) return static_cast<OutputType>(i);
  user_error("{}: unknown output_type '{}': give {}", source, word, fmt::join(kWords, ", "));
}

struct KnownMetric {
  OutputType type;
  std::string_view name, aggregation;
  bool higher_is_better, by_default;
};
constexpr KnownMetric kTaskMetrics[] = {
    {OutputType::MultipleChoice, "acc", "mean", true, true},
    {OutputType::MultipleChoice, "acc_norm", "mean", true, true},
    {OutputType::MultipleChoice, "acc_bytes", "mean", true, false},
    {OutputType::MultipleChoice, "acc_mutual_info", "mean", true, false},
    {OutputType::MultipleChoice, "exact_match", "mean", true, false},
    {OutputType::MultipleChoice, "brier_score", "brier_score", false, false},
    {OutputType::MultipleChoice, "f1", "f1", true, false},
    {OutputType::MultipleChoice, "mcc", "matthews_corrcoef", true, false},
    {OutputType::Loglikelihood, "perplexity", "perplexity", false, true},
    {OutputType::Loglikelihood, "acc", "mean", true, true},
    {OutputType::LoglikelihoodRolling, "word_perplexity", "weighted_perplexity", false, true},
    {OutputType::LoglikelihoodRolling, "byte_perplexity", "weighted_perplexity", false, true},
    {OutputType::LoglikelihoodRolling, "bits_per_byte", "bits_per_byte", false, true},
    {OutputType::GenerateUntil, "exact_match", "mean", true, true},
    {OutputType::GenerateUntil, "f1", "mean", true, false},
    {OutputType::GenerateUntil, "bleu", "bleu", true, false},
    {OutputType::GenerateUntil, "chrf", "chrf", true, false}};

std::vector<std::string_view> metric_names(OutputType type) {
  std::vector<std::string_view> names;
  for (const KnownMetric& known : kTaskMetrics)
    if (known.type == type) names.push_back(known.name);
  return names;
}

TaskMetric metric_of(TaskMap& map, OutputType type) {
  TaskMetric metric;
  map.read("metric", metric.name);
  const auto* known = std::find_if(
      std::begin(kTaskMetrics), std::end(kTaskMetrics),
      [&](const KnownMetric& one) { return one.type == type && one.name == metric.name; });
  if (known == std::end(kTaskMetrics))
    user_error("{}: the metric '{}' is not supported for this output_type: give {}", map.source(),
               metric.name, fmt::join(metric_names(type), ", "));
  std::string aggregation(known->aggregation);
  metric.higher_is_better = known->higher_is_better;
  map.read("aggregation", aggregation);
  map.read("higher_is_better", metric.higher_is_better);
  if (aggregation != known->aggregation)
    user_error("{}: the aggregation of {} is {}, not '{}'", map.source(), metric.name,
               known->aggregation, aggregation);
  if (type == OutputType::GenerateUntil && metric.name == "exact_match") {
    map.read("ignore_case", metric.exact_match.ignore_case);
    map.read("ignore_punctuation", metric.exact_match.ignore_punctuation);
    map.read("ignore_numbers", metric.exact_match.ignore_numbers);
    map.read("regexes_to_ignore", metric.exact_match.regexes_to_ignore);
    ExactMatch check(metric.exact_match);
  }
  map.finish();
  return metric;
}

FilterStep step_of(TaskMap& map) {
  FilterStep step;
  map.read("function", step.function);
  if (step.function == "regex") {
    map.read("regex_pattern", step.regex.regex_pattern);
    map.read("group_select", step.regex.group_select);
    map.read("fallback", step.regex.fallback);
  }
  if (step.function == "map") {
    if (const auto mapping = map.read_map("mapping_dict"))
      for (const auto& item : mapping->node()) {
        if (!item.second.IsScalar()) user_error("{}: a value is not a string", mapping->source());
        step.mapping[item.first.Scalar()] = item.second.Scalar();
      }
    std::string value;
    if (map.has("default_value")) {
      map.read("default_value", value);
      step.default_value = value;
    }
  }
  map.finish();
  return step;
}

// By split. A file or a list alone is the split "train", as in Hugging Face's data sets.
void read_data_files(TaskMap& arguments, EvalTask& task) {
  if (!arguments.is_map("data_files")) {
    std::vector<std::string> files;
    arguments.read("data_files", files);
    if (!files.empty()) task.data_files["train"] = files;
  } else if (auto files = arguments.read_map("data_files")) {
    for (const auto& item : files->node())
      files->read(item.first.Scalar(), task.data_files[item.first.Scalar()]);
  }
}

void read_data(TaskMap& map, EvalTask& task) {
  std::string path, name;
  map.read("dataset_path", path);
  map.read("dataset_name", name);
  if (path != "json") task.dataset = name.empty() ? path : path + "/" + name;
  std::optional<TaskMap> arguments = map.read_map("dataset_kwargs");
  if (arguments && path == "json") {
    read_data_files(*arguments, task);
    arguments->read("field", task.data_field);
    arguments->finish();
  }
  std::string training, validation, test;
  map.read("training_split", training);
  map.read("validation_split", validation);
  map.read("test_split", test);
  task.split = test.empty() ? validation : test;
  if (task.split.empty()) user_error("{}: give a test_split or a validation_split", map.source());
  task.fewshot_split = !training.empty() ? training : !validation.empty() ? validation : task.split;
  std::string examples;
  map.read("fewshot_split", examples);
  if (!examples.empty()) task.fewshot_split = examples;
  task.test_split = test;
  task.skips_itself = !examples.empty() && examples == test;
}

void read_examples(TaskMap& map, EvalTask& task) {
  map.read("num_fewshot", task.shots);
  if (task.shots < 0) user_error("{}: num_fewshot is {}", map.source(), task.shots);
  auto config = map.read_map("fewshot_config");
  if (!config) return;
  std::string sampler = "default";
  config->read("sampler", sampler);
  task.first_n = sampler == "first_n";
  if (!task.first_n && sampler != "default")
    user_error("{}: unknown sampler '{}': give default or first_n", config->source(), sampler);
  if (config->has("split")) {
    config->read("split", task.fewshot_split);
    task.skips_itself = task.fewshot_split == task.test_split;
  }
  for (const TaskMap& sample : config->read_maps("samples"))
    task.samples.push_back(json_of_yaml(sample.node()));
  config->finish();
}

void read_prompt(TaskMap& map, EvalTask& task) {
  task.text = field_of(map, "doc_to_text");
  task.target = field_of(map, "doc_to_target");
  task.choices = field_of(map, "doc_to_choice");
  if (!task.target.given()) user_error("{}: doc_to_target is missing", map.source());
  if (task.output_type == OutputType::MultipleChoice && !task.choices.given())
    user_error("{}: multiple_choice needs doc_to_choice", map.source());
  if (!task.text.given()) task.text = TaskField("", map.source());
  read_examples(map, task);
  map.read("description", task.format.description);
  map.read("target_delimiter", task.format.target_delimiter);
  map.read("fewshot_delimiter", task.format.fewshot_delimiter);
  map.read("gen_prefix", task.format.gen_prefix);
}

void read_generation(TaskMap& map, EvalTask& task) {
  task.generation.until = {task.format.fewshot_delimiter};
  if (auto options = map.read_map("generation_kwargs")) {
    options->read("until", task.generation.until);
    options->read("max_gen_toks", task.generation.max_gen_toks);
    options->read("do_sample", task.generation.do_sample);
    options->read("temperature", task.generation.temperature);
    options->read("top_p", task.generation.top_p);
    options->read("top_k", task.generation.top_k);
    options->finish();
  }
  if (task.generation.max_gen_toks < 1)
    user_error("{}: max_gen_toks is {}", map.source(), task.generation.max_gen_toks);
  for (TaskMap& entry : map.read_maps("filter_list")) {
    TaskFilter& filter = task.filters.emplace_back();
    entry.read("name", filter.name);
    for (TaskMap& step : entry.read_maps("filter")) filter.steps.push_back(step_of(step));
    entry.finish();
    make_filters(filter);  // refuses unknown functions and invalid expressions
  }
}

std::string version_of(TaskMap& map) {
  std::string version;
  if (auto metadata = map.read_map("metadata")) metadata->read("version", version);
  return version;
}

EvalTask task_of(TaskMap& map) {
  EvalTask task;
  std::string type = "generate_until";
  map.read("task", task.name);
  if (task.name.empty()) user_error("{}: task is missing", map.source());
  map.read("task_alias", task.alias);
  map.read("tag", task.tags);
  map.read("output_type", type);
  task.output_type = output_type_of(type, map.source());
  read_data(map, task);
  read_prompt(map, task);
  read_generation(map, task);
  for (TaskMap& metric : map.read_maps("metric_list"))
    task.metrics.push_back(metric_of(metric, task.output_type));
  if (task.metrics.empty())
    for (const KnownMetric& known : kTaskMetrics)
      if (known.type == task.output_type && known.by_default)
        task.metrics.push_back({std::string(known.name), known.higher_is_better});
  task.version = version_of(map);
  std::int64_t repeats = 1;
  map.read("repeats", repeats);
  if (repeats != 1) user_error("{}: repeats is {}: only 1 is supported", map.source(), repeats);
  map.ignore({"should_decontaminate", "doc_to_decontamination_query"});
  map.finish();
  return task;
}

EvalGroup group_of(TaskMap& map) {
  EvalGroup group;
  map.read("group", group.name);
  map.read("group_alias", group.alias);
  map.read("task", group.tasks);
  if (group.tasks.empty()) user_error("{}: the group has no tasks", map.source());
  for (TaskMap& entry : map.read_maps("aggregate_metric_list")) {
    EvalGroup::Mean& mean = group.means.emplace_back();
    std::string aggregation = "mean";
    entry.read("metric", mean.metric);
    entry.read("aggregation", aggregation);
    entry.read("weight_by_size", mean.weight_by_size);
    entry.read("filter_list", mean.filters);
    if (aggregation != "mean")
      user_error("{}: the aggregation '{}' is not supported: give mean", entry.source(),
                 aggregation);
    entry.finish();
  }
  group.version = version_of(map);
  map.finish();
  return group;
}

}  // namespace

ResponseFilters make_filters(const TaskFilter& filter) {
  ResponseFilters filters;
  for (const FilterStep& step : filter.steps)
    if (step.function == "regex")
      filters.push_back(make_regex_filter(step.regex));
    else if (step.function == "map")
      filters.push_back(make_map_filter(step.mapping, step.default_value));
    else
      filters.push_back(make_plain_filter(step.function));
  return filters;
}

std::variant<EvalTask, EvalGroup> read_task_file(const fs::path& path) {
  const YAML::Node keys = load_task_yaml(path);
  refuse_functions(keys, "", path);
  TaskMap map(keys, path.string());
  if (map.has("group")) return group_of(map);
  EvalTask task = task_of(map);
  task.file = path;
  task.config = json_of_yaml(map.node());
  return task;
}

}  // namespace kintsugi
