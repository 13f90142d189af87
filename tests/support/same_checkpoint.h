#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "core/file.h"
#include "train/checkpoint/folder.h"

namespace kintsugi {

// The checkpoint that `latest` points to.
inline std::filesystem::path last_checkpoint(const std::filesystem::path& run) {
  return std::filesystem::canonical(run / "checkpoints/latest");
}

// Expects two checkpoints of small runs to have the same weights, optimizer and trainer state, bit
// for bit.
inline void expect_same_checkpoint(const std::filesystem::path& a, const std::filesystem::path& b) {
  for (const char* file : {"model.safetensors", "trainer.json", "config.json"})
    EXPECT_TRUE(read_text_file(a / file) == read_text_file(b / file)) << file;
  const char* state = "optimizer.safetensors";
  EXPECT_TRUE(read_text_file(state_directory(a) / state) ==
              read_text_file(state_directory(b) / state));
  const std::filesystem::path average = "ema/model.safetensors";
  ASSERT_EQ(std::filesystem::exists(a / average), std::filesystem::exists(b / average));
  if (std::filesystem::exists(a / average)) {
    EXPECT_TRUE(read_text_file(a / average) == read_text_file(b / average));
  }
}

}  // namespace kintsugi
