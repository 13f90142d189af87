#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kintsugi {

// The members of a JSON object as they lie in its text, so that all that is not changed is copied
// byte for byte: numbers keep their digits, and keys their order.
class ObjectText {
 public:
  // An object that parse_json_line() has accepted. The text must outlive this object.
  explicit ObjectText(std::string_view object);
  ObjectText() = default;

  // A value as JSON text; empty if there is none. Of a repeated key the last one counts.
  std::string_view find(std::string_view key) const;
  // A string without quotes and escapes; empty if there is none, or it is no string.
  std::string text_of(std::string_view key) const;
  // Replaces the value, or adds a member.
  void set(std::string_view key, std::string json);
  void append_to(std::string& out) const;

 private:
  struct Member {
    std::string key;        // without escapes
    std::string_view text;  // "key": value
    std::string_view value;
    std::string changed = {};  // the value, if it was set
  };
  std::vector<Member> members_;
};

// A document of a corpus on its way through a recipe.
class CuratedDocument {
 public:
  // An object of a record, or a plain text. UserError with file and line if it is damaged.
  static CuratedDocument of_object(std::string_view object, const std::string& text_key,
                                   const std::string& file, std::uint64_t line);
  static CuratedDocument of_text(std::string_view text, const std::string& text_key);

  std::string text;
  ObjectText members;       // with the text as it was read
  std::string language;     // as a step found it; empty: none did
  bool is_changed = false;  // the text

  void append_line(const std::string& text_key, std::string& out);
};

}  // namespace kintsugi
