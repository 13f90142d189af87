#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

#include "core/error.h"
#include "model/config.h"

namespace kintsugi {

// Returns the message of the UserError that f throws. Fails the test if it throws none.
template <class F>
std::string user_error_of(F f) {
  try {
    f();
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no UserError was thrown";
  return "";
}

// Parses thousands of damaged copies of a text. Each must parse or throw a UserError; anything else
// fails the test.
template <class Parse>
void expect_robust(const std::string& text, Parse parse) {
  std::mt19937 random(20240607);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = text;
    for (int edit = 1 + static_cast<int>(random() % 4); edit > 0 && !damaged.empty(); --edit) {
      const std::size_t at = random() % damaged.size();
      switch (random() % 5) {
        case 0:
          damaged[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          damaged.erase(at, 1 + random() % 8);
          break;
        case 2:
          damaged.insert(at, 1, "{}[]:,\"'-#&*!|>\n\t0"[random() % 18]);
          break;
        case 3:
          damaged.resize(at);
          break;
        case 4:
          damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 16));
          break;
      }
    }
    try {
      parse(damaged);
      ++accepted;
    } catch (const UserError&) {
      ++refused;
    } catch (const std::exception& error) {
      FAIL() << error.what() << " for:\n" << damaged;
    }
  }
  // Both must happen; otherwise the damage was too small or too large.
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace kintsugi
