// Expected values: lm-evaluation-harness and Python's re and str.
#include "eval/filters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "eval/text.h"
#include "support/errors.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;
using Texts = std::vector<std::string>;

std::string filtered(ResponseFilters filters, const std::string& response) {
  return apply_filters(filters, {response}).at(0).value();
}
std::string select(const RegexFilterOptions& options, const std::string& response) {
  ResponseFilters filters;
  filters.push_back(make_regex_filter(options));
  filters.push_back(make_plain_filter("take_first"));
  return filtered(std::move(filters), response);
}

TEST(Filters, TheAnswersOfGsm8k) {
  EXPECT_EQ(select({}, " 3 + 4 = 7.\n#### 7"), "7");
  EXPECT_EQ(select({}, "So #### 1,250."), "1,250.");
  EXPECT_EQ(select({}, "The answer is 12"), "[invalid]");
  const RegexFilterOptions flexible{.regex_pattern = "(-?[$0-9.,]{2,})|(-?[0-9]+)",
                                    .group_select = -1};
  EXPECT_EQ(select(flexible, "3 + 4 = 7, so $12.50 in total."), "$12.50");
  EXPECT_EQ(select(flexible, "It is 9"), "9");
  EXPECT_EQ(select(flexible, "none"), "[invalid]");
  const ExactMatchOptions options{.regexes_to_ignore = {",", "\\$", "(?s).*#### ", "\\.$"},
                                  .ignore_case = true};
  ExactMatch match(options);
  EXPECT_EQ(match.score("7", Texts{"He has 3 + 4 = 7.\n#### 7"}), 1);
  EXPECT_EQ(match.score("1,250.", Texts{"x\n#### 1250"}), 1);
  EXPECT_EQ(match.score("$12.50", Texts{"a #### 12.50"}), 1);
  EXPECT_EQ(match.score("[invalid]", Texts{"y\n#### 12"}), 0);
}

TEST(Filters, SelectAMatchAndAGroup) {
  EXPECT_EQ(select({.regex_pattern = "\\d", .group_select = 1}, "1 2 3"), "2");
  EXPECT_EQ(select({.regex_pattern = "\\d", .group_select = -3}, "1 2 3"), "1");
  EXPECT_EQ(select({.regex_pattern = "(\\d)(x)?(y)?"}, "1y"), "1");
  EXPECT_EQ(select({.regex_pattern = "(x)?(y)?", .fallback = " no "}, "1"), "no");
  EXPECT_EQ(select({.regex_pattern = "=(.*)"}, "a=\u00A0b \n"), "b");
  EXPECT_EQ(select({.regex_pattern = "z", .fallback = " no "}, "1"), " no ");
  EXPECT_THAT(user_error_of([] { select({.regex_pattern = "\\d", .group_select = 2}, "1 2"); }),
              AllOf(HasSubstr("group_select is 2"), HasSubstr("2 matches")));
  EXPECT_THROW(make_regex_filter({.regex_pattern = "("}), UserError);
}

TEST(Filters, RunOneAfterTheOther) {
  ResponseFilters filters;
  filters.push_back(make_plain_filter("remove_whitespace"));
  filters.push_back(make_plain_filter("lowercase"));
  filters.push_back(make_map_filter({{"yes", "1"}, {"no", "0"}}, "-1"));
  const std::vector<Response> all = apply_filters(filters, {" YES\u2003", "\tNo", "maybe"});
  EXPECT_EQ(all, (std::vector<Response>{"1", "0", "-1"}));
  filters.push_back(make_plain_filter("take_first"));
  EXPECT_EQ(apply_filters(filters, {"no", "yes"}), std::vector<Response>{"0"});
  ResponseFilters map;
  map.push_back(make_map_filter({{"a", "b"}}, std::nullopt));
  map.push_back(make_plain_filter("uppercase"));
  EXPECT_EQ(apply_filters(map, {"a", "c"}), (std::vector<Response>{"B", std::nullopt}));
  EXPECT_EQ(ExactMatch({}).score(std::nullopt, Texts{""}), 0);
  EXPECT_THAT(user_error_of([] { make_plain_filter("majority_vote"); }),
              AllOf(HasSubstr("'majority_vote'"), HasSubstr("take_first")));
}

TEST(ExactMatch, WhiteSpaceAndCaseCount) {
  ExactMatch plain({});
  EXPECT_EQ(plain.score("Paris", Texts{"Paris"}), 1);
  EXPECT_EQ(plain.score(" Paris", Texts{"Paris"}), 0);
  EXPECT_EQ(plain.score("paris", Texts{"Paris"}), 0);
  EXPECT_EQ(plain.score("", Texts{""}), 1);
  EXPECT_EQ(plain.score("a", Texts{}), 0);
}

TEST(ExactMatch, IgnoresWhatItIsGiven) {
  ExactMatch loose({.ignore_case = true, .ignore_punctuation = true});
  EXPECT_EQ(loose.score("J.R.R. Tolkien", Texts{"Tolkien", "J. R. R. Tolkien", "jrr tolkien"}), 1);
  EXPECT_EQ(loose.score("the Hobbit!", Texts{"The Hobbit"}), 1);
  EXPECT_EQ(loose.score("«Hobitti»", Texts{"Hobitti"}), 0) << "not ASCII";
  EXPECT_EQ(loose.score("ÄITI", Texts{"äiti"}), 1);
  ExactMatch numbers({.ignore_numbers = true});
  EXPECT_EQ(numbers.score("room 101", Texts{"room 7"}), 1);
  EXPECT_EQ(numbers.score("room", Texts{"room 7"}), 0);
  EXPECT_EQ(numbers.score("room ٣", Texts{"room 7"}), 0) << "not ASCII";
}

TEST(WordF1, CountsWordsInCommon) {
  EXPECT_NEAR(word_f1("The big red dog", Texts{"a red dog!"}), 2.0 * 2 / (3 + 2), 1e-15);
  EXPECT_NEAR(word_f1("dog dog", Texts{"dog", "cat"}), 2.0 / 3, 1e-15);
  EXPECT_EQ(word_f1("cat", Texts{"dog"}), 0);
  EXPECT_EQ(word_f1("the", Texts{""}), 1);
}

TEST(PythonRegex, FindsWhatPythonFinds) {
  using Matches = std::vector<Texts>;
  const auto all = [](const char* pattern, const char* text) {
    return PythonRegex(pattern).find_all(text);
  };
  // Empty matches, also next to another match.
  EXPECT_EQ(all("x*", "axbc"), (Matches{{""}, {"x"}, {""}, {""}, {""}}));
  EXPECT_EQ(all("a??", "a"), (Matches{{""}, {"a"}, {""}}));
  EXPECT_EQ(all("(a)|(b)", "ab"), (Matches{{"a", ""}, {"", "b"}}));
  EXPECT_EQ(all("\\s", " \u00A0\x1F\u200B\u180E"), (Matches{{" "}, {"\u00A0"}, {"\x1F"}}));
  EXPECT_EQ(all("[^\\S\\n]", "\n\t"), (Matches{{"\t"}}));
  EXPECT_EQ(all("\\w+", "äb_1² -"), (Matches{{"äb_1²"}}));
  EXPECT_EQ(all("\\d", "3٣²"), (Matches{{"3"}, {"٣"}}));
  EXPECT_EQ(all("a$", "a\na\n"), (Matches{{"a"}}));
  EXPECT_EQ(all("a\\Z", "a\n"), Matches{});
  EXPECT_EQ(all(".", "\n\r"), (Matches{{"\r"}}));
  EXPECT_EQ(all("x{,2}y", "xxxy"), (Matches{{"xxy"}}));
  EXPECT_EQ(all("[[a]\\u00e4\\x62", "[äb"), (Matches{{"[äb"}}));
  EXPECT_EQ(all("(?P<q>['\"])a(?P=q)", "'a' \"a'"), (Matches{{"'"}}));
  EXPECT_EQ(PythonRegex("^|b").remove_all("abab"), "aa");
  EXPECT_EQ(PythonRegex("a").remove_all("b\xFF"), "b\uFFFD");
}

TEST(PythonRegex, RefusesWhatPythonRefuses) {
  for (const char* pattern :
       {"(", "[a", "\\", "\\h", "\\p{L}", "\\Qa", "[\\Z]", "\\u12", "(*UTF)", "a**", "\xFF", "\\K"})
    EXPECT_THROW(PythonRegex{pattern}, UserError) << pattern;
}

TEST(PythonText, FollowsStr) {
  EXPECT_EQ(strip("\x1C\u3000 a b \u2003"), "a b");
  EXPECT_EQ(strip_right(" a\u200B"), " a\u200B");
  EXPECT_EQ(strip(" \n"), "");
  EXPECT_EQ(split_at_spaces(" a\u00A0b  c"), (std::vector<std::string_view>{"a", "b", "c"}));
  EXPECT_EQ(count_words("a b"), 2u);
  EXPECT_EQ(count_words(" "), 2u);
  EXPECT_EQ(lower("ΟΔΟΣ ΣΑΣ. İI"), "οδος σας. i̇i");
  EXPECT_EQ(lower("ⒶΣ Ⅷ.Σ ªΣ aΣ:b"), "ⓐς ⅷ.ς ªς aσ:b");
  EXPECT_EQ(upper("straße ŉ ﬁ ẞ ǆ"), "STRASSE ʼN FI ẞ Ǆ");
  EXPECT_EQ(count_code_points("ä🙂\xFF\xC3"), 4u);
}

}  // namespace
}  // namespace kintsugi
