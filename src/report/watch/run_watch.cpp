#include "report/watch/run_watch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/json_members.h"
#include "report/runs/goodput_timeline.h"
#include "report/runs/run_file.h"
#include "report/runs/run_view.h"

namespace kintsugi {
namespace {

constexpr std::size_t kCurvePoints = 800;     // two dots for each column of a wide terminal
constexpr std::size_t kNormSteps = 400;       // one for each column
constexpr std::size_t kMostStatus = 1 << 20;  // bytes

// Each point is a mean of neighbours. The first of them is resolved further, into single steps if
// possible: with logarithmic axes most of the curve is there.
std::vector<std::pair<double, double>> curve_of(const StepSeries& series, const std::string& key) {
  std::vector<std::pair<double, double>> curve;
  double end = std::numeric_limits<double>::infinity();
  for (int level = 0; level < 4; ++level) {
    const SeriesPoints points = series.points(key, {.to = end, .max_points = kCurvePoints});
    std::vector<std::pair<double, double>> earlier;
    for (std::size_t i = 0; i < points.x.size(); ++i)
      if (points.x[i] < end) earlier.emplace_back(points.x[i], static_cast<double>(points.y[i]));
    if (earlier.empty()) break;
    end = earlier.front().first;
    curve.insert(curve.begin(), earlier.begin(), earlier.end());
    if (points.low.empty()) break;
  }
  return curve;
}

std::vector<double> last_norms(const StepSeries& series) {
  std::vector<double> norms;
  for (std::size_t row = series.rows() - std::min(series.rows(), kNormSteps); row < series.rows();
       ++row)
    if (const float norm = series.value("grad_norm", row); !std::isnan(norm))
      norms.push_back(static_cast<double>(norm));
  return norms;
}

std::optional<WatchedRun::Straggler> straggler_of(const std::filesystem::path& run) {
  const nlohmann::ordered_json status = read_json_object(run / "status.json", kMostStatus);
  const nlohmann::ordered_json& straggler = json_at(status, "straggler");
  const auto rank = number_at(straggler, "rank"), ratio = number_at(straggler, "ratio");
  if (!rank || !ratio) return {};
  return WatchedRun::Straggler{std::to_string(count_at(straggler, "rank")),
                               text_at(straggler, "node"), *ratio};
}

std::vector<WatchedRun::TimeShare> time_of(const std::filesystem::path& run) {
  const GoodputAmounts seconds = read_goodput_history(run).goodput.seconds();
  std::vector<WatchedRun::TimeShare> shares;
  for (const GoodputCategory& one : goodput_categories())
    shares.push_back({one.name, seconds.*one.amount});
  return shares;
}

}  // namespace

RunWatch::RunWatch(const std::vector<std::filesystem::path>& folders, Surroundings machine)
    : machine_(machine), index_(folders, std::move(machine)) {}

std::vector<WatchedRun> RunWatch::look() {
  index_.refresh();
  std::vector<WatchedRun> runs;
  for (const auto& [id, reader] : index_.runs()) {
    runs.push_back({.summary = reader.summary()});
    if (const auto updated_s = reader.summary().updated_s)
      runs.back().silent_s = std::max(0.0, machine_.now_s() - *updated_s);
  }
  std::stable_partition(runs.begin(), runs.end(),
                        [](const WatchedRun& run) { return !run.ended(); });
  return runs;
}

void RunWatch::read_details(WatchedRun& run) {
  const SummaryReader* const reader = index_.find(run.summary.id);
  if (reader == nullptr) return;
  const std::filesystem::path& directory = reader->directory();
  series_.with(directory, [&](const StepSeries& series) {
    run.loss_curve = curve_of(series, "loss");
    run.valid_curve = curve_of(series, "valid_loss");
    run.gradient_norms = last_norms(series);
  });
  run.time = time_of(directory);
  run.straggler = straggler_of(directory);
  run.log = read_log_tail(directory).lines;
}

}  // namespace kintsugi
