#pragma once

#include <string>
#include <string_view>

namespace kintsugi {

// A hook for tests: slows one operation, so that a profile has something to find. A traced backend
// executes the operation this many times.
struct OperationRepeat {
  std::string operation = {};
  int times = 1;

  int of(std::string_view name) const { return name == operation ? times : 1; }
};

// `text` is "swiglu_forward:3". Throws UserError unless it names an operation whose repetition
// changes no result, and 2 to 1000 times.
OperationRepeat parse_operation_repeat(const std::string& text);
// From the environment variable KINTSUGI_REPEAT_OPERATION, if it is set.
OperationRepeat operation_repeat();

}  // namespace kintsugi
