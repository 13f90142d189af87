#include "report/runs/run_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "core/error.h"
#include "core/json_members.h"
#include "core/log.h"
#include "core/statistics.h"
#include "report/runs/run_file.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using StatusJson = nlohmann::ordered_json;

constexpr std::size_t kRecentMetrics = 256 << 10;  // bytes: some hundred steps
constexpr std::size_t kMostStatus = 1 << 20;       // bytes

void read_status_file(const fs::path& run_dir, RunStatus& status) {
  const StatusJson json = read_json_object(resolved(run_dir) / "status.json", kMostStatus);
  if (!json.is_object()) return;
  status.state = text_at(json, "state");
  status.step = count_at(json, "step");
  status.total_steps = count_at(json, "total_steps");
  status.loss = number_at(json, "loss");
  status.valid_loss = number_at(json, "valid_loss");
  status.tokens_per_s = number_at(json, "tokens_per_s");
  status.eta_s = number_at(json, "eta_s");
  status.goodput = number_at(json_at(json, "goodput"), "fraction");
  if (json.contains("attempt")) status.attempts = count_at(json, "attempt");
  status.updated = text_at(json, "updated");
  status.reason = text_at(json, "message");
  if (status.reason.empty()) status.reason = text_at(json, "reason");
}

void read_metrics(const fs::path& run_dir, RunStatus& status) {
  std::vector<double> rates, mfus;
  double joule = 0, tokens = 0;
  bool measured = true;
  std::optional<double> last_tokens;
  for (const std::string& line :
       read_tail(resolved(run_dir) / "metrics.jsonl", kRecentMetrics).lines) {
    const auto parsed = parse_untrusted_json(line);
    if (!parsed || !parsed->is_object()) continue;
    const StatusJson& json = *parsed;
    if (const auto loss = number_at(json, "loss")) status.loss = loss;
    if (const auto valid = number_at(json, "valid_loss")) status.valid_loss = valid;
    if (const auto rate = number_at(json, "tokens_per_s")) rates.push_back(*rate);
    if (const auto mfu = number_at(json, "mfu")) mfus.push_back(*mfu);
    const auto now = number_at(json, "tokens"), energy = number_at(json, "energy_j");
    measured = measured && energy;
    if (last_tokens && now && energy && *now > *last_tokens) {
      joule += *energy;
      tokens += *now - *last_tokens;
    }
    last_tokens = now;
  }
  if (!rates.empty()) status.tokens_per_s = median(rates);
  if (!mfus.empty()) status.mfu = median(mfus);
  if (measured && tokens > 0) status.joule_per_token = joule / tokens;
}

// What the exit code says where status.json does not know the end.
std::string reason_of(const RunStatus& status) {
  if (!status.exit_code || *status.exit_code == 0) return status.reason;
  return fmt::format("{}{}exit code {}", status.reason, status.reason.empty() ? "" : ", ",
                     *status.exit_code);
}

}  // namespace

RunStatus read_run_status(const fs::path& run_dir) {
  RunStatus status;
  read_status_file(run_dir, status);
  read_metrics(run_dir, status);
  status.exit_code = read_exit_code(run_dir);
  return status;
}

std::optional<int> read_exit_code(const fs::path& run_dir) {
  std::istringstream code(read_run_file(resolved(run_dir) / "launch" / "exit_code", 64).text);
  if (int value = 0; code >> value) return value;
  return {};
}

std::vector<CollectedRun> collect_runs(const fs::path& directory) {
  std::vector<CollectedRun> runs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const fs::path path = entry.path();
    std::error_code ignored;
    if (fs::exists(path / "status.json", ignored) ||
        fs::exists(path / "launch" / "job.json", ignored))
      runs.push_back({printable(path.filename().string()), read_run_status(path)});
  }
  if (error) user_error("cannot read {}: {}", directory.string(), error.message());
  if (runs.empty())
    user_error("{} has no run directories: give the run.dir of a matrix", directory.string());
  std::sort(runs.begin(), runs.end(),
            [](const CollectedRun& a, const CollectedRun& b) { return a.name < b.name; });
  return runs;
}

Table table_of(const std::vector<CollectedRun>& runs) {
  Table table(
      {Column::text("run"), Column::text("state"), Column::number("step"), Column::number("steps"),
       Column::number("loss", "", "{:.4f}"), Column::number("valid_loss", "", "{:.4f}"),
       Column::number("tokens_s", "", "{:.0f}"), Column::number("mfu", "", "{:.4f}"),
       Column::number("J/token", "", "{:.4g}"), Column::text("reason")},
      "");
  for (const auto& [name, s] : runs)
    table.add({name,
               !s.state.empty() ? s.state
               : s.exit_code    ? "failed"
                                : "not started",
               s.step, s.total_steps, s.loss, s.valid_loss, s.tokens_per_s, s.mfu,
               s.joule_per_token, reason_of(s)});
  return table;
}

}  // namespace kintsugi
