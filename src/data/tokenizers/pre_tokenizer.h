#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace kintsugi {

// Cuts a text into the pieces that a tokenizer encodes one by one: no token crosses an edge. This
// is the "pre_tokenizer" of a tokenizer.json, except that pieces stay bytes: the alphabet of
// byte-level tokenizers (byte_alphabet.h) never appears. Bytes that are no UTF-8 make pieces of
// their own. An object serves one thread; copies share what is compiled.
class PreTokenizer {
 public:
  // gpt2 (also neox and olmo), llama3 (also cl100k and olmo2), qwen, bloom (also poro), o200k.
  static PreTokenizer of_family(std::string_view family);
  static const std::vector<std::string>& family_names();
  // The matches of a regular expression and what lies between them, byte-level.
  static PreTokenizer of_regex(const std::string& pattern);
  // The value of "pre_tokenizer"; null makes each text one piece.
  static PreTokenizer of_json(std::string_view json);

  ~PreTokenizer();
  PreTokenizer(const PreTokenizer& other);
  PreTokenizer& operator=(const PreTokenizer& other);
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  // The value of "pre_tokenizer" that says the same to Hugging Face.
  const std::string& json() const;
  // Whether tokens are written in the byte alphabet.
  bool byte_level() const;

  // callback(std::string_view piece), in order; a piece is valid during the call and never empty.
  // `at_start` is false where an added token stands before the text.
  template <class Callback>
  void for_each_piece(std::string_view text, Callback&& callback, bool at_start = true) {
    using Target = std::remove_reference_t<Callback>;
    run(text, at_start, {&callback, [](const void* target, std::string_view piece) {
                           (*static_cast<Target*>(const_cast<void*>(target)))(piece);
                         }});
  }

 private:
  struct Sink {
    const void* target;
    void (*call)(const void*, std::string_view);
    void operator()(std::string_view piece) const { call(target, piece); }
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

// The value of "normalizer" that goes with a family: NFC for qwen, else null.
std::string normalizer_json_of_family(std::string_view family);

}  // namespace kintsugi
