// The words and the rules of the published filters, held against their restatement in Python
// (make_filter_cases.py).
#include "data/curation/text_filters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "data/curation/web_filters.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json filter_cases(const std::string& name) {
  return json::parse(std::ifstream(test_data_directory() + "/curation/" + name));
}

// A string, or parts that are repeated: [["ship ", 100], ["sea", 1]].
std::string filter_text(const json& compact) {
  if (compact.is_string()) return compact;
  std::string text;
  for (const json& part : compact)
    for (int i = 0; i < part[1].get<int>(); ++i) text += part[0].get<std::string>();
  return text;
}

template <class Filter>
Filter filter_with(const json& settings) {
  Filter filter;
  const YamlDocument document(settings.dump(), "the settings");
  YamlReader(document, {}).read(filter);
  return filter;
}

WordMode word_mode(const std::string& name) {
  return name == "tokens" ? WordMode::Tokens : WordMode::Whitespace;
}

std::u32string characters_of(std::string_view text) {
  std::u32string characters;
  for (std::size_t i = 0, length = 0; i < text.size(); i += length)
    characters += utf8_decode(text, i, length);
  return characters;
}
// Of str.splitlines.
bool ends_line(char32_t c) {
  return (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}
std::int64_t line_count(const std::u32string& text) {
  std::int64_t lines = !text.empty() && !ends_line(text.back());
  for (std::size_t i = 0; i < text.size(); ++i)
    lines += ends_line(text[i]) && !(text[i] == '\n' && i > 0 && text[i - 1] == '\r');
  return lines;
}

template <class Filter>
void check_filter(const std::string& name, std::size_t least) {
  const json cases = filter_cases(name);
  std::size_t count = 0;
  TextMeasures tokens(WordMode::Tokens), whitespace(WordMode::Whitespace);
  for (const json& item : cases["items"]) {
    const std::string text = filter_text(item[0]);
    tokens.set_text(text);
    whitespace.set_text(text);
    for (const json& check : item[1]) {
      json settings = check[1].get<bool>() ? cases["off"] : json::object();
      settings.update(check[2]);
      const WordMode mode = word_mode(check[0]);
      const TextMeasures& measures = mode == WordMode::Tokens ? tokens : whitespace;
      const auto filter = filter_with<Filter>(settings);
      const std::string expected = check[3];
      EXPECT_EQ(filter.removed_by(measures), expected) << item[0] << check;
      EXPECT_EQ(filter.removed_by(TextMeasures(text, mode)), expected) << item[0] << check;
      ++count;
    }
  }
  EXPECT_GE(count, least);
}

TEST(TextFilters, GopherQuality) { check_filter<GopherQuality>("gopher_quality.json", 900); }
TEST(TextFilters, GopherRepetition) {
  check_filter<GopherRepetition>("gopher_repetition.json", 1000);
}
TEST(TextFilters, FineWebQuality) { check_filter<FineWebQuality>("fineweb_quality.json", 900); }

// Counting is done in blocks of bytes; the words and lines themselves are found one by one.
TEST(TextFilters, BlocksOfBytesAreCountedAsSingleOnes) {
  const std::vector<std::string> parts = {
      " ",      "a",  "bc",     "\n",     "\r\n",   "\x1c",   "\x1f",   "\u0085",
      "\u00a0", "é",  "\u1680", "\u169b", "\u2003", "\u2014", "\u2028", "\u205f",
      "\u3000", "、", "漢",     "🙂",   "\u202f", "\u200b", "\t"};
  std::mt19937 random(11);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    const unsigned kinds = 1 + random() % 23;  // few kinds: long sequences without others
    for (unsigned n = random() % 200; n > 0; --n) text += parts[random() % kinds];
    TextMeasures measures(text, WordMode::Whitespace);
    EXPECT_EQ(count_split_words(text), std::ssize(measures.words())) << text;
    std::int64_t characters = 0, newlines = 0, lines = 0;
    for (const char32_t c : characters_of(text)) {
      ++characters;
      newlines += c == '\n';
    }
    EXPECT_EQ(character_count(text), characters) << text;
    EXPECT_EQ(byte_count(text, '\n'), newlines) << text;
    std::string joined;
    for (std::string_view rest = text; !rest.empty(); ++lines) joined += take_line(rest);
    EXPECT_EQ(lines, line_count(characters_of(text))) << text;
    for (const char32_t c : characters_of(joined)) EXPECT_FALSE(ends_line(c));
  }
}

template <class Filter>
void check_edits(const std::string& name, std::size_t least) {
  const json cases = filter_cases(name)["items"];
  for (const json& item : cases) {
    const std::string before = item["text"];
    std::string text = before;
    EXPECT_EQ(filter_with<Filter>(item["settings"]).edit(text), item["removed"]) << item;
    EXPECT_EQ(text, item["left"].is_null() ? before : item["left"].get<std::string>()) << item;
  }
  EXPECT_GE(cases.size(), least);
}

TEST(TextFilters, C4RemovesLinesAndDocuments) { check_edits<C4Lines>("c4.json", 600); }
TEST(TextFilters, RefinedWebRemovesLinesAndDocuments) {
  check_edits<RefinedWebLines>("refinedweb_lines.json", 500);
}

TEST(TextFilters, C4CountsParagraphs) {
  const json cases = filter_cases("c4_paragraphs.json")["items"];
  for (const json& item : cases) {
    const std::string text = filter_text(item[0]);
    const auto filter = filter_with<C4Paragraphs>(item[1]);
    EXPECT_EQ(filter.removed_by(TextMeasures(text, WordMode::Whitespace)), item[2]) << item;
  }
  EXPECT_GE(cases.size(), 300u);
}

class C4BadWordList : public testing::Test {
 protected:
  std::string removed_by(const C4BadWords& settings, const std::string& text,
                         const std::string& language = "") {
    auto document = CuratedDocument::of_text(text, "text");
    document.language = language;
    StepContext context;
    return std::string(make_step(settings)->apply(document, context));
  }
  C4BadWords settings(const json& entries) {
    std::string list = "# entries\n";
    for (const json& entry : entries) list += entry.get<std::string>() + " \n";
    directory_.write("list", list + "\n");
    return {.lists = {(directory_ / "list").string()}, .language = {}};
  }
  TemporaryDirectory directory_;
};

TEST_F(C4BadWordList, IsFoundBetweenWords) {
  const json file = filter_cases("c4_bad_words.json");
  C4BadWords between = settings(file["off"]), inside = between;
  inside.inside_words = true;
  for (const json& item : file["items"]) {
    EXPECT_EQ(removed_by(between, item[0]), item[1]) << item;
    EXPECT_EQ(removed_by(inside, item[0]), item[2]) << item;
  }
  EXPECT_GE(file["items"].size(), 300u);
}

TEST_F(C4BadWordList, IsOfALanguageAndKeepsAFraction) {
  C4BadWords some = settings({"bad"});
  some.language = "fi";
  EXPECT_EQ(removed_by(some, "so bad", "fi"), "c4_bad_words.listed");
  EXPECT_EQ(removed_by(some, "so bad", "sv"), "");
  some.keep_fraction = 0.25;
  int kept = 0;
  for (int i = 0; i < 400; ++i) kept += removed_by(some, "bad " + std::to_string(i), "fi").empty();
  EXPECT_NEAR(kept, 100, 35);  // four standard deviations
}

TEST(Words, AreThoseOfTheRestatedRules) {
  const json cases = filter_cases("words.json")["items"];
  for (const json& item : cases) {
    const std::string text = item[0];
    std::vector<Word> words;
    WordSplitter(WordMode::Tokens).split(text, words);
    std::vector<std::string> found;
    for (const Word& word : words) {
      found.emplace_back(word.text());
      EXPECT_EQ(word.characters(), character_count(word.text())) << item;
    }
    EXPECT_EQ(found, item[1].get<std::vector<std::string>>()) << item;
  }
  EXPECT_GE(cases.size(), 1500u);
}

TEST(Words, OfOneChunkTakeLinearTime) {
  for (const char* const part : {"a.", "!", "a@", "...a", "\"a", "https://", "a-", "5km", "漢。"}) {
    std::string text;
    for (int i = 0; i < 300'000; ++i) text += part;
    std::vector<Word> words;
    WordSplitter(WordMode::Tokens).split(text, words);
    std::string joined;
    for (const Word& word : words) joined += word.text();
    EXPECT_EQ(joined, text) << part;
  }
}

// ---- FineWeb-2

constexpr std::string_view kDutchThresholds = R"(dup_line_frac: 0.296
dup_n_grams:
- - 5
  - 0.156
- - 6
  - 0.146
- - 7
  - 0.136
- - 8
  - 0.126
- - 9
  - 0.115
- - 10
  - 0.104
language_score: 0.689
line_punct_thr: -1
max_avg_word_length: 17
max_non_alpha_words_ratio: 0.828
min_avg_word_length: 3
new_line_ratio: 0.154
stopwords:
- de
- 'no'
- "f\xFCr"
top_n_grams:
- - 2
  - 0.213
- - 3
  - 0.182
- - 4
  - 0
)";

FineWeb2Thresholds dutch_thresholds(const std::string& yaml) {
  const TemporaryDirectory directory;
  return read_fineweb2_thresholds(directory.write("nld_Latn.yml", yaml));
}

TEST(FineWeb2, ReadsTheSettingsOfALanguage) {
  const FineWeb2Thresholds x = dutch_thresholds(std::string(kDutchThresholds));
  EXPECT_EQ(x.language_score, 0.689);
  EXPECT_EQ(x.repetition.dup_line_frac, 0.296);
  EXPECT_EQ(x.repetition.dup_para_frac, 0);
  EXPECT_EQ(x.repetition.dup_para_char_frac, 0);
  EXPECT_EQ(x.repetition.dup_line_char_frac, 0);
  EXPECT_EQ(x.repetition.top_n_grams, (std::array{0.213, 0.182, 0.0}));
  EXPECT_EQ(x.repetition.dup_n_grams, (std::array{0.156, 0.146, 0.136, 0.126, 0.115, 0.104}));
  EXPECT_EQ(x.fineweb.line_punct_thr, -1);
  EXPECT_EQ(x.fineweb.new_line_ratio, 0.154);
  EXPECT_EQ(x.fineweb.char_duplicates_ratio, 0.1);
  EXPECT_GT(x.fineweb.short_line_thr, 1);
  EXPECT_EQ(x.quality.min_avg_word_length, 3);
  EXPECT_EQ(x.quality.max_avg_word_length, 17);
  EXPECT_EQ(x.quality.max_non_alpha_words_ratio, 0.828);
  EXPECT_EQ(x.quality.stop_words, (std::vector<std::string>{"de", "no", "für"}));
  EXPECT_EQ(x.quality.min_stop_words, 2);
}

std::string threshold_complaint(std::string yaml, const std::string& before,
                                const std::string& after) {
  const std::size_t at = yaml.find(before);
  EXPECT_NE(at, yaml.npos) << before;
  yaml.replace(at, before.size(), after);
  try {
    dutch_thresholds(yaml);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(FineWeb2, RefusesDamagedFiles) {
  const struct {
    const char *before, *after, *complaint;
  } damages[] = {
      {"language_score: 0.689\n", "", "language_score is missing"},
      {"language_score: 0.689", "language_score: 1.2", "must be at least 0 and at most 1"},
      {"dup_line_frac: 0.296", "dup_line_frac: -1", "must be at least 0"},
      {"new_line_ratio: 0.154", "new_line_ratio: nan", "new_line_ratio"},
      {"new_line_ratio: 0.154", "new_line_ratio:", "a number"},
      {"new_line_ratio", "new_line_ration", "new_line_ratio is missing"},
      {"dup_line_frac", "more: 1\ndup_line_frac", "more"},
      {"  - 0.213", "  - many", "top_n_grams"},
      {"  - 0.213", "  - -0.1", "top_n_grams"},
      {"  - 0.213", "  - .inf", "top_n_grams"},
      {"  - 0.213\n", "", "from 2 to 4"},
      {"- - 3", "- - 2", "from 2 to 4"},
      {"- - 10\n  - 0.104\n", "", "from 5 to 10"},
      {"dup_n_grams:\n", "dup_n_grams: 5\nx:\n", "from 5 to 10"},
      {"- de\n- 'no'\n- \"f\\xFCr\"\n", "", "stopwords"},
      {"stopwords:\n- de\n- 'no'\n- \"f\\xFCr\"\n", "stopwords: []\n", "empty"},
      {"- de", "- - de", "stopwords"},
      {"- de", "- de: 1", "stopwords"},
  };
  for (const auto& damage : damages)
    EXPECT_THAT(threshold_complaint(std::string(kDutchThresholds), damage.before, damage.after),
                HasSubstr(damage.complaint))
        << damage.after;
  EXPECT_THROW(dutch_thresholds(""), UserError);
  EXPECT_THROW(dutch_thresholds("- 1"), UserError);
  EXPECT_THROW(read_fineweb2_thresholds("/nowhere/nld_Latn.yml"), UserError);
}

}  // namespace
}  // namespace kintsugi
