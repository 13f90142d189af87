#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "support/small_run.h"
#include "support/temporary_directory.h"

namespace kintsugi {

// A machine of three nodes with one processor each.
inline std::string cpu_machine(double tflops) {
  return fmt::format(
      "name: three nodes\nnodes: 3\n"
      "gpu: {{name: CPU, vendor: none, bf16_tflops: {}, memory_gb: 4, memory_gb_s: 10, "
      "tdp_w: 100}}\n"
      "node: {{gpus: 1}}\nnetwork: {{gb_s: 1}}\n"
      "launch: {{gpu_request: none, exclusive: false}}\n",
      tflops);
}

// A sweep, a longer run with the best setting, two cool-downs, their mean and its evaluation:
// campaign.yaml and its files.
inline void write_campaign_files(const TemporaryDirectory& directory) {
  directory.write("base.yaml",
                  "run: {dir: unused}\n"
                  "model: {preset: llama-tiny, layers: 2}\n"
                  "data: {train: [{path: corpus.txt}], sequence_length: 32}\n"
                  "batch: {global: 4, micro: 4}\n"
                  "optimizer: {warmup_steps: 1}\n"
                  "train: {steps: 4, eval_every: 0, checkpoint_every: 0}\n"
                  "device: cpu\n");
  directory.write("corpus.txt", small_corpus(400));
  directory.write("cpu.yaml", cpu_machine(0.1));
  directory.write("campaign.yaml",
                  "campaign: {dir: c}\n"
                  "launch: {machine: cpu.yaml, time: 10min}\n"
                  "nodes:\n"
                  "  # three short runs\n"
                  "  sweep: {run: base.yaml, grid: {optimizer.lr: [1e-3, 4e-3, 1e-2]}}\n"
                  "  best: {best: {of: sweep, metric: loss}}\n"
                  "  long: {like: best, set: {train.steps: 60, train.keep_every: 20}}\n"
                  "  cool:\n"
                  "    like: best\n"
                  "    from: long\n"
                  "    at: [40, 60]\n"
                  "    set: {train.steps: 4, optimizer.schedule: linear}\n"
                  "  merge: {model: \"merge {cool} --output {self}/model\"}\n"
                  "  score: {eval: \"--checkpoint {merge}/model --text 'the river'\"}\n");
}

}  // namespace kintsugi
