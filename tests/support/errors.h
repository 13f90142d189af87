#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "core/error.h"

namespace kintsugi {

// Returns the message of the UserError that an action throws.
inline std::string user_error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no UserError";
  return "";
}

}  // namespace kintsugi
