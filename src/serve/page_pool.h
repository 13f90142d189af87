#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace kintsugi {

// The tokens whose keys and values one page has.
inline constexpr std::int64_t kPageTokens = 16;

// Hands out the pages of the key-value cache. A full page is remembered by its tokens and the pages
// before it, so that a sequence which begins with the same tokens can use it. Unused pages keep
// their content until they are needed for other tokens, the least recently used one first.
class PagePool {
 public:
  // With `reuse` off, no page is found again.
  PagePool(std::int64_t pages, bool reuse);

  // A chain of full pages from the beginning of a sequence on. Chains are equal if and only if all
  // their tokens are.
  using Chain = std::uint64_t;
  static constexpr Chain kNoPages = 0;

  struct Found {
    std::vector<std::int32_t> pages;
    Chain chain = kNoPages;
  };
  // The pages of the first tokens of a sequence, as many as are remembered, at most `most`. The
  // caller has to release them.
  Found find(std::span<const std::int32_t> tokens, std::size_t most);
  // A page for new tokens; none if all are in use.
  std::optional<std::int32_t> take();
  // Remembers a page in use that now has all of its tokens. Returns the chain that it ends.
  Chain remember(std::int32_t page, Chain before, std::span<const std::int32_t> tokens);
  void release(std::int32_t page);

  std::int64_t pages() const { return static_cast<std::int64_t>(entries_.size()); }
  std::int64_t available() const { return pages() - in_use_; }

 private:
  struct Key {
    Chain before = kNoPages;
    std::array<std::int32_t, kPageTokens> tokens = {};
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  struct Entry {
    std::int64_t users = 0;
    Chain chain = kNoPages;  // if remembered
    Key key = {};
    std::list<std::int32_t>::iterator unused = {};  // remembered and without users
  };
  static Key make_key(Chain before, std::span<const std::int32_t> tokens);
  void add_user(std::int32_t page);
  Entry& at(std::int32_t page) { return entries_[static_cast<std::size_t>(page)]; }

  bool reuse_;
  std::vector<Entry> entries_;      // by page
  std::vector<std::int32_t> free_;  // neither remembered nor in use
  std::list<std::int32_t> unused_;  // remembered, the least recently used first
  std::unordered_map<Key, std::int32_t, KeyHash> remembered_;
  std::int64_t in_use_ = 0;
  Chain last_chain_ = kNoPages;
};

}  // namespace kintsugi
