#include "backend/gpu/cuda/attention_graph.h"

#include <utility>

// Before 9.21 cuDNN has no attention operation with a causal mask. Instead it recognises the graph
// below and runs it as one fused kernel. It matches the order, types and strides of the operations:
// change them only where they can be tested on a GPU.
namespace kintsugi::cudnn {
namespace {

// Masked scores get this value instead of -infinity: its exp() is also 0, and no NaN can occur.
constexpr float kMasked = -1e9f;

Extents transposed(const Extents& x) { return {x[0], x[1], x[3], x[2]}; }

class AttentionGraph {
 public:
  AttentionGraph(const AttentionProblem& problem, bool padded) : p_(problem), padded_(padded) {
    scale_ = g_.constant(static_cast<float>(p_.scale));
    // A number that the graph does not read would be one too many for cuDNN when the plan runs.
    if (p_.causal || p_.window > 0 || p_.documents || padded_) masked_ = g_.constant(kMasked);
    if (p_.alibi) {
      slopes_ =
          g_.memory("slopes", kSlopes, CUDNN_DATA_FLOAT, {1, p_.heads, 1, 1}, {p_.heads, 1, 1, 1});
    }
    if (p_.documents) {
      starts_ =
          g_.memory("document_start", kDocumentStart, CUDNN_DATA_INT32,
                    {p_.batch, 1, p_.queries, 1}, {p_.document_stride, p_.document_stride, 1, 1});
    }
    if (padded_) {
      const Extents extents{p_.batch, 1, 1, 1}, strides{1, 1, 1, 1};
      rows_ = g_.memory("query lengths", kQueryLengths, CUDNN_DATA_INT32, extents, strides);
      columns_ = g_.memory("key lengths", kKeyLengths, CUDNN_DATA_INT32, extents, strides);
    }
  }

  Plan forward(const Target& target) &&;
  Plan backward(const Target& target) &&;

 private:
  using Value = Graph::Value;

  Extents query_extents() const { return {p_.batch, p_.heads, p_.queries, p_.dim}; }
  Extents key_extents() const { return {p_.batch, p_.kv_heads, p_.keys, p_.dim}; }
  Extents score_extents() const { return {p_.batch, p_.heads, p_.queries, p_.keys}; }
  Extents row_extents() const { return {p_.batch, p_.heads, p_.queries, 1}; }

  Value score_like(cudnnDataType_t dtype = CUDNN_DATA_FLOAT) {
    return g_.virtual_tensor(dtype, score_extents());
  }
  Value row_like() { return g_.virtual_tensor(CUDNN_DATA_FLOAT, row_extents()); }

  Value scores(Value q, Value k_transposed);
  Value add_alibi(Value scores);
  Value mask_padding(Value scores);
  Value mask_future(Value scores);
  Value mask_beyond_window(Value scores);
  Value mask_other_documents(Value scores);
  Value transpose_scores(const char* name, Value scores);
  Value mask(Value scores);
  Value key_gradient(const char* name, Value a, Value b, Value gradient);

  const AttentionProblem p_;
  const bool padded_;
  Graph g_;
  Value scale_, masked_ = Graph::kNone;
  Value slopes_ = Graph::kNone, starts_ = Graph::kNone;
  Value rows_ = Graph::kNone, columns_ = Graph::kNone;  // numbers of queries and keys, if padded
};

// q k^T * scale [+ alibi]
Graph::Value AttentionGraph::scores(Value q, Value k_transposed) {
  Value s = g_.matmul("q k^T", q, k_transposed, score_like(), {.m = rows_, .n = columns_});
  s = g_.pointwise("scale", CUDNN_POINTWISE_MUL, score_like(), s, scale_);
  if (p_.alibi) s = add_alibi(s);
  return s;
}

// Adds slope * key position, so that lse is the same as in the other backends.
Graph::Value AttentionGraph::add_alibi(Value s) {
  Value column = g_.index("alibi column", s, score_like(CUDNN_DATA_INT32), 3);
  if (p_.moved_keys)
    column = g_.pointwise("alibi position", CUDNN_POINTWISE_ADD, score_like(), column,
                          g_.number("first key", kFirstKey));
  const Value bias =
      g_.pointwise("alibi slope", CUDNN_POINTWISE_MUL, score_like(), column, slopes_);
  return g_.pointwise("alibi add", CUDNN_POINTWISE_ADD, score_like(), s, bias);
}

Graph::Value AttentionGraph::mask_padding(Value s) {
  const Value row = g_.index("padding row", s, score_like(CUDNN_DATA_INT32), 2);
  const Value column = g_.index("padding column", s, score_like(CUDNN_DATA_INT32), 3);
  const auto below = [&](const char* name, Value index, Value length) {
    return g_.pointwise(name, CUDNN_POINTWISE_CMP_LT, score_like(CUDNN_DATA_BOOLEAN), index, length,
                        Graph::kNone, CUDNN_DATA_BOOLEAN);
  };
  const Value row_valid = below("padding row < length", row, rows_);
  const Value column_valid = below("padding column < length", column, columns_);
  const Value valid =
      g_.pointwise("padding and", CUDNN_POINTWISE_LOGICAL_AND, score_like(CUDNN_DATA_BOOLEAN),
                   row_valid, column_valid, Graph::kNone, CUDNN_DATA_BOOLEAN);
  return g_.pointwise("padding select", CUDNN_POINTWISE_BINARY_SELECT, score_like(), s, masked_,
                      valid);
}

Graph::Value AttentionGraph::mask_future(Value s) {
  const Value row = g_.index("causal row", s, score_like(CUDNN_DATA_INT32), 2);
  const Value column = g_.index("causal column", s, score_like(CUDNN_DATA_INT32), 3);
  const Value seen =
      g_.pointwise("causal row >= column", CUDNN_POINTWISE_CMP_GE, score_like(CUDNN_DATA_BOOLEAN),
                   row, column, Graph::kNone, CUDNN_DATA_BOOLEAN);
  return g_.pointwise("causal select", CUDNN_POINTWISE_BINARY_SELECT, score_like(), s, masked_,
                      seen);
}

// cuDNN recognises the window, and skips the tiles outside it, only if it is a float.
Graph::Value AttentionGraph::mask_beyond_window(Value s) {
  const Value row = g_.index("window row", s, score_like(CUDNN_DATA_INT32), 2);
  const Value column = g_.index("window column", s, score_like(CUDNN_DATA_INT32), 3);
  const Value end = g_.pointwise("window end", CUDNN_POINTWISE_ADD, score_like(), column,
                                 g_.constant(static_cast<float>(p_.window)));
  const Value seen =
      g_.pointwise("window end > row", CUDNN_POINTWISE_CMP_GT, score_like(CUDNN_DATA_BOOLEAN), end,
                   row, Graph::kNone, CUDNN_DATA_BOOLEAN);
  return g_.pointwise("window select", CUDNN_POINTWISE_BINARY_SELECT, score_like(), s, masked_,
                      seen);
}

Graph::Value AttentionGraph::mask_other_documents(Value s) {
  const Value column = g_.index("document column", s, score_like(CUDNN_DATA_INT32), 3);
  const Value seen = g_.pointwise("document column >= start", CUDNN_POINTWISE_CMP_GE,
                                  score_like(CUDNN_DATA_BOOLEAN), column, starts_, Graph::kNone,
                                  CUDNN_DATA_BOOLEAN);
  return g_.pointwise("document select", CUDNN_POINTWISE_BINARY_SELECT, score_like(), s, masked_,
                      seen);
}

Graph::Value AttentionGraph::mask(Value s) {
  if (p_.causal) s = mask_future(s);
  if (p_.window > 0) s = mask_beyond_window(s);
  if (p_.documents) s = mask_other_documents(s);
  return s;
}

Graph::Value AttentionGraph::transpose_scores(const char* name, Value s) {
  return g_.reshape(name, s,
                    g_.virtual_tensor(p_.dtype, transposed(score_extents()),
                                      transposed(row_major(score_extents()))));
}

// Writes the gradient of k or v. The query heads of a group are computed separately, then summed.
Graph::Value AttentionGraph::key_gradient(const char* name, Value a, Value b, Value gradient) {
  const Graph::Lengths lengths{.m = columns_, .k = rows_};
  if (p_.heads == p_.kv_heads) return g_.matmul(name, a, b, gradient, lengths);
  const Extents extents{p_.batch, p_.heads, p_.keys, p_.dim};
  const Value all_heads = g_.matmul(name, a, b, g_.virtual_tensor(p_.dtype, extents), lengths);
  return g_.reduce(name, CUDNN_REDUCE_TENSOR_ADD, all_heads, gradient);
}

Plan AttentionGraph::forward(const Target& target) && {
  const Value q = g_.memory("q", kQ, p_.dtype, query_extents(), p_.q);
  const Value k_t = g_.memory("k", kK, p_.dtype, transposed(key_extents()), transposed(p_.k));
  const Value v = g_.memory("v", kV, p_.dtype, key_extents(), p_.v);
  const Value lse =
      g_.memory("lse", kLse, CUDNN_DATA_FLOAT, row_extents(), row_major(row_extents()));
  const Value out = g_.memory("out", kOut, p_.dtype, query_extents(), p_.out);

  Value s = scores(q, k_t);
  if (padded_) s = mask_padding(s);
  s = mask(s);
  const Value max = g_.reduce("row max", CUDNN_REDUCE_TENSOR_MAX, s, row_like());
  const Value shifted = g_.pointwise("minus max", CUDNN_POINTWISE_SUB, score_like(), s, max);
  const Value e = g_.pointwise("exp", CUDNN_POINTWISE_EXP, score_like(), shifted);
  const Value sum = g_.reduce("row sum", CUDNN_REDUCE_TENSOR_ADD, e, row_like());
  const Value log = g_.pointwise("log", CUDNN_POINTWISE_LOG, row_like(), sum);
  g_.pointwise("lse", CUDNN_POINTWISE_ADD, lse, max, log);
  const Value probabilities =
      g_.pointwise("divide", CUDNN_POINTWISE_DIV, score_like(p_.dtype), e, sum);
  g_.matmul("p v", probabilities, v, out, {.m = rows_, .k = columns_});
  return std::move(g_).build(target, p_.deterministic);
}

Plan AttentionGraph::backward(const Target& target) && {
  const Extents queries = query_extents();
  const Extents keys = key_extents();
  const Value q = g_.memory("q", kQ, p_.dtype, queries, p_.q);
  const Value k_t = g_.memory("k", kK, p_.dtype, transposed(keys), transposed(p_.k));
  const Value v_t = g_.memory("v", kV, p_.dtype, transposed(keys), transposed(p_.v));
  const Value out = g_.memory("out", kOut, p_.dtype, queries, p_.out);
  const Value dout = g_.memory("dout", kDout, p_.dtype, queries, p_.dout);
  const Value lse =
      g_.memory("lse", kLse, CUDNN_DATA_FLOAT, row_extents(), row_major(row_extents()));
  const Value row_sum =
      g_.memory("row sum", kRowSum, CUDNN_DATA_FLOAT, row_extents(), row_major(row_extents()));
  const Value dq = g_.memory("dq", kDq, p_.dtype, queries, p_.dq);
  const Value dk = g_.memory("dk", kDk, p_.dtype, keys, p_.dk);
  const Value dv = g_.memory("dv", kDv, p_.dtype, keys, p_.dv);

  // row_sum = sum over dim of dout * out
  const Value dout_out = g_.pointwise("dout * out", CUDNN_POINTWISE_MUL,
                                      g_.virtual_tensor(CUDNN_DATA_FLOAT, queries), dout, out);
  const Value sum = g_.reduce("sum of dout * out", CUDNN_REDUCE_TENSOR_ADD, dout_out, row_like());
  g_.pointwise("times one", CUDNN_POINTWISE_MUL, row_sum, sum, g_.constant(1.0f));

  // p = exp(scores - lse)
  Value s = scores(q, k_t);
  if (padded_) s = mask_padding(s);
  s = g_.pointwise("minus lse", CUDNN_POINTWISE_SUB, score_like(), s, lse);
  s = mask(s);
  const Value p = g_.pointwise("exp", CUDNN_POINTWISE_EXP, score_like(), s);

  // dv = p^T dout
  key_gradient("p^T dout", transpose_scores("p^T", p), dout, dv);

  // ds = p * (dout v^T - row_sum) * scale
  Value ds = g_.matmul("dout v^T", dout, v_t, score_like(), {.m = rows_, .n = columns_});
  ds = g_.pointwise("minus row sum", CUDNN_POINTWISE_SUB, score_like(), ds, row_sum);
  ds = g_.pointwise("times p", CUDNN_POINTWISE_MUL, score_like(), ds, p);
  ds = g_.pointwise("scale ds", CUDNN_POINTWISE_MUL, score_like(p_.dtype), ds, scale_);

  // dk = ds^T q
  key_gradient("ds^T q", transpose_scores("ds^T", ds), q, dk);

  // dq = ds k. The tiles of a row are summed in fp32 in the order in which they finish; a
  // deterministic plan writes dq with one matmul.
  const Value k = g_.reshape("k", k_t, g_.virtual_tensor(p_.dtype, keys, p_.k));
  const Graph::Lengths lengths{.m = rows_, .k = columns_};
  if (p_.deterministic) {
    g_.matmul("ds k", ds, k, dq, lengths);
  } else {
    const Value dq_sum = g_.memory("dq sum", kDqSum, CUDNN_DATA_FLOAT, queries, row_major(queries));
    g_.matmul("ds k", ds, k, dq_sum, lengths);
    g_.pointwise("dq", CUDNN_POINTWISE_IDENTITY, dq, dq_sum);
  }
  return std::move(g_).build(target, p_.deterministic);
}

}  // namespace

bool needs_lengths(const AttentionProblem& problem) {
  return problem.keys % 128 != 0 && cudnnGetVersion() <= 91500;
}

Plan attention_forward_plan(const AttentionProblem& problem, const Target& target) {
  return AttentionGraph(problem, false).forward(target);
}

Plan attention_backward_plan(const AttentionProblem& problem, const Target& target) {
  return AttentionGraph(problem, needs_lengths(problem)).backward(target);
}

}  // namespace kintsugi::cudnn
