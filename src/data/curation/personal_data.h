#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/yaml_reader.h"

namespace kintsugi {

enum class PersonalDataKind : std::uint8_t { Email, Ip, Iban, Card, National, Phone };
inline constexpr std::size_t kPersonalDataKinds = 6;

enum class MaskStyle : std::uint8_t {
  Marker,  // <email-pii>
  Shape    // other letters and digits in the places of letters and digits
};
template <>
inline constexpr EnumWords<2> kEnumWords<MaskStyle> = {"marker", "shape"};

// Bytes of a text to mask.
struct MaskedSpan {
  PersonalDataKind kind = PersonalDataKind::Email;
  std::size_t begin = 0, end = 0;
  bool operator==(const MaskedSpan&) const = default;
};

// Masks personal data that their form tells: e-mail addresses, globally routable IP addresses,
// IBANs, cards, national numbers with check digits and telephone numbers (docs/curation.md says
// which). Names and postal addresses are not among them.
struct PersonalData {
  // The marker of each kind; null: the kind is left as it is.
  std::optional<std::string> email = "<email-pii>", ip = "<ip-pii>", iban = "<iban-pii>",
                             card = "<card-pii>", national = "<national-pii>",
                             phone = "<phone-pii>";
  std::vector<std::string> countries = {};  // of national and telephone numbers; empty: all known
  MaskStyle style = MaskStyle::Marker;
  std::uint64_t seed = 0;  // of the random shapes; secret, as numbers could be found by trying

  void check() const;  // UserError: a country is not known
  // In the order of the text; they do not overlap.
  std::vector<MaskedSpan> find(std::string_view text) const;
  void mask(std::string& text, const std::vector<MaskedSpan>& spans) const;
  // Always empty: a mask removes no document.
  std::string_view edit(std::string& text) const;

  const std::optional<std::string>& marker(PersonalDataKind kind) const;
};

std::string_view name_of(PersonalDataKind kind);  // "email", for reports

template <class V>
void describe(V& v, PersonalData& x) {
  v("email", x.email);
  v("ip", x.ip);
  v("iban", x.iban);
  v("card", x.card);
  v("national", x.national);
  v("phone", x.phone);
  v("countries", x.countries);
  v("style", x.style);
  v("seed", x.seed);
}

}  // namespace kintsugi
