#pragma once

#include "backend/operation_fixture.h"

namespace kintsugi {

struct AttentionSizes {
  std::int64_t batch, queries, keys, heads, kv_heads, dim;
};

struct AttentionInputs {
  Values q, k, v, dout;
  Values slopes;  // empty: none
  Ids starts;     // (batch, queries); empty: none
  double scale = 1;
  std::int64_t window = 0;     // 0: none
  std::int64_t value_dim = 0;  // of v and dout; 0: as q and k
};

struct AttentionOutputs {
  Values out, lse, dq, dk, dv;
};

// Softmax attention row by row from the definition, and its gradient.
inline AttentionOutputs attention_reference(const AttentionSizes& c, const AttentionInputs& x) {
  const auto at = [&](std::int64_t b, std::int64_t token, std::int64_t head, std::int64_t tokens,
                      std::int64_t heads) {
    return static_cast<std::size_t>((b * tokens + token) * heads + head);
  };
  AttentionOutputs r;
  r.out = Values(x.dout.size(), 0.0);
  r.dq = Values(x.q.size(), 0.0);
  r.dk = Values(x.k.size(), 0.0);
  r.dv = Values(x.v.size(), 0.0);
  const auto dim = static_cast<std::size_t>(c.dim),
             values = x.value_dim > 0 ? static_cast<std::size_t>(x.value_dim) : dim;
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < c.queries; ++i) {
        const std::int64_t position = c.keys - c.queries + i, kv = h / (c.heads / c.kv_heads);
        std::int64_t first =
            x.starts.empty() ? 0 : x.starts[static_cast<std::size_t>(b * c.queries + i)];
        if (x.window > 0) first = std::max(first, position - x.window + 1);
        const std::size_t head = at(b, i, h, c.queries, c.heads), row = head * dim,
                          result = head * values;
        Values p;
        double top = -INFINITY, total = 0, delta = 0;
        for (std::int64_t j = first; j <= position; ++j) {
          const std::size_t key = at(b, j, kv, c.keys, c.kv_heads) * dim;
          double score =
              x.slopes.empty() ? 0 : x.slopes[static_cast<std::size_t>(h)] * static_cast<double>(j);
          for (std::size_t d = 0; d < dim; ++d) score += x.scale * x.q[row + d] * x.k[key + d];
          p.push_back(score);
          top = std::max(top, score);
        }
        for (double& value : p) total += value = std::exp(value - top);
        r.lse.push_back(top + std::log(total));
        for (std::size_t j = 0; j < p.size(); ++j) {
          p[j] /= total;
          const std::size_t value =
              at(b, first + static_cast<std::int64_t>(j), kv, c.keys, c.kv_heads) * values;
          for (std::size_t d = 0; d < values; ++d) r.out[result + d] += p[j] * x.v[value + d];
        }
        for (std::size_t d = 0; d < values; ++d) delta += r.out[result + d] * x.dout[result + d];
        for (std::size_t j = 0; j < p.size(); ++j) {
          const std::size_t kv_row =
                                at(b, first + static_cast<std::int64_t>(j), kv, c.keys, c.kv_heads),
                            key = kv_row * dim, value = kv_row * values;
          double dp = 0;
          for (std::size_t d = 0; d < values; ++d) dp += x.dout[result + d] * x.v[value + d];
          const double ds = p[j] * (dp - delta) * x.scale;
          for (std::size_t d = 0; d < values; ++d) r.dv[value + d] += p[j] * x.dout[result + d];
          for (std::size_t d = 0; d < dim; ++d) {
            r.dq[row + d] += ds * x.k[key + d];
            r.dk[key + d] += ds * x.q[row + d];
          }
        }
      }
  return r;
}

}  // namespace kintsugi
