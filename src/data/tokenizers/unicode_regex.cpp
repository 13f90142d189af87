#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizers/unicode_regex.h"

#include <pcre2.h>

#include "core/error.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

// For use inside a class. PCRE2's own \s includes U+180E, which is not a space since Unicode 6.3.
constexpr std::string_view kSpaceSet = "\\x{9}-\\x{D}\\x{85}\\p{Z}";
constexpr std::string_view kNotSpaceSet =
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}"
    "\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{"
    "10FFFF}";
constexpr std::string_view kWord = "\\p{L}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kHexDigit = "0-9A-Fa-f";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\')
        escape(false);
      else if (c == '[')
        character_class();
      else if (c == '}')
        brace();
      else
        out_ += c, ++at_;
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void unsupported(std::string_view what) {
    user_error("the regular expression '{}' has {}, which is not supported", in_, what);
  }

  void escape(bool in_class) {
    if (at_ + 1 >= in_.size()) unsupported("a backslash at its end");
    const char c = in_[at_ + 1];
    at_ += 2;
    const auto set = [&](std::string_view members, bool negated) {
      if (in_class && negated) unsupported(std::string("\\") + c + " inside a class");
      if (in_class)
        out_ += members;
      else
        out_.append(negated ? "[^" : "[").append(members).append("]");
    };
    switch (c) {
      case 's':
        return set(kSpaceSet, false);
      case 'S':
        return in_class ? set(kNotSpaceSet, false) : set(kSpaceSet, true);
      case 'w':
      case 'W':
        return set(kWord, c == 'W');
      case 'h':
      case 'H':
        return set(kHexDigit, c == 'H');
      default:
        out_ += '\\';
        out_ += c;
    }
  }

  // [^(\s|[.,])]: the members of a nested class are added to the outer class.
  void character_class() {
    int depth = 0;
    bool first = false;  // at the first member, a ']' is literal
    do {
      if (at_ >= in_.size()) unsupported("a class without an end");
      const char c = in_[at_];
      if (c == '[' && at_ + 1 < in_.size() && in_[at_ + 1] == ':') {
        const std::size_t end = in_.find(":]", at_ + 2);
        if (end == std::string_view::npos) unsupported("a class without an end");
        out_ += in_.substr(at_, end + 2 - at_);
        at_ = end + 2;
        first = false;
      } else if (c == '[') {
        open_class(depth++);
        first = true;
      } else if (c == ']' && !first) {
        if (--depth == 0) out_ += ']';
        ++at_;
      } else {
        first = false;
        class_member(c);
      }
    } while (depth > 0);
  }

  void open_class(int depth) {
    ++at_;
    const bool negated = at_ < in_.size() && in_[at_] == '^';
    if (depth > 0 && negated) unsupported("a negated class inside a class");
    if (depth == 0) out_ += negated ? "[^" : "[";
    at_ += negated ? 1 : 0;
  }

  void class_member(char c) {
    if (c == '\\') return escape(true);
    if (in_.substr(at_, 2) == "&&") unsupported("an intersection of classes");
    if (c == ']') out_ += '\\';
    out_ += c;
    ++at_;
  }

  // Ruby reads x{1,3}+ as (x{1,3})+, PCRE2 as a possessive x{1,3}.
  void brace() {
    const std::size_t open = in_.rfind('{', at_);
    const bool quantifier = open != std::string_view::npos && open > 0 && at_ > open + 1 &&
                            in_.substr(open + 1, at_ - open - 1).find_first_not_of("0123456789,") ==
                                std::string_view::npos;
    if (quantifier && at_ + 1 < in_.size() && in_[at_ + 1] == '+')
      unsupported("a plus after a quantifier in braces");
    out_ += '}';
    ++at_;
  }

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
};

std::string message_of(int code) {
  std::string text(256, '\0');
  const int length =
      pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text.data()), text.size());
  text.resize(length < 0 ? 0 : static_cast<std::size_t>(length));
  return text;
}

}  // namespace

std::string oniguruma_to_pcre2(std::string_view pattern) {
  if (valid_utf8_prefix(pattern) != pattern.size())
    user_error("the regular expression '{}' is not UTF-8", replace_invalid_utf8(pattern));
  return Translator(pattern).run();
}

struct UnicodeRegex::Code {
  std::string pattern;
  pcre2_code* code = nullptr;
  bool jit = false;

  Code(const std::string& text, const std::string& translated, bool multiline) : pattern(text) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code = pcre2_compile(
        reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
        PCRE2_UTF | PCRE2_UCP | (multiline ? PCRE2_MULTILINE : 0) | PCRE2_NEVER_BACKSLASH_C, &error,
        &offset, nullptr);
    if (code == nullptr)
      user_error("the regular expression '{}' is invalid: {}", text, message_of(error));
    jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  }
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
};

struct UnicodeRegex::Scratch {
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;

  explicit Scratch(const Code& code)
      : data(pcre2_match_data_create_from_pattern(code.code, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(64 << 10, 16 << 20, nullptr)) {
    KINTSUGI_CHECK(data != nullptr && context != nullptr, "no memory for matching");
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Scratch() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (stack != nullptr) pcre2_jit_stack_free(stack);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

UnicodeRegex::UnicodeRegex(std::shared_ptr<const Code> code)
    : code_(std::move(code)), scratch_(std::make_unique<Scratch>(*code_)) {}
// Ruby's ^ and $ match at every line.
UnicodeRegex::UnicodeRegex(const std::string& pattern)
    : UnicodeRegex(std::make_shared<Code>(pattern, oniguruma_to_pcre2(pattern), true)) {}
UnicodeRegex UnicodeRegex::from_pcre2(const std::string& pattern, const std::string& translated) {
  return UnicodeRegex(std::make_shared<const Code>(pattern, translated, false));
}
UnicodeRegex::~UnicodeRegex() = default;
UnicodeRegex::UnicodeRegex(const UnicodeRegex& other)
    : code_(other.code_), scratch_(std::make_unique<Scratch>(*code_)) {}
UnicodeRegex& UnicodeRegex::operator=(const UnicodeRegex& other) {
  return *this = UnicodeRegex(other);
}
UnicodeRegex::UnicodeRegex(UnicodeRegex&&) noexcept = default;
UnicodeRegex& UnicodeRegex::operator=(UnicodeRegex&&) noexcept = default;

const std::string& UnicodeRegex::pattern() const { return code_->pattern; }

bool UnicodeRegex::run(std::string_view text, std::size_t from, bool not_empty) {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const std::uint32_t options = not_empty ? PCRE2_NOTEMPTY_ATSTART : 0;
  const auto interpret = [&] {
    return pcre2_match(code_->code, subject, text.size(), from,
                       options | PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, scratch_->data,
                       scratch_->context);
  };
  int result = code_->jit ? pcre2_jit_match(code_->code, subject, text.size(), from, options,
                                            scratch_->data, scratch_->context)
                          : interpret();
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = interpret();
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0)
    user_error("the regular expression '{}' fails on a text: {}", code_->pattern,
               message_of(result));
  const PCRE2_SIZE* const offsets = pcre2_get_ovector_pointer(scratch_->data);
  if (offsets[1] < offsets[0])  // \K in a look-ahead
    user_error("the regular expression '{}' matches backwards", code_->pattern);
  return true;
}

bool UnicodeRegex::find(std::string_view text, std::size_t from, Match& match,
                        std::size_t not_empty_at) {
  while (from <= text.size()) {
    if (!run(text, from, false)) return false;
    const PCRE2_SIZE* const offsets = pcre2_get_ovector_pointer(scratch_->data);
    match = {offsets[0], offsets[1]};
    if (match.begin < match.end || match.begin != not_empty_at) return true;
    if (from >= text.size()) return false;
    from += utf8_character_length(text.substr(from));
  }
  return false;
}

bool UnicodeRegex::find_groups(std::string_view text, std::size_t from, bool not_empty,
                               std::vector<Match>& groups) {
  if (!run(text, from, not_empty)) return false;
  const PCRE2_SIZE* const offsets = pcre2_get_ovector_pointer(scratch_->data);
  groups.resize(pcre2_get_ovector_count(scratch_->data));
  for (std::size_t i = 0; i < groups.size(); ++i)
    groups[i] =
        offsets[2 * i] == PCRE2_UNSET ? Match{0, 0} : Match{offsets[2 * i], offsets[2 * i + 1]};
  return true;
}

}  // namespace kintsugi
