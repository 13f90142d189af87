#include "plan/search/scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/units.h"
#include "parallel/layout.h"

namespace kintsugi {

std::vector<ScalingRow> scaling(const PlanJob& job, const Machine& machine,
                                const SearchLimits& limits, ScalingKind kind,
                                const std::vector<int>& gpus, double tokens,
                                const ProgressCall& progress) {
  std::vector<ScalingRow> rows;
  std::int64_t done = 0;
  for (const int count : gpus) {
    if (progress) progress(done++, std::ssize(gpus));
    PlanJob scaled = job;
    if (kind == ScalingKind::Weak) scaled.batch = job.batch * count / gpus.front();
    SearchLimits row_limits = limits;
    row_limits.gpus = count;
    row_limits.best = 1;
    Planner planner(scaled, machine);
    const SearchResult result = search_layouts(planner, row_limits);
    if (result.best.empty()) continue;
    ScalingRow& row = rows.emplace_back(ScalingRow{count, scaled.batch, result.best.front(), 1});
    row.accumulation = micro_batches_per_step(row.evaluation.layout, scaled.batch);
    row.interval = interval_of(planner, row.evaluation);
    row.efficiency =
        row.evaluation.tokens_per_s_per_gpu / rows.front().evaluation.tokens_per_s_per_gpu;
    if (tokens > 0) row.run = footprint_of(row.evaluation, scaled, machine, tokens);
  }
  return rows;
}

namespace {

// Days, MWh and cost of a run.
std::string run_cells(const RunFootprint& run) {
  return fmt::format("{:>9.4g}{:>10.4g}{}", run.days, highest_mwh(run.energy),
                     run.euro ? fmt::format("{:>11}", format_count(*run.euro)) : "");
}

}  // namespace

std::string scaling_table(const std::vector<ScalingRow>& rows, double eur_per_gpu_hour) {
  const bool priced = eur_per_gpu_hour >= 0, runs = !rows.empty() && rows.front().run;
  std::string text =
      fmt::format("{:>7}{:>8}{:>7}{:>10}{:>14} {:<5}{:>12}{}{}{}  {}\n", "GPUs", "batch", "accum",
                  "step s", "tokens/s/GPU", "±", "efficiency", priced ? " EUR/Btokens" : "",
                  runs ? fmt::format("{:>9}{:>10}", "days", "MWh") : "",
                  runs && priced ? fmt::format("{:>11}", "EUR") : "", "layout");
  for (const ScalingRow& row : rows) {
    const double rate = row.evaluation.tokens_per_s_per_gpu;
    text +=
        fmt::format("{:>7}{:>8}{:>7}{:>10.3f}{:>14.1f} {:<5}{:>11.1f}%{}{}  {}\n", row.gpus,
                    row.batch, row.accumulation, row.evaluation.step_s, rate,
                    row.interval.short_text(), 100 * row.efficiency,
                    priced ? fmt::format("{:>12.2f}", 1e9 / rate / 3600 * eur_per_gpu_hour) : "",
                    row.run ? run_cells(*row.run) : "", to_string(row.evaluation));
  }
  return text;
}

std::string efficiency_note(const std::vector<ScalingRow>& rows) {
  // What the table prints as more than 100.0 %.
  const auto above = [](const ScalingRow& row) { return row.efficiency >= 1.0005; };
  if (std::none_of(rows.begin(), rows.end(), above)) return "";
  const Evaluation& first = rows.front().evaluation;
  std::string needs = first.offload.on ? "offload" : "";
  if (first.layout.recompute == Recompute::Full)
    needs += needs.empty() ? "full recomputation" : " and full recomputation";
  if (needs.empty()) return "";
  return fmt::format(
      "Efficiencies above 100 %: they are relative to {}, whose memory needs {}, which costs "
      "time.\n",
      format_number(rows.front().gpus, "GPU"), needs);
}

std::string scaling_svg(const std::vector<ScalingRow>& rows, const std::string& title) {
  constexpr double kWidth = 640, kHeight = 400, kLeft = 60, kTop = 40, kRight = 20, kBottom = 50;
  if (rows.empty()) return "<svg xmlns=\"http://www.w3.org/2000/svg\"/>\n";
  const double low = std::log2(rows.front().gpus), high = std::log2(rows.back().gpus);
  double top = 1;
  for (const ScalingRow& row : rows) top = std::max(top, row.efficiency);
  const auto x = [&](int gpus) {
    const double fraction = high > low ? (std::log2(gpus) - low) / (high - low) : 0.5;
    return kLeft + fraction * (kWidth - kLeft - kRight);
  };
  const auto y = [&](double efficiency) {
    return kHeight - kBottom - efficiency / (1.05 * top) * (kHeight - kTop - kBottom);
  };
  std::string escaped;
  for (const char c : title) escaped += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"22\" font-size=\"15\">{3}</text>\n",
      kWidth, kHeight, kLeft, escaped);
  for (int percent = 0; percent <= 100; percent += 20)
    svg += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{} %</text>\n",
        kLeft, kWidth - kRight, y(percent / 100.0), y(percent / 100.0), kLeft - 6,
        y(percent / 100.0) + 4, percent);
  std::string points;
  for (const ScalingRow& row : rows) {
    points += fmt::format("{:.1f},{:.1f} ", x(row.gpus), y(row.efficiency));
    svg += fmt::format(
        "<circle cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"4\" fill=\"#1f5fa8\"><title>{6}: {3:.1f} %, "
        "{4}</title></circle><text x=\"{0:.1f}\" y=\"{5}\" text-anchor=\"middle\">{2}</text>\n",
        x(row.gpus), y(row.efficiency), row.gpus, 100 * row.efficiency, to_string(row.evaluation),
        kHeight - kBottom + 18, format_number(row.gpus, "GPU"));
  }
  return svg + fmt::format(
                   "<polyline points=\"{}\" fill=\"none\" stroke=\"#1f5fa8\" stroke-width=\"2\"/>\n"
                   "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">GPUs</text>\n</svg>\n",
                   points, (kLeft + kWidth - kRight) / 2, kHeight - 12);
}

}  // namespace kintsugi
