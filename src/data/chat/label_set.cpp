#include "data/chat/label_set.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMostLabels = 1 << 16;

bool is_integer(const std::string& text) {
  const std::size_t sign = text.starts_with('-') ? 1 : 0;
  return text.size() > sign && text.find_first_not_of("0123456789", sign) == std::string::npos;
}

// Compares decimal integers of any size, written without leading zeros.
bool smaller_number(const std::string& a, const std::string& b) {
  const bool minus = a.starts_with('-');
  if (minus != b.starts_with('-')) return minus;
  const bool below = a.size() != b.size() ? a.size() < b.size() : a < b;
  return a != b && below != minus;
}

std::string shortened(const std::string& label) {
  return label.size() > 60 ? label.substr(0, 57) + "…" : label;
}

}  // namespace

void LabelSet::set_names(std::vector<std::string> names) {
  names_ = std::move(names);
  ids_.clear();
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (!ids_.emplace(names_[i], static_cast<std::int32_t>(i)).second)
      user_error("--labels has '{}' twice: remove one", names_[i]);
}

LabelSet::LabelSet(const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (name.empty()) user_error("--labels has an empty label: separate them by single commas");
  if (names.size() > kMostLabels)
    user_error("--labels has {} labels, but there are at most {}", names.size(), kMostLabels);
  set_names(names);
  by_position_ = std::none_of(names.begin(), names.end(), is_integer);
}

void LabelSet::add(const Example& example) {
  if (found_.contains(example.label) && numbers_ == example.label_is_number) return;
  if (!found_.empty() && numbers_ != example.label_is_number)
    user_error("label {} is a {}, but the labels before are {}: use one of the two, or --labels",
               shortened(example.label), example.label_is_number ? "number" : "name",
               numbers_ ? "numbers" : "names");
  numbers_ = example.label_is_number;
  found_.insert(example.label);
  if (found_.size() > kMostLabels)
    user_error("there are more than {} different labels: is 'label' the class of the text?",
               kMostLabels);
}

void LabelSet::order() {
  std::vector<std::string> names(found_.begin(), found_.end());
  if (numbers_) std::sort(names.begin(), names.end(), smaller_number);
  set_names(std::move(names));
}

std::int32_t LabelSet::id_of(const Example& example) const {
  if (const auto found = ids_.find(example.label); found != ids_.end()) return found->second;
  std::size_t position = names_.size();
  const std::string& text = example.label;
  if (by_position_ && example.label_is_number && !text.starts_with('-')) {
    std::from_chars(text.data(), text.data() + text.size(), position);
    if (position < names_.size()) return static_cast<std::int32_t>(position);
    user_error("label {} is out of range: there are {} labels, 0 to {}", shortened(text),
               names_.size(), std::ssize(names_) - 1);
  }
  constexpr std::size_t kMostListed = 20;
  const std::vector<std::string> listed(
      names_.begin(),
      names_.begin() + static_cast<std::ptrdiff_t>(std::min(names_.size(), kMostListed)));
  user_error("unknown label '{}': the labels are {}{}", shortened(text), fmt::join(listed, ", "),
             names_.size() > kMostListed ? " …" : "");
}

}  // namespace kintsugi
