#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// A document of an evaluation: its columns.
using EvalDocument = nlohmann::ordered_json;

// A template of a task file: text with expressions of Jinja in {{ }}. Expressions have columns,
// .attribute, [index], [from:to], lists, strings, numbers, +, the methods split, index, strip,
// lower, upper and replace, and the filters join, trim, lower and upper. Anything else is a
// UserError that names it. Text, slices and white space are as in Python.
class TaskTemplate {
 public:
  // `source` names the template in messages: "arc.yaml: doc_to_text".
  TaskTemplate(std::string_view text, const std::string& source);

  // UserError if the document has no such column, or if a value is a list.
  std::string render(const EvalDocument& document) const;
  // The value of a template that is one expression; the rendered text of another one.
  EvalDocument value(const EvalDocument& document) const;

 private:
  using Expression = std::function<EvalDocument(const EvalDocument&)>;
  struct Part {
    std::string text;
    Expression expression;  // empty: only text
  };
  std::string source_;
  std::vector<Part> parts_;
};

// str(value) of Python; UserError for a list or an object.
std::string python_text(const EvalDocument& value);

}  // namespace kintsugi
