#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace kintsugi {

// A run directory whose values are closed forms of the step k:
//   loss 1 + 8/k, validation loss 2 + 8/k every 10 steps, gradient norm 1 + k mod 4,
//   tokens 1000 k, tokens/s 100 + k, 0.5 s per step of which 0.125 s wait for data,
//   MFU 0.5 (causal) and 0.625 (full).
// One attempt: 10 s of startup, 0.5 s per step, 5 s of checkpoints, 5 s of validation.
struct SyntheticRun {
  int steps = 100, total_steps = 100;
  std::string state = "finished";
  std::string message = {};
  std::string lr = "0.001";
  std::string skipped = {};  // of the last step: hostile text
  std::string log = "first line\nlast line\n";
};

inline std::string synthetic_record(int k, const SyntheticRun& run = {}) {
  std::string line = fmt::format(
      R"({{"step":{},"seq":{},"tokens":{},"loss":{},"grad_norm":{},"lr":{},"step_time_s":0.5,)"
      R"("data_wait_s":0.125,"tokens_per_s":{},"mfu":0.5,"mfu_full_attention":0.625,)"
      R"("energy_j":null,"time_s":{})",
      k, k - 1, 1000 * k, 1 + 8.0 / k, 1 + k % 4, run.lr, 100 + k, 1700000010 + 0.5 * k);
  if (k % 10 == 0) line += fmt::format(R"(,"valid_loss":{})", 2 + 8.0 / k);
  if (k == run.steps && !run.skipped.empty())
    line += fmt::format(R"(,"skipped":"{}")", run.skipped);
  return line + "}\n";
}

inline std::string synthetic_status(const SyntheticRun& run) {
  return fmt::format(
      R"({{"state":"{}","step":{},"total_steps":{},"tokens":{},"loss":{},"valid_loss":{},)"
      R"("tokens_per_s":{},"eta_s":{},"pid":1,"updated":"2023-11-14T22:14:20Z","attempt":1{}}})",
      run.state, run.steps, run.total_steps, 1000 * run.steps, 1 + 8.0 / run.steps,
      2 + 8.0 / (run.steps / 10 * 10), 100 + run.steps, 0.5 * (run.total_steps - run.steps),
      run.message.empty() ? "" : fmt::format(R"(,"message":"{}")", run.message));
}

inline void write_synthetic_run(const std::filesystem::path& directory, const SyntheticRun& run) {
  std::filesystem::create_directories(directory);
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(directory / name, std::ios::binary) << text;
  };
  std::string metrics;
  for (int k = 1; k <= run.steps; ++k) metrics += synthetic_record(k, run);
  write("metrics.jsonl", metrics);
  write("status.json", synthetic_status(run));
  write("config.yaml",
        fmt::format("optimizer:\n  lr: {}\ntrain:\n  steps: {}\n", run.lr, run.total_steps));
  write("log.txt", run.log);
  std::string goodput = R"({"event":"start","time_s":1700000010,"step":0,"tokens":0,)"
                        R"("launched_s":1700000000,"nodes":2})"
                        "\n";
  if (run.state != "running")
    goodput += fmt::format(
        R"({{"event":"end","time_s":{},"step":{},"tokens":{},"steps_s":{},"checkpoint_s":5,)"
        R"("validation_s":5,"state":"{}","exit_code":{}}})"
        "\n",
        1700000020 + 0.5 * run.steps, run.steps, 1000 * run.steps, 0.5 * run.steps, run.state,
        run.state == "finished" ? 0 : 1);
  write("goodput.jsonl", goodput);
}

}  // namespace kintsugi
