// The files of run directories, as the dashboard and reports read them.
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_members.h"
#include "report/prometheus.h"
#include "report/runs/run_index.h"
#include "report/runs/run_view.h"
#include "report/runs/series_view.h"
#include "support/parser_lists.h"
#include "support/prometheus_parser.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

const char* const kMetricLines =
    "{\"step\":1,\"seq\":0,\"tokens\":64,\"loss\":9.5,\"grad_norm\":null,\"lr\":0.001,"
    "\"step_time_s\":0.5,\"tokens_per_s\":128,\"time_s\":1772366400.25,\"energy_j\":12.5,"
    "\"energy_scope\":\"node\",\"energy_since_launch\":{\"node\":{\"j\":3,\"covered_s\":1}}}\n"
    "{\"step\":2,\"seq\":1,\"tokens\":128,\"loss\":8.5,\"skipped\":\"not finite\",\"valid_loss\":8,"
    "\"valid\":{\"fi\":{\"loss\":2.5,\"bits_per_byte\":null},\"a\\\"b\":{\"loss\":3}},"
    "\"eval\":[{\"task\":\"arc\",\"metric\":\"acc\",\"value\":0.5,\"stderr\":null}],"
    "\"straggler\":{\"rank\":3,\"node\":\"n7\",\"ratio\":1.25}}\n"
    "{\"step\":2,\"loss\":-1e-3}\n{\"step\":3,\"loss\":1E+2}\n";

// What is written must be JSON, whatever was read.
void check_json(const std::string& text) {
  if (nlohmann::json::parse(text, nullptr, false).is_discarded()) failure("not JSON: {}", text);
}

FileParser step_series() {
  return {
      .name = "step-series",
      .samples = {{{"metrics.jsonl", kMetricLines}},
                  {{"metrics.jsonl", "{\"step\": 1, \"loss\": 2}\n{\"step\": 9}\n"}}},
      .damaged = {},
      .read =
          [](const fs::path& directory) {
            StepSeries series(directory / "metrics.jsonl", 64 << 10);
            series.update();
            for (const SeriesAxis axis : {SeriesAxis::Step, SeriesAxis::Tokens, SeriesAxis::Hours})
              check_json(series_json(series, series.keys(), {.axis = axis, .max_points = 2}));
            check_json(new_rows_json(series, "run", 0, 2));
            for (std::size_t row = 1; row < series.rows(); ++row)
              if (series.step(row) <= series.step(row - 1)) failure("steps do not ascend");
            StepSeries tail = StepSeries::of_tail(directory / "metrics.jsonl", 100);
            tail.update();
            check_json(new_rows_json(tail, "run", 0, 2));
          },
      .refuses = false};
}

FileParser run_view() {
  return {.name = "run-view",
          .samples = {{{"run/status.json",
                        "{\"state\":\"running\",\"step\":2,\"pid\":7,\"attempt\":1,\"goodput\":"
                        "{\"fraction\":0.5},\"message\":\"m\"}"},
                       {"run/config.yaml", "optimizer: {lr: 0.1, betas: [0.9, 0.95]}\n"},
                       {"run/metrics.jsonl", kMetricLines},
                       {"run/goodput.jsonl",
                        "{\"event\":\"start\",\"time_s\":110,\"step\":0,\"launched_s\":100}\n"
                        "{\"event\":\"progress\",\"time_s\":170,\"step\":6,\"steps_s\":50}\n"
                        "{\"event\":\"start\",\"time_s\":260,\"step\":6,\"launched_s\":250}\n"},
                       {"run/layout.json",
                        "{\"ranks\":2,\"nodes\":[\"n1\"],\"node_of_rank\":[0,0],\"memory\":{},"
                        "\"model\":{\"family\":\"llama\",\"parameters\":1000}}"},
                       {"run/ranks.json", "{\"step\":5,\"seconds\":[1,2]}"},
                       {"run/experts.jsonl",
                        "{\"step\":10,\"layers\":[{\"layer\":1,\"max_load\":1.5,\"entropy\":0.9,"
                        "\"idle\":0,\"choices\":[3.0,1.0]}]}\n"
                        "{\"step\":20,\"layers\":[{\"layer\":1,\"max_load\":1,\"entropy\":1,"
                        "\"idle\":0,\"choices\":[2.0,2.0]}]}\n"},
                       {"run/samples.jsonl", "{\"step\":1,\"prompt\":\"p\",\"text\":\"t\"}\n"},
                       {"run/events.jsonl", "{\"time_s\":1,\"event\":\"spike\",\"step\":4}\n"},
                       {"run/energy.json",
                        "{\"levels\":{\"node\":{\"joules\":5,\"joules_per_token\":1,"
                        "\"time_measured\":1}}}"},
                       {"run/log.txt", "one\ntwo\n"}}},
          .damaged = {},
          .read =
              [](const fs::path& directory) {
                RunIndex index({directory});
                index.search();
                SeriesCache cache;
                for (const auto& [id, run] : index.runs()) {
                  check_json(compact_json(run_json(run, cache)));
                  check_json(compact_json(compare_json({&run, &run})));
                }
              },
          .refuses = false};
}

FileParser prometheus_files() {
  return {.name = "prometheus-merge",
          .samples = {{{"metrics.prom",
                        "# HELP kintsugi_loss Loss.\n# TYPE kintsugi_loss gauge\n"
                        "kintsugi_loss{run=\"a\\\"b\",set=\"x\"} 2.5\n"
                        "# HELP kintsugi_step_total Steps.\n# TYPE kintsugi_step_total counter\n"
                        "kintsugi_step_total 7\n"}}},
          .damaged = {},
          .read =
              [](const fs::path& directory) {
                PrometheusParser::parse(
                    merged_prometheus({directory / "metrics.prom"}, {{"running", 1}}));
              },
          .refuses = false};
}

}  // namespace

std::vector<FileParser> run_parsers() { return {step_series(), run_view(), prometheus_files()}; }

}  // namespace kintsugi
