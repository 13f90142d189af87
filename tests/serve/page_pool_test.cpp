#include "serve/page_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Ids = std::vector<std::int32_t>;

// Tokens of `pages` full pages, each full of one number.
Ids tokens_of(const std::vector<std::int32_t>& pages) {
  Ids ids;
  for (const std::int32_t value : pages) ids.insert(ids.end(), kPageTokens, value);
  return ids;
}

// Computes a sequence: finds pages, takes the others and remembers them.
Ids compute(PagePool& pool, const Ids& ids) {
  const auto count = ids.size() / kPageTokens;
  PagePool::Found found = pool.find(ids, count);
  for (std::size_t i = found.pages.size(); i < count; ++i) {
    found.pages.push_back(*pool.take());
    found.chain = pool.remember(found.pages.back(), found.chain,
                                std::span(ids).subspan(i * kPageTokens, kPageTokens));
  }
  return found.pages;
}
void release_all(PagePool& pool, const Ids& pages) {
  for (const std::int32_t page : pages) pool.release(page);
}

TEST(PagePool, FindsTheLongestCommonBeginning) {
  PagePool pool(8, true);
  const Ids first = compute(pool, tokens_of({1, 2, 3}));
  EXPECT_THAT(pool.find(tokens_of({1, 2, 4}), 3).pages, ElementsAre(first[0], first[1]));
  EXPECT_THAT(pool.find(tokens_of({1, 2, 3}), 1).pages, ElementsAre(first[0])) << "at most one";
  EXPECT_THAT(pool.find(tokens_of({2, 3}), 2).pages, IsEmpty()) << "from the beginning only";
  Ids almost = tokens_of({1});
  almost.back() = 9;
  EXPECT_THAT(pool.find(almost, 1).pages, IsEmpty());
  EXPECT_THAT(pool.find(Ids(kPageTokens - 1, 1), 1).pages, IsEmpty()) << "not a full page";
}

TEST(PagePool, TheSamePageAfterOthersIsAnother) {
  PagePool pool(8, true);
  compute(pool, tokens_of({1, 5}));
  const Ids other = compute(pool, tokens_of({2, 5}));
  EXPECT_THAT(pool.find(tokens_of({2, 5}), 2).pages, ElementsAre(other[0], other[1]));
}

TEST(PagePool, UnusedPagesAreFoundUntilTheyAreNeeded) {
  PagePool pool(3, true);
  const Ids old = compute(pool, tokens_of({1})), young = compute(pool, tokens_of({2}));
  release_all(pool, old);
  release_all(pool, young);
  EXPECT_EQ(pool.available(), 3);
  ASSERT_TRUE(pool.take());  // the free one
  EXPECT_THAT(pool.find(tokens_of({1}), 1).pages, ElementsAre(old[0]));
  release_all(pool, old);  // now the young one is older
  EXPECT_EQ(pool.take(), young[0]);
  EXPECT_THAT(pool.find(tokens_of({2}), 1).pages, IsEmpty());
  EXPECT_THAT(pool.find(tokens_of({1}), 1).pages, ElementsAre(old[0]));
  EXPECT_FALSE(pool.take()) << "all in use";
}

TEST(PagePool, PagesInUseAreNeverHandedOutAgain) {
  PagePool pool(6, true);
  std::mt19937 random(5);
  std::vector<std::pair<Ids, Ids>> live;  // tokens, pages
  for (int i = 0; i < 20000; ++i) {
    if (live.size() < 3 && pool.available() >= 2) {
      const Ids ids = tokens_of({static_cast<int>(random() % 3), static_cast<int>(random() % 3)});
      live.emplace_back(ids, compute(pool, ids));
    } else if (!live.empty()) {
      const std::size_t which = random() % live.size();
      release_all(pool, live[which].second);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
    std::map<std::int32_t, Ids> content;  // of each page, with all tokens before it
    for (const auto& [ids, pages] : live)
      for (std::size_t p = 0; p < pages.size(); ++p) {
        const Ids until(ids.begin(),
                        ids.begin() + static_cast<std::ptrdiff_t>((p + 1) * kPageTokens));
        const auto [entry, is_new] = content.try_emplace(pages[p], until);
        ASSERT_EQ(entry->second, until) << "page " << pages[p] << " has two contents";
      }
    ASSERT_EQ(pool.available(), 6 - static_cast<std::int64_t>(content.size()));
  }
}

TEST(PagePool, NothingIsFoundWithoutReuse) {
  PagePool pool(4, false);
  release_all(pool, compute(pool, tokens_of({1, 2})));
  EXPECT_THAT(pool.find(tokens_of({1, 2}), 2).pages, IsEmpty());
  EXPECT_EQ(pool.available(), 4);
}

}  // namespace
}  // namespace kintsugi
