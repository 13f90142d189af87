#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "data/chat/example.h"

namespace kintsugi {

// The classes of a labelled corpus: names, or numbers in decimal.
class LabelSet {
 public:
  LabelSet() = default;
  // In this order. A number in the data is the label of that name or, if no name is a number, the
  // position of a label from 0. UserError for a label that is empty or given twice.
  explicit LabelSet(const std::vector<std::string>& names);

  // Collects a label; UserError for a name among numbers, or for too many labels.
  void add(const Example& example);
  // Orders the collected labels: names alphabetically, numbers by their value.
  void order();

  const std::vector<std::string>& names() const { return names_; }
  std::int32_t id_of(const Example& example) const;  // UserError if it has none

 private:
  void set_names(std::vector<std::string> names);

  std::vector<std::string> names_;
  std::map<std::string, std::int32_t, std::less<>> ids_;
  bool by_position_ = false;
  bool numbers_ = false;  // of the collected ones
  std::set<std::string> found_;
};

}  // namespace kintsugi
