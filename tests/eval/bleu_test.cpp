// Expected values: sacreBLEU 2.6.0.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "eval/translation_scores.h"
#include "support/errors.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

// The texts that are scored below, with their reference sets.
struct Translated {
  Segments hypotheses;
  std::vector<Segments> references;
};
const Translated kNoMatch{{"this is a test", "another test"}, {{"ref1", "ref2"}}};
const Translated kOneOtherWord{{"this is a fest"}, {{"this is a test"}}};
const Translated kTwoWords{{"a test"}, {{"a test"}}};
const Translated kDog{
    {"The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."},
    {{"The dog bit the man.", "It was not unexpected.", "The man bit him first."},
     {"The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."}}};
const Translated kRepeatedWords{{"am I am a character sequence"},
                                {{"I am a symbol string sequence a a"}}};
const Translated kSugar{
    {"Producția de zahăr primă va fi exprimată în ceea ce privește zahărul alb;"},
    {{"producţia de zahăr brut se exprimă în zahăr alb;"}}};
const Translated kNothingCommon{{"this is a cat"}, {{"okay thanks"}}};
const Translated kNoCommonLetter{{"abcdefg"}, {{"hijklmnop"}}};
const Translated kEmptyAndLetter{{""}, {{"b"}}};
const Translated kEmptyAndWord{{""}, {{"reference"}}};
const Translated kOneOfTwo{{"a", "b"}, {{"a", "c"}}};
const Translated kThreeLetters{{"a b c"}, {{"a b c"}}};
const Translated kRisk{{" risk assessment must be made of those who are qualified and expertise in "
                        "the sector - these are the scientists ."},
                       {{"risk assessment has to be undertaken by those who are qualified and "
                         "expert in that area - that is the scientists ."}}};
const Translated kWall{{"Niemand hat die Absicht, eine Mauer zu errichten"},
                       {{"Niemand hat die Absicht, eine Mauer zu errichten"}}};
const Translated kSpaces{{"a b c"}, {{"abc"}}};
const Translated kNetanyahu{
    {"Die Beziehung zwischen Obama und Netanjahu ist nicht gerade freundlich."},
    {{"Das Verhältnis zwischen Obama und Netanyahu ist nicht gerade freundschaftlich."}}};
const Translated kDoctors{
    {"Co nás nejvíc trápí, protože lékaři si vybírají, kdo bude žít a kdo zemře."},
    {{"Nejvíce smutní jsme z toho, že musíme rozhodovat o tom, kdo bude žít a kdo zemře."}}};
const Translated kBreath{
    {"Lapali po dechu, jejich životy skončily dřív, než skutečně začaly."},
    {{"Lapali po dechu a pak jejich život skončil - dřív, než skutečně mohl začít, připomněli."}}};
const Translated kTwoLengths{{"one two three four five six"},
                             {{"one two three four five six seven"}, {"one two three four six"}}};
const Translated kPrices{{"It cost $1,234.56 (approx.) on 2024-05-06!"},
                         {{"It cost $1,234.50 (approx.) on 2024-05-06."}}};
const Translated kWeather{{"Sää on kaunis."},
                          {{"Sää on tänään Helsingissä todella kaunis ja lämmin."}}};

TEST(Bleu, AgreesWithSacreBleu) {
  struct Case {
    const Translated& text;
    bool sentence;
    BleuOptions options;
    double score;
    std::vector<double> counts, totals;
    double brevity_penalty;
    std::int64_t hypothesis_length, reference_length;
  };
  const std::vector<Case> cases = {
      {kNoMatch,
       false,
       {BleuTokenizer::None, false, BleuSmoothing::Floor, 0.01, true, 4},
       0.0,
       {0, 0, 0, 0},
       {6, 4, 2, 1},
       1.0,
       6,
       2},
      {kOneOtherWord,
       false,
       {BleuTokenizer::None, false, BleuSmoothing::Floor, 0.01, true, 4},
       22.360679774997894,
       {3, 2, 1, 0},
       {4, 3, 2, 1},
       1.0,
       4,
       4},
      {kTwoWords,
       false,
       {BleuTokenizer::None, false, BleuSmoothing::Floor, 0.01, true, 4},
       100.00000000000004,
       {2, 1, 0, 0},
       {2, 1, 0, 0},
       1.0,
       2,
       2},
      {kDog,
       false,
       {BleuTokenizer::V13a, false, BleuSmoothing::Exp, {}, false, 4},
       48.530827009929865,
       {14, 7, 5, 3},
       {17, 14, 11, 8},
       0.9428731438548749,
       17,
       18},
      {kDog,
       false,
       {BleuTokenizer::None, false, BleuSmoothing::Exp, {}, false, 4},
       49.19195660047277,
       {10, 6, 4, 2},
       {14, 11, 8, 5},
       0.9310627797040228,
       14,
       15},
      {kDog,
       false,
       {BleuTokenizer::Intl, false, BleuSmoothing::Exp, {}, false, 4},
       43.91623493336995,
       {14, 7, 5, 3},
       {19, 16, 13, 10},
       1.0,
       19,
       18},
      {kRepeatedWords,
       false,
       {BleuTokenizer::None, false, BleuSmoothing::Floor, 0.1, true, 4},
       15.557221826646018,
       {4, 2, 1, 0},
       {6, 5, 4, 3},
       0.7165313105737893,
       6,
       8},
      {kDog,
       false,
       {BleuTokenizer::V13a, false, BleuSmoothing::Exp, {}, false, 1},
       77.64837655275439,
       {14},
       {17},
       0.9428731438548749,
       17,
       18},
      {kDog,
       false,
       {BleuTokenizer::V13a, false, BleuSmoothing::Exp, {}, false, 3},
       53.93393139430307,
       {14, 7, 5},
       {17, 14, 11},
       0.9428731438548749,
       17,
       18},
      {kDog,
       false,
       {BleuTokenizer::V13a, false, BleuSmoothing::Exp, {}, false, 5},
       46.14416643541557,
       {14, 7, 5, 3, 2},
       {17, 14, 11, 8, 5},
       0.9428731438548749,
       17,
       18},
      {kSugar,
       true,
       {BleuTokenizer::V13a, false, BleuSmoothing::Exp, {}, true, 4},
       8.493098745313148,
       {5, 2, 0, 0},
       {14, 13, 12, 11},
       1.0,
       14,
       10},
      {kSugar,
       true,
       {BleuTokenizer::V13a, false, BleuSmoothing::Floor, {}, true, 4},
       4.516881220954753,
       {5, 2, 0, 0},
       {14, 13, 12, 11},
       1.0,
       14,
       10},
      {kSugar,
       true,
       {BleuTokenizer::V13a, false, BleuSmoothing::Floor, 0.5, true, 4},
       10.100053456347073,
       {5, 2, 0, 0},
       {14, 13, 12, 11},
       1.0,
       14,
       10},
      {kSugar,
       true,
       {BleuTokenizer::V13a, false, BleuSmoothing::AddK, 1, true, 4},
       14.882560178972215,
       {5, 3, 1, 1},
       {14, 14, 13, 12},
       1.0,
       14,
       10},
      {kSugar,
       true,
       {BleuTokenizer::None, false, BleuSmoothing::Exp, {}, true, 4},
       7.347053125977879,
       {4, 1, 0, 0},
       {13, 12, 11, 10},
       1.0,
       13,
       9},
      {kSugar,
       true,
       {BleuTokenizer::Char, false, BleuSmoothing::Exp, {}, true, 4},
       40.875973647629166,
       {37, 30, 21, 15},
       {61, 60, 59, 58},
       1.0,
       61,
       40},
      {kNothingCommon,
       true,
       {BleuTokenizer::V13a, false, BleuSmoothing::Exp, {}, true, 4},
       0.0,
       {0, 0, 0, 0},
       {4, 3, 2, 1},
       1.0,
       4,
       2},
      {kNothingCommon,
       true,
       {BleuTokenizer::V13a, false, BleuSmoothing::Floor, {}, true, 4},
       0.0,
       {0, 0, 0, 0},
       {4, 3, 2, 1},
       1.0,
       4,
       2},
      {kNothingCommon,
       true,
       {BleuTokenizer::V13a, false, BleuSmoothing::AddK, {}, true, 4},
       0.0,
       {0, 0, 0, 0},
       {4, 3, 2, 1},
       1.0,
       4,
       2},
      {kTwoLengths,
       false,
       {BleuTokenizer::V13a, false, BleuSmoothing::Exp, {}, false, 4},
       100.00000000000004,
       {6, 5, 4, 3},
       {6, 5, 4, 3},
       1.0,
       6,
       5},
      {kThreeLetters,
       false,
       {BleuTokenizer::V13a, false, BleuSmoothing::Exp, {}, false, 4},
       0.0,
       {3, 2, 1, 0},
       {3, 2, 1, 0},
       1.0,
       3,
       3},
      {kPrices,
       false,
       {BleuTokenizer::V13a, false, BleuSmoothing::Exp, {}, false, 4},
       72.41577342575832,
       {13, 11, 9, 7},
       {15, 14, 13, 12},
       1.0,
       15,
       15},
      {kWeather,
       false,
       {BleuTokenizer::V13a, false, BleuSmoothing::Exp, {}, false, 4},
       10.88482843823664,
       {4, 1, 0, 0},
       {4, 3, 2, 1},
       0.2865047968601901,
       4,
       9},
  };
  for (const Case& c : cases) {
    const References references(c.text.references, c.text.hypotheses.size());
    const Bleu bleu = c.sentence ? sentence_bleu(c.text.hypotheses, references, c.options).at(0)
                                 : corpus_bleu(c.text.hypotheses, references, c.options);
    SCOPED_TRACE(c.text.hypotheses.front() + " " + bleu_signature(references, c.options));
    EXPECT_NEAR(bleu.score, c.score, 1e-10);
    EXPECT_EQ(bleu.statistics.counts, c.counts);
    EXPECT_EQ(bleu.statistics.totals, c.totals);
    EXPECT_NEAR(bleu.brevity_penalty, c.brevity_penalty, 1e-15);
    EXPECT_EQ(bleu.statistics.hypothesis_length, c.hypothesis_length);
    EXPECT_EQ(bleu.statistics.reference_length, c.reference_length);
  }
}

TEST(Chrf, AgreesWithSacreBleu) {
  struct Case {
    const Translated& text;
    bool sentence;
    ChrfOptions options;
    double score;
  };
  const std::vector<Case> cases = {
      {kNoCommonLetter, false, {6, 0, 3, false, true, false}, 1.0000000000000002e-14},
      {kEmptyAndLetter, false, {6, 0, 3, false, true, false}, 8.333333333333334e-15},
      {kEmptyAndWord, false, {6, 0, 3, false, true, false}, 0.0},
      {kOneOfTwo, false, {6, 0, 3, false, true, false}, 8.333333333333343},
      {kThreeLetters, false, {6, 0, 3, false, true, false}, 50.0},
      {kRisk, false, {6, 0, 3, false, true, false}, 63.36173005106315},
      {kWall, false, {6, 0, 3, false, true, false}, 100.0},
      {kEmptyAndWord, false, {6, 0, 3, false, false, false}, 0.0},
      {kSpaces, false, {6, 0, 3, false, false, false}, 100.0},
      {kOneOfTwo, false, {6, 0, 3, false, false, false}, 50.0},
      {kNetanyahu, false, {6, 0, 3, true, false, false}, 67.34816062977241},
      {kDoctors, true, {6, 0, 2, false, true, false}, 39.14078509431498},
      {kBreath, true, {6, 0, 2, false, true, false}, 57.15704366556671},
      {kTwoLengths, false, {6, 0, 2, false, false, false}, 82.89174542331286},
      {kThreeLetters, false, {6, 0, 2, false, false, false}, 100.0},
      {kPrices, false, {6, 0, 2, false, false, false}, 86.67833154965508},
      {kWeather, false, {6, 0, 2, false, false, false}, 17.113923029911792},
      {kTwoLengths, false, {6, 2, 2, false, false, false}, 83.98320733604449},
      {kThreeLetters, false, {6, 2, 2, false, false, false}, 100.0},
      {kPrices, false, {6, 2, 2, false, false, false}, 82.54347088446353},
      {kWeather, false, {6, 2, 2, false, false, false}, 20.97728450433269},
  };
  for (const Case& c : cases) {
    const References references(c.text.references, c.text.hypotheses.size());
    const double score = c.sentence ? sentence_chrf(c.text.hypotheses, references, c.options).at(0)
                                    : corpus_chrf(c.text.hypotheses, references, c.options);
    SCOPED_TRACE(c.text.hypotheses.front() + " " + chrf_signature(references, c.options));
    EXPECT_NEAR(score, c.score, 1e-10 * std::max(1e-4, c.score));
  }
}

TEST(Bleu, FromCounts) {
  struct Case {
    std::vector<double> counts, totals;
    std::int64_t hypothesis_length, reference_length;
    BleuSmoothing smoothing;
    std::optional<double> value;
    double score, brevity_penalty;
  };
  const std::vector<Case> cases = {
      {{9, 7, 5, 3}, {10, 8, 6, 4}, 11, 11, BleuSmoothing::None, {}, 83.75922397086269, 1.0},
      {{0, 0, 0, 0}, {10, 11, 12, 0}, 14, 10, BleuSmoothing::Floor, 0.0, 0.0, 1.0},
      {{6, 5, 4, 0}, {6, 5, 4, 3}, 6, 6, BleuSmoothing::Floor, 0.0, 0.0, 1.0},
      {{0, 0, 0, 0}, {0, 0, 0, 0}, 1, 5, BleuSmoothing::Floor, 0.01, 0.0, 0.01831563888873418},
  };
  for (const Case& c : cases) {
    const Bleu bleu = bleu_of({c.counts, c.totals, c.hypothesis_length, c.reference_length},
                              {.smoothing = c.smoothing, .smooth_value = c.value});
    EXPECT_NEAR(bleu.score, c.score, 1e-10);
    EXPECT_NEAR(bleu.brevity_penalty, c.brevity_penalty, 1e-15);
  }
}

TEST(BleuTokenizers, Separate13a) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"Hello, world!", {"Hello", ",", "world", "!"}},
      {"U.S. 1990-2000 (10-20%)",
       {"U", ".", "S", ".", "1990", "-", "2000", "(", "10", "-", "20", "%", ")"}},
      {"a-b c--d e/f", {"a-b", "c--d", "e", "/", "f"}},
      {"end.", {"end", "."}},
      {"  spaces   here  ", {"spaces", "here"}},
      {"e-mail: a_b@c.org; #tag ~ ^ `",
       {"e-mail", ":", "a", "_", "b", "@", "c", ".", "org", ";", "#", "tag", "~", "^", "`"}},
      {"line one-\nline two\nthree", {"line", "oneline", "two", "three"}},
      {"9-to-5, A-1", {"9", "-", "to-5", ",", "A-1"}},
  };
  for (const auto& [text, tokens] : cases)
    EXPECT_EQ(bleu_tokens(text, BleuTokenizer::V13a), tokens) << text;
}

TEST(BleuTokenizers, SeparateOtherScripts) {
  using Tokens = std::vector<std::string>;
  EXPECT_EQ(bleu_tokens("Hän sanoi: «5,5 %»—€3!", BleuTokenizer::Intl),
            (Tokens{"Hän", "sanoi", ":", "«", "5,5", "%", "»", "—", "€", "3!"}));
  EXPECT_EQ(bleu_tokens("ż\u00A0🙂 a", BleuTokenizer::Char), (Tokens{"ż", "🙂", "a"}));
  EXPECT_EQ(bleu_tokens("a\u2003b.", BleuTokenizer::None), (Tokens{"a", "b."}));
  EXPECT_EQ(bleu_tokens("&quot;a&amp;b&quot; <skipped>", BleuTokenizer::V13a),
            (Tokens{"\"", "a", "&", "b", "\""}));
  EXPECT_THROW(parse_bleu_tokenizer("zh"), UserError);
}

TEST(Bleu, LowercaseIgnoresCase) {
  const Segments upper = {"DER HUND BISS DEN MANN ÄRGERLICH"};
  const References references({{"Der Hund biss den Mann ärgerlich"}}, 1);
  EXPECT_EQ(corpus_bleu(upper, references, {}).score, 0);
  EXPECT_NEAR(corpus_bleu(upper, references, {.lowercase = true}).score, 100, 1e-10);
  EXPECT_LT(corpus_chrf(upper, references, {}), 10);
  EXPECT_NEAR(corpus_chrf(upper, references, {.lowercase = true}), 100, 1e-10);
}

TEST(Bleu, SignaturesNameWhatWasComputed) {
  const References one({{"a"}}, 1), varied({{"a", "b"}, {"", "c"}}, 2);
  EXPECT_EQ(bleu_signature(one, {}), "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0");
  EXPECT_EQ(bleu_signature(varied, {.tokenizer = BleuTokenizer::Char,
                                    .lowercase = true,
                                    .smoothing = BleuSmoothing::Floor,
                                    .effective_order = true}),
            "nrefs:var|case:lc|eff:yes|tok:char|smooth:floor[0.10]|version:2.6.0");
  EXPECT_EQ(chrf_signature(one, {.word_order = 2}),
            "nrefs:1|case:mixed|eff:yes|nc:6|nw:2|space:no|version:2.6.0");
  EXPECT_EQ(ChrfOptions{.word_order = 2}.name(), "chrF2++");
}

// The figures of a system of WMT17.
TEST(Bleu, PrintsAsSacreBleuDoes) {
  const Bleu bleu =
      bleu_of({{33969, 16493, 9174, 5285}, {60395, 57391, 54387, 51384}, 60395, 61287}, {});
  EXPECT_NEAR(bleu.score, 22.674635039470754, 1e-10);
  EXPECT_EQ(bleu.text(),
            "22.67 56.2/28.7/16.9/10.3 (BP = 0.985 ratio = 0.985 hyp_len = 60395 ref_len = 61287)");
}

TEST(References, AreComplete) {
  EXPECT_EQ(References({{"a", "b"}, {"", "c"}}, 2).of(0).size(), 1u);
  EXPECT_THAT(user_error_of([] { References({{"a", "b"}}, 1); }), testing::HasSubstr("2 segments"));
  EXPECT_THAT(user_error_of([] { References({{"a", ""}}, 2); }), testing::HasSubstr("segment 2"));
  EXPECT_THROW(References({}, 1), UserError);
}

TEST(References, AreReadLineByLine) {
  const TemporaryDirectory directory;
  directory.write("a", "one \r\n\ntwo\u2028three");
  EXPECT_EQ(read_segments(directory / "a"), (Segments{"one", "", "two\u2028three"}));
  directory.write("b", "ok\n\xFF\n");
  EXPECT_THAT(user_error_of([&] { read_segments(directory / "b"); }),
              testing::HasSubstr("b line 2 is not UTF-8"));
}

}  // namespace
}  // namespace kintsugi
