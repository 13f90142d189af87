#include "launch/campaign/record.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/file.h"
#include "core/json_members.h"
#include "core/output_file.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using RecordJson = nlohmann::ordered_json;

constexpr double kLatest_s = 1e11;

RecordJson parse_record(const std::string& text, const std::string& source) {
  std::string problem;
  auto json = parse_untrusted_json(text, &problem);
  if (!json || !json->is_object())
    user_error("{} is no record of a campaign{}", source,
               problem.empty() ? "" : fmt::format(" ({})", problem));
  return std::move(*json);
}

// Strict: what is damaged must not look like a task that has not begun.
class RecordReader {
 public:
  RecordReader(const RecordJson& json, const std::string& source) : json_(json), source_(source) {}

  void operator()(const char* key, std::string& value) {
    if (!value_of(key).is_string()) wrong(key);
    value = value_of(key).get<std::string>();
  }
  void operator()(const char* key, bool& value) {
    if (!value_of(key).is_boolean()) wrong(key);
    value = value_of(key).get<bool>();
  }
  void operator()(const char* key, double& value) {
    const auto number = number_at(json_, key);
    if (!number) wrong(key);
    value = *number;
  }
  void operator()(const char* key, std::int64_t& value) {
    const auto number = number_at(json_, key);
    if (!number || *number < 0 || *number > 1e15) wrong(key);
    value = count_at(json_, key);
  }
  void operator()(const char* key, std::vector<std::string>& values) {
    const RecordJson& list = value_of(key);
    if (!list.is_array()) wrong(key);
    values.clear();
    for (const RecordJson& item : list) {
      if (!item.is_string()) wrong(key);
      values.push_back(item.get<std::string>());
    }
  }
  void operator()(const char* key, std::map<std::string, std::string>& values) {
    const RecordJson& map = value_of(key);
    if (!map.is_object()) wrong(key);
    values.clear();
    for (const auto& [name, item] : map.items()) {
      if (!item.is_string()) wrong(key);
      values[name] = item.get<std::string>();
    }
  }
  // A key that older programs did not write.
  template <class T>
  void later(const char* key, T& value) {
    if (json_.contains(key)) (*this)(key, value);
  }
  [[noreturn]] void wrong(const char* key) const { user_error("{} is damaged: {}", source_, key); }

 private:
  const RecordJson& value_of(const char* key) const { return json_at(json_, key); }

  const RecordJson& json_;
  const std::string& source_;
};

struct RecordWriter {
  RecordJson json = RecordJson::object();
  template <class T>
  void operator()(const char* key, T& value) {
    json[key] = value;
  }
  template <class T>
  void later(const char* key, T& value) {
    json[key] = value;
  }
};

template <class V>
void describe_record(V& v, CampaignSnapshot& s) {
  v("source", s.source);
  v("working_directory", s.working_directory);
  v("local", s.local);
  v("max_gpu_hours", s.max_gpu_hours);
  v.later("given_gpu_hours", s.given_gpu_hours);
  v("text", s.text);
  v("configs", s.configs);
}
template <class V>
void describe_record(V& v, TaskPlan& p) {
  v("fingerprint", p.fingerprint);
  v("job_ids", p.job_ids);
  v("gpus", p.gpus);
  v("gpu_hours", p.gpu_hours);
  v("earlier_gpu_hours", p.earlier_gpu_hours);
}
template <class V>
void describe_record(V& v, TaskProgress& p) {
  v("refused", p.refused);
  v("began_s", p.began_s);
  v("spent_s", p.spent_s);
  v.later("failed", p.failed);
  v("chosen", p.chosen);
  v.later("chosen_by", p.chosen_by);
  v("value", p.value);
}

template <class T>
std::string written(T record) {
  RecordWriter writer;
  describe_record(writer, record);
  return writer.json.dump(2, ' ', false, RecordJson::error_handler_t::replace) + "\n";
}
template <class T>
T read_record(const std::string& text, const std::string& source) {
  const RecordJson json = parse_record(text, source);
  T record;
  RecordReader reader(json, source);
  describe_record(reader, record);
  return record;
}

fs::path record_file(const fs::path& directory, const std::string& task, const char* kind) {
  return campaign_folder(directory) / "tasks" / (task + kind);
}
constexpr const char* kPlan = ".plan.json";
constexpr const char* kProgress = ".progress.json";

void save_record(const fs::path& file, const std::string& text) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (error) failure("cannot create {}: {}", file.parent_path().string(), error.message());
  NewFile replacement(file, {.own_temporary = true});  // jobs that begin together make one choice
  replacement.write(text.data(), text.size());
  replacement.publish();
}

}  // namespace

fs::path campaign_folder(const fs::path& directory) { return directory / ".campaign"; }
fs::path campaign_lock(const fs::path& directory) { return campaign_folder(directory) / "lock"; }
fs::path campaign_stop_file(const fs::path& directory) {
  return campaign_folder(directory) / "stop";
}
fs::path snapshot_file(const fs::path& directory) {
  return campaign_folder(directory) / "campaign.json";
}

std::string to_json(const CampaignSnapshot& snapshot) { return written(snapshot); }
CampaignSnapshot snapshot_from_json(const std::string& text, const std::string& source) {
  return read_record<CampaignSnapshot>(text, source);
}

std::string to_json(const TaskPlan& plan) { return written(plan); }
TaskPlan plan_from_json(const std::string& text, const std::string& source) {
  auto plan = read_record<TaskPlan>(text, source);
  for (const std::string& id : plan.job_ids)
    if (id.empty() || id.size() > 20 || id.find_first_not_of("0123456789") != std::string::npos)
      user_error("{} is damaged: '{}' is no job id of Slurm", source, id);
  if (plan.gpu_hours < 0 || plan.earlier_gpu_hours < 0)
    user_error("{} is damaged: gpu_hours", source);
  return plan;
}

std::string to_json(const TaskProgress& progress) { return written(progress); }
TaskProgress progress_from_json(const std::string& text, const std::string& source) {
  auto progress = read_record<TaskProgress>(text, source);
  for (const double time : {progress.began_s, progress.spent_s})
    if (time < 0 || time > kLatest_s) user_error("{} is damaged: {} is no time", source, time);
  return progress;
}

bool has_plan(const fs::path& directory, const std::string& task) {
  return fs::exists(record_file(directory, task, kPlan));
}

TaskPlan load_plan(const fs::path& directory, const std::string& task) {
  const fs::path file = record_file(directory, task, kPlan);
  return fs::exists(file) ? plan_from_json(read_text_file(file), file.string()) : TaskPlan{};
}
void save_plan(const fs::path& directory, const std::string& task, const TaskPlan& plan) {
  save_record(record_file(directory, task, kPlan), to_json(plan));
}
TaskProgress load_progress(const fs::path& directory, const std::string& task) {
  const fs::path file = record_file(directory, task, kProgress);
  return fs::exists(file) ? progress_from_json(read_text_file(file), file.string())
                          : TaskProgress{};
}
void save_progress(const fs::path& directory, const std::string& task,
                   const TaskProgress& progress) {
  save_record(record_file(directory, task, kProgress), to_json(progress));
}
std::vector<std::string> planned_tasks(const fs::path& directory) {
  const fs::path folder = campaign_folder(directory) / "tasks";
  std::vector<std::string> names;
  if (!fs::exists(folder)) return names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    if (name.ends_with(kPlan))
      names.push_back(name.substr(0, name.size() - std::string_view(kPlan).size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

void forget_task(const fs::path& directory, const std::string& task) {
  for (const char* kind : {kPlan, kProgress}) fs::remove(record_file(directory, task, kind));
}

}  // namespace kintsugi
