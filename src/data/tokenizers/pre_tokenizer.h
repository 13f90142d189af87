#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace kintsugi {

// Splits a text into pre-tokens, which a tokenizer encodes one by one: no token crosses a pre-token
// boundary. This is the "pre_tokenizer" of a tokenizer.json, except that pre-tokens are bytes, not
// letters of the byte alphabet (byte_alphabet.h). Invalid UTF-8 becomes separate pre-tokens. One
// object per thread; copies share the compiled expressions.
class PreTokenizer {
 public:
  // gpt2 (also neox and olmo), llama3 (also cl100k and olmo2), qwen, bloom (also poro), o200k.
  static PreTokenizer of_family(std::string_view family);
  static const std::vector<std::string>& family_names();
  // Byte-level; pre-tokens are the matches of a regular expression and the text between them.
  static PreTokenizer of_regex(const std::string& pattern);
  // The value of "pre_tokenizer"; null makes the whole text one pre-token.
  static PreTokenizer of_json(std::string_view json);

  ~PreTokenizer();
  PreTokenizer(const PreTokenizer& other);
  PreTokenizer& operator=(const PreTokenizer& other);
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  // The value of "pre_tokenizer" in a tokenizer.json.
  const std::string& json() const;
  // Whether tokens are written in the byte alphabet.
  bool byte_level() const;

  // Calls callback(std::string_view pre_token) in order; the view is valid during the call and
  // never empty. `at_start` is false if an added token precedes the text.
  template <class Callback>
  void for_each_pre_token(std::string_view text, Callback&& callback, bool at_start = true) {
    using Target = std::remove_reference_t<Callback>;
    run(text, at_start, {&callback, [](const void* target, std::string_view pre_token) {
                           (*static_cast<Target*>(const_cast<void*>(target)))(pre_token);
                         }});
  }

 private:
  struct Sink {
    const void* target;
    void (*call)(const void*, std::string_view);
    void operator()(std::string_view pre_token) const { call(target, pre_token); }
  };
  struct Step;
  struct Definition {
    std::string json;
    bool byte_level = false;
  };

  PreTokenizer();
  void run(std::string_view text, bool at_start, Sink sink);
  void run_steps(std::size_t step, std::string_view text, bool at_start, Sink sink);

  Definition definition_;
  std::vector<Step> steps_;
  friend class PreTokenizerReader;
};

// The value of "normalizer" for a family: NFC for qwen, otherwise null.
std::string normalizer_json_of_family(std::string_view family);

}  // namespace kintsugi
