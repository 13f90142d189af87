#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "backend/attention_mask.h"
#include "backend/gpu/common.h"
#include "backend/gpu/cuda/attention_graph.h"
#include "backend/gpu/cuda/native.h"
#include "backend/gpu/fused_attention.h"

namespace kintsugi::gpu {

using cudnn::AttentionProblem;

struct AttentionPlan {
  cudnn::Plan plan;
  std::int64_t batch = 0;      // sequences per execution
  void* lengths = nullptr;     // int32, of queries, then of keys; nullptr if not needed
  std::size_t plan_bytes = 0;  // scratch memory: the plan's workspace, then row sums, then dq sums
  std::size_t row_sum_bytes = 0;
  std::size_t dq_sum_bytes = 0;
  std::string description;
};

std::size_t scratch_bytes(const AttentionPlan& plan) {
  return plan.plan_bytes + plan.row_sum_bytes + plan.dq_sum_bytes;
}

const std::string& description(const AttentionPlan& plan) { return plan.description; }

namespace {

// Up to cuDNN 9.5 the caller had to clear the sum of dq, and graphs were matched differently.
constexpr std::size_t kOldestVersion = 90600;

// A deterministic backward stores the gradient of all probabilities of the sequences that it
// processes at a time. Their number is limited by this.
constexpr std::int64_t kDeterministicBytes = std::int64_t{2} << 30;
constexpr std::int64_t kDeterministicLimit = std::int64_t{16} << 30;  // for a single sequence

constexpr std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// Where the numbers of keys start in AttentionPlan::lengths: at a multiple of 16 bytes.
constexpr std::size_t key_lengths_at(std::int64_t batch) {
  return (static_cast<std::size_t>(batch) + 3) / 4 * 4;
}

// The strides of (batch, position, head, element) in cuDNN's order (batch, head, position, element)
cudnn::Extents strides_of(const Tensor& x) {
  if (!x) return {};
  return {x.stride(0), x.stride(2), x.stride(1), 1};
}

// Fused kernels load 16 bytes at a time.
bool is_aligned(const Tensor& x) {
  if (!x) return true;
  if (!aligned16(x.data())) return false;
  if (x.rank() < 4) return true;
  for (int i = 0; i < 3; ++i) {
    if (x.extent(i) > 1 && x.stride(i) * static_cast<std::int64_t>(size_of(x.dtype())) % 16 != 0)
      return false;
  }
  return true;
}

// The masks that cuDNN has. Causal: as many queries as keys, at the same positions. AllKeys: every
// query sees every key, apart from documents.
enum class Mask { Causal, AllKeys, Other };

Mask mask_of(const AttentionMask& mask) {
  if (mask.begin(mask.queries - 1) == 0 && mask.end(0) == mask.keys) return Mask::AllKeys;
  return mask.queries == mask.keys && mask.query_positions == mask.key_positions ? Mask::Causal
                                                                                 : Mask::Other;
}

bool hides_keys_by_window(const AttentionMask& mask) { return mask.begin(mask.queries - 1) > 0; }

bool has_moved_keys(const AttentionOptions& options) {
  return options.alibi_slopes && options.key_positions.first != 0;
}

AttentionMask mask_of(const AttentionCall& call) {
  return {call.options, call.q.extent(1), call.k.extent(1)};
}

// Why cuDNN cannot run a call; nullptr if it can.
const char* unsupported_reason(const AttentionCall& call) {
  const DType dtype = call.q.dtype();
  if (dtype != DType::BF16 && dtype != DType::F16)
    return "cuDNN attention supports only bf16 and fp16";
  if (call.q.extent(3) % 8 != 0 || call.q.extent(3) > 256)
    return "cuDNN attention needs a head size that is a multiple of 8 and at most 256";
  if (call.q.extent(3) != call.v.extent(3))
    return "cuDNN attention needs keys and values of the same size";
  if (call.q.extent(1) < 2 || call.k.extent(1) < 2)
    return "cuDNN attention needs at least two positions";
  const AttentionMask mask = mask_of(call);
  if (mask_of(mask) == Mask::Other)
    return "cuDNN attention needs queries and keys with the same positions, or all keys before the "
           "queries";
  const bool consecutive = mask.key_positions.chunk >= mask.keys;
  if (call.options.alibi_slopes && !consecutive)
    return "cuDNN attention with ALiBi needs consecutive positions";
  if (hides_keys_by_window(mask) && !consecutive)
    return "cuDNN attention with a window needs consecutive positions";
  if (!call.lse.contiguous()) return "cuDNN attention needs a contiguous log-sum-exp";
  for (const Tensor* x :
       {&call.out, &call.lse, &call.q, &call.k, &call.v, &call.dq, &call.dk, &call.dv, &call.dout,
        &call.options.alibi_slopes, &call.options.document_start}) {
    if (!is_aligned(*x)) return "cuDNN attention needs tensors aligned to 16 bytes";
  }
  return nullptr;
}

AttentionProblem problem_of(const AttentionCall& call) {
  AttentionProblem problem;
  problem.dtype = call.q.dtype() == DType::BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
  problem.batch = call.q.extent(0);
  problem.heads = call.q.extent(2);
  problem.kv_heads = call.k.extent(2);
  problem.queries = call.q.extent(1);
  problem.keys = call.k.extent(1);
  problem.dim = call.q.extent(3);
  problem.scale = call.options.scale;
  const AttentionMask mask = mask_of(call);
  problem.causal = mask_of(mask) == Mask::Causal;
  problem.alibi = static_cast<bool>(call.options.alibi_slopes);
  problem.moved_keys = has_moved_keys(call.options);
  problem.documents = static_cast<bool>(call.options.document_start);
  // A window as long as the sequence masks nothing and needs no plan of its own.
  if (hides_keys_by_window(mask)) problem.window = mask.window;
  if (problem.documents) problem.document_stride = call.options.document_start.stride(0);
  problem.q = strides_of(call.q);
  problem.k = strides_of(call.k);
  problem.v = strides_of(call.v);
  problem.out = strides_of(call.out);
  problem.dq = strides_of(call.dq);
  problem.dk = strides_of(call.dk);
  problem.dv = strides_of(call.dv);
  problem.dout = strides_of(call.dout);
  return problem;
}

// How many sequences a deterministic backward processes at a time; 0 if not even one fits.
std::int64_t deterministic_batch(const AttentionProblem& problem) {
  const auto tiled = [](std::int64_t length) { return ceil_div<std::int64_t>(length, 64) * 64; };
  const auto bytes_of = [&](std::int64_t queries, std::int64_t keys) {
    return problem.heads * tiled(queries) * tiled(keys) * 2;
  };
  // A block of a ring never needs more than the rank's own keys do.
  const std::int64_t longest = std::max(problem.queries, problem.keys);
  if (bytes_of(longest, longest) > kDeterministicLimit) return 0;
  const std::int64_t bytes = bytes_of(problem.queries, problem.keys);
  // Otherwise a later group of sequences would not start at a multiple of 16 bytes.
  if (problem.heads * problem.queries % 4 != 0 || problem.document_stride % 4 != 0)
    return problem.batch;
  std::int64_t batch = std::clamp<std::int64_t>(kDeterministicBytes / bytes, 1, problem.batch);
  while (problem.batch % batch != 0) --batch;
  return batch;
}

// The address of sequence `first`.
void* address_of(const Tensor& x, std::int64_t first, std::int64_t stride) {
  if (!x) return nullptr;
  return static_cast<char*>(x.data()) +
         first * stride * static_cast<std::int64_t>(size_of(x.dtype()));
}
void* address_of(const Tensor& x, std::int64_t first) {
  return address_of(x, first, x ? x.stride(0) : 0);
}

// What the masks need of the sequences from `first` on. first_key is read when the plan runs.
void bind_masks(std::vector<cudnn::Binding>& bindings, const AttentionCall& call,
                std::int64_t first, float& first_key) {
  const AttentionOptions& o = call.options;
  if (o.alibi_slopes) bindings.push_back({cudnn::kSlopes, o.alibi_slopes.data()});
  if (has_moved_keys(o)) bindings.push_back({cudnn::kFirstKey, &first_key});
  if (o.document_start)
    bindings.push_back({cudnn::kDocumentStart, address_of(o.document_start, first)});
}

}  // namespace

struct FusedAttention::State {
  using Key = std::pair<bool, AttentionProblem>;  // (is backward, problem)

  ~State() {
    for (auto& [key, entry] : entries) {
      if (entry.plan && entry.plan->lengths) release(entry.plan->lengths);
    }
    if (handle) cudnnDestroy(handle);
  }

  struct Entry {
    std::optional<AttentionPlan> plan;
    std::string refusal;  // why there is no plan
  };

  bool open();
  const AttentionPlan* find(bool backward, const AttentionCall& call, Stream stream);
  AttentionPlan build(bool backward, AttentionProblem problem, Stream stream);

  cudnnHandle_t handle = nullptr;
  bool tried = false;
  std::string no_handle;  // why there is no handle
  std::map<Key, Entry> entries;
  std::size_t bytes = 0;
  std::string reason;
  std::vector<std::string> refusals;
};

bool FusedAttention::State::open() {
  if (!tried) {
    tried = true;
    if (cudnnGetVersion() < kOldestVersion) {
      no_handle =
          fmt::format("cuDNN {} is too old for attention: install 9.6 or newer", cudnnGetVersion());
    } else if (const cudnnStatus_t status = cudnnCreate(&handle); status != CUDNN_STATUS_SUCCESS) {
      handle = nullptr;
      no_handle = fmt::format("cuDNN cannot be initialized: {}", cudnnGetErrorString(status));
    }
    if (!handle) refusals.push_back(no_handle);
  }
  if (!handle) reason = no_handle;
  return handle != nullptr;
}

AttentionPlan FusedAttention::State::build(bool backward, AttentionProblem problem, Stream stream) {
  const cudnn::Target target{handle, nullptr};
  const std::int64_t full_batch = problem.batch;
  if (backward && problem.deterministic) {
    problem.batch = deterministic_batch(problem);
    if (problem.batch == 0)
      throw cudnn::Refused(
          "a deterministic backward of this length needs too much memory in cuDNN");
  }
  AttentionPlan result;
  result.batch = problem.batch;
  result.plan = backward ? cudnn::attention_backward_plan(problem, target)
                         : cudnn::attention_forward_plan(problem, target);
  result.plan_bytes = rounded(result.plan.workspace_bytes());
  if (backward) {
    const auto rows = static_cast<std::size_t>(problem.batch * problem.heads * problem.queries);
    result.row_sum_bytes = rounded(rows * sizeof(float));
    if (!problem.deterministic)
      result.dq_sum_bytes = rounded(rows * static_cast<std::size_t>(problem.dim) * sizeof(float));
    if (cudnn::needs_lengths(problem)) {
      std::vector<std::int32_t> lengths(key_lengths_at(problem.batch),
                                        static_cast<std::int32_t>(problem.queries));
      lengths.resize(2 * lengths.size(), static_cast<std::int32_t>(problem.keys));
      const std::size_t size = lengths.size() * sizeof(std::int32_t);
      result.lengths = device_allocate(size);
      copy(result.lengths, lengths.data(), size, Copy::ToDevice, stream);
      synchronize(stream);
      bytes += size;
    }
  }
  result.description = fmt::format("cuDNN {}{}", result.plan.engine(),
                                   problem.batch == full_batch ? "" : ", batch split");
  return result;
}

const AttentionPlan* FusedAttention::State::find(bool backward, const AttentionCall& call,
                                                 Stream stream) {
  if (const char* why = unsupported_reason(call)) {
    reason = why;
    return nullptr;
  }
  if (!open()) return nullptr;
  AttentionProblem problem = problem_of(call);
  problem.deterministic = backward && call.deterministic;
  const Key key{backward, problem};
  auto known = entries.find(key);
  if (known == entries.end()) {
    KINTSUGI_CHECK(!is_capturing(stream),
                   "attention has new shapes while a graph is captured: run the step once before");
    Entry entry;
    try {
      entry.plan = build(backward, problem, stream);
    } catch (const cudnn::Refused& refused) {
      entry.refusal = fmt::format("attention {} of {} heads of {}, {} queries of {} keys: {}",
                                  backward ? "backward" : "forward", problem.heads, problem.dim,
                                  problem.queries, problem.keys, refused.what());
      refusals.push_back(entry.refusal);
    }
    known = entries.emplace(key, std::move(entry)).first;
  }
  reason = known->second.refusal;
  return known->second.plan ? &*known->second.plan : nullptr;
}

FusedAttention::FusedAttention() : state_(std::make_unique<State>()) {}
FusedAttention::~FusedAttention() = default;

const AttentionPlan* FusedAttention::forward_plan(const AttentionCall& call, Stream stream) {
  return state_->find(false, call, stream);
}

const AttentionPlan* FusedAttention::backward_plan(const AttentionCall& call, Stream stream) {
  return state_->find(true, call, stream);
}

void FusedAttention::run_forward(const AttentionPlan& plan, const AttentionCall& call,
                                 void* scratch, Stream stream) {
  std::vector<cudnn::Binding> bindings = {
      {cudnn::kQ, call.q.data()},     {cudnn::kK, call.k.data()},     {cudnn::kV, call.v.data()},
      {cudnn::kOut, call.out.data()}, {cudnn::kLse, call.lse.data()},
  };
  auto first_key = static_cast<float>(call.options.key_positions.first);
  bind_masks(bindings, call, 0, first_key);
  const cudnnStatus_t status = cudnnSetStream(state_->handle, native(stream));
  KINTSUGI_CHECK(status == CUDNN_STATUS_SUCCESS, "{}", cudnnGetErrorString(status));
  plan.plan.execute(state_->handle, bindings, scratch);
}

void FusedAttention::run_backward(const AttentionPlan& plan, const AttentionCall& call,
                                  void* scratch, Stream stream) {
  const cudnnStatus_t status = cudnnSetStream(state_->handle, native(stream));
  KINTSUGI_CHECK(status == CUDNN_STATUS_SUCCESS, "{}", cudnnGetErrorString(status));
  char* row_sum = static_cast<char*>(scratch) + plan.plan_bytes;
  char* dq_sum = row_sum + plan.row_sum_bytes;
  const std::int64_t lse_stride = call.q.extent(1) * call.q.extent(2);
  auto first_key = static_cast<float>(call.options.key_positions.first);
  for (std::int64_t first = 0; first < call.q.extent(0); first += plan.batch) {
    std::vector<cudnn::Binding> bindings = {
        {cudnn::kQ, address_of(call.q, first)},
        {cudnn::kK, address_of(call.k, first)},
        {cudnn::kV, address_of(call.v, first)},
        {cudnn::kOut, address_of(call.out, first)},
        {cudnn::kLse, address_of(call.lse, first, lse_stride)},
        {cudnn::kDout, address_of(call.dout, first)},
        {cudnn::kDq, address_of(call.dq, first)},
        {cudnn::kDk, address_of(call.dk, first)},
        {cudnn::kDv, address_of(call.dv, first)},
        {cudnn::kRowSum, row_sum},
    };
    if (plan.dq_sum_bytes) bindings.push_back({cudnn::kDqSum, dq_sum});
    if (plan.lengths) {
      bindings.push_back({cudnn::kQueryLengths, plan.lengths});
      bindings.push_back({cudnn::kKeyLengths,
                          static_cast<std::int32_t*>(plan.lengths) + key_lengths_at(plan.batch)});
    }
    bind_masks(bindings, call, first, first_key);
    plan.plan.execute(state_->handle, bindings, scratch);
  }
}

std::size_t FusedAttention::own_bytes() const { return state_->bytes; }
const std::string& FusedAttention::last_reason() const { return state_->reason; }
const std::vector<std::string>& FusedAttention::refusals() const { return state_->refusals; }

}  // namespace kintsugi::gpu
