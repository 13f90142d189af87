#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/yaml_reader.h"

namespace kintsugi {

enum class ExampleFate : std::uint8_t { Removed, Changed, Kept };
template <>
inline constexpr EnumWords<3> kEnumWords<ExampleFate> = {"removed", "changed", "kept"};

// A document that a rule has removed, or that a step has changed or passed on as it was. Texts are
// excerpts; those of a changed document begin at the same byte, shortly before the first change.
struct CurationExample {
  std::uint64_t order = 0;  // those with the lowest ones are kept: a random choice without state
  ExampleFate kind = ExampleFate::Removed;
  std::string rule = {};    // "gopher_quality.words"; unless removed the step: "repair"
  std::string origin = {};  // file:line
  std::string language = {};
  std::string before = {}, after = {};             // `after` only of changed documents
  std::int64_t begin = 0;                          // of the excerpts, in bytes
  std::int64_t bytes_before = 0, bytes_after = 0;  // of the whole texts
};

// Sets the excerpts and sizes. `after` is empty unless the document was changed.
void set_texts(CurationExample& example, std::string_view before, std::string_view after);
// The beginning of a text, in whole characters.
std::string_view excerpt_of(std::string_view text);

// At most `most` of each kind and rule. Which ones does not depend on the order in which they are
// added, nor on how they are divided among reports that are added later.
class CurationExamples {
 public:
  bool has_room_for(ExampleFate kind, const std::string& rule, std::uint64_t order,
                    std::size_t most) const;
  void add(CurationExample example, std::size_t most);
  void add(CurationExamples more, std::size_t most);

  // By kind and rule, in order.
  const auto& lists() const { return lists_; }

  nlohmann::ordered_json json() const;
  static CurationExamples of_json(const nlohmann::ordered_json& json);

 private:
  std::map<std::pair<ExampleFate, std::string>, std::vector<CurationExample>> lists_;
};

}  // namespace kintsugi
