#include "serve/page_pool.h"

#include <algorithm>

#include "core/error.h"

namespace kintsugi {

PagePool::PagePool(std::int64_t pages, bool reuse)
    : reuse_(reuse), entries_(static_cast<std::size_t>(pages)) {
  for (std::int64_t page = pages - 1; page >= 0; --page)
    free_.push_back(static_cast<std::int32_t>(page));
}

std::size_t PagePool::KeyHash::operator()(const Key& key) const {
  std::uint64_t hash = key.before * 0x9E3779B97F4A7C15u + 1;
  for (const std::int32_t token : key.tokens)
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 0xFF51AFD7ED558CCDu, hash ^= hash >> 32;
  return static_cast<std::size_t>(hash);
}

PagePool::Key PagePool::make_key(Chain before, std::span<const std::int32_t> tokens) {
  Key key{.before = before};
  std::copy_n(tokens.begin(), kPageTokens, key.tokens.begin());
  return key;
}

void PagePool::add_user(std::int32_t page) {
  Entry& entry = at(page);
  if (entry.users++ > 0) return;
  ++in_use_;
  if (entry.chain != kNoPages) unused_.erase(entry.unused);
}

PagePool::Found PagePool::find(std::span<const std::int32_t> tokens, std::size_t most) {
  Found found;
  while (found.pages.size() < most && tokens.size() >= kPageTokens) {
    const auto page = remembered_.find(make_key(found.chain, tokens));
    if (page == remembered_.end()) break;
    add_user(page->second);
    found.pages.push_back(page->second);
    found.chain = at(page->second).chain;
    tokens = tokens.subspan(kPageTokens);
  }
  return found;
}

std::optional<std::int32_t> PagePool::take() {
  std::int32_t page = -1;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else if (!unused_.empty()) {
    page = unused_.front();
    unused_.pop_front();
    remembered_.erase(at(page).key);
    at(page).chain = kNoPages;
  } else {
    return {};
  }
  add_user(page);
  return page;
}

PagePool::Chain PagePool::remember(std::int32_t page, Chain before,
                                   std::span<const std::int32_t> tokens) {
  KINTSUGI_CHECK(at(page).users > 0 && tokens.size() == kPageTokens, "page {} of {} tokens", page,
                 tokens.size());
  if (!reuse_) return kNoPages;
  const Key key = make_key(before, tokens);
  const auto [known, is_new] = remembered_.try_emplace(key, page);
  if (!is_new) return at(known->second).chain;  // another sequence has computed the same
  at(page).key = key;
  return at(page).chain = ++last_chain_;
}

void PagePool::release(std::int32_t page) {
  Entry& entry = at(page);
  KINTSUGI_CHECK(entry.users > 0, "page {} has no users", page);
  if (--entry.users > 0) return;
  --in_use_;
  if (entry.chain == kNoPages)
    free_.push_back(page);
  else
    entry.unused = unused_.insert(unused_.end(), page);
}

}  // namespace kintsugi
