// Which bytes are personal data: cases of make_personal_data_cases.py, which restates the rules.
#include "data/curation/personal_data.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/file.h"
#include "support/errors.h"
#include "support/paths.h"

namespace kintsugi {
namespace {

nlohmann::json cases() {
  return nlohmann::json::parse(
      read_text_file(std::string(test_data_directory()) + "/curation/personal_data_cases.json"));
}

std::vector<MaskedSpan> expected_spans(const nlohmann::json& spans) {
  std::vector<MaskedSpan> expected;
  for (const auto& span : spans)
    for (std::size_t kind = 0; kind < kPersonalDataKinds; ++kind)
      if (span[2] == name_of(static_cast<PersonalDataKind>(kind)))
        expected.push_back({static_cast<PersonalDataKind>(kind), span[0], span[1]});
  return expected;
}

std::string to_text(const std::vector<MaskedSpan>& spans) {
  std::string text;
  for (const MaskedSpan& span : spans)
    text += fmt::format("{} {}-{} ", name_of(span.kind), span.begin, span.end);
  return text;
}

TEST(PersonalData, IsFoundAsTheRestatementSays) {
  const PersonalData settings;
  std::map<std::string, int> counts;
  for (const auto& one : cases()) {
    const std::string text = one["text"];
    EXPECT_EQ(to_text(settings.find(text)), to_text(expected_spans(one["spans"]))) << text;
    ++counts[one["group"]];
  }
  EXPECT_EQ(counts.size(), kPersonalDataKinds);
  for (const auto& [group, count] : counts) EXPECT_GE(count, 300) << group;
}

// Bytes that are not found in one text are not read beyond its end: all cases in one document.
TEST(PersonalData, IsFoundInALongDocument) {
  std::string text;
  std::vector<MaskedSpan> expected;
  for (const auto& one : cases()) {
    for (MaskedSpan span : expected_spans(one["spans"])) {
      span.begin += text.size();
      span.end += text.size();
      expected.push_back(span);
    }
    // No word of one case is within reach of the next one.
    text += one["text"].get<std::string>() + std::string(60, '\n');
  }
  EXPECT_EQ(to_text(PersonalData().find(text)), to_text(expected));
}

TEST(PersonalData, IsReplacedByTheMarkerOfItsKind) {
  std::string text = "Mail jan@example.nl, +31 6 12345678; NL91 ABNA 0417 1643 00 at 8.8.8.8.";
  EXPECT_EQ(PersonalData().edit(text), "");
  EXPECT_EQ(text, "Mail <email-pii>, <phone-pii>; <iban-pii> at <ip-pii>.");
  PersonalData settings;
  settings.email = "";
  settings.ip.reset();
  text = "jan@example.nl at 8.8.8.8";
  settings.edit(text);
  EXPECT_EQ(text, " at 8.8.8.8") << "an empty marker deletes, null leaves as it is";
}

TEST(PersonalData, MarkersAreNotFoundAgain) {
  for (const auto& one : cases()) {
    std::string text = one["text"];
    PersonalData().edit(text);
    const std::string once = text;
    PersonalData().edit(text);
    EXPECT_EQ(text, once);
  }
}

TEST(PersonalData, ShapesKeepTheKindOfEachCharacter) {
  PersonalData settings;
  settings.style = MaskStyle::Shape;
  const std::string text = "Jan.de-Vries@example.nl, 4111 1111 1111 1111";
  std::string masked = text, again = text, other = text;
  settings.edit(masked);
  settings.edit(again);
  EXPECT_EQ(masked, again);
  settings.seed = 1;
  settings.edit(other);
  EXPECT_NE(masked, other);
  ASSERT_EQ(masked.size(), text.size());
  int same = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto kind = [](char c) {
      return std::isdigit(c) ? '9' : std::isupper(c) ? 'A' : std::islower(c) ? 'a' : c;
    };
    EXPECT_EQ(kind(masked[i]), kind(text[i])) << i;
    same += std::isalnum(text[i]) && masked[i] == text[i] ? 1 : 0;
  }
  EXPECT_LT(same, 10) << masked;
}

TEST(PersonalData, OnlyNumbersOfTheChosenCountriesAreFound) {
  const std::string text = "12345678Z, +31 6 12345678, +358 40 1234567, bsn 123456782";
  PersonalData settings;
  EXPECT_EQ(settings.find(text).size(), 4);
  settings.countries = {"NL"};
  EXPECT_EQ(to_text(settings.find(text)), "phone 11-25 national 48-57 ");
  settings.countries = {"ES"};
  EXPECT_EQ(to_text(settings.find(text)), "national 0-9 ");
  settings.check();
  settings.countries = {"Spain"};
  EXPECT_EQ(user_error_of([&] { settings.check(); }),
            "no number of the country 'Spain' is known; countries are two letters, such as NL");
}

TEST(PersonalData, IsConfiguredByKeys) {
  const YamlDocument document(
      "{email: null, phone: '[phone]', countries: [NL, ES], style: shape, seed: 7}", "recipe.yaml");
  const std::vector<std::string> keys;
  PersonalData settings;
  YamlReader(document, keys).read(settings);
  EXPECT_EQ(settings.email, std::nullopt);
  EXPECT_EQ(settings.phone, "[phone]");
  EXPECT_EQ(settings.iban, "<iban-pii>");
  EXPECT_EQ(settings.countries, (std::vector<std::string>{"NL", "ES"}));
  EXPECT_EQ(settings.style, MaskStyle::Shape);
  EXPECT_EQ(settings.seed, 7);
}

// No input takes time that grows faster than its length.
TEST(PersonalData, HostileTextIsReadOnce) {
  for (const std::string_view unit : {"@", "a@", "1", "1 ", "1.", "a.", ".@", "2a00:", "+31 ",
                                      "(0)", "a@b.", "NL91 ", "\xC2\xA0", "1\xC2\xA0", "tel 1"}) {
    std::string text;
    while (text.size() < 2'000'000) text += unit;
    EXPECT_EQ(PersonalData().find(text).size(), 0) << unit;
  }
}

}  // namespace
}  // namespace kintsugi
