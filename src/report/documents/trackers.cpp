// MLflow's file store and W&B's offline runs.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "core/build_info.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/yaml_document.h"
#include "report/documents/exports.h"
#include "report/runs/goodput_timeline.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kBufferedBytes = 4 << 20;  // of all metrics together
constexpr std::size_t kMostMetrics = 2000;
constexpr std::size_t kMostStatus = 4 << 20;
constexpr std::size_t kMagicBytes = 7;  // of W&B's files, the last one is the version

// ---- MLflow's limits and names

constexpr std::size_t kMostName = 250, kMostParam = 6000, kMostTag = 5000;  // characters
constexpr const char* kExperiment = "kintsugi";
constexpr const char* kOurTag = "kintsugi.run_id";  // of runs that an export has written

bool is_alphanumeric_or(std::string_view characters, char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
         characters.find(c) != std::string_view::npos;
}

// Names are files. MLflow allows letters, digits and "_-. /"; a slash would make a folder, and a
// name could then be a file and a folder.
std::string allowed_name(std::string_view name) {
  std::string safe;
  for (const char c : name) {
    safe += is_alphanumeric_or("_-. ", c) ? c : '_';
  }
  if (safe.find_first_not_of('.') == std::string::npos) safe = "_" + safe;
  if (safe.size() <= kMostName) return safe;
  return safe.substr(0, kMostName - 17) + "_" + hex64(hash64(name));
}

// Different names stay different. Names are compared without case, as some file systems do.
class Names {
 public:
  std::string operator()(const std::string& name) {
    const auto [found, is_new] = names_.try_emplace(name);
    if (!is_new) return found->second;
    std::string safe = allowed_name(name);
    if (!taken_.insert(lower(safe)).second) {
      safe = safe.substr(0, kMostName - 17) + "_" + hex64(hash64(name));
      taken_.insert(lower(safe));
    }
    return found->second = safe;
  }

 private:
  static std::string lower(std::string text) {
    for (char& c : text)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return text;
  }
  std::map<std::string, std::string> names_;
  std::set<std::string> taken_;
};

// Valid UTF-8 in one line of at most `most` bytes.
std::string value_line(std::string_view text, std::size_t most) {
  std::string line = printable(text);
  for (char& c : line)
    if (c == '\n' || c == '\t') c = ' ';
  if (line.size() <= most) return line;
  while (most > 0 && (static_cast<unsigned char>(line[most]) & 0xC0) == 0x80) --most;
  return line.substr(0, most);
}

std::string file_uri(const fs::path& path) {
  std::string uri = "file://";
  for (const char c : fs::absolute(path).lexically_normal().string()) {
    const bool plain = is_alphanumeric_or("/_-.~", c);
    uri += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return uri;
}

std::int64_t milliseconds(double seconds) {
  return static_cast<std::int64_t>(std::clamp(seconds, 0.0, 9e12) * 1000);
}

// As MLflow counts them: 1 running, 3 finished, 4 failed, 5 killed.
int mlflow_status(const std::string& state) {
  if (state == "running") return 1;
  if (state == "finished") return 3;
  return state == "stopped" ? 5 : 4;
}

// ---- its files

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directory(folder, error);
  if (error) user_error("cannot create {}: {}", folder.string(), error.message());
}

// A store has a folder for each experiment, each with its meta.yaml.
void check_store(const fs::path& store) {
  std::error_code error;
  if (!fs::exists(store, error)) return;
  if (!fs::is_directory(store, error)) user_error("{} is not a directory", store.string());
  bool empty = true;
  for (const auto& entry : fs::directory_iterator(store)) {
    const std::string name = entry.path().filename().string();
    if (fs::exists(entry.path() / "meta.yaml", error) || name == ".trash") return;
    if (!name.starts_with('.')) empty = false;
  }
  if (!empty)
    user_error("{} is no file store of MLflow: give a new directory, or one with its experiments",
               store.string());
}

// A number of 18 digits, as MLflow gives them to experiments.
std::string experiment_id() {
  return fmt::format("{:018}",
                     100'000'000'000'000'000 + hash64(kExperiment) % 800'000'000'000'000'000);
}

fs::path make_experiment(const fs::path& store, double now_s) {
  check_store(store);
  make_folder(store);
  make_folder(store / ".trash");
  const std::string id = experiment_id();
  const fs::path folder = store / id;
  make_folder(folder);
  const fs::path meta = folder / "meta.yaml";
  if (!fs::exists(meta))
    write_file_atomically(
        meta, fmt::format("artifact_location: {}\ncreation_time: {}\nexperiment_id: '{}'\n"
                          "last_update_time: {}\nlifecycle_stage: active\nname: {}\n",
                          yaml_quoted(file_uri(folder)), milliseconds(now_s), id,
                          milliseconds(now_s), kExperiment));
  return folder;
}

std::string run_meta(const TrackedRun& run, const std::string& id, const fs::path& folder) {
  const auto end = run.end_s ? std::to_string(milliseconds(*run.end_s)) : "null";
  return fmt::format(
      "artifact_uri: {}\ndeleted_time: null\nend_time: {}\nentry_point_name: ''\n"
      "experiment_id: '{}'\nlifecycle_stage: active\nrun_id: {}\nrun_name: {}\nsource_name: ''\n"
      "source_type: 4\nsource_version: ''\nstart_time: {}\nstatus: {}\ntags: []\nuser_id: ''\n",
      yaml_quoted(file_uri(folder / id / "artifacts")), end, experiment_id(), yaml_quoted(id),
      yaml_quoted(value_line(run.facts.name, kMostTag)), milliseconds(run.facts.start_s),
      mlflow_status(run.state));
}

// Collects the lines "MILLISECONDS VALUE STEP" of all metrics and writes them now and then.
class MetricFiles {
 public:
  MetricFiles(fs::path folder, double start_s) : folder_(std::move(folder)), start_s_(start_s) {
    make_folder(folder_);
  }

  void add(const RecordValues& values) {
    const auto step = number_of(values, "step");
    if (!step || std::abs(*step) > 9e15) return;
    const std::int64_t time = milliseconds(number_of(values, "time_s").value_or(start_s_));
    for (const RecordValue& value : values) {
      if (!value.number() || value.name == "step" || value.name == "seq" || value.name == "time_s")
        continue;
      std::string& lines = lines_[names_(value.name)];
      if (lines_.size() > kMostMetrics)
        user_error("the metrics have more than {} different keys: they cannot be exported",
                   kMostMetrics);
      const std::size_t before = lines.size();
      lines += fmt::format("{} {} {}\n", time, value.text, static_cast<std::int64_t>(*step));
      buffered_ += lines.size() - before;
    }
    if (buffered_ > kBufferedBytes) flush();
  }
  void flush() {
    for (auto& [name, lines] : lines_) {
      if (!lines.empty()) append_to_file(folder_ / name, lines);
      lines = {};
    }
    buffered_ = 0;
  }

 private:
  fs::path folder_;
  double start_s_;
  Names names_;
  std::map<std::string, std::string> lines_;  // by file name
  std::size_t buffered_ = 0;
};

// What others have added to the run, such as artifacts, notes and tags.
void keep_others(const fs::path& before, const fs::path& now) {
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(before, error)) {
    const fs::path target = now / fs::relative(entry.path(), before);
    if (fs::exists(fs::symlink_status(target))) continue;
    if (entry.is_directory() && !entry.is_symlink()) {
      make_folder(target);
    } else {
      fs::copy(entry.path(), target,
               entry.is_symlink() ? fs::copy_options::copy_symlinks
                                  : fs::copy_options::create_hard_links,
               error);
      if (error) failure("cannot link {}: {}", entry.path().string(), error.message());
    }
  }
}

void sync_file_system_of(const fs::path& folder) {
  const FileDescriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor < 0 || ::syncfs(descriptor) != 0) failure("cannot sync {}", folder.string());
}

void write_texts(const fs::path& folder, const std::map<std::string, std::string>& texts,
                 std::size_t most) {
  make_folder(folder);
  Names names;
  for (const auto& [name, text] : texts)
    append_to_file(folder / names(name), value_line(text, most));
}

}  // namespace

TrackedRun tracked_run(const SummaryReader& run) {
  const RunSummary& summary = run.summary();
  TrackedRun tracked{.directory = run.directory(), .state = summary.state};
  const fs::path metrics = run.directory() / "metrics.jsonl";
  if (const RunFile file(metrics); !file.is_open())
    user_error("{} cannot be exported: metrics.jsonl {}", run.directory().string(),
               file.problem().empty() ? "is missing" : file.problem());
  const Goodput goodput = read_goodput_history(run.directory()).goodput;
  const nlohmann::ordered_json status =
      read_json_object(run.directory() / "status.json", kMostStatus);
  if (!goodput.attempts().empty()) {
    tracked.facts.start_s = goodput.attempts().front().launched_s;
    tracked.end_s = goodput.attempts().back().last_s;
  } else {
    visit_records(metrics, [&](const RecordValues& values) {
      const auto time_s = number_of(values, "time_s");
      if (!time_s) return;
      if (!tracked.end_s) tracked.facts.start_s = *time_s;
      tracked.end_s = *time_s;
    });
  }
  if (summary.state == "running") tracked.end_s.reset();
  if (const auto code = number_at(status, "exit_code"))
    tracked.exit_code = count_at(status, "exit_code");
  tracked.facts.name = run.directory().filename().string();
  tracked.facts.id = run_id(run.directory(), tracked.facts.start_s);
  tracked.facts.config = tracked_config(run.directory());
  return tracked;
}

fs::path export_to_mlflow(const TrackedRun& run, const fs::path& store,
                          const ProgressCall& progress) {
  const fs::path experiment = make_experiment(store, run.facts.start_s);
  const std::string id = sha256_hex(run.facts.id).substr(0, 32);
  const fs::path target = experiment / id;
  std::error_code error;
  if (fs::exists(target, error) && !fs::exists(target / "tags" / kOurTag, error))
    user_error("{} was not written by kintsugi report: choose another --output", target.string());
  NewDirectory folder(target, true,
                      {.name = "a run of MLflow",
                       .required = "meta.yaml",
                       .is_member = [](const std::string&) { return true; }});
  MetricFiles metrics(folder.path() / "metrics", run.facts.start_s);
  visit_records(
      run.directory / "metrics.jsonl", [&](const RecordValues& values) { metrics.add(values); },
      progress);
  metrics.flush();
  write_texts(folder.path() / "params", run.facts.config, kMostParam);
  write_texts(folder.path() / "tags",
              {{"mlflow.runName", run.facts.name},
               {kOurTag, run.facts.id},
               {"kintsugi.state", run.state},
               {"kintsugi.directory", run.directory.string()},
               {"kintsugi.exported_by", "kintsugi " + std::string(program_version())}},
              kMostTag);
  make_folder(folder.path() / "artifacts");
  folder.write("meta.yaml", run_meta(run, id, experiment));
  if (fs::exists(target)) keep_others(target, folder.path());
  sync_file_system_of(folder.path());
  folder.publish();
  return target;
}

fs::path export_to_wandb(const TrackedRun& run, const fs::path& folder,
                         const ProgressCall& progress) {
  make_folder(folder);
  const fs::path run_folder = folder / wandb_directory(run.facts.start_s, run.facts.id);
  make_folder(run_folder);
  const fs::path target = run_folder / fmt::format("run-{}.wandb", run.facts.id);
  WandbEncoder encoder;
  const std::string beginning = encoder.begin(run.facts);
  std::error_code error;
  if (fs::exists(fs::symlink_status(target, error)) &&
      !begins_with(target, beginning.substr(0, kMagicBytes)))
    user_error("{} is no file of W&B in version 0 of its format: remove it first", target.string());
  NewFile file(target, {.own_temporary = true});
  const auto write = [&](const std::string& bytes) { file.write(bytes.data(), bytes.size()); };
  write(beginning);
  visit_records(
      run.directory / "metrics.jsonl",
      [&](const RecordValues& values) { write(encoder.history(values)); }, progress);
  write(encoder.summary());
  // Without an end: the run goes on, or nobody knows how it ended.
  if (run.state != "running" && run.state != "lost")
    write(encoder.exit(run.exit_code.value_or(run.state == "finished" ? 0 : 1),
                       run.end_s.value_or(run.facts.start_s)));
  file.publish();
  return target;
}

}  // namespace kintsugi
