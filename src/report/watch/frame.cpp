#include "report/watch/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/log.h"
#include "core/units.h"
#include "report/watch/canvas.h"

namespace kintsugi {
namespace {

constexpr int kPanelColumns = 48;  // at least, beside another panel
constexpr int kPanelRows = 11;     // at least: the figures and a small curve
constexpr int kMostPlotRows = 16;  // more adds no detail that can be read
constexpr int kMostLogRows = 8;
constexpr int kGap = 2;  // columns between panels
constexpr const char* kUnknown = "–";

CellStyle style_of(const WatchedRun& watched) {
  const RunSummary& run = watched.summary;
  if (run.state == "failed" || run.state == "diverged" || run.state == "lost")
    return CellStyle::Bad;
  if (run.stalled || run.state == "stopped" || run.state == "unknown") return CellStyle::Warning;
  return CellStyle::Good;
}

std::string state_text(const WatchedRun& watched) {
  const RunSummary& run = watched.summary;
  std::string text = run.stalled ? "stalled" : run.state;
  if (!run.reason.empty() && run.reason != run.state) text += fmt::format(" ({})", run.reason);
  if (watched.silent_s && (run.stalled || run.state == "lost"))
    text += fmt::format(", silent for {}", format_duration(*watched.silent_s));
  return text;
}

std::string number(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : kUnknown;
}

std::string rate_text(const RunSummary& run) {
  return run.tokens_per_s ? format_count(*run.tokens_per_s) : kUnknown;
}

std::string mfu_text(const RunSummary& run) {
  return run.mfu ? fmt::format("{:.1f} %", 100 * *run.mfu) : kUnknown;
}

std::string progress_text(const WatchedRun& watched) {
  const RunSummary& run = watched.summary;
  std::string text =
      fmt::format("step {}/{}", number(run.step, "{:.0f}"), number(run.total_steps, "{:.0f}"));
  if (!run.stage.empty()) text += "  " + run.stage;
  if (!watched.ended() && run.eta_s) text += "  ETA " + format_duration(*run.eta_s);
  return text;
}

std::string norm_text(const WatchedRun& run) {
  if (run.gradient_norms.empty()) return kUnknown;
  const double last = run.gradient_norms.back();
  return std::isfinite(last) ? fmt::format("{:.3f}", last) : "not finite";
}

// Fills rows of a panel from top to bottom.
class PanelWriter {
 public:
  PanelWriter(Canvas& canvas, const CanvasArea& area, const FrameOptions& options)
      : canvas_(canvas), area_(area), options_(options) {}

  void write(const WatchedRun& run, bool chosen) {
    const RunSummary& summary = run.summary;
    title(run, chosen);
    progress(run);
    line(fmt::format("loss {}  validation {}  lr {}", number(summary.loss, "{:.4f}"),
                     number(summary.valid_loss, "{:.4f}"), number(summary.lr, "{:.2e}")));
    line(fmt::format("{} tokens/s  MFU {}  J/token {}", rate_text(summary), mfu_text(summary),
                     number(summary.j_per_token, "{:.3g}")));
    gradient_norm(run);
    goodput(run);
    if (run.straggler)
      line(fmt::format("slowest rank {} on {}: {:.2f} times the median", run.straggler->rank,
                       run.straggler->node, run.straggler->ratio),
           CellStyle::Warning);
    if (!summary.message.empty()) line(summary.message, style_of(run));
    curve(run);
  }

 private:
  int end() const { return area_.column + area_.columns; }
  int rows_left() const { return area_.row + area_.rows - row_; }

  void line(std::string_view text, CellStyle style = {}) {
    if (rows_left() > 0) canvas_.text(row_++, area_.column, end(), text, style);
  }

  void title(const WatchedRun& run, bool chosen) {
    const std::string state = state_text(run);
    const int state_column =
        std::max(area_.column + area_.columns / 3, end() - display_width(state));
    canvas_.text(row_, area_.column, state_column - 1, run.summary.name,
                 chosen ? CellStyle::Chosen : CellStyle::Bold);
    canvas_.text(row_++, state_column, end(), state, style_of(run));
  }

  void progress(const WatchedRun& run) {
    if (rows_left() <= 0) return;
    const std::string text = progress_text(run);
    const int bar = std::min(area_.columns - display_width(text) - 2, 40);
    const double total = std::max(run.summary.total_steps.value_or(0), 0.0),
                 done = std::clamp(run.summary.step.value_or(0), 0.0, total);
    if (bar >= 8 && total > 0) {
      draw_bar(canvas_, row_, area_.column, bar,
               {{done, U'█', style_of(run)}, {total - done, U'░', CellStyle::Dim}});
      canvas_.text(row_++, area_.column + bar + 2, end(), text);
    } else {
      line(text);
    }
  }

  void gradient_norm(const WatchedRun& run) {
    if (rows_left() <= 0) return;
    const int column =
        canvas_.text(row_, area_.column, end(), fmt::format("norm {}  ", norm_text(run)));
    canvas_.text(row_++, column, end(), sparkline(run.gradient_norms, end() - column),
                 CellStyle::Curve);
  }

  void goodput(const WatchedRun& run) {
    const std::optional<double> share = run.goodput();
    if (!share || rows_left() <= 0) return;
    const std::string text = fmt::format("goodput {:.1f} %  ", 100 * *share);
    std::string attempts =
        "  " +
        format_number(static_cast<std::int64_t>(run.summary.attempts.value_or(1)), "attempt");
    const int column = canvas_.text(row_, area_.column, end(), text);
    int bar = std::min(end() - column - display_width(attempts), 40);
    if (bar < 8) {
      attempts.clear();
      bar = end() - column;
    }
    draw_bar(canvas_, row_, column, bar, goodput_parts(run));
    canvas_.text(row_++, column + bar, end(), attempts);
    goodput_legend(run);
  }

  // What took the rest, the largest first.
  void goodput_legend(const WatchedRun& run) {
    std::vector<WatchedRun::TimeShare> rest;
    for (const WatchedRun::TimeShare& one : run.time)
      if (one.category != "productive" && one.seconds > 0) rest.push_back(one);
    std::stable_sort(rest.begin(), rest.end(),
                     [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
    std::string text;
    for (const WatchedRun::TimeShare& one : rest) {
      const std::string part = fmt::format("{}{} {}", text.empty() ? "  " : ", ", one.category,
                                           format_duration(one.seconds));
      if (display_width(text + part) > area_.columns) break;
      text += part;
    }
    if (!text.empty()) line(text, CellStyle::Dim);
  }

  static std::vector<BarAmount> goodput_parts(const WatchedRun& run) {
    std::vector<BarAmount> parts;
    for (const WatchedRun::TimeShare& one : run.time) {
      const bool lost = one.category == "recomputed" || one.category == "down";
      if (one.category == "productive")
        parts.push_back({one.seconds, U'█', CellStyle::Good});
      else
        parts.push_back(
            {one.seconds, lost ? U'▓' : U'▒', lost ? CellStyle::Bad : CellStyle::Warning});
    }
    return parts;
  }

  void curve(const WatchedRun& run) {
    const CanvasArea area{.row = row_,
                          .column = area_.column,
                          .columns = area_.columns,
                          .rows = std::min(rows_left(), kMostPlotRows)};
    draw_plot(canvas_, area,
              {{.points = run.loss_curve, .style = CellStyle::Curve},
               {.points = run.valid_curve, .style = CellStyle::Mark, .joined = false}},
              options_.logarithmic);
  }

  Canvas& canvas_;
  CanvasArea area_;
  const FrameOptions& options_;
  int row_ = area_.row;
};

// The runs around the chosen one, a line for each. The last line also says how many do not fit.
void draw_list(Canvas& canvas, const std::vector<WatchedRun>& runs, std::size_t chosen, int rows) {
  const auto shown = static_cast<std::size_t>(rows);
  const std::size_t first = std::min(chosen > shown / 2 ? chosen - shown / 2 : 0,
                                     runs.size() - std::min(shown, runs.size()));
  for (std::size_t i = 0; i < shown && first + i < runs.size(); ++i) {
    const WatchedRun& run = runs[first + i];
    const bool last = i + 1 == shown && runs.size() > shown;
    const std::string more = last ? fmt::format("  +{} more", runs.size() - shown) : "";
    const int end = canvas.columns() - display_width(more);
    canvas.text(static_cast<int>(i), 0, end, watch_line(run),
                first + i == chosen ? CellStyle::Chosen : style_of(run));
    canvas.text(static_cast<int>(i), end, canvas.columns(), more, CellStyle::Dim);
  }
}

void draw_log(Canvas& canvas, const WatchedRun& run, int rows) {
  const auto count = std::min(run.log.size(), static_cast<std::size_t>(std::max(rows, 0)));
  int row = canvas.rows() - static_cast<int>(count);
  for (auto line = run.log.end() - static_cast<std::ptrdiff_t>(count); line != run.log.end();
       ++line)
    canvas.text(row++, 0, canvas.columns(), *line, CellStyle::Dim);
}

}  // namespace

std::optional<double> WatchedRun::goodput() const {
  double productive = 0, all = 0;
  for (const TimeShare& one : time) {
    all += one.seconds;
    if (one.category == "productive") productive = one.seconds;
  }
  return all > 0 ? std::optional(productive / all) : std::nullopt;
}

FrameLayout lay_out(std::size_t runs, int columns, int rows, std::size_t log_lines) {
  FrameLayout layout;
  const int count = static_cast<int>(std::clamp<std::size_t>(runs, 1, 10000));
  const int most_log = static_cast<int>(std::min<std::size_t>(log_lines, kMostLogRows));
  layout.across = std::clamp((columns + kGap) / (kPanelColumns + kGap), 1, count);
  layout.down = (count + layout.across - 1) / layout.across;
  layout.across = (count + layout.down - 1) / layout.down;  // no empty column
  if (layout.down > 1 && rows < kPanelRows * layout.down) {
    layout.across = layout.down = 1;
    layout.list_rows = std::clamp(rows - kPanelRows, 1, std::min(count, std::max(rows / 3, 1)));
  }
  const int left = std::max(rows - layout.list_rows, 0);
  // Curves and log share what the figures leave.
  layout.log_rows = std::clamp((left - kPanelRows * layout.down) / 2, 0, most_log);
  layout.panel_rows = (left - layout.log_rows) / layout.down;
  return layout;
}

std::vector<std::size_t> runs_with_panel(std::size_t runs, const FrameOptions& options) {
  if (runs == 0) return {};
  if (!lay_out(runs, options.columns, options.rows, 0).shows_all())
    return {std::min(options.chosen, runs - 1)};
  std::vector<std::size_t> all(runs);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

std::vector<std::string> watch_frame(const std::vector<WatchedRun>& runs,
                                     const FrameOptions& options) {
  Canvas canvas(options.columns, options.rows);
  if (runs.empty()) {
    canvas.text(0, 0, options.columns, "no run yet");
    return canvas.lines(options.colours);
  }
  const std::size_t chosen = std::min(options.chosen, runs.size() - 1);
  const FrameLayout layout =
      lay_out(runs.size(), options.columns, options.rows, runs[chosen].log.size());
  const std::vector<std::size_t> panels = runs_with_panel(runs.size(), options);
  if (!layout.shows_all()) draw_list(canvas, runs, chosen, layout.list_rows);
  const int width = (options.columns - kGap * (layout.across - 1)) / layout.across;
  for (std::size_t i = 0; i < panels.size(); ++i) {
    const int across = static_cast<int>(i) % layout.across,
              down = static_cast<int>(i) / layout.across;
    const CanvasArea area{.row = layout.list_rows + down * layout.panel_rows,
                          .column = across * (width + kGap),
                          .columns = width,
                          .rows = layout.panel_rows};
    PanelWriter(canvas, area, options)
        .write(runs[panels[i]], runs.size() > 1 && panels[i] == chosen);
  }
  draw_log(canvas, runs[chosen], layout.log_rows);
  return canvas.lines(options.colours);
}

std::string watch_line(const WatchedRun& run) {
  const RunSummary& summary = run.summary;
  std::string text = fmt::format("{}  {}  {}", summary.name, state_text(run), progress_text(run));
  if (summary.loss) text += fmt::format("  loss {:.4f}", *summary.loss);
  if (summary.valid_loss) text += fmt::format("  validation {:.4f}", *summary.valid_loss);
  if (summary.tokens_per_s) text += fmt::format("  {} tokens/s", rate_text(summary));
  if (summary.mfu) text += "  MFU " + mfu_text(summary);
  if (summary.j_per_token) text += fmt::format("  J/token {:.3g}", *summary.j_per_token);
  if (!summary.message.empty()) text += "  " + summary.message;
  text = printable(text);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace kintsugi
