#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/unicode_regex.h"

namespace kintsugi {

// A regular expression of Python's `re` module, as task files have them.
class PythonRegex {
 public:
  explicit PythonRegex(const std::string& pattern);  // UserError if it is invalid

  // re.finditer(): for each match its groups, or the whole match if the expression has no group. A
  // group that took no part is empty.
  std::vector<std::vector<std::string>> find_all(std::string_view text);
  std::string remove_all(std::string_view text);  // re.sub(pattern, "", text)

 private:
  template <class Use>
  void for_each_match(std::string_view text, Use&& use);
  UnicodeRegex regex_;
};

// Converts an expression to the syntax of PCRE2. The two differ in white space, \Z, \v, \u, and
// {,n}. UserError for an escape that Python does not know.
std::string python_to_pcre2(std::string_view pattern);

}  // namespace kintsugi
