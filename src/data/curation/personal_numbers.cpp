// Numbers of a known form: IBANs, cards, national and telephone numbers.
#include <algorithm>
#include <span>

#include "data/curation/personal_scanners.h"

namespace kintsugi::personal {
namespace {

// Whether one of the words is within `before` bytes before or `after` bytes behind a span.
bool has_context(View text, std::size_t begin, std::size_t end, std::size_t before,
                 std::size_t after, std::span<const std::string_view> words) {
  const auto contains = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      if (is_letter(text.before(i)) || !is_letter(text[i])) continue;
      for (const std::string_view word : words) {
        if (i + word.size() > to || is_letter(text[i + word.size()])) continue;
        if (std::equal(word.begin(), word.end(), text.text.begin() + static_cast<long>(i),
                       [](char a, char b) { return a == lower(b); }))
          return true;
      }
    }
    return false;
  };
  return contains(begin > before ? begin - before : 0, begin) ||
         contains(end, std::min(end + after, text.size()));
}

bool is_chosen(const std::vector<std::string>& countries, std::string_view country) {
  return countries.empty() ||
         std::find(countries.begin(), countries.end(), country) != countries.end();
}

// ---- IBAN

// The length of each country's IBAN, from SWIFT's registry.
std::size_t iban_length(char first, char second) {
  static constexpr std::string_view kLengths =
      "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BI27BR29BY28CH21CR22CY28CZ24DE22DJ27DK18DO28EE20EG29"
      "ES24FI18FK18FO18FR27GB22GE22GI23GL18GR27GT28HN28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20"
      "LB28LC32LI21LT20LU20LV21LY25MC27MD24ME22MK19MN20MR27MT31MU30NI28NL18NO15OM23PK24PL28PS29"
      "PT25QA29RO24RS22RU33SA24SC31SD18SE24SI19SK24SM27SO23ST25SV28TL23TN24TR26UA29VA22VG24XK20"
      "YE30";
  for (std::size_t i = 0; i < kLengths.size(); i += 4)
    if (kLengths[i] == first && kLengths[i + 1] == second)
      return static_cast<std::size_t>(10 * (kLengths[i + 2] - '0') + kLengths[i + 3] - '0');
  return 0;
}

// Remainder by 97 of a number with letters, A = 10 to Z = 35, that follows one with `remainder`.
unsigned add_mod97(unsigned remainder, char c) {
  if (is(c, kDigit)) return (10 * remainder + static_cast<unsigned>(c - '0')) % 97;
  return (100 * remainder + static_cast<unsigned>(c - 'A' + 10)) % 97;
}

// ---- numbers of a fixed form

// The digits and letters of a number, without separators.
using Digits = std::string_view;

unsigned digit(Digits digits, std::size_t i) { return static_cast<unsigned>(digits[i] - '0'); }
unsigned two(Digits digits, std::size_t i) { return 10 * digit(digits, i) + digit(digits, i + 1); }
std::uint64_t number(Digits digits) {
  std::uint64_t value = 0;
  for (const char c : digits) value = 10 * value + static_cast<std::uint64_t>(c - '0');
  return value;
}

bool luhn(Digits digits) {
  unsigned sum = 0;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const unsigned value = digit(digits, digits.size() - 1 - i) * (i % 2 == 1 ? 2 : 1);
    sum += value > 9 ? value - 9 : value;
  }
  return sum % 10 == 0;
}

// Weights as digits: sum of weight times digit.
unsigned weighted(Digits digits, std::string_view weights) {
  unsigned sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) sum += digit(digits, i) * digit(weights, i);
  return sum;
}

// In a leap year, as the century may be unknown.
bool is_date(unsigned day, unsigned month) {
  static constexpr std::array<unsigned, 12> kDays = {31, 29, 31, 30, 31, 30,
                                                     31, 31, 30, 31, 30, 31};
  return month >= 1 && month <= 12 && day >= 1 && day <= kDays[month - 1];
}

// Issuers by their first digits, and the lengths of their numbers.
bool is_card(Digits digits) {
  const std::size_t length = digits.size();
  const auto prefix = static_cast<unsigned>(number(digits.substr(0, 4)));
  const auto in = [&](unsigned low, unsigned high) { return prefix >= low && prefix <= high; };
  const bool issued =
      length == 16 ? in(4000, 4999) || in(5100, 5599) || in(2221, 2720) || in(6011, 6011) ||
                         in(6440, 6599) || in(3528, 3589) || in(6200, 6299) || in(6759, 6763)
      : length == 15 ? in(3400, 3499) || in(3700, 3799)
      : length == 14 ? in(3000, 3059) || in(3600, 3699) || in(3800, 3999)
      : length == 13
          ? in(4000, 4999)
          : length == 19 && (in(4000, 4999) || in(6011, 6011) || in(6440, 6599) || in(6200, 6299));
  return issued && luhn(digits);
}

bool is_dutch(Digits digits) {
  const unsigned sum = weighted(digits, "98765432");
  return number(digits) > 0 && sum % 11 == digit(digits, 8);
}
bool is_finnish(Digits digits) {
  const Digits individual = digits.substr(7, 3);
  if (!is_date(two(digits, 0), two(digits, 2))) return false;
  if (number(individual) < 2 || number(individual) >= 900) return false;
  const std::uint64_t value = 1000 * number(digits.substr(0, 6)) + number(individual);
  return digits.back() == std::string_view("0123456789ABCDEFHJKLMNPRSTUVWXY")[value % 31];
}
bool is_swedish(Digits digits) {
  const Digits ten = digits.substr(digits.size() - 10);
  if (digits.size() == 12 && (two(digits, 0) < 18 || two(digits, 0) > 20)) return false;
  const unsigned day = two(ten, 4);
  return is_date(day > 60 ? day - 60 : day, two(ten, 2)) && luhn(ten);
}
bool is_belgian(Digits digits) {
  const std::uint64_t value = number(digits.substr(0, 9)), check = two(digits, 9);
  if (!is_date(two(digits, 4), two(digits, 2))) return false;
  return 97 - value % 97 == check || 97 - (2'000'000'000 + value) % 97 == check;
}
bool is_french(Digits digits) {
  const unsigned month = two(digits, 3);
  if (!is_one_of(digits[0], "123478")) return false;
  if (month < 1 || (month > 12 && month < 20) || (month > 42 && month < 50)) return false;
  std::string plain(digits);
  if (!is(plain[6], kDigit)) {  // Corsica
    if (plain[5] != '2') return false;
    plain.replace(5, 2, plain[6] == 'A' ? "19" : "18");
  }
  return 97 - number(plain.substr(0, 13)) % 97 == two(plain, 13);
}
bool is_polish(Digits digits) {
  return is_date(two(digits, 4), two(digits, 2) % 20) &&
         (weighted(digits, "1379137913") + digit(digits, 10)) % 10 == 0;
}
bool is_spanish(Digits digits) {  // an initial X, Y or Z counts as 0, 1 or 2
  std::string plain(digits.substr(0, 8));
  if (!is(plain[0], kDigit)) plain[0] = static_cast<char>('0' + plain[0] - 'X');
  return digits.back() == std::string_view("TRWAGMYFPDXBNJZSQVHLCKE")[number(plain) % 23];
}
bool is_norwegian(Digits digits) {
  const unsigned day = two(digits, 0) > 40 ? two(digits, 0) - 40 : two(digits, 0);
  if (!is_date(day, two(digits, 2))) return false;
  return (weighted(digits, "376189452") + digit(digits, 9)) % 11 == 0 &&
         (weighted(digits, "5432765432") + digit(digits, 10)) % 11 == 0;
}

// 9 a digit, A an upper case letter, K a digit, A or B, _ a separator, X one of X, Y and Z, C the
// sign of a century, + a plus or a minus sign; any other character is itself.
struct Shape {
  constexpr Shape(const char* text) : form(text) {
    while (lead < form.size() && form[lead] == '9') ++lead;
    more = lead < form.size() && form[lead] == 'K';
  }
  // Whether a number that begins with so many digits can have this shape.
  constexpr bool fits(std::size_t digits) const {
    return digits == lead || (more && digits > lead);
  }

  std::string_view form;
  std::size_t lead = 0;  // digits
  bool more = false;     // behind which another digit may be
};

struct NationalNumber {
  std::string_view country;
  std::vector<Shape> shapes;
  bool (*is_valid)(Digits);
  // Words one of which must be near, where one in ten random numbers is valid.
  std::span<const std::string_view> context;
};

constexpr std::array<std::string_view, 5> kDutchWords = {"bsn", "burgerservicenummer", "sofinummer",
                                                         "sofi-nummer", "citizen service number"};
constexpr std::array<std::string_view, 6> kSwedishWords = {
    "personnummer",   "personnr", "pnr", "samordningsnummer", "personal identity number",
    "personal number"};
constexpr std::array<std::string_view, 1> kPolishWords = {"pesel"};

std::span<const NationalNumber> national_numbers() {
  static const std::array<NationalNumber, 8> all = {{
      {"NL", {"999999999", "9999_99_999", "999_999_999"}, is_dutch, kDutchWords},
      {"FI", {"999999C9999", "999999C999A"}, is_finnish, {}},
      {"SE",
       {"999999+9999", "99999999+9999", "9999999999", "999999999999"},
       is_swedish,
       kSwedishWords},
      {"BE", {"99999999999", "99_99_99_999_99", "999999_999_99"}, is_belgian, {}},
      {"FR", {"999999K99999999", "9_99_99_9K_999_999_99", "999999K999999_99"}, is_french, {}},
      {"PL", {"99999999999"}, is_polish, kPolishWords},
      {"ES",
       {"99999999A", "99999999-A", "99_999_999-A", "X9999999A", "X-9999999-A", "X9999999-A"},
       is_spanish,
       {}},
      {"NO", {"99999999999", "999999_99999"}, is_norwegian, {}},
  }};
  return all;
}

constexpr std::array<Shape, 11> kCardShapes = {
    "9999999999999",           "99999999999999",      "999999999999999",    "9999999999999999",
    "9999999999999999999",     "9999_9999_9999_9999", "9999_999999_99999",  "9999_999999_9999",
    "9999_9999_9999_9999_999", "99999999_99999999",   "9999_9999_99999_999"};

// Of what has a shape.
struct DigitBuffer {
  std::array<char, 24> bytes;  // more than any shape has
  std::size_t size = 0;
  operator Digits() const { return {bytes.data(), size}; }
};

// The end of what has this shape at i, with its digits and letters, signs of centuries among them;
// 0: it has another one.
std::size_t match_shape(View text, std::size_t i, const Shape& shape, DigitBuffer& digits) {
  for (digits.size = 0; digits.size < shape.lead; ++i) {
    if (!is(text[i], kDigit)) return 0;
    digits.bytes[digits.size++] = text[i];
  }
  for (const char part : shape.form.substr(shape.lead)) {
    const char c = text[i];
    if (part == '_') {
      const std::size_t bytes = separator(text, i);
      if (bytes == 0) return 0;
      i += bytes;
      continue;
    }
    const bool fits = part == '9'   ? is(c, kDigit)
                      : part == 'A' ? is(c, kUpper)
                      : part == 'K' ? is(c, kDigit) || c == 'A' || c == 'B'
                      : part == 'X' ? c == 'X' || c == 'Y' || c == 'Z'
                      : part == 'C' ? c != 0 && is_one_of(c, "+-ABCDEFUVWXY")
                      : part == '+' ? c == '+' || c == '-'
                                    : c == part;
    if (!fits) return 0;
    if (part != '+' && part != '-') digits.bytes[digits.size++] = c;
    ++i;
  }
  return may_end(text, i) ? i : 0;
}

constexpr std::size_t kMostLeading = 20;

std::size_t leading_digits(View text, std::size_t i) {
  std::size_t count = 0;
  while (count < kMostLeading && is(text[i + count], kDigit)) ++count;
  return count;
}

// The shapes of all countries, by how many digits they begin with.
struct NationalShape {
  const NationalNumber* kind;
  const Shape* shape;
};
std::span<const NationalShape> shapes_with(std::size_t lead) {
  static const auto all = [] {
    std::array<std::vector<NationalShape>, kMostLeading + 1> table;
    for (const NationalNumber& kind : national_numbers())
      for (const Shape& shape : kind.shapes)
        for (std::size_t digits = 0; digits < table.size(); ++digits)
          if (shape.fits(digits)) table[digits].push_back({&kind, &shape});
    return table;
  }();
  return all[lead];
}

// ---- telephone numbers

struct PhonePlan {
  std::string_view country, code;
  std::size_t fewest, most;  // digits behind the country code
  std::string_view first;    // of a number within the country; "0": a 0 and no second one
  std::size_t local_fewest, local_most;  // its digits
};

// Numbering plans as published by ITU-T: what most numbers of a country have.
constexpr std::array<PhonePlan, 38> kPhonePlans = {{
    {"US", "1", 10, 10, "23456789", 10, 10},
    {"GR", "30", 10, 10, "26", 10, 10},
    {"NL", "31", 9, 9, "0", 10, 10},
    {"BE", "32", 8, 9, "0", 9, 10},
    {"FR", "33", 9, 9, "0", 10, 10},
    {"ES", "34", 9, 9, "6789", 9, 9},
    {"PT", "351", 9, 9, "29", 9, 9},
    {"LU", "352", 6, 9, "", 0, 0},
    {"IE", "353", 7, 9, "0", 8, 10},
    {"IS", "354", 7, 7, "", 0, 0},
    {"MT", "356", 8, 8, "", 0, 0},
    {"CY", "357", 8, 8, "", 0, 0},
    {"FI", "358", 6, 10, "0", 7, 11},
    {"BG", "359", 8, 9, "0", 9, 10},
    {"HU", "36", 8, 9, "", 0, 0},
    {"LT", "370", 8, 8, "", 0, 0},
    {"LV", "371", 8, 8, "", 0, 0},
    {"EE", "372", 7, 8, "", 0, 0},
    {"UA", "380", 9, 9, "0", 10, 10},
    {"RS", "381", 8, 9, "0", 9, 10},
    {"ME", "382", 8, 8, "", 0, 0},
    {"HR", "385", 8, 9, "0", 9, 10},
    {"SI", "386", 8, 8, "0", 9, 9},
    {"BA", "387", 8, 8, "0", 9, 9},
    {"MK", "389", 8, 8, "0", 9, 9},
    {"IT", "39", 8, 11, "3", 9, 10},
    {"RO", "40", 9, 9, "0", 10, 10},
    {"CH", "41", 9, 9, "0", 10, 10},
    {"CZ", "420", 9, 9, "234567", 9, 9},
    {"SK", "421", 9, 9, "0", 10, 10},
    {"AT", "43", 7, 12, "0", 8, 12},
    {"GB", "44", 9, 10, "0", 10, 11},
    {"DK", "45", 8, 8, "23456789", 8, 8},
    {"SE", "46", 7, 9, "0", 8, 10},
    {"NO", "47", 8, 8, "23456789", 8, 8},
    {"PL", "48", 9, 9, "23456789", 9, 9},
    {"DE", "49", 7, 11, "0", 8, 12},
    {"TR", "90", 10, 10, "0", 11, 11},
}};

constexpr std::array<std::string_view, 33> kPhoneWords = {
    "tel",       "telephone",    "telefon",      "telefoon",      "telefono",
    "teléfono",  "telefone",     "téléphone",    "tél",           "phone",
    "mobile",    "mobiel",       "mobil",        "móvil",         "portable",
    "gsm",       "fax",          "tlf",          "tfn",           "puhelin",
    "puh",       "matkapuhelin", "mobiltelefon", "telefonnummer", "telefoonnummer",
    "rufnummer", "mobielnummer", "mobilnummer",  "puhelinnumero", "cellulare",
    "whatsapp",  "phone number", "faks"};

// The digits at i, with up to two separators or parentheses between their groups; "(0)" is left
// out once. `ends` has where each group ends, and how many digits there are up to it.
struct PhoneDigits {
  struct End {
    std::size_t at, digits;
  };
  std::string digits = {};
  std::vector<End> ends = {};
};

std::size_t phone_separator(View text, std::size_t i) {
  return is_one_of(text[i], "()/") && i < text.size() ? 1 : separator(text, i);
}

PhoneDigits phone_digits(View text, std::size_t i) {
  PhoneDigits phone;
  bool left_out = false;
  while (phone.digits.size() < 17) {
    std::size_t at = i;
    for (int count = 0; count < 2 && !phone.digits.empty() && !is(text[at], kDigit); ++count) {
      if (!left_out && text[at] == '(' && text[at + 1] == '0' && text[at + 2] == ')') break;
      at += phone_separator(text, at);
    }
    if (!left_out && text[at] == '(' && text[at + 1] == '0' && text[at + 2] == ')') {
      left_out = true;
      at += 3;
      at += separator(text, at);
    }
    if (!is(text[at], kDigit)) break;
    for (; is(text[at], kDigit) && phone.digits.size() < 17; ++at) phone.digits += text[at];
    if (!is_word(text[at])) phone.ends.push_back({at, phone.digits.size()});
    i = at;
  }
  return phone;
}

// The last group with which the number has so many digits; 0: none.
std::size_t phone_end(const PhoneDigits& phone, std::size_t fewest, std::size_t most) {
  std::size_t end = 0;
  for (const PhoneDigits::End& group : phone.ends)
    if (group.digits >= fewest && group.digits <= most) end = group.at;
  return end;
}

// 2023-01-15 and 15.01.2023 have as many digits as a number.
bool is_date_shape(const PhoneDigits& phone, std::size_t end) {
  const auto groups = [&](std::size_t first, std::size_t second) {
    return phone.ends.size() >= 3 && phone.ends[0].digits == first &&
           phone.ends[1].digits == second && phone.ends[2].digits == 8 && phone.ends[2].at == end;
  };
  return groups(4, 6) || groups(2, 4);
}

bool begins_local(std::string_view digits, std::string_view first) {
  if (first == "0") return digits[0] == '0' && digits[1] != '0';
  return is_one_of(digits[0], first);
}

bool may_begin_phone(View text, std::size_t i) {
  const char c = text.before(i);
  if (is_word(c) || is_one_of(c, "+.,")) return false;
  return !is_one_of(c, "-/ )") || !is(text.before(i, 2), kDigit);
}

// (212) 555-0123 needs no word, as no other number is written so.
std::size_t american_end(View text, std::size_t i) {
  if (text.before(i) != '(' || is_word(text.before(i, 2))) return 0;
  DigitBuffer digits;
  for (const Shape& shape : {Shape("999)_999_9999"), Shape("999)999_9999")}) {
    const std::size_t end = match_shape(text, i, shape, digits);
    if (end > 0 && digits.bytes[0] >= '2' && digits.bytes[4] >= '2')
      return end;  // bytes[3] is the parenthesis
  }
  return 0;
}

}  // namespace

// i is the first check digit, behind the country and perhaps a space.
Match find_iban(View text, std::size_t i) {
  const std::size_t begin = i - (text.before(i) == ' ' ? 3 : 2);
  if (i < 2 || begin > i || !is(text[begin], kUpper) || !is(text[begin + 1], kUpper)) return {};
  const std::size_t length = iban_length(text[begin], text[begin + 1]);
  if (length == 0 || !is(text[i + 1], kDigit) || !may_begin(text, begin)) return {};
  unsigned remainder = 0;
  std::size_t at = i + 2;
  for (std::size_t count = 4; count < length; ++count, ++at) {
    if (!is(text[at], kDigit | kUpper)) at += text[at] == '.' ? 0 : separator(text, at);
    if (!is(text[at], kDigit | kUpper)) return {};
    remainder = add_mod97(remainder, text[at]);
  }
  for (const std::size_t k : {begin, begin + 1, i, i + 1})
    remainder = add_mod97(remainder, text[k]);
  const int check = 10 * (text[i] - '0') + text[i + 1] - '0';
  if (remainder != 1 || check < 2 || check > 98 || !may_end(text, at)) return {};
  return MaskedSpan{PersonalDataKind::Iban, begin, at};
}

Match find_card(View text, std::size_t i) {
  DigitBuffer digits;
  const std::size_t lead = leading_digits(text, i);
  for (const Shape& shape : kCardShapes)
    if (const std::size_t end = shape.fits(lead) ? match_shape(text, i, shape, digits) : 0;
        end > 0 && is_card(digits))
      return MaskedSpan{PersonalDataKind::Card, i, end};
  return {};
}

Match find_national(View text, std::size_t i, const std::vector<std::string>& countries) {
  // A Spanish one may begin with a letter.
  std::size_t begin = i;
  const std::size_t dash = text.before(i) == '-' ? 1 : 0;
  const char letter = text.before(i, dash + 1);
  if (letter >= 'X' && letter <= 'Z') begin = i - dash - 1;
  if (!may_begin(text, begin)) return {};
  DigitBuffer digits;
  for (const auto& [kind, shape] : shapes_with(leading_digits(text, begin))) {
    if (!is_chosen(countries, kind->country)) continue;
    const std::size_t end = match_shape(text, begin, *shape, digits);
    if (end == 0 || !kind->is_valid(digits)) continue;
    if (kind->context.empty() || has_context(text, begin, end, 48, 24, kind->context))
      return MaskedSpan{PersonalDataKind::National, begin, end};
  }
  return {};
}

Match find_phone(View text, std::size_t i, const std::vector<std::string>& countries) {
  const bool international = text.before(i) == '+';
  if (international ? is_alphanumeric(text.before(i, 2)) || text.before(i, 2) == '+'
                    : !may_begin_phone(text, i))
    return {};
  if (const std::size_t end = american_end(text, i); end > 0 && is_chosen(countries, "US"))
    return MaskedSpan{PersonalDataKind::Phone, i - 1, end};
  const bool parenthesis = text.before(i) == '(' && !international;
  const std::size_t begin = i - (international || parenthesis ? 1 : 0);
  if (!international && !has_context(text, begin, begin, 24, 0, kPhoneWords)) return {};
  const PhoneDigits phone = phone_digits(text, i);
  if (phone.digits.size() < 7) return {};
  const std::size_t zeros = international ? 0 : phone.digits.starts_with("00") ? 2 : 9;
  std::size_t end = 0;
  for (const PhonePlan& plan : kPhonePlans) {
    const std::size_t code = zeros + plan.code.size();
    std::size_t found = 0;
    if (zeros < 9) {
      if (std::string_view(phone.digits).substr(zeros).starts_with(plan.code))
        found = phone_end(phone, code + plan.fewest, code + plan.most);
    } else if (plan.local_most > 0 && begins_local(phone.digits, plan.first)) {
      found = phone_end(phone, plan.local_fewest, plan.local_most);
      if (is_date_shape(phone, found)) found = 0;
    }
    if (found > end && is_chosen(countries, plan.country)) end = found;
  }
  if (end == 0) return {};
  return MaskedSpan{PersonalDataKind::Phone, begin, end};
}

std::vector<std::string_view> known_countries() {
  std::vector<std::string_view> known;
  for (const PhonePlan& plan : kPhonePlans) known.push_back(plan.country);
  for (const NationalNumber& kind : national_numbers()) known.push_back(kind.country);
  return known;
}

}  // namespace kintsugi::personal
