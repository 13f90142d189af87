#include "comm/exchange.h"

#include <algorithm>
#include <cstdint>

namespace kintsugi {

std::vector<std::string> gather_texts(Communicator& group, const std::string& mine) {
  if (group.size() == 1) return {mine};
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::int64_t> lengths(ranks);
  std::int64_t length = static_cast<std::int64_t>(mine.size());
  group.wait(group.all_gather(Tensor(lengths.data(), DType::I64, {group.size()}),
                              Tensor(&length, DType::I64, {1})));
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(ranks);
  if (longest == 0) return texts;
  std::string padded = mine, all(static_cast<std::size_t>(longest) * ranks, '\0');
  padded.resize(static_cast<std::size_t>(longest));
  group.wait(group.all_gather(Tensor(all.data(), DType::U8, {longest * group.size()}),
                              Tensor(padded.data(), DType::U8, {longest})));
  for (std::size_t rank = 0; rank < ranks; ++rank)
    texts[rank] = all.substr(rank * static_cast<std::size_t>(longest),
                             static_cast<std::size_t>(lengths[rank]));
  return texts;
}

std::string text_of_first(Communicator& group, std::string mine) {
  if (group.size() == 1) return mine;
  std::int64_t length = static_cast<std::int64_t>(mine.size());
  group.wait(group.broadcast(Tensor(&length, DType::I64, {1}), 0));
  mine.resize(static_cast<std::size_t>(length));
  if (length > 0) group.wait(group.broadcast(Tensor(mine.data(), DType::U8, {length}), 0));
  return mine;
}

void together(Communicator& group, const std::function<void()>& work) {
  std::string verdict;  // 'U' or 'F' and the message; empty: all is well
  try {
    work();
  } catch (const UserError& error) {
    verdict = std::string("U") + error.what();
  } catch (const std::exception& error) {
    verdict = std::string("F") + error.what();
  }
  const std::vector<std::string> verdicts = gather_texts(group, verdict);
  const auto first = std::find_if(verdicts.begin(), verdicts.end(),
                                  [](const std::string& text) { return !text.empty(); });
  if (first == verdicts.end()) return;
  const std::string message = first->substr(1);
  const bool everybody = std::all_of(verdicts.begin(), verdicts.end(),
                                     [&](const std::string& text) { return text == *first; });
  const std::string who = everybody ? "" : fmt::format("rank {}: ", first - verdicts.begin());
  if ((*first)[0] == 'U') throw SharedUserError(who + message);
  throw SharedFailure(who + message);
}

}  // namespace kintsugi
