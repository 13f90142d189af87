#include "data/curation/text_filters.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <bitset>
#include <cstring>

#include "core/file.h"

namespace kintsugi {
namespace {

// Python's division of whole numbers; 0 where it would fail.
double python_ratio(std::int64_t a, std::int64_t b) {
  return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b);
}

bool exceeds_threshold(double value, double threshold) {
  return threshold != 0 && value > threshold;
}

}  // namespace

// ---- Gopher

namespace {

bool has_stop_words(const std::vector<std::string>& stop_words, const std::vector<Word>& words,
                    std::int64_t least) {
  // Most words differ from all stop words in their length or their first byte.
  std::bitset<16 * 256> beginnings;
  const auto beginning_of = [&](std::string_view word) {
    return std::min<std::size_t>(word.size(), 15) << 8 |
           (word.empty() ? 0u : static_cast<unsigned char>(word.front()));
  };
  for (const std::string& word : stop_words) beginnings.set(beginning_of(word));
  std::vector<bool> found(stop_words.size());
  std::int64_t count = 0;
  for (const Word& word : words) {
    const std::string_view text = word.text();
    if (!beginnings[beginning_of(text)]) continue;
    const auto at =
        static_cast<std::size_t>(std::ranges::find(stop_words, text) - stop_words.begin());
    if (at == stop_words.size() || found[at]) continue;
    found[at] = true;
    if (++count >= least) return true;
  }
  return false;
}

}  // namespace

std::string_view GopherQuality::removed_by(const TextMeasures& text) const {
  const TextMeasures::WordCounts& counts = text.word_counts();
  if (counts.solid < min_doc_words) return "gopher_quality.words_few";
  if (max_doc_words != 0 && counts.solid > max_doc_words) return "gopher_quality.words_many";
  if (counts.solid > 0) {
    const double length = python_ratio(counts.solid_characters, counts.solid);
    if (length < min_avg_word_length) return "gopher_quality.words_short";
    if (exceeds_threshold(length, max_avg_word_length)) return "gopher_quality.words_long";
  }
  if (exceeds_threshold(python_ratio(text.hashes(), counts.words), max_symbol_word_ratio))
    return "gopher_quality.hashes";
  if (exceeds_threshold(python_ratio(text.ellipses(), counts.words), max_symbol_word_ratio))
    return "gopher_quality.ellipses";
  const TextMeasures::Lines& lines = text.lines();
  if (exceeds_threshold(python_ratio(lines.bullets, lines.lines), max_bullet_lines_ratio))
    return "gopher_quality.bullet_lines";
  if (exceeds_threshold(python_ratio(lines.ellipses, lines.lines), max_ellipsis_lines_ratio))
    return "gopher_quality.ellipsis_lines";
  if (counts.words > 0 &&
      python_ratio(counts.with_letter, counts.words) < max_non_alpha_words_ratio)
    return "gopher_quality.letters";
  if (min_stop_words != 0 && !has_stop_words(stop_words, text.words(), min_stop_words))
    return "gopher_quality.stop_words";
  return {};
}

namespace {

constexpr std::string_view kTopRules[] = {
    "gopher_repetition.top_2_gram", "gopher_repetition.top_3_gram", "gopher_repetition.top_4_gram"};
constexpr std::string_view kRepeatedRules[] = {
    "gopher_repetition.dup_5_grams", "gopher_repetition.dup_6_grams",
    "gopher_repetition.dup_7_grams", "gopher_repetition.dup_8_grams",
    "gopher_repetition.dup_9_grams", "gopher_repetition.dup_10_grams"};

}  // namespace

std::string_view GopherRepetition::removed_by(const TextMeasures& text) const {
  const std::int64_t characters = text.characters();
  if (dup_para_frac != 0 || dup_para_char_frac != 0) {
    const TextMeasures::Repeated& parts = text.paragraphs();
    if (exceeds_threshold(python_ratio(parts.repeated, parts.pieces), dup_para_frac))
      return "gopher_repetition.dup_para_frac";
    if (exceeds_threshold(python_ratio(parts.repeated_characters, characters), dup_para_char_frac))
      return "gopher_repetition.dup_para_char_frac";
  }
  if (dup_line_frac != 0 || dup_line_char_frac != 0) {
    const TextMeasures::Repeated& parts = text.newline_parts();
    if (exceeds_threshold(python_ratio(parts.repeated, parts.pieces), dup_line_frac))
      return "gopher_repetition.dup_line_frac";
    if (exceeds_threshold(python_ratio(parts.repeated_characters, characters), dup_line_char_frac))
      return "gopher_repetition.dup_line_char_frac";
  }
  for (std::size_t i = 0; i < top_n_grams.size(); ++i) {
    const std::int64_t top = text.top_n_gram_characters(static_cast<int>(i) + 2);
    if (python_ratio(top, characters) > top_n_grams[i]) return kTopRules[i];
  }
  for (std::size_t i = 0; i < dup_n_grams.size(); ++i) {
    const std::int64_t repeated = text.repeated_n_gram_characters(static_cast<int>(i) + 5);
    if (python_ratio(repeated, characters) > dup_n_grams[i]) return kRepeatedRules[i];
  }
  return {};
}

// ---- C4

namespace {

constexpr std::string_view kPolicyPhrases[] = {"terms of use", "privacy policy", "cookie policy",
                                               "uses cookies", "use of cookies", "use cookies"};

// str.lower as far as English phrases can tell: the Kelvin sign is a k.
std::string lower_english(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  constexpr std::string_view kKelvin = "\xE2\x84\xAA";
  std::size_t end = std::min(result.find(kKelvin), result.size());
  for (std::size_t i = end; i < result.size(); ++i) {
    const bool kelvin = std::string_view(result).substr(i).starts_with(kKelvin);
    result[end++] = kelvin ? 'k' : result[i];
    i += kelvin ? kKelvin.size() - 1 : 0;
  }
  result.resize(end);
  return result;
}

// The length of "[12]", "[]", "[edit]" or "[citation needed]" at the beginning; 0 if there is none.
std::size_t citation_length(std::string_view text) {
  for (const std::string_view fixed : {"[edit]", "[citation needed]"})
    if (text.starts_with(fixed)) return fixed.size();
  std::size_t i = 1, length = 1;
  const TextClasses& classes = TextClasses::get();
  while (i < text.size() && (classes.at(text, i, length) & TextClasses::Number) != 0) i += length;
  return i < text.size() && text[i] == ']' ? i + 1 : 0;
}

std::string without_citations(std::string_view line) {
  std::string kept;
  while (!line.empty()) {
    const std::size_t at = std::min(line.find('['), line.size());
    kept += line.substr(0, at);
    line.remove_prefix(at);
    if (line.empty()) break;
    const std::size_t length = citation_length(line);
    if (length == 0) kept += '[';
    line.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return kept;
}

bool ends_sentence(std::string_view line) {
  return !line.empty() && std::string_view(".?!\"'").find(line.back()) != std::string_view::npos &&
         !line.ends_with("...");
}

// The words of str.split, and the characters of the longest.
struct WordLengths {
  std::int64_t words = 0, longest = 0;
};

WordLengths word_lengths(std::string_view line) {
  const TextClasses& classes = TextClasses::get();
  WordLengths lengths;
  std::int64_t characters = 0;
  for (std::size_t i = 0, length = 0; i < line.size(); i += length) {
    const bool space = (classes.at(line, i, length) & TextClasses::Space) != 0;
    lengths.words += !space && characters == 0;
    characters = space ? 0 : characters + 1;
    lengths.longest = std::max(lengths.longest, characters);
  }
  return lengths;
}

bool has_phrase(const std::string& text, std::string_view phrase) {
  return memmem(text.data(), text.size(), phrase.data(), phrase.size()) != nullptr;
}

}  // namespace

C4Lines::Verdict C4Lines::judge(std::string& line) const {
  const WordLengths lengths = word_lengths(line);
  if (max_word_length != 0 && lengths.longest > max_word_length) return Verdict::Drop;
  if (remove_citations && line.find('[') != line.npos) line = without_citations(line);
  if (filter_no_terminal_punct && !ends_sentence(line)) return Verdict::Drop;
  if (lengths.words < min_words_per_line) return Verdict::Drop;
  const std::string lowered = lower_english(line);
  const auto has = [&](std::string_view phrase) { return has_phrase(lowered, phrase); };
  if (filter_lorem_ipsum && has("lorem ipsum")) return Verdict::LoremIpsum;
  if (filter_javascript && has("javascript")) return Verdict::Drop;
  if (filter_curly_bracket && has("{")) return Verdict::CurlyBracket;
  if (filter_policy && std::ranges::any_of(kPolicyPhrases, has)) return Verdict::Drop;
  return Verdict::Keep;
}

std::string_view C4Lines::edit(std::string& text) const {
  std::string kept, line;
  std::int64_t sentences = 0;
  bool first = true;
  WordSplitter splitter(WordMode::Tokens);
  std::vector<Word> tokens;
  for (std::string_view rest = text; !rest.empty();) {
    line = strip_space(take_line(rest));
    const Verdict verdict = judge(line);
    if (verdict == Verdict::LoremIpsum) return "c4.lorem_ipsum";
    if (verdict == Verdict::CurlyBracket) return "c4.curly_bracket";
    if (verdict == Verdict::Drop) continue;
    if (sentences < min_num_sentences) {
      tokens.clear();
      splitter.split(line, tokens);
      sentences += sentence_count(tokens);
    }
    if (!first) kept += '\n';
    first = false;
    kept += line;
  }
  if (sentences < min_num_sentences) return "c4.sentences";
  text = std::string(strip_space(kept));
  return {};
}

// ---- FineWeb

std::string_view FineWebQuality::removed_by(const TextMeasures& text) const {
  const TextMeasures::FilledLines& lines = text.filled_lines();
  const auto count = static_cast<std::int64_t>(lines.characters.size());
  if (count == 0) return "fineweb_quality.empty";
  const double ended = python_ratio(lines.ended, count);
  if (ended < line_punct_thr && !(ended == 0 && line_punct_exclude_zero))
    return "fineweb_quality.line_punct";
  const std::int64_t few = std::ranges::count_if(
      lines.characters, [&](std::int64_t characters) { return characters <= short_line_length; });
  if (python_ratio(few, count) > short_line_thr) return "fineweb_quality.short_lines";
  if (python_ratio(lines.repeated_characters, text.characters() - text.newlines()) >
      char_duplicates_ratio)
    return "fineweb_quality.char_duplicates";
  if (python_ratio(text.newlines(), text.word_count()) > new_line_ratio)
    return "fineweb_quality.new_lines";
  return {};
}

// ---- the thresholds of FineWeb-2

namespace {

class ThresholdReader : public YamlReader {
 public:
  using YamlReader::YamlReader;
  using YamlReader::operator();
  using YamlReader::refuse_other_keys;

  template <class T>
  void number(const char* key, T& value, Range range) {
    require(key);
    (*this)(key, value, range);
  }

  void words(const char* key, std::vector<std::string>& values) {
    require(key);
    (*this)(key, values, StringKind::Name);
    if (values.empty()) complain(key, "the list is empty");
  }

  // [[first, fraction], [first + 1, fraction], ...]
  template <std::size_t N>
  void pairs(const char* key, int first, std::array<double, N>& values) {
    require(key);
    take(key);
    const YAML::Node list = node()[key];
    const std::string expected =
        fmt::format("pairs of a number of words from {} to {} and a fraction are expected", first,
                    first + static_cast<int>(N) - 1);
    if (!list.IsSequence() || list.size() != N) complain(key, expected);
    for (std::size_t i = 0; i < N; ++i) {
      const YAML::Node pair = list[i];
      if (!pair.IsSequence() || pair.size() != 2 || !pair[0].IsScalar() || !pair[1].IsScalar() ||
          pair[0].Scalar() != std::to_string(first + static_cast<int>(i)))
        complain(key, expected);
      values[i] = fraction(key, pair[1].Scalar());
    }
  }

 private:
  void require(const char* key) const {
    if (!node()[key].IsDefined()) user_error("{}: {} is missing", document().source(), key);
  }
  double fraction(const char* key, const std::string& text) const {
    double value = 0;
    try {
      value = YamlScalar<double>::parse(text);
    } catch (const UserError& error) {
      complain(key, error.what());
    }
    if (!(value >= 0 && value <= 1e9)) complain(key, fmt::format("{} is no fraction", text));
    return value;
  }
};

}  // namespace

FineWeb2Thresholds read_fineweb2_thresholds(const std::filesystem::path& path) {
  const YamlDocument document(read_text_file(path.string()), path.string());
  const std::vector<std::string> keys;
  ThresholdReader reader(document, keys);
  FineWeb2Thresholds x;
  x.repetition.dup_para_frac = x.repetition.dup_line_char_frac = x.repetition.dup_para_char_frac =
      0;
  x.fineweb.short_line_thr = 999;
  x.fineweb.char_duplicates_ratio = 0.1;
  reader.number("language_score", x.language_score, between(0, 1));
  reader.number("dup_line_frac", x.repetition.dup_line_frac, at_least(0));
  reader.pairs("top_n_grams", 2, x.repetition.top_n_grams);
  reader.pairs("dup_n_grams", 5, x.repetition.dup_n_grams);
  reader.number("line_punct_thr", x.fineweb.line_punct_thr, between(-1, 1));
  reader.number("new_line_ratio", x.fineweb.new_line_ratio, at_least(0));
  reader.number("min_avg_word_length", x.quality.min_avg_word_length, at_least(0));
  reader.number("max_avg_word_length", x.quality.max_avg_word_length, at_least(0));
  reader.number("max_non_alpha_words_ratio", x.quality.max_non_alpha_words_ratio, between(0, 1));
  reader.words("stopwords", x.quality.stop_words);
  reader.refuse_other_keys();
  return x;
}

}  // namespace kintsugi
