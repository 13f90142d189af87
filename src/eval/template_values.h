#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "eval/task_template.h"

namespace kintsugi {

// What expressions of templates compute, as Python does. All throw UserError for values of another
// kind.
EvalDocument added(const EvalDocument& a, const EvalDocument& b);
EvalDocument attribute_of(const EvalDocument& value, const std::string& name);
EvalDocument item_at(const EvalDocument& value, const EvalDocument& index);
// A null limit is the beginning or the end.
EvalDocument slice_of(const EvalDocument& value, const EvalDocument& from, const EvalDocument& to);

struct TemplateFunction {
  std::string_view name;
  std::size_t least, most;  // arguments
  EvalDocument (*apply)(const EvalDocument& value, const std::vector<EvalDocument>& arguments);
};
const TemplateFunction* find_method(std::string_view name);  // null if there is none
const TemplateFunction* find_filter(std::string_view name);

}  // namespace kintsugi
