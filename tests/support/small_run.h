#pragma once

#include <fmt/format.h>

#include <string>

#include "backend/cpu/cpu_backend.h"
#include "core/file.h"
#include "support/temporary_directory.h"
#include "train/checkpoint/checkpoint.h"
#include "train/health.h"
#include "train/trainer.h"

namespace kintsugi {

// English-like text from a small grammar: enough structure to learn, no copied text.
inline std::string small_corpus(int sentences) {
  const char* subjects[] = {"the river", "a stone", "the miller", "her brother", "the old road"};
  const char* verbs[] = {"carries", "remembers", "follows", "opens", "keeps"};
  const char* objects[] = {"the valley", "a lantern", "seven doors", "the winter", "no secrets"};
  std::string text;
  std::uint32_t state = 12345;
  const auto pick = [&](const char* const(&words)[5]) {
    state = state * 1664525u + 1013904223u;
    return words[(state >> 16) % 5];
  };
  for (int i = 0; i < sentences; ++i)
    text += fmt::format("{} {} {}.\n", pick(subjects), pick(verbs), pick(objects));
  return text;
}

// A configuration small enough for a test. `train` adds keys to the train section; `rest` is YAML
// with further sections.
inline std::string small_config(const std::string& corpus, const std::string& run,
                                const std::string& train, const std::string& rest = "") {
  return fmt::format(
      "run: {{dir: \"{}\", seed: 3}}\n"
      "model: {{family: llama, vocab_size: 256, hidden_size: 32, layers: 2, heads: 4, kv_heads: 2, "
      "ffn_size: 48, "
      "max_positions: 64}}\n"
      "data: {{train: [{{path: \"{}\"}}], sequence_length: 24, valid_fraction: 0.1}}\n"
      "batch: {{global: 6, micro: 2}}\n"
      "optimizer: {{lr: 4e-3, min_lr: 1e-4, warmup_steps: 2}}\n"
      "train: {{eval_batches: 2, keep_checkpoints: 0, {}}}\n{}",
      run, corpus, train, rest);
}

inline RunOutcome run_training(const std::string& yaml, ResumeMode resume = ResumeMode::Auto,
                               int threads = 2) {
  const auto backend = make_cpu_backend(threads);
  Trainer trainer(*backend, parse_run_config(yaml, "test.yaml"));
  testing::internal::CaptureStdout();  // progress lines are not this test's subject
  try {
    const RunOutcome outcome = trainer.run(resume);
    testing::internal::GetCapturedStdout();
    return outcome;
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
}

}  // namespace kintsugi
