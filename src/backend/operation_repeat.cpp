#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "backend/operation_cost.h"
#include "core/error.h"

namespace kintsugi {
namespace {

constexpr const char* kVariable = "KINTSUGI_REPEAT_OPERATION";

// Operations that overwrite their outputs and never work in place.
constexpr std::array<std::string_view, 6> kRepeatable = {"rms_norm_forward",  "layer_norm_forward",
                                                         "attention_forward", "swiglu_forward",
                                                         "gelu_forward",      "gated_norm_forward"};

}  // namespace

OperationRepeat parse_operation_repeat(const std::string& text) {
  const std::size_t colon = text.find(':');
  OperationRepeat repeat{.operation = text.substr(0, colon)};
  const std::string_view number =
      colon == text.npos ? "" : std::string_view(text).substr(colon + 1);
  const auto parsed = std::from_chars(number.data(), number.data() + number.size(), repeat.times);
  if (parsed.ec != std::errc() || parsed.ptr != number.data() + number.size() || repeat.times < 2 ||
      repeat.times > 1000)
    user_error("{}={}: give an operation and 2 to 1000 times, such as swiglu_forward:3", kVariable,
               text);
  if (std::find(kRepeatable.begin(), kRepeatable.end(), repeat.operation) == kRepeatable.end())
    user_error("{}={}: only these operations can be repeated: {}", kVariable, text,
               fmt::join(kRepeatable, ", "));
  return repeat;
}

OperationRepeat operation_repeat() {
  const char* const text = std::getenv(kVariable);
  return text == nullptr || *text == '\0' ? OperationRepeat{} : parse_operation_repeat(text);
}

}  // namespace kintsugi
