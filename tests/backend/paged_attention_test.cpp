#include <limits>
#include <numeric>

#include "backend/operation_fixture.h"

namespace kintsugi {
namespace {

struct PagedCase {
  std::int64_t dim, group, kv_heads, page_tokens;
  std::int64_t window = 0;
  bool alibi = false;
  std::int64_t value_dim = dim;
  bool within = false;  // the values are the first elements of the keys
};
constexpr PagedCase kPagedCases[] = {
    {32, 1, 2, 16},
    {64, 4, 2, 16},
    {80, 1, 3, 5, 0, true},
    {96, 3, 1, 32, 40},
    {128, 8, 1, 16, 300, true},
    {256, 2, 1, 7},
    {64, 11, 1, 64},
    {20, 2, 2, 16, 0, true},
    {33, 1, 1, 3, 9},
    {24, 4, 1, 16, 0, false, 16, true},
    {64, 2, 2, 5, 0, true, 96},
};
// Latent attention: keys of 512 latents and 64 rotated elements.
constexpr PagedCase kLatentCase = {576, 8, 1, 16, 0, false, 512, true};

// Queries of one sequence; no tokens: an unused tile.
struct Queries {
  std::int64_t position, tokens;
};

std::string describe(const PagedCase& c) {
  return fmt::format("dim {} group {} kv_heads {} page {} window {} alibi {} values {}", c.dim,
                     c.group, c.kv_heads, c.page_tokens, c.window, c.alibi, c.value_dim);
}

std::size_t to_index(std::int64_t i) { return static_cast<std::size_t>(i); }

class PagedAttentionTest : public OperationTest {
 protected:
  // The queries, and the keys and values of each tile's sequence by position.
  struct Problem {
    std::vector<Queries> tiles;
    std::int64_t tile_tokens = 1, rows = 0;  // rows of q
    Values q;                                // (rows, heads, dim)
    std::vector<Values> keys, values;        // (positions, kv_heads, dim or value_dim)
    Values slopes;
    double scale = 1;
  };
  Problem make(const PagedCase& c, const std::vector<Queries>& tiles, std::int64_t tile_tokens) {
    Problem x;
    x.tiles = tiles;
    x.tile_tokens = tile_tokens;
    for (const Queries& tile : tiles) {
      const std::int64_t heads = (tile.position + tile.tokens) * c.kv_heads;
      x.rows += tile.tokens;
      x.keys.push_back(activations(heads * c.dim));
      x.values.push_back(c.within ? Values() : activations(heads * c.value_dim));
      for (std::int64_t i = 0; c.within && i < heads * c.value_dim; ++i)
        x.values.back().push_back(
            x.keys.back()[to_index(i / c.value_dim * c.dim + i % c.value_dim)]);
    }
    x.rows += 2;  // no tile names the first and the last row
    x.q = activations(x.rows * c.kv_heads * c.group * c.dim);
    x.slopes = rounded(normal(c.kv_heads * c.group, 0.05), DType::F32);
    x.scale = 1 / std::sqrt(static_cast<double>(c.dim));
    return x;
  }

  // One query head of a tile: the result, and the sum of the magnitudes of its terms.
  static std::pair<Values, Values> attend(const PagedCase& c, const Problem& x, std::size_t tile,
                                          std::int64_t row, std::int64_t position,
                                          std::int64_t head) {
    const std::int64_t kv_head = head / c.group;
    const std::int64_t first =
        c.window > 0 ? std::max<std::int64_t>(0, position + 1 - c.window) : 0;
    const double* q = &x.q[to_index((row * c.kv_heads * c.group + head) * c.dim)];
    Values scores;
    for (std::int64_t key = first; key <= position; ++key) {
      const double* k = &x.keys[tile][to_index((key * c.kv_heads + kv_head) * c.dim)];
      double score = 0;
      for (std::int64_t d = 0; d < c.dim; ++d) score += q[d] * k[d];
      score *= x.scale;
      if (c.alibi) score += x.slopes[to_index(head)] * static_cast<double>(key);
      scores.push_back(score);
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - most);
    Values result(to_index(c.value_dim), 0.0), size(to_index(c.value_dim), 0.0);
    for (std::size_t j = 0; j < scores.size(); ++j) {
      const double* v = &x.values[tile][to_index(
          ((first + static_cast<std::int64_t>(j)) * c.kv_heads + kv_head) * c.value_dim)];
      for (std::int64_t d = 0; d < c.value_dim; ++d) {
        result[to_index(d)] += scores[j] / sum * v[d];
        size[to_index(d)] += scores[j] / sum * std::abs(v[d]);
      }
    }
    return {result, size};
  }

  // Runs the tiles of `chosen`; returns the rows of q that they name, in order.
  Values run(const PagedCase& c, const Problem& x, const std::vector<std::size_t>& chosen) {
    const std::int64_t heads = c.kv_heads * c.group;
    std::int64_t pages_of_all = 1, most_pages = 1, most_keys = 1;
    for (const Queries& tile : x.tiles) {
      const std::int64_t keys = tile.position + tile.tokens;
      pages_of_all += (keys + c.page_tokens - 1) / c.page_tokens;
      most_pages = std::max(most_pages, (keys + c.page_tokens - 1) / c.page_tokens);
      most_keys = std::max(most_keys, keys);
    }
    // Pages in no order; what no key uses is NaN.
    Ids free_pages(to_index(pages_of_all));
    std::iota(free_pages.begin(), free_pages.end(), 0);
    std::reverse(free_pages.begin(), free_pages.end());
    std::swap(free_pages.front(), free_pages.back());
    const auto pages_of = [&](std::int64_t dim) {
      return Values(to_index(pages_of_all * c.page_tokens * c.kv_heads * dim),
                    std::numeric_limits<double>::quiet_NaN());
    };
    Values keys = pages_of(c.dim), values = pages_of(c.value_dim);
    Ids table(x.tiles.size() * to_index(most_pages), -1), tiles;
    Values result;
    std::size_t next = 0;
    std::int64_t row = 1;
    std::vector<std::int64_t> first_rows;
    for (std::size_t t = 0; t < x.tiles.size(); ++t) {
      first_rows.push_back(row);
      row += x.tiles[t].tokens;
      for (std::int64_t key = 0; key < x.tiles[t].position + x.tiles[t].tokens; ++key) {
        std::int32_t& page = table[t * to_index(most_pages) + to_index(key / c.page_tokens)];
        if (key % c.page_tokens == 0) page = free_pages[next++];
        const std::int64_t to = page * c.page_tokens + key % c.page_tokens;
        const auto put = [&](Values& all, const Values& from, std::int64_t width) {
          std::copy_n(&from[to_index(key * width)], width, &all[to_index(to * width)]);
        };
        put(keys, x.keys[t], c.kv_heads * c.dim);
        put(values, x.values[t], c.kv_heads * c.value_dim);
      }
    }
    const auto strided = [&](std::int64_t before, std::int64_t dim) {
      return buffer(type(), {x.rows, (heads + 3) * dim})  // between other columns of a row
          .part(1, before * dim, heads * dim)
          .split_last(dim);
    };
    const Tensor q = strided(1, c.dim), y = strided(2, c.value_dim);
    write(q, x.q);
    for (const std::size_t t : chosen) {
      const Queries& tile = x.tiles[t];
      tiles.insert(
          tiles.end(),
          {static_cast<std::int32_t>(first_rows[t]), static_cast<std::int32_t>(tile.tokens),
           static_cast<std::int32_t>(t), static_cast<std::int32_t>(tile.position)});
      if (tile.tokens > 0) allow(y.rows(first_rows[t], tile.tokens));
    }
    const auto shape = [&](std::int64_t dim) {
      return Shape{pages_of_all, c.page_tokens, c.kv_heads, dim};
    };
    const Tensor all_keys = in(keys, type(), shape(c.dim));
    const std::int64_t count = static_cast<std::int64_t>(x.tiles.size());
    backend().paged_attention(
        y, q, all_keys,
        c.within ? all_keys.part(3, 0, c.value_dim) : in(values, type(), shape(c.value_dim)),
        {.scale = x.scale,
         .alibi_slopes = c.alibi ? in(x.slopes, DType::F32, {heads}) : Tensor(),
         .window = c.window,
         .pages = in(table, {count, most_pages}),
         .tiles = in(tiles, {static_cast<std::int64_t>(chosen.size()), 4}),
         .tile_tokens = x.tile_tokens,
         .max_keys = most_keys});
    for (const std::size_t t : chosen) {
      if (x.tiles[t].tokens == 0) continue;
      const Values rows = read(y.rows(first_rows[t], x.tiles[t].tokens));
      result.insert(result.end(), rows.begin(), rows.end());
    }
    finish();
    return result;
  }

  void check(const PagedCase& c, const std::vector<Queries>& tiles, std::int64_t tile_tokens) {
    SCOPED_TRACE(describe(c));
    const Problem x = make(c, tiles, tile_tokens);
    std::vector<std::size_t> all(tiles.size());
    std::iota(all.begin(), all.end(), 0u);
    const Values found = run(c, x, all);
    Values expected, size;
    std::int64_t row = 1;
    for (std::size_t t = 0; t < tiles.size(); ++t)
      for (std::int64_t i = 0; i < tiles[t].tokens; ++i, ++row)
        for (std::int64_t head = 0; head < c.kv_heads * c.group; ++head) {
          const auto [values, magnitude] = attend(c, x, t, row, tiles[t].position + i, head);
          expected.insert(expected.end(), values.begin(), values.end());
          size.insert(size.end(), magnitude.begin(), magnitude.end());
        }
    // Scores are of the order of 10 at most; 16-bit kernels round the exponentials.
    expect_close("out", found, expected, type(), {narrow() ? 2.0 : 64.0, type(), size});
    // A tile alone gives the same bits, whatever else is in the call.
    const Values alone = run(c, x, {tiles.size() - 1});
    EXPECT_EQ(alone, Values(found.end() - static_cast<std::ptrdiff_t>(alone.size()), found.end()));
  }
};
KINTSUGI_ON_EACH_BACKEND(PagedAttentionTest);

TEST_P(PagedAttentionTest, OneTokenOfEachSequence) {
  for (const PagedCase& c : kPagedCases)
    check(c, {{0, 1}, {15, 1}, {16, 1}, {0, 0}, {63, 1}, {255, 1}, {256, 1}, {600, 1}}, 1);
}

TEST_P(PagedAttentionTest, ManyTokensOfASequence) {
  for (const PagedCase& c : kPagedCases)
    check(c, {{0, 24}, {24, 3}, {0, 0}, {70, 17}, {190, 23}}, 24);
}

TEST_P(PagedAttentionTest, LatentsOfDeepSeek) {
  if (is_emulated() && type() == DType::F64) GTEST_SKIP() << "more shared memory than 64 KiB";
  check(kLatentCase, {{0, 1}, {15, 1}, {130, 1}}, 1);
  check(kLatentCase, {{0, 3}, {70, 2}}, 3);
}

// No head size that the fast kernels know, and no alignment.
TEST_P(PagedAttentionTest, QueriesAtAnyAddress) {
  const PagedCase c{64, 2, 1, 16};
  const Problem x = make(c, {{40, 1}}, 1);
  const Tensor q = buffer(type(), {1, 2 * 64 + 1}).part(1, 1, 128).split_last(64),
               y = buffer(type(), {1, 2 * 64 + 3}).part(1, 3, 128).split_last(64);
  write(q, Values(x.q.begin() + 128, x.q.begin() + 256));
  const Shape shape{3, 16, 1, 64};
  Values keys = x.keys[0], values = x.values[0];
  keys.resize(3 * 16 * 64, 0.0);
  values.resize(3 * 16 * 64, 0.0);
  backend().paged_attention(allow(y), q, in(keys, type(), shape), in(values, type(), shape),
                            {.scale = x.scale,
                             .pages = in(Ids{0, 1, 2}, {1, 3}),
                             .tiles = in(Ids{0, 1, 0, 40}, {1, 4}),
                             .max_keys = 48});
  Values expected, size;
  for (std::int64_t head = 0; head < 2; ++head) {
    const auto [result, magnitude] = attend(c, x, 0, 1, 40, head);
    expected.insert(expected.end(), result.begin(), result.end());
    size.insert(size.end(), magnitude.begin(), magnitude.end());
  }
  expect_close("out", read(y), expected, type(), {narrow() ? 2.0 : 64.0, type(), size});
}

// ---- scatter_rows
TEST_P(PagedAttentionTest, RowsAreStoredWhereTheyBelong) {
  for (const auto& [heads, dim] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 5}, {2, 64}}) {
    SCOPED_TRACE(fmt::format("heads {} dim {}", heads, dim));
    const Ids rows = {4, -1, 0, 6};
    const Tensor to = buffer(type(), {7, heads + 1, dim}).part(1, 1, heads),
                 from = buffer(type(), {4, heads + 2, dim}).part(1, 0, heads);
    const Values x = activations(4 * heads * dim);
    write(from, x);
    for (const std::int32_t row : rows)
      if (row >= 0) allow(to.rows(row, 1));
    backend().scatter_rows(to, from, in(rows, {4}));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto begin = x.begin() + static_cast<std::ptrdiff_t>(i) * heads * dim;
      if (rows[i] >= 0) {
        EXPECT_EQ(read(to.rows(rows[i], 1)), Values(begin, begin + heads * dim)) << "row " << i;
      }
    }
    finish();
  }
}

// ---- rope_store: what rope() and scatter_rows() give, which have their own tests
TEST_P(PagedAttentionTest, KeysAreRotatedAndStored) {
  for (const auto& [heads, kv_heads, dim, rotated] :
       {std::tuple<std::int64_t, std::int64_t, std::int64_t, bool>{4, 2, 64, true},
        {1, 1, 6, true},
        {3, 3, 32, false}}) {
    SCOPED_TRACE(fmt::format("heads {} kv_heads {} dim {}", heads, kv_heads, dim));
    const std::int64_t tokens = 3, width = (heads + 2 * kv_heads) * dim;
    const Ids rows = {4, -1, 1}, positions = {0, 2, 5};
    const Values qkv = activations(tokens * width);
    Values table;
    for (std::int64_t position = 0; position < 6; ++position)
      for (const bool sine : {false, true})
        for (std::int64_t i = 0; i < dim / 2; ++i) {
          const double angle = static_cast<double>(position) / static_cast<double>(i + 1);
          table.push_back(sine ? std::sin(angle) : std::cos(angle));
        }
    table = rounded(table, accumulator());
    const auto run = [&](bool fused) {
      const Tensor all = inout(qkv, type(), {tokens, width}),
                   keys =
                       inout(Values(to_index(6 * kv_heads * dim), 1.0), type(), {6, kv_heads, dim}),
                   values =
                       inout(Values(to_index(6 * kv_heads * dim), 2.0), type(), {6, kv_heads, dim});
      const Tensor q = all.part(1, 0, heads * dim).split_last(dim),
                   k = all.part(1, heads * dim, kv_heads * dim).split_last(dim),
                   v = all.part(1, (heads + kv_heads) * dim, kv_heads * dim).split_last(dim);
      const Tensor angles = rotated ? in(table, accumulator(), {6, dim}) : Tensor(),
                   to = in(rows, {tokens}), at = in(positions, {tokens});
      if (fused) {
        backend().rope_store(keys, values, q, k, v, to, angles, at);
      } else {
        if (rotated) backend().rope(q, angles, at, false);
        if (rotated) backend().rope(k, angles, at, false);
        backend().scatter_rows(keys, k, to);
        backend().scatter_rows(values, v, to);
      }
      Values result = read(all);
      for (const Tensor& x : {keys, values}) {
        const Values more = read(x);
        result.insert(result.end(), more.begin(), more.end());
      }
      finish();
      return result;
    };
    const Values expected = run(false), found = run(true);
    // The same arithmetic, but a compiler may fuse other products and sums.
    expect_close("rotated and stored", found, expected, type(), {4, accumulator()});
  }
}

}  // namespace
}  // namespace kintsugi
