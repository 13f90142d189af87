#pragma once

#include <functional>
#include <optional>
#include <string>

namespace kintsugi {

// A condition on the values of a point of a sweep:
//   batch.global * data.sequence_length <= 65536 and not optimizer.kind == "muon"
// Numbers as in configurations (4M, 1e-3), texts in quotes, keys of the sweep; + - * /, == != < <=
// > >=, and, or, not, and brackets.

// The value of a key as it was written; nothing if the sweep does not set it.
using FilterValues = std::function<std::optional<std::string>(const std::string& key)>;

// UserError about the text if it is no condition, or compares a number with a text.
bool filter_holds(const std::string& condition, const FilterValues& values);

}  // namespace kintsugi
