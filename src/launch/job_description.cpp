#include "launch/job_description.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostNodes = 10'000'000;

// Reads the keys of job.json; each is required, and of the right type.
class JobReader {
 public:
  JobReader(const Json& json, const std::string& source) : json_(json), source_(source) {}

  void operator()(const char* key, std::string& value) {
    if (!at(key).is_string()) wrong(key, "text");
    value = at(key).get<std::string>();
  }
  void operator()(const char* key, bool& value) {
    if (!at(key).is_boolean()) wrong(key, "true or false");
    value = at(key).get<bool>();
  }
  void operator()(const char* key, std::int64_t& value, std::int64_t least, std::int64_t most) {
    if (!at(key).is_number_integer()) wrong(key, "a whole number");
    const auto number = at(key).get<std::int64_t>();
    if (number < least || number > most)
      wrong(key, fmt::format("a number between {} and {}", least, most).c_str());
    value = number;
  }
  void operator()(const char* key, std::vector<std::string>& values) {
    if (!at(key).is_array()) wrong(key, "a list of texts");
    for (const Json& item : at(key)) {
      if (!item.is_string()) wrong(key, "a list of texts");
      values.push_back(item.get<std::string>());
    }
  }
  void operator()(const char* key, std::vector<std::pair<std::string, std::string>>& values) {
    if (!at(key).is_object()) wrong(key, "a map of texts");
    for (const auto& [name, value] : at(key).items()) {
      if (!value.is_string()) wrong(key, "a map of texts");
      values.emplace_back(name, value.get<std::string>());
    }
  }

 private:
  const Json& at(const char* key) const {
    if (!json_.contains(key))
      user_error("{}: {} is missing: submit the run again with kintsugi launch", source_, key);
    return json_[key];
  }
  [[noreturn]] void wrong(const char* key, const char* expected) const {
    user_error("{}: {} is not {}: submit the run again with kintsugi launch", source_, key,
               expected);
  }

  const Json& json_;
  const std::string& source_;
};

class JobWriter {
 public:
  Json json = Json::object();

  template <class T, class... Limits>
  void operator()(const char* key, T& value, Limits...) {
    json[key] = value;
  }
  void operator()(const char* key, std::vector<std::pair<std::string, std::string>>& values) {
    json[key] = Json::object();
    for (const auto& [name, value] : values) json[key][name] = value;
  }
};

template <class V>
void describe_job(V& v, JobDescription& job) {
  v("name", job.name);
  v("run_dir", job.run_dir);
  v("config", job.config);
  v("program", job.program);
  v("machine", job.machine);
  v("ranks_per_node", job.ranks_per_node, std::int64_t{1}, kMostNodes);
  v("nodes", job.nodes, std::int64_t{1}, kMostNodes);
  v("spare_nodes", job.spare_nodes, std::int64_t{0}, kMostNodes);
  v("min_nodes", job.min_nodes, std::int64_t{1}, kMostNodes);
  v("launcher", job.launcher);
  v("environment", job.environment);
  v("local", job.local);
  v("requeue", job.requeue);
  v("chain", job.chain, std::int64_t{1}, kMostNodes);
  v("submitted_s", job.submitted_s, std::int64_t{0}, std::int64_t{1} << 40);
  v("job_ids", job.job_ids);
}

}  // namespace

std::string with_value(std::string text, const std::string& word, const std::string& value) {
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += value.size())
    text.replace(at, word.size(), value);
  return text;
}

std::vector<std::string> rank_command(const JobDescription& job, const NodeChoice& choice,
                                      const std::vector<std::string>& arguments) {
  std::vector<std::string> command;
  for (const std::string& word : job.launcher) {
    if (choice.exclude.empty() && word.find("{exclude}") != std::string::npos) continue;
    if (choice.nodelist.empty() && word.find("{nodelist}") != std::string::npos) continue;
    std::string text = with_value(word, "{nodes}", std::to_string(choice.nodes));
    text = with_value(text, "{ranks}", std::to_string(choice.nodes * job.ranks_per_node));
    text = with_value(text, "{exclude}", fmt::format("{}", fmt::join(choice.exclude, ",")));
    command.push_back(
        with_value(text, "{nodelist}", fmt::format("{}", fmt::join(choice.nodelist, ","))));
  }
  command.push_back(job.program);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

std::string to_json(const JobDescription& job) {
  JobDescription copy = job;
  JobWriter writer;
  describe_job(writer, copy);
  return writer.json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

JobDescription job_from_json(const std::string& text, const std::string& source) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object())
    user_error("{} is no job description: submit the run again with kintsugi launch", source);
  JobDescription job;
  JobReader reader(json, source);
  describe_job(reader, job);
  for (const std::string& id : job.job_ids)
    if (id.empty() || id.size() > 20 || id.find_first_not_of("0123456789") != std::string::npos)
      user_error("{}: job_ids has '{}', which is no job id of Slurm", source, id);
  if (job.min_nodes > job.nodes)
    user_error("{}: min_nodes {} is more than nodes {}", source, job.min_nodes, job.nodes);
  return job;
}

std::filesystem::path job_file(const std::filesystem::path& run_dir) {
  return run_dir / "launch" / "job.json";
}

JobDescription load_job(const std::filesystem::path& run_dir) {
  const std::filesystem::path file = job_file(run_dir);
  if (!std::filesystem::exists(file))
    user_error("{} was not started by kintsugi launch: it has no launch/job.json",
               run_dir.string());
  return job_from_json(read_text_file(file), file.string());
}

void save_job(const JobDescription& job) {
  write_file_atomically(job_file(job.run_dir), to_json(job));
}

}  // namespace kintsugi
