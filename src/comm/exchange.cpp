#include "comm/exchange.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>

#include "backend/backend.h"
#include "core/hash.h"

namespace kintsugi {

std::vector<std::string> gather_texts(Communicator& group, const std::string& local) {
  if (group.size() == 1) return {local};
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::vector<std::int64_t> lengths = gather_values(group, std::ssize(local));
  const std::int64_t longest = *std::ranges::max_element(lengths);
  std::vector<std::string> texts(ranks);
  if (longest == 0) return texts;
  std::string padded = local, all(static_cast<std::size_t>(longest) * ranks, '\0');
  padded.resize(static_cast<std::size_t>(longest));
  group.wait(group.all_gather(Tensor(all.data(), DType::U8, {longest * group.size()}),
                              Tensor(padded.data(), DType::U8, {longest})));
  for (std::size_t rank = 0; rank < ranks; ++rank)
    texts[rank] = all.substr(rank * static_cast<std::size_t>(longest),
                             static_cast<std::size_t>(lengths[rank]));
  return texts;
}

std::vector<std::string> texts_at_first(Communicator& group, const std::string& local) {
  if (group.size() == 1) return {local};
  const auto ranks = static_cast<std::size_t>(group.size());
  const bool first = group.rank() == 0;
  ExchangeCounts counts{.sent = std::vector<std::int64_t>(ranks),
                        .received = std::vector<std::int64_t>(ranks)};
  counts.sent[0] = std::ssize(local);
  const std::vector<std::int64_t> lengths = gather_values(group, counts.sent[0]);
  if (first) counts.received = lengths;
  const std::int64_t total =
      std::accumulate(counts.received.begin(), counts.received.end(), std::int64_t{0});
  std::string sent = local + '\0', all(static_cast<std::size_t>(total) + 1, '\0');
  group.wait(group.all_to_all(Tensor(all.data(), DType::U8, {total}),
                              Tensor(sent.data(), DType::U8, {counts.sent[0]}), counts));
  std::vector<std::string> texts;
  std::size_t begin = 0;
  for (std::size_t rank = 0; first && rank < ranks; ++rank) {
    texts.push_back(all.substr(begin, static_cast<std::size_t>(lengths[rank])));
    begin += static_cast<std::size_t>(lengths[rank]);
  }
  return texts;
}

std::string text_of(Communicator& group, int root, const std::string& text) {
  if (group.size() == 1) return text;
  std::int64_t length = static_cast<std::int64_t>(text.size());
  group.wait(group.broadcast(Tensor(&length, DType::I64, {1}), root));
  std::string result = group.rank() == root ? text : std::string();
  result.resize(static_cast<std::size_t>(length));
  if (length > 0) group.wait(group.broadcast(Tensor(result.data(), DType::U8, {length}), root));
  return result;
}

ExchangeCounts exchange_counts(Communicator& group, Backend& backend, Tensor received,
                               Tensor sent) {
  group.wait(group.all_to_all(received, sent));
  const auto ranks = static_cast<std::size_t>(group.size());
  ExchangeCounts counts{.sent = std::vector<std::int64_t>(ranks),
                        .received = std::vector<std::int64_t>(ranks)};
  backend.download(counts.sent.data(), sent);
  backend.download(counts.received.data(), received);
  return counts;
}

namespace {

// The failure that `work` ends with, as a message; empty on success.
std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return to_message(failure_of(error, {}));
  }
  return "";
}

}  // namespace

void together(Communicator& group, const std::function<void()>& work) {
  const std::string error = error_of(work);
  const std::int64_t size = group.size();
  std::int64_t highest = error.empty() ? 0 : size - group.rank();
  group.wait(group.all_reduce(Tensor(&highest, DType::I64, {1}), ReduceOp::Max));
  if (highest == 0) return;
  const auto first = static_cast<int>(size - highest);  // the lowest rank that threw
  const std::string shared = text_of(group, first, error);
  const auto alike = gather_values(group, std::int64_t{error == shared});
  const std::int64_t count = std::accumulate(alike.begin(), alike.end(), std::int64_t{0});
  RankFailure failure = failure_from_message(shared);
  if (failure.rank() < 0) {  // of the ranks that threw it
    failure.culprits.clear();
    for (int rank = 0; count < size && rank < size; ++rank)
      if (alike[rank] == 1) failure.culprits.push_back({.rank = rank});
  }
  if (count < size)
    failure.text =
        fmt::format("rank {}{}: {}", first,
                    count == 1 ? "" : fmt::format(" and {} more", count - 1), failure.text);
  throw_shared(std::move(failure));
}

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
  std::ranges::stable_sort(variants,
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
  const auto hash = static_cast<std::int64_t>(hash64(text));
  std::int64_t range[2] = {hash, ~hash};  // maximum, and complement of the minimum
  group.wait(group.all_reduce(Tensor(range, DType::I64, {2}), ReduceOp::Max));
  if (range[0] == ~range[1]) return;
  const std::vector<Variant> variants = variants_of(gather_values(group, hash));
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

namespace {

constexpr int kRoundTrips = 8;

void answer(Communicator& group, int rank, const std::function<double()>& now) {
  for (int i = 0; i < kRoundTrips; ++i) {
    double value = 0;
    const Tensor message(&value, DType::F64, {1});
    group.wait(group.receive(message, rank));
    value = now();
    group.wait(group.send(message, rank));
  }
}

double ask(Communicator& group, const std::function<double()>& now) {
  double shortest = std::numeric_limits<double>::infinity(), offset = 0;
  for (int i = 0; i < kRoundTrips; ++i) {
    double value = 0;
    const Tensor message(&value, DType::F64, {1});
    const double before = now();
    group.wait(group.send(message, 0));
    group.wait(group.receive(message, 0));
    const double after = now();
    if (after - before >= shortest) continue;
    shortest = after - before;
    offset = value - (before + after) / 2;
  }
  return offset;
}

}  // namespace

double clock_offset(Communicator& group, const std::string& host,
                    const std::function<double()>& now, const std::function<bool(int)>& asks) {
  const std::vector<std::string> hosts = gather_texts(group, host);
  double offset = 0;
  for (int rank = 1; rank < group.size(); ++rank) {
    if (hosts[rank] == hosts.front() || (asks && !asks(rank))) continue;
    if (group.rank() == 0) answer(group, rank, now);
    if (group.rank() == rank) offset = ask(group, now);
  }
  return offset;
}

}  // namespace kintsugi
