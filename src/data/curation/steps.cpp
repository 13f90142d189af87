#include "data/curation/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <unordered_set>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "data/curation/folded_words.h"
#include "data/tokenizers/normalizer.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

// ---- repair

// The characters of Windows-1252 at 0x80 to 0x9F; bytes without one are those of Latin-1.
constexpr std::array<char32_t, 32> kWindows1252 = {
    0x20AC, 0x81,   0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160,
    0x2039, 0x0152, 0x8D,   0x017D, 0x8F,   0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
    0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0x9D,   0x017E, 0x0178};

// The byte of a character, -1 if Windows-1252 has none.
int windows1252_byte(char32_t c) {
  if (c < 0x80 || (c >= 0xA0 && c < 0x100)) return static_cast<int>(c);
  const auto at = std::find(kWindows1252.begin(), kWindows1252.end(), c);
  return at == kWindows1252.end() ? -1 : 0x80 + static_cast<int>(at - kWindows1252.begin());
}

// A run of characters that are not ASCII, as the UTF-8 that was misread; empty if it is none.
std::string misread(std::string_view run) {
  std::string bytes;
  for (std::size_t i = 0, length = 0; i < run.size(); i += length) {
    const int byte = windows1252_byte(utf8_decode(run, i, length));
    if (byte < 0) return {};
    bytes += static_cast<char>(byte);
  }
  return valid_utf8_prefix(bytes) == bytes.size() ? bytes : std::string();
}

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

std::size_t next_run(std::string_view text, std::size_t from) {
  while (from < text.size() && is_ascii(text[from])) ++from;
  return from;
}
std::size_t run_end(std::string_view text, std::size_t from) {
  while (from < text.size() && !is_ascii(text[from])) ++from;
  return from;
}

// One such run may be meant as it is; where nearly all can be read as UTF-8, none is.
bool is_misread(std::string_view text) {
  constexpr int kFewest = 3;
  constexpr double kShare = 0.9;
  int runs = 0, wrong = 0;
  for (std::size_t at = next_run(text, 0); at < text.size();) {
    const std::size_t end = run_end(text, at);
    ++runs;
    wrong += misread(text.substr(at, end - at)).empty() ? 0 : 1;
    at = next_run(text, end);
  }
  return wrong >= kFewest && wrong >= kShare * runs;
}

std::string reread(std::string_view text) {
  std::string repaired;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t run = next_run(text, at), end = run_end(text, run);
    repaired.append(text.substr(at, run - at));
    const std::string_view wrong = text.substr(run, end - run);
    const std::string bytes = misread(wrong);
    repaired += bytes.empty() ? wrong : std::string_view(bytes);
    at = end;
  }
  return repaired;
}

// Without control characters but tab and line break. CR and CR LF become a line break, as do
// U+0085, U+2028 and U+2029; U+FEFF is a mark for programs.
std::string without_controls(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  for (std::size_t i = 0, length = 0; i < text.size(); i += length) {
    const char32_t c = utf8_decode(text, i, length);
    if (c == '\r') {
      if (i + 1 >= text.size() || text[i + 1] != '\n') clean += '\n';
    } else if (c == 0x85 || c == 0x2028 || c == 0x2029) {
      clean += '\n';
    } else if (c >= 0xA0 ? c != 0xFEFF : c == '\t' || c == '\n' || (c >= 0x20 && c < 0x7F)) {
      clean.append(text.substr(i, length));
    }
  }
  return clean;
}

bool has_controls(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 ? c != '\n' && c != '\t' : c == 0x7F) return true;
    // C1, U+2028 and U+2029, U+FEFF
    if (c == 0xC2 || c == 0xE2 || c == 0xEF) {
      std::size_t length = 0;
      const char32_t wide = utf8_decode(text, i, length);
      if (wide < 0xA0 || wide == 0x2028 || wide == 0x2029 || wide == 0xFEFF) return true;
    }
  }
  return false;
}

std::string lower_ascii(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

// ---- addresses

std::string_view without_scheme(std::string_view url) {
  const std::size_t colon = url.find("://");
  return colon == std::string_view::npos ? url : url.substr(colon + 3);
}

// For comparison: the host as host_of(), then the path without a last slash and a fragment.
std::string plain_url(std::string_view url) {
  const std::string_view rest = without_scheme(url);
  const std::size_t slash = rest.find('/');
  std::string_view path = slash == std::string_view::npos ? std::string_view() : rest.substr(slash);
  path = path.substr(0, path.find('#'));
  while (path.ends_with('/')) path.remove_suffix(1);
  return host_of(url) + std::string(path);
}

class UrlStep : public DocumentStep {
 public:
  explicit UrlStep(const UrlFilter& settings) : key_(settings.key) {
    for (const std::string& entry : list_entries(settings.block)) {
      const bool is_address = without_scheme(entry).find('/') + 1 < without_scheme(entry).size() &&
                              without_scheme(entry).find('/') != std::string_view::npos;
      if (is_address)
        urls_.insert(plain_url(entry));
      else
        domains_.insert(host_of(entry));
    }
  }
  std::string_view apply(CuratedDocument& document, StepContext& context) const override {
    const std::string url = document.members.text_of(key_);
    if (url.empty()) {
      ++context.notes["without an address"];
      return {};
    }
    const std::string host = host_of(url);
    for (std::size_t at = 0; at != std::string::npos;) {  // a.b.fi, b.fi, fi
      if (domains_.contains(host.substr(at))) return "urls.domain";
      const std::size_t dot = host.find('.', at);
      at = dot == std::string::npos ? dot : dot + 1;
    }
    return urls_.contains(plain_url(url)) ? "urls.address" : "";
  }

 private:
  std::string key_;
  std::unordered_set<std::string> domains_, urls_;
};

// ---- words

class WordStep : public DocumentStep {
 public:
  explicit WordStep(const WordFilter& settings)
      : most_(settings.most), most_fraction_(settings.most_fraction) {
    for (const std::string& entry : list_entries(settings.lists)) {
      std::string phrase;
      std::size_t words = 0;
      for_each_word(entry, [&](const std::string& word) {
        phrase += (phrase.empty() ? "" : " ") + word;
        ++words;
      });
      if (words > kLongest)
        user_error("'{}' has more than {} words: a list of words has short phrases", entry,
                   kLongest);
      longest_ = std::max(longest_, words);
      if (words > 0) listed_.insert(phrase);
    }
  }
  std::string_view apply(CuratedDocument& document, StepContext&) const override {
    std::vector<std::string> last;  // the words before, and this one
    std::int64_t words = 0, found = 0, in_phrases = 0;
    for_each_word(document.text, [&](const std::string& word) {
      ++words;
      if (last.size() == longest_ && longest_ > 0) last.erase(last.begin());
      last.push_back(word);
      std::string phrase;
      for (std::size_t n = 1; n <= last.size(); ++n) {
        phrase = last[last.size() - n] + (phrase.empty() ? "" : " ") + phrase;
        if (!listed_.contains(phrase)) continue;
        ++found;
        in_phrases += static_cast<std::int64_t>(n);
      }
    });
    if (found > most_) return "words.listed";
    return static_cast<double>(in_phrases) > most_fraction_ * static_cast<double>(words)
               ? "words.fraction"
               : "";
  }

 private:
  static constexpr std::size_t kLongest = 5;
  std::int64_t most_;
  double most_fraction_;
  std::unordered_set<std::string> listed_;
  std::size_t longest_ = 0;
};

}  // namespace

std::int64_t Sample::copies(const CuratedDocument& document) const {
  double wanted = keep;
  const std::string language =
      document.language.empty() ? document.members.text_of("language") : document.language;
  for (const auto& [name, value] : languages)
    if (name == language) wanted = value;
  const double whole = std::floor(wanted);
  const std::uint64_t hash =
      hash64(document.text.data(), document.text.size(), static_cast<std::uint64_t>(seed));
  const double place = std::ldexp(static_cast<double>(hash >> 11), -53);  // in [0, 1)
  return static_cast<std::int64_t>(whole) + (place < wanted - whole ? 1 : 0);
}

std::string_view Repair::edit(std::string& text) const {
  if (mojibake && is_misread(text)) text = reread(text);
  if (controls && has_controls(text)) text = without_controls(text);
  if (normalize && next_run(text, 0) < text.size()) text = unicode_normalize(text, true, true);
  return {};
}

std::vector<std::string> list_entries(const std::vector<std::string>& files) {
  std::vector<std::string> entries;
  for (const std::string& file : files) {
    const std::string text = read_text_file(file);
    if (valid_utf8_prefix(text) != text.size())
      user_error("{} is not UTF-8: a list has an entry per line", file);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
      if (!line.empty() && line.front() != '#') entries.push_back(std::move(line));
    }
  }
  return entries;
}

std::string host_of(std::string_view url) {
  std::string_view host = without_scheme(url);
  host = host.substr(0, host.find_first_of("/?#"));
  if (const std::size_t at = host.rfind('@'); at != std::string_view::npos)
    host.remove_prefix(at + 1);
  if (!host.starts_with('[')) host = host.substr(0, host.find(':'));
  while (host.ends_with('.')) host.remove_suffix(1);
  std::string name = lower_ascii(host);
  return name.starts_with("www.") ? name.substr(4) : name;
}

std::unique_ptr<DocumentStep> make_step(const UrlFilter& settings) {
  return std::make_unique<UrlStep>(settings);
}
std::unique_ptr<DocumentStep> make_step(const WordFilter& settings) {
  return std::make_unique<WordStep>(settings);
}

}  // namespace kintsugi
