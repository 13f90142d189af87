#include "comm/agreement.h"

#include <algorithm>
#include <map>

#include "comm/exchange.h"
#include "core/hash.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMaxFactsBytes = 256 << 10;  // of all facts of a rank
constexpr std::size_t kMaxValueBytes = 80;
constexpr std::size_t kMaxRanks = 4, kMaxKeys = 4, kMaxVariants = 3;  // limits of the message

// One "key\tvalue\n" per fact.
std::string text_of_facts(const Facts& facts) {
  const auto on_one_line = [](std::string text) {
    for (char& c : text)
      if (static_cast<unsigned char>(c) < 0x20) c = '?';
    return text;
  };
  std::string text;
  for (const auto& [key, value] : facts)
    text += on_one_line(key) + "\t" + on_one_line(value) + "\n";
  return text;
}

std::map<std::string, std::string> facts_of(const std::string& text) {
  std::map<std::string, std::string> facts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t tab = text.find('\t', begin), end = text.find('\n', begin);
    if (tab == std::string::npos || end == std::string::npos) break;  // truncated
    facts[text.substr(begin, tab - begin)] = text.substr(tab + 1, end - tab - 1);
    begin = end + 1;
  }
  return facts;
}

std::string shortened(std::string value) {
  if (value.size() > kMaxValueBytes) value = value.substr(0, kMaxValueBytes) + " …";
  return value.empty() ? "''" : value;
}

// "run.seed is 2 instead of 1, optimizer.lr is 0.01 instead of 0.001 and 3 more".
std::string difference(const std::string& theirs, const std::string& usual) {
  const auto odd = facts_of(theirs), common = facts_of(usual);
  std::vector<std::string> keys;
  for (const auto& [key, value] : odd)
    if (const auto found = common.find(key); found == common.end() || found->second != value)
      keys.push_back(key);
  for (const auto& [key, value] : common)
    if (!odd.contains(key)) keys.push_back(key);
  const auto value_in = [](const std::map<std::string, std::string>& facts,
                           const std::string& key) {
    const auto found = facts.find(key);
    return found == facts.end() ? "absent" : shortened(found->second);
  };
  std::string text;
  for (std::size_t i = 0; i < std::min(keys.size(), kMaxKeys); ++i)
    text += fmt::format("{}{} is {} instead of {}", i == 0 ? "" : ", ", keys[i],
                        value_in(odd, keys[i]), value_in(common, keys[i]));
  if (keys.size() > kMaxKeys) text += fmt::format(" and {} more", keys.size() - kMaxKeys);
  return keys.empty() ? "something too long to show differs" : text;
}

// Ranks with the same facts.
struct Variant {
  std::int64_t hash = 0;
  std::vector<int> first = {};  // a few of the lowest ranks
  int count = 0;
};

// Sorted by count, largest first; ties by lowest rank.
std::vector<Variant> variants_of(const std::vector<std::int64_t>& hashes) {
  std::vector<Variant> variants;
  std::map<std::int64_t, std::size_t> known;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    const auto [at, is_new] = known.emplace(hashes[rank], variants.size());
    if (is_new) variants.push_back({.hash = hashes[rank]});
    Variant& variant = variants[at->second];
    if (variant.first.size() < kMaxRanks) variant.first.push_back(static_cast<int>(rank));
    ++variant.count;
  }
  std::stable_sort(variants.begin(), variants.end(),
                   [](const Variant& a, const Variant& b) { return a.count > b.count; });
  return variants;
}

// "rank 3", "ranks 3, 4, 5, 6 and 120 more".
std::string ranks_in_words(const Variant& variant) {
  std::string text = variant.count == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < variant.first.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", variant.first[i]);
  const auto more = static_cast<std::size_t>(variant.count) - variant.first.size();
  return more == 0 ? text : text + fmt::format(" and {} more", more);
}

}  // namespace

void check_agreement(Communicator& group, const Facts& local) {
  std::string text = text_of_facts(local);
  std::int64_t hash = static_cast<std::int64_t>(hash64(text));
  std::int64_t range[2] = {hash, ~hash};  // maximum, and complement of the minimum
  group.wait(group.all_reduce(Tensor(range, DType::I64, {2}), ReduceOp::Max));
  if (range[0] == ~range[1]) return;

  std::vector<std::int64_t> hashes(static_cast<std::size_t>(group.size()));
  group.wait(group.all_gather(Tensor(hashes.data(), DType::I64, {group.size()}),
                              Tensor(&hash, DType::I64, {1})));
  const std::vector<Variant> variants = variants_of(hashes);
  text.resize(std::min(text.size(), kMaxFactsBytes));
  const int usual_rank = variants.front().first.front();
  const std::string usual = text_of(group, usual_rank, text);
  std::string message;
  const std::size_t named = std::min(variants.size(), kMaxVariants + 1);
  for (std::size_t i = 1; i < named; ++i) {
    const Variant& odd = variants[i];
    message += fmt::format("{}on {} {}", i == 1 ? "" : "; ", ranks_in_words(odd),
                           difference(text_of(group, odd.first.front(), text), usual));
    if (i == 1)
      message += fmt::format(" (as on rank {}{})", usual_rank,
                             variants.front().count == 1
                                 ? ""
                                 : fmt::format(" and {} more", variants.front().count - 1));
  }
  if (variants.size() > named)
    message += fmt::format("; and {} more variants", variants.size() - named);
  throw SharedUserError("the ranks were started differently: " + message +
                        "; give all of them the same program, options, configuration and data");
}

}  // namespace kintsugi
