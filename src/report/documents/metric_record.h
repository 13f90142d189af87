#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/runs/json_members.h"

namespace kintsugi {

// One value of a record of metrics.jsonl.
struct RecordValue {
  std::string name = {};  // nested values have dotted names: valid.SET.loss, eval.TASK.METRIC
  JsonMember::Kind kind = JsonMember::Kind::Null;
  std::string text = {};  // a number as it is in the file, a text without its quotes
};

// All values of a record, in their order; empty if the line is no complete JSON object.
std::vector<RecordValue> record_values(std::string_view line);

}  // namespace kintsugi
