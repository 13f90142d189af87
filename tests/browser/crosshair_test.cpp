// The crosshair of the charts: each value is shown with the step that it belongs to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "http/listener.h"
#include "support/browser.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

class CrosshairInBrowser : public ProgramTest {
 protected:
  void SetUp() override {
    if (!Browser::installed())
      GTEST_SKIP()
          << "chromium and chromedriver are not installed (Debian: chromium, chromium-driver)";
  }
  // The loss is `first` + the step, and the validation loss every ten steps is 1000 + the step.
  void write_run(const std::string& name, int steps, int first) {
    std::filesystem::create_directories(directory_ / name);
    std::ofstream metrics(directory_ / name / "metrics.jsonl");
    for (int step = 1; step <= steps; ++step) {
      nlohmann::json record{{"step", step}, {"tokens", 100 * step}, {"loss", first + step}};
      if (step % 10 == 0) record["valid_loss"] = 1000 + step;
      metrics << record.dump() << "\n";
    }
    directory_.write(name + "/config.yaml", "train: {steps: 60}\n");
    directory_.write(name + "/status.json", R"({"state":"finished","step":60,"total_steps":60})");
  }
  nlohmann::json evaluate(const std::string& expression) {
    return browser_->script("return " + expression);
  }
  // Moves the pointer to this fraction of the width of the loss panel. Returns the title of the
  // tooltip and the texts of its rows.
  std::pair<std::string, std::vector<std::string>> values_at(double share) {
    const auto shown = browser_->script(
        "const plot = document.querySelector('[data-plot=loss]');"
        "const box = plot.getBoundingClientRect();"
        "plot.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: box.left + " +
        std::to_string(share) +
        " * box.width, clientY: box.top + box.height / 2}));"
        "const tip = document.getElementById('tooltip');"
        "return [tip.querySelector('.title').textContent,"
        " [...tip.querySelectorAll('tr')].map(r => r.cells[0].textContent + '|' + "
        "r.cells[1].textContent)];");
    return {shown[0], shown[1]};
  }
  std::unique_ptr<Browser> browser_;
};

// A step with a value is "label|1234" or, if the value is of another step, "label|1234 (step 10)".
TEST_F(CrosshairInBrowser, ShowsTheValuesOfItsStep) {
  write_run("long", 60, 100);
  write_run("short", 20, 500);
  const Outcome report = run_kintsugi("report long short --output report.html");
  ASSERT_EQ(report.code, 0) << report.error;
  const int free_port = HttpListener("127.0.0.1", 0).port();
  browser_ = std::make_unique<Browser>(free_port);
  browser_->set_window(1400, 1000);
  browser_->open("file://" + (directory_ / "report.html").string());
  ASSERT_TRUE(
      browser_->wait_for("kintsugiPage.charts.loss && kintsugiPage.charts.loss.range && "
                         "kintsugiPage.charts.loss.series.length >= 3"));
  browser_->script(
      "const slider = document.getElementById('smoothing'); slider.value = 0;"
      "slider.dispatchEvent(new Event('input'))");
  ASSERT_TRUE(browser_->wait_for("kintsugiPage.charts.loss.series[0].smooth[30] == 131"));

  std::set<int> steps;
  int validations = 0;
  for (double share = 0.1; share < 0.98; share += 0.01) {
    const auto [title, rows] = values_at(share);
    ASSERT_THAT(title, testing::StartsWith("step "));
    const int step = std::stoi(title.substr(5));
    steps.insert(step);
    for (const std::string& row : rows) {
      const std::size_t bar = row.find('|'), place = row.find("(step ");
      std::string digits = row.substr(bar + 1);
      std::erase(digits, ',');
      const int value = std::stoi(digits);
      const int at = place == std::string::npos ? step : std::stoi(row.substr(place + 6));
      EXPECT_NEAR(at, step, 1) << "a point near the crosshair: " << row;
      const int of_step = value > 1000 ? value - 1000 : value > 500 ? value - 500 : value - 100;
      EXPECT_EQ(of_step, at) << title << ": " << row;
      validations += value > 1000 ? 1 : 0;
    }
  }
  EXPECT_GT(steps.size(), 40u);
  EXPECT_GT(validations, 3);
  browser_->script("document.querySelector('[data-plot=loss]').scrollIntoView()");
}

}  // namespace
}  // namespace kintsugi
