// The dashboard's page in a browser, with the real server and runs that grow.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "core/file.h"
#include "http/http_server.h"
#include "http/listener.h"
#include "report/dashboard/dashboard_service.h"
#include "report/page/page.h"
#include "support/browser.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr double kTokensPerStep = 1024;

// Losses that the test can compute again.
double loss_of(double step, double offset) { return offset + 4 / (1 + step / 100); }

std::string metrics_line(int step, double offset) {
  return nlohmann::json{{"step", step},
                        {"seq", step},
                        {"tokens", kTokensPerStep * step},
                        {"loss", loss_of(step, offset)},
                        {"lr", 0.001},
                        {"step_time_s", 0.5}}
             .dump() +
         "\n";
}

struct WrittenRun {
  std::string state = "running";
  int steps = 300;
  double offset = 1;
  std::string lr = "0.001";
  std::string message = {};
  std::string log = "step 1\n";
};

void append(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::app) << text;
}

void write_run(const fs::path& directory, const WrittenRun& run) {
  fs::create_directories(directory);
  std::ofstream metrics(directory / "metrics.jsonl");
  for (int step = 1; step <= run.steps; ++step) metrics << metrics_line(step, run.offset);
  metrics.close();
  append(directory / "config.yaml", "optimizer:\n  lr: " + run.lr + "\ntrain:\n  steps: 1000\n");
  append(directory / "log.txt", run.log);
  append(directory / "status.json", nlohmann::json{{"state", run.state},
                                                   {"step", run.steps},
                                                   {"total_steps", 1000},
                                                   {"message", run.message}}
                                        .dump());
}

class DashboardInBrowser : public testing::Test {
 protected:
  void SetUp() override {
    if (!Browser::installed())
      GTEST_SKIP()
          << "chromium and chromedriver are not installed (Debian: chromium, chromium-driver)";
  }
  void TearDown() override {
    if (!HasFailure() || !browser_) return;
    const fs::path picture = fs::path(testing::TempDir()) / "dashboard-failure.png";
    browser_->screenshot(picture);
    std::cerr << "what the browser showed: " << picture << "\n";
  }
  // After the runs are written.
  void serve(const std::string& token = {}) {
    start_server(token, 0);
    const int free_port = HttpListener("127.0.0.1", 0).port();
    browser_ = std::make_unique<Browser>(free_port);
    browser_->set_window(1400, 1000);
  }
  void start_server(const std::string& token, int port) {
    service_ = std::make_unique<DashboardService>(DashboardOptions{
        .folders = {directory_.path() / "runs"},
        .token = token,
        .profile_json = [this](const fs::path& file) { return profiles_.at(file.filename()); },
        .interval_s = 0.1});
    server_ = std::make_unique<HttpServer>(*service_, HttpServerOptions{.port = port});
  }
  std::string address() const { return "http://" + server_->address() + "/"; }
  nlohmann::json evaluate(const std::string& expression) {
    return browser_->script("return " + expression);
  }
  nlohmann::json chart(const std::string& id) { return evaluate("kintsugiPage.charts." + id); }
  bool wait_for(const std::string& expression) { return browser_->wait_for(expression); }
  // Waits until the curves of these runs are drawn in the panel of the loss.
  bool wait_for_runs(const std::string& ids) {
    return wait_for(
        "(() => { const chart = kintsugiPage.charts.loss; if (!chart) return false;"
        " const lengths = chart.series.map(s => s.x.length);"
        " return lengths.every(Boolean) && chart.points == lengths.reduce((a, b) => a + b, 0) &&"
        " chart.range && chart.series.map(s => s.id).join() == '" +
        ids + "'; })()");
  }
  // Drags over the plot of the loss, between these fractions of its width.
  void zoom(double from, double to) {
    const auto box = evaluate(
        "(() => { const plot = document.querySelector('[data-plot=loss]');"
        " plot.scrollIntoView({block: 'center'});"
        " const box = plot.getBoundingClientRect(); return [box.left, box.top, box.width, "
        "box.height]; })()");
    const auto at = [&](double share) {
      return static_cast<int>(box[0].get<double>() + share * box[2].get<double>());
    };
    const int y = static_cast<int>(box[1].get<double>() + box[3].get<double>() / 2);
    browser_->drag(at(from), y, at(to), y);
  }
  // Only the page's own server was asked.
  void expect_no_other_sources(const std::string& own) {
    const auto sources =
        evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)");
    for (const auto& source : sources)
      EXPECT_THAT(source.get<std::string>(), AnyOf(StartsWith(own), StartsWith("data:")));
  }
  // Pixels of the loss panel that are not transparent.
  int drawn_pixels() {
    return evaluate(
        "(() => { const canvas = document.querySelector('[data-plot=loss] canvas');"
        " const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, "
        "canvas.height).data;"
        " let count = 0; for (let i = 3; i < data.length; i += 4) count += data[i] > 0;"
        " return count; })()");
  }

  TemporaryDirectory directory_;
  std::map<std::string, std::string> profiles_;  // by the name of the file
  std::unique_ptr<DashboardService> service_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<Browser> browser_;
};

// One test for everything on small runs, because a browser takes seconds to start.
TEST_F(DashboardInBrowser, ShowsRunsWhileTheyTrain) {
  const fs::path runs = directory_.path() / "runs";
  const std::string attack = "<img src=x onerror=\"document.title='owned'\">";
  write_run(runs / "first", {});
  write_run(runs / "second", {.state = "finished", .offset = 2, .lr = "0.003"});
  write_run(runs / attack, {.state = "failed",
                            .message = "</script><script>document.title='owned'</script>",
                            .log = "</pre>" + attack + "\n"});
  serve("secret");

  // A token is needed; it does not stay in the address.
  browser_->open(address());
  EXPECT_TRUE(wait_for("!document.getElementById('notice').hidden"));
  EXPECT_THAT(evaluate("document.getElementById('notice').textContent").get<std::string>(),
              HasSubstr("token"));
  browser_->open(address() + "?token=secret#runs=first");
  ASSERT_TRUE(wait_for_runs("first"));
  EXPECT_EQ(evaluate("location.search"), "");
  EXPECT_THAT(evaluate("location.href").get<std::string>(), Not(HasSubstr("secret")));

  // The points are those of the file.
  auto series = chart("loss")["series"][0];
  ASSERT_EQ(series["x"].size(), 300u);
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(series["x"][i], i + 1);
    EXPECT_NEAR(series["y"][i].get<double>(), loss_of(i + 1, 1), 1e-5);
  }
  EXPECT_GT(drawn_pixels(), 500);

  // The failed run is marked, and its text is text.
  const std::string row =
      "[...document.querySelectorAll('.run')].find(r => r.dataset.state == 'failed')";
  EXPECT_EQ(evaluate("document.querySelectorAll('.run').length"), 3);
  EXPECT_EQ(evaluate(row + ".querySelector('.name').textContent"), attack);
  EXPECT_EQ(evaluate(row + ".querySelector('.badge').textContent"), "failed");
  EXPECT_THAT(evaluate(row + ".querySelector('.message').textContent").get<std::string>(),
              HasSubstr("</script>"));
  browser_->script(row + ".click()");
  EXPECT_TRUE(wait_for("document.getElementById('main-name').textContent.startsWith('<img')"));
  EXPECT_TRUE(
      wait_for("document.getElementById('log') && "
               "document.getElementById('log').textContent.includes('</pre><img')"));
  EXPECT_EQ(evaluate("document.querySelectorAll('img').length"), 0);
  EXPECT_EQ(evaluate("document.querySelectorAll('script').length"), 2);  // the page's own
  EXPECT_THAT(evaluate("document.title").get<std::string>(), StartsWith("<img"));

  // New lines of the files appear by themselves.
  browser_->script("document.querySelector('[data-run=first] .name').click()");
  ASSERT_TRUE(wait_for_runs("first"));
  ASSERT_TRUE(wait_for("kintsugiPage.live"));
  for (int step = 301; step <= 310; ++step)
    append(runs / "first/metrics.jsonl", metrics_line(step, 1));
  append(runs / "first/log.txt", "step 310 is done\n");
  ASSERT_TRUE(wait_for("kintsugiPage.charts.loss.series[0].x.at(-1) == 310"));
  series = chart("loss")["series"][0];
  EXPECT_EQ(series["x"].size(), 310u);
  EXPECT_NEAR(series["y"][309].get<double>(), loss_of(310, 1), 1e-5);
  EXPECT_TRUE(wait_for("document.getElementById('log').textContent.includes('step 310 is done')"));

  // A hidden tab gives its connection back, and catches up when it is shown.
  const auto show_tab = [&](bool shown) {
    browser_->script(std::string("Object.defineProperty(document, 'hidden', {configurable: true, "
                                 "get: () => ") +
                     (shown ? "false" : "true") +
                     "}); document.dispatchEvent(new Event('visibilitychange'))");
  };
  show_tab(false);
  EXPECT_EQ(evaluate("kintsugiPage.live"), false);
  EXPECT_EQ(evaluate("document.getElementById('connection').textContent"), "paused");
  for (int step = 311; step <= 330; ++step)
    append(runs / "first/metrics.jsonl", metrics_line(step, 1));
  append(runs / "first/log.txt", "step 330 is done\n");
  show_tab(true);
  EXPECT_TRUE(wait_for("kintsugiPage.charts.loss.series[0].x.at(-1) == 330"));
  EXPECT_TRUE(wait_for("kintsugiPage.charts.loss.series[0].x.length == 330"));
  EXPECT_TRUE(wait_for("document.getElementById('log').textContent.includes('step 330 is done')"));
  EXPECT_EQ(evaluate("[...document.querySelectorAll('#log div')].filter(line => "
                     "line.textContent == 'step 310 is done').length"),
            1);

  // Smoothing: each value is the mean of those before with weights 1, w, w², …
  browser_->script(
      "const slider = document.getElementById('smoothing'); slider.value = 50;"
      "slider.dispatchEvent(new Event('input'))");
  ASSERT_TRUE(wait_for(
      "kintsugiPage.charts.loss.series[0].smooth[9] != kintsugiPage.charts.loss.series[0].y[9]"));
  const double weight = std::stod(
      evaluate("new URLSearchParams(location.hash.slice(1)).get('smooth')").get<std::string>());
  EXPECT_GT(weight, 0.5);
  series = chart("loss")["series"][0];
  for (const int at : {0, 1, 9, 329}) {
    double sum = 0, weights = 0;
    for (int i = 0; i <= at; ++i) {
      const double power = std::pow(weight, at - i);
      sum += power * loss_of(i + 1, 1);
      weights += power;
    }
    EXPECT_NEAR(series["smooth"][at].get<double>(), sum / weights, 1e-4) << at;
  }
  EXPECT_NEAR(series["y"][329].get<double>(), loss_of(330, 1), 1e-5) << "the raw curve stays";

  // Other axes.
  browser_->script("document.querySelector('#axis input[value=tokens]').click()");
  EXPECT_TRUE(wait_for("kintsugiPage.charts.loss.series[0].x.at(-1) == 330 * 1024"));
  browser_->script("document.querySelector('#axis input[value=step]').click()");
  EXPECT_TRUE(wait_for("kintsugiPage.charts.loss.series[0].x.at(-1) == 330"));
  browser_->click("log-y");
  EXPECT_TRUE(wait_for("kintsugiPage.charts.loss.logarithmic"));

  // Two runs: their curves together, and the one key that differs.
  browser_->script("document.querySelector('[data-run=second] input').click()");
  ASSERT_TRUE(wait_for_runs("first,second"));
  const auto both = chart("loss")["series"];
  EXPECT_NEAR(both[1]["y"][299].get<double>(), loss_of(300, 2), 1e-5);
  ASSERT_TRUE(wait_for("document.querySelectorAll('#compare-configuration tbody tr').length == 1"));
  EXPECT_EQ(evaluate("[...document.querySelectorAll('#compare-configuration tbody td')].map(c => "
                     "c.textContent).join(' ')"),
            "optimizer.lr 0.001 0.003");
  const std::string shared = evaluate("location.hash");

  // A shared address shows the same.
  browser_->open("about:blank");
  browser_->open(address() + "?token=secret" + shared);
  ASSERT_TRUE(wait_for_runs("first,second"));
  EXPECT_EQ(chart("loss")["logarithmic"], true);
  expect_no_other_sources(address());

  // A lost server is said; the page connects again by itself and catches up.
  const int port = server_->port();
  server_.reset();
  EXPECT_TRUE(wait_for("document.getElementById('connection').dataset.state == 'lost'"));
  for (int step = 331; step <= 350; ++step)
    append(runs / "first/metrics.jsonl", metrics_line(step, 1));
  start_server("secret", port);
  EXPECT_TRUE(wait_for("document.getElementById('connection').dataset.state == 'live'"));
  EXPECT_TRUE(wait_for("kintsugiPage.charts.loss.series[0].x.at(-1) == 350"));
  EXPECT_TRUE(wait_for("kintsugiPage.charts.loss.series[0].x.length == 350"));
}

// The server decimates: what travels and what is drawn does not grow with the run.
TEST_F(DashboardInBrowser, StaysSmallWithAMillionSteps) {
  const fs::path run = directory_.path() / "runs/long";
  write_run(run, {.steps = 0});
  constexpr int kSteps = 1'000'000;
  {
    std::ofstream metrics(run / "metrics.jsonl");
    for (int step = 1; step <= kSteps; ++step)
      metrics << "{\"step\":" << step << ",\"tokens\":" << step * 1024LL
              << ",\"loss\":" << step % 100 << ",\"lr\":0.0003}\n";
  }
  serve();
  browser_->open(address());
  ASSERT_TRUE(wait_for_runs("long"));
  auto loss = chart("loss");
  EXPECT_LE(loss["points"].get<int>(), 4000);
  EXPECT_GE(loss["points"].get<int>(), 500);
  EXPECT_LT(evaluate("kintsugiPage.bytesReceived").get<int>(), 1'000'000);
  EXPECT_NEAR(loss["range"][1].get<double>(), kSteps, kSteps / 100.0);
  // Values that are the same up to rounding are drawn as a level line.
  ASSERT_TRUE(wait_for("kintsugiPage.charts.lr.rangeY"));
  const auto rate = chart("lr")["rangeY"];
  EXPECT_NEAR(rate[1].get<double>(), 3.3e-4, 1e-6);
  // A bucket of whole periods has their mean.
  for (const auto& y : loss["series"][0]["y"]) EXPECT_NEAR(y.get<double>(), 49.5, 5);

  // Zooming asks for the range until single steps are seen.
  for (int i = 0; i < 4; ++i) {
    const double before = loss["range"][1].get<double>() - loss["range"][0].get<double>();
    zoom(0.45, 0.55);
    ASSERT_TRUE(
        wait_for("kintsugiPage.charts.loss.range[1] - kintsugiPage.charts.loss.range[0] < " +
                 std::to_string(before / 5)));
    loss = chart("loss");
  }
  const double from = loss["range"][0], to = loss["range"][1];
  EXPECT_LT(to - from, 1000);
  ASSERT_TRUE(wait_for("kintsugiPage.charts.loss.series[0].x.filter(x => x >= " +
                       std::to_string(from) + " && x <= " + std::to_string(to) + ").length == " +
                       std::to_string(static_cast<int>(std::floor(to) - std::ceil(from)) + 1)));
  const auto series = chart("loss")["series"][0];
  for (std::size_t i = 0; i < series["x"].size(); ++i)
    EXPECT_EQ(series["y"][i].get<double>(), static_cast<int>(series["x"][i].get<double>()) % 100);
  EXPECT_LT(evaluate("kintsugiPage.bytesReceived").get<int>(), 2'000'000);

  browser_->click("reset-zoom");
  EXPECT_TRUE(wait_for("kintsugiPage.charts.loss.range[1] > 990000"));
}

// 8 ranks in two stages; rank 5 is slow.
void write_layout(const fs::path& run) {
  const nlohmann::json layout = {
      {"ranks", 8},
      {"grid", {{"tp", 2}, {"cp", 1}, {"dp", 2}, {"pp", 2}}},
      {"order", {"tp", "cp", "dp", "pp"}},
      {"nodes", {"left", "right"}},
      {"node_of_rank", {0, 0, 0, 0, 1, 1, 1, 1}},
      {"memory",
       {{"device",
         {{{"region", "weights"}, {"name", "layer 0"}, {"bytes", 3000}},
          {{"region", "weights"}, {"name", "layer 1"}, {"bytes", 1000}},
          {{"region", "optimizer"}, {"name", "moments"}, {"bytes", 4000}}}},
        {"host", nlohmann::json::array()},
        {"device_total", 8000},
        {"host_total", 0}}},
      {"pipeline",
       {{"schedule", "1f1b"},
        {"stages", 2},
        {"chunks", 1},
        {"micro_batches", 1},
        {"shown_micro_batches", 1},
        {"makespan", 6},
        {"actions",
         {{{"stage", 0}, {"kind", "forward"}, {"micro_batch", 0}, {"begin", 0}, {"end", 1}},
          {{"stage", 1}, {"kind", "forward"}, {"micro_batch", 0}, {"begin", 1}, {"end", 2}},
          {{"stage", 1}, {"kind", "backward"}, {"micro_batch", 0}, {"begin", 2}, {"end", 4}},
          {{"stage", 0}, {"kind", "backward"}, {"micro_batch", 0}, {"begin", 4}, {"end", 6}}}}}}};
  append(run / "layout.json", layout.dump());
  append(run / "ranks.json",
         R"({"step": 20, "seconds": [0.5, 0.5, 0.5, 0.5, 0.5, 0.8, 0.5, 0.5]})");
}

std::string profile_with(double swiglu_ms) {
  return nlohmann::json{
      {"steps", {2, 3}},
      {"peak_flops", 1e12},
      {"memory_bytes_per_s", 1e11},
      {"categories",
       {{{"name", "Kernel"}, {"ms", 30}, {"share", 0.75}},
        {{"name", "Other"}, {"ms", 10}, {"share", 0.25}}}},
      {"operations",
       {{{"name", "matmul"},
         {"work", "matmul"},
         {"calls", 2},
         {"ms", 20},
         {"share", 0.5},
         {"flops_per_s", 5e11},
         {"bytes_per_s", 1e10},
         {"intensity", 50}},
        {{"name", "attention"},
         {"work", "attention"},
         {"calls", 2},
         {"ms", 4},
         {"share", 0.1},
         {"flops_per_s", 2e11},
         {"bytes_per_s", 2e10},
         {"intensity", 10}},
        {{"name", "swiglu"}, {"work", "memory"}, {"calls", 2}, {"ms", swiglu_ms}}}}}
      .dump();
}

TEST_F(DashboardInBrowser, DrawsLayoutsSamplesAndProfiles) {
  const fs::path runs = directory_.path() / "runs";
  for (const std::string name : {"first", "second"}) {
    write_run(runs / name, {.state = "finished"});
    fs::create_directories(runs / name / "profiles");
    append(runs / name / "profiles" / (name + ".json"), "{}");
  }
  profiles_ = {{"first.json", profile_with(6)}, {"second.json", profile_with(9)}};
  write_layout(runs / "first");
  append(runs / "first/samples.jsonl",
         R"({"step": 10, "prompt": "Once", "text": " <b>upon</b>", "time_s": 1.7e9})"
         "\n"
         R"({"step": 20, "prompt": "Once", "text": " a time", "time_s": 1.7e9})"
         "\n");
  append(runs / "first/events.jsonl",
         R"({"time_s": 1.7e9, "event": "spike", "step": 15, "message": "loss <i>9</i>"})"
         "\n");
  append(runs / "first/experts.jsonl",
         R"({"step": 10, "layers": [{"layer": 0, "max_load": 1, "choices": [4, 4]}, )"
         R"({"layer": 3, "max_load": 1.5, "entropy": 0.8, "idle": 0, "choices": [2, 6]}]})"
         "\n"
         R"({"step": 20, "layers": [{"layer": 0, "max_load": 1, "choices": [4, 4]}, )"
         R"({"layer": 3, "max_load": 2, "entropy": 0, "idle": 1, "choices": [0, 8]}]})"
         "\n");
  // Damaged: more ranks than a page can draw.
  append(runs / "second/layout.json",
         R"({"ranks": 1000000000000, "grid": {"tp": 1000000000000}, "memory": {"device": [7]},)"
         R"( "pipeline": {"stages": 1000000000000, "actions": [1]}})");
  serve();
  browser_->open(address() + "#runs=first");
  ASSERT_TRUE(wait_for_runs("first"));

  // Areas in the proportion of the bytes.
  ASSERT_TRUE(wait_for("document.querySelectorAll('[data-memory=device] rect').length == 3"));
  const auto areas = evaluate(
      "[...document.querySelectorAll('[data-memory=device] rect')]"
      ".map(r => r.getAttribute('width') * r.getAttribute('height'))");
  double whole = 0;
  for (const auto& area : areas) whole += area.get<double>();
  std::vector<double> shares;
  for (const auto& area : areas) shares.push_back(area.get<double>() / whole);
  EXPECT_THAT(shares, testing::UnorderedElementsAre(testing::DoubleNear(0.375, 1e-6),
                                                    testing::DoubleNear(0.125, 1e-6),
                                                    testing::DoubleNear(0.5, 1e-6)));
  // Rank 5 = tp 1 + 2 * (dp 0 + 2 * pp 1).
  EXPECT_EQ(evaluate("document.querySelector('#section-ranks tbody').textContent"),
            "5righttp 1, cp 0, dp 0, pp 1800 ms1.60");
  EXPECT_TRUE(wait_for("document.querySelectorAll('.pipeline .action').length == 4"));
  EXPECT_EQ(evaluate("document.querySelector('.sample').textContent"), "Once a time");
  browser_->script(
      "const slider = document.getElementById('sample-step'); slider.value = 0;"
      "slider.dispatchEvent(new Event('input'))");
  EXPECT_EQ(evaluate("document.querySelector('.sample').textContent"), "Once <b>upon</b>");
  EXPECT_THAT(evaluate("document.querySelector('#section-events').textContent").get<std::string>(),
              HasSubstr("loss <i>9</i>"));
  EXPECT_EQ(evaluate("document.querySelector('.roofline').dataset.points"), "2");
  EXPECT_EQ(evaluate("document.querySelector('[data-category=Kernel]').style.width"), "75%");

  // The worst layer is shown first; another one can be chosen, and the arrow keys read cells.
  const std::string experts = "document.querySelector('#section-experts";
  EXPECT_EQ(evaluate(experts + " select').value"), "layer 3");
  EXPECT_EQ(evaluate(experts + " .note').textContent"),
            "In step 20: busiest expert 2 × mean, entropy 0, 1 of 2 experts idle");
  const auto read_cell = [&](int map) {
    browser_->script(fmt::format(
        "const map = document.querySelectorAll('.heat-map')[{}]; for (const key of ['ArrowDown', "
        "'ArrowDown', 'ArrowLeft']) map.dispatchEvent(new KeyboardEvent('keydown', {{key}}))",
        map));
    return evaluate("document.getElementById('tooltip').textContent");
  };
  EXPECT_EQ(read_cell(0), "step 10 · layer 3, busiest expert · 1.5 × mean");
  EXPECT_EQ(read_cell(1), "step 10 · expert 1 · 1.5 × mean");
  browser_->script("const layer = " + experts +
                   " select'); layer.value = 'layer 0';"
                   "layer.dispatchEvent(new Event('change'))");
  // Until it is drawn, the map of the other layer is there.
  std::string cell;
  for (int i = 0; i < 100 && cell != "step 10 · expert 1 · 1 × mean"; ++i) {
    ASSERT_TRUE(wait_for("document.querySelectorAll('.heat-map canvas')[1].height > 0"));
    cell = read_cell(1);
  }
  EXPECT_EQ(cell, "step 10 · expert 1 · 1 × mean");

  // The damaged run takes nothing along, and the slower operation is the first line.
  browser_->script("document.querySelector('[data-run=second] input').click()");
  ASSERT_TRUE(wait_for_runs("first,second"));
  ASSERT_TRUE(wait_for("document.getElementById('profile-difference')"));
  EXPECT_EQ(evaluate("document.querySelector('#profile-difference tbody tr').textContent"),
            "swiglu6 ms9 ms+3 ms+50 %");
  EXPECT_EQ(evaluate("document.querySelectorAll('[data-ranks]').length"), 1);
  EXPECT_TRUE(wait_for("document.querySelectorAll('.pipeline .action').length == 4"));
}

// Runs of the same name, a loss that is not finite, and addresses.
TEST_F(DashboardInBrowser, TellsRunsApartAndMarksALossThatIsNotFinite) {
  const fs::path runs = directory_.path() / "runs";
  write_run(runs / "small/a", {});
  write_run(runs / "large/a", {.offset = 2});
  write_run(runs / "b,c", {.steps = 5});
  append(runs / "b,c/metrics.jsonl",
         R"({"step": 6, "tokens": 6144, "loss": null, "lr": 1000000, "loss_scale": 1})"
         "\n");
  serve();
  // A link with a list of runs, whose commas and slashes are escaped twice.
  browser_->open(address() + "#runs=b%252Cc%2Csmall%252Fa");
  ASSERT_TRUE(wait_for_runs("b,c,small/a"));
  EXPECT_EQ(evaluate("location.hash"), "#run=b%2Cc&run=small%2Fa");
  EXPECT_EQ(evaluate("[...document.querySelectorAll('.run .name')].map(n => "
                     "n.textContent).sort().join(' ')"),
            "b,c large/a small/a");
  EXPECT_EQ(evaluate("kintsugiPage.charts.loss.series[1].label"), "small/a");

  const std::string row = "document.querySelector('[data-run=\"b,c\"]')";
  EXPECT_EQ(evaluate(row + ".querySelector('.message').textContent"), "loss is not finite");
  EXPECT_EQ(evaluate(row + ".querySelector('.figures b').textContent"), "nan");
  EXPECT_EQ(evaluate("document.querySelector('.figure .value.worse').textContent"), "nan");
  EXPECT_EQ(evaluate("document.querySelectorAll('.run .worse').length"), 1);

  // A loss scale of 1 is not shown, another one is.
  ASSERT_TRUE(wait_for("document.querySelector('[data-chart=loss_scale]')"));
  EXPECT_TRUE(wait_for("document.querySelector('[data-chart=loss_scale]').hidden"));
  append(runs / "b,c/metrics.jsonl",
         R"({"step": 7, "tokens": 7168, "loss": 2, "lr": 1000000, "loss_scale": 2})"
         "\n");
  EXPECT_TRUE(wait_for("!document.querySelector('[data-chart=loss_scale]').hidden"));
  EXPECT_TRUE(wait_for(row + ".querySelector('.message').hidden"));
}

// report.html: the page with its data inside, opened from disk.
TEST_F(DashboardInBrowser, OpensFromDiskWithItsData) {
  write_run(directory_.path() / "runs/first", {.state = "finished"});
  fs::create_directories(directory_.path() / "runs/first/profiles");
  append(directory_.path() / "runs/first/profiles/left-out.json", "{}");
  serve();
  const auto ask = [&](const std::string& path) {
    return nlohmann::json::parse(http_get(server_->port(), "/api/" + path).body);
  };
  nlohmann::json data = {{"generated_s", 1.7e9}, {"runs", ask("runs")}};
  data["run"]["first"] = ask("run?id=first");
  for (const std::string axis : {"step", "tokens", "hours"})
    data["series"]["first"][axis] = ask("series?id=first&keys=loss,lr&axis=" + axis);
  std::string page(page_html());
  const std::string mark = "<script type=\"application/json\" id=\"data\">";
  const std::size_t at = page.find(mark);
  ASSERT_NE(at, page.npos);
  page.insert(at + mark.size(), data.dump());
  write_file_atomically(directory_.path() / "report.html", page);
  server_->shutdown(0);  // nobody to ask

  browser_->open("file://" + (directory_.path() / "report.html").string());
  ASSERT_TRUE(wait_for_runs("first"));
  const auto series = chart("loss")["series"][0];
  ASSERT_EQ(series["x"].size(), 300u);
  EXPECT_NEAR(series["y"][299].get<double>(), loss_of(300, 1), 1e-5);
  EXPECT_TRUE(wait_for("kintsugiPage.framesDrawn > 1"));
  EXPECT_GT(drawn_pixels(), 500);
  EXPECT_TRUE(
      wait_for("document.querySelector('#section-profile .profile-note').textContent == 'The "
               "profile left-out.json is not shown: this report does not contain it.'"));
  EXPECT_EQ(evaluate("document.getElementById('notice').hidden"), true);
  zoom(0.3, 0.6);
  EXPECT_TRUE(wait_for("kintsugiPage.charts.loss.range[1] < 250"));
  EXPECT_EQ(evaluate("performance.getEntriesByType('resource').filter(e => "
                     "!e.name.startsWith('data:')).length"),
            0);
}

}  // namespace
}  // namespace kintsugi
