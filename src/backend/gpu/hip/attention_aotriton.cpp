// Attention by AOTriton, AMD's library of compiled Triton kernels, of releases 0.10 to 0.13.
#include <fmt/format.h>

#include <map>
#include <numbers>
#include <optional>

#include "backend/attention_mask.h"
#include "backend/gpu/common.h"
#include "backend/gpu/fused_attention.h"
#include "backend/gpu/hip/aotriton.h"
#include "backend/gpu/hip/api.h"
#include "backend/gpu/hip/libraries.h"

namespace kintsugi::gpu {

using aotriton::Lent;
using aotriton::Mask;
using aotriton::no_tensor;
using aotriton::Parameters;
using aotriton::Release;
using aotriton::View;

struct AttentionPlan {
  Mask mask;
  std::size_t bytes = 0;  // of scratch memory
  std::string description;
};

std::size_t scratch_bytes(const AttentionPlan& plan) { return plan.bytes; }
const std::string& description(const AttentionPlan& plan) { return plan.description; }

namespace {

constexpr std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

std::int32_t type_of(const Tensor& x) {
  return x.dtype() == DType::BF16 ? aotriton::kBf16 : aotriton::kHalf;
}

// (batch, position, head, element) in the library's order (batch, head, position, element)
View<4> view_of(const Tensor& x) {
  const auto u = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  return {x.data(),
          {u(x.extent(0)), u(x.extent(2)), u(x.extent(1)), u(x.extent(3))},
          {u(x.stride(0)), u(x.stride(2)), u(x.stride(1)), 1},
          type_of(x)};
}

// One fp32 number per row of q: (batch * heads, queries).
View<2> sums_of(void* data, const Tensor& q) {
  const auto heads = static_cast<std::uint64_t>(q.extent(0) * q.extent(2)),
             queries = static_cast<std::uint64_t>(q.extent(1));
  return {data, {heads, queries}, {queries, 1}, aotriton::kFloat};
}

std::size_t rows_of(const Tensor& q) {
  return static_cast<std::size_t>(q.extent(0) * q.extent(1) * q.extent(2));
}

// Kernels load 16 bytes at a time.
bool is_aligned(const Tensor& x) {
  if (!x) return true;
  bool aligned = aligned16(x.data());
  for (int i = 0; x.rank() == 4 && i < 3; ++i) aligned &= x.extent(i) == 1 || x.stride(i) % 8 == 0;
  return aligned;
}

// Why no release can run a call; nullptr if one may.
const char* unsupported_reason(const AttentionCall& call) {
  if (call.q.dtype() != DType::BF16 && call.q.dtype() != DType::F16)
    return "AOTriton attention is used for bf16 and fp16 only";
  if (call.options.alibi_slopes) return "AOTriton attention has no ALiBi";
  if (call.options.document_start) return "AOTriton attention does not separate documents";
  if (call.q.extent(3) % 8 != 0 || call.q.extent(3) > 256)
    return "AOTriton attention needs a head size that is a multiple of 8 and at most 256";
  if (call.q.extent(3) != call.v.extent(3))
    return "AOTriton attention needs keys and values of the same size";
  if (call.q.elements() == 0 || call.k.elements() == 0)
    return "AOTriton attention needs queries and keys";
  if (!call.lse.contiguous()) return "AOTriton attention needs a contiguous log-sum-exp";
  for (const Tensor* x :
       {&call.out, &call.lse, &call.q, &call.k, &call.v, &call.dq, &call.dk, &call.dv, &call.dout})
    if (!is_aligned(*x)) return "AOTriton attention needs tensors aligned to 16 bytes";
  return nullptr;
}

// The mask of a call; nothing, with the reason, if the release has none like it.
std::optional<Mask> mask_of(const AttentionCall& call, const Release& release,
                            std::string& reason) {
  const AttentionMask mask(call.options, call.q.extent(1), call.k.extent(1));
  const bool sees_first = mask.begin(mask.queries - 1) == 0;
  if (sees_first && mask.end(0) == mask.keys) return Mask{.kind = aotriton::kAllKeys};
  const TokenPositions &q = mask.query_positions, &k = mask.key_positions;
  const bool consecutive = q.chunk >= mask.queries && k.chunk >= mask.keys,
             // Every query sees a key: for one that sees none the library writes +infinity.
      ends_together =
          consecutive && mask.queries <= mask.keys && q.of(mask.queries) == k.of(mask.keys),
             same = mask.queries == mask.keys && (q == k || ends_together);
  if (!same && !ends_together) {
    reason = "AOTriton attention needs queries with the positions of the last keys";
    return std::nullopt;
  }
  if (sees_first) {
    const std::int32_t corner = same ? aotriton::kTopLeft : aotriton::kBottomRight;
    return Mask{aotriton::kWindow, corner, corner};
  }
  if (!release.windows || !consecutive || !same) {
    reason = release.windows
                 ? "AOTriton attention with a window needs as many queries as keys, and "
                   "consecutive positions"
                 : fmt::format("AOTriton {} has no attention with a window", release.name);
    return std::nullopt;
  }
  return Mask{aotriton::kWindow, static_cast<std::int32_t>(mask.window - 1), 0};
}

// The scratch memory of a call, in this order.
struct Scratch {
  Scratch(const AttentionCall& call, const Release& release) {
    if (!call.dq) {
      counter_bytes = rounded(sizeof(std::int32_t));
      return;
    }
    row_sum_bytes = rounded(rows_of(call.q) * sizeof(float));
    if (!release.natural) lse_bytes = row_sum_bytes;
    if (release.lazy && !call.deterministic)
      dq_sum_bytes = rounded(static_cast<std::size_t>(call.q.elements()) * sizeof(float));
  }
  std::size_t bytes() const { return counter_bytes + row_sum_bytes + lse_bytes + dq_sum_bytes; }

  std::size_t counter_bytes = 0, row_sum_bytes = 0, lse_bytes = 0, dq_sum_bytes = 0;
};

// Called by the library, with `cookie` in 0.11 and with the lazy tensor, which begins with it, in
// later releases.
template <int kRank, bool kIsCookie>
View<kRank> acquire(void* argument) {
  auto& lent = *static_cast<Lent<kRank>*>(kIsCookie ? argument : *static_cast<void**>(argument));
  if (lent.zeroed_bytes > 0)
    lent.status = hip::api().hipMemsetAsync(lent.view.data, 0, lent.zeroed_bytes, lent.stream);
  return lent.view;
}

// nullptr: no tensor.
template <int kRank>
void add_lazy(Parameters& parameters, const Release& release, Lent<kRank>* lent) {
  View<kRank> (*get)(void*) = release.strided ? acquire<kRank, false> : acquire<kRank, true>;
  void (*const dispose)(void*) = nullptr;
  parameters.add(lent, lent == nullptr ? nullptr : get, dispose);
  if (release.strided) parameters.add(no_tensor<kRank>(aotriton::kFloat));  // one that exists
}

// Sequences of different lengths, which this program does not use.
void add_lengths(Parameters& parameters, const Release& release) {
  const auto none = no_tensor<1>(aotriton::kInt32);
  parameters.add(none, none, std::int32_t{0}, std::int32_t{0});
  if (release.strided) parameters.add(none, none);
}

// Nor does it use dropout.
void add_dropout(Parameters& parameters) {
  const auto none = no_tensor<0>(aotriton::kUInt64);
  parameters.add(0.0F, none, none, std::uint64_t{0});
}

void add_mask(Parameters& parameters, const Mask& mask) {
  parameters.add(mask.kind, std::int8_t{0}, mask.left, mask.right);
}

}  // namespace

struct FusedAttention::State {
  bool open(Stream stream);
  std::string why_not_open(Stream stream);
  const Release* find_release(Stream stream);
  const AttentionPlan* find(const AttentionCall& call, Stream stream);
  std::string try_call(const AttentionPlan& plan, const AttentionCall& call, Stream stream);
  int run(const AttentionPlan& plan, const AttentionCall& call, void* scratch, Stream stream) {
    return call.dq ? backward(*present, plan.mask, call, scratch, stream)
                   : forward(*present, plan.mask, call, scratch, stream);
  }
  int forward(const Release& as, const Mask& mask, const AttentionCall& call, void* scratch,
              Stream stream) const;
  int backward(const Release& as, const Mask& mask, const AttentionCall& call, void* scratch,
               Stream stream) const;

  struct Entry {
    std::optional<AttentionPlan> plan;
    std::string refusal;  // why there is no plan
  };
  std::unique_ptr<SharedLibrary> library;
  aotriton::Function *attend = nullptr, *attend_backward = nullptr;
  const Release* present = nullptr;  // nullptr: the library is not used
  bool tried = false;
  std::string no_library;                              // why it is not used
  std::map<std::vector<std::int64_t>, Entry> entries;  // by what a call consists of
  std::string reason;
  std::vector<std::string> refusals;
};

int FusedAttention::State::forward(const Release& as, const Mask& mask, const AttentionCall& call,
                                   void* scratch, Stream stream) const {
  const std::int32_t type = type_of(call.q);
  const View<0> counter{scratch, aotriton::kInt32}, none = no_tensor<0>(aotriton::kUInt64);
  // The blocks of a causal kernel count with it which tile comes next.
  set_bytes(scratch, 0, sizeof(std::int32_t), stream);
  Parameters parameters;
  parameters.add(view_of(call.q), view_of(call.k), view_of(call.v), no_tensor<4>(type),
                 no_tensor<2>(type), static_cast<float>(call.options.scale),
                 sums_of(call.lse.data(), call.q), view_of(call.out));
  add_lengths(parameters, as);
  add_dropout(parameters);
  parameters.add(none, none, no_tensor<4>(type), counter);
  add_mask(parameters, mask);
  const int status = attend(parameters.get(as.forward_bytes), as.forward_version, stream, nullptr);
  if (status == hip::kSuccess && !as.natural)
    scale_sums(call.lse, call.lse, std::numbers::ln2, stream);
  return status;
}

int FusedAttention::State::backward(const Release& as, const Mask& mask, const AttentionCall& call,
                                    void* scratch, Stream stream) const {
  const Scratch sizes(call, as);
  char* const row_sum = static_cast<char*>(scratch);
  char* const lse_copy = row_sum + sizes.row_sum_bytes;
  char* const dq_sum = lse_copy + sizes.lse_bytes;
  void* lse = call.lse.data();
  if (!as.natural) {
    lse = lse_copy;
    scale_sums(Tensor(lse, DType::F32, call.lse.shape()), call.lse, std::numbers::log2e, stream);
  }
  Lent<2> rows{sums_of(row_sum, call.q), 0, stream, hip::kSuccess};
  Lent<4> sums{view_of(call.q), sizes.dq_sum_bytes, stream, hip::kSuccess};
  const std::uint64_t dim = sums.view.sizes[3], queries = sums.view.sizes[2];
  sums.view = {dq_sum,
               {sums.view.sizes[0], sums.view.sizes[1], queries, dim},
               {sums.view.sizes[1] * queries * dim, queries * dim, dim, 1},
               aotriton::kFloat};

  const View<4> none = no_tensor<4>(type_of(call.q));
  Parameters parameters;
  parameters.add(view_of(call.q), view_of(call.k), view_of(call.v), none,
                 static_cast<float>(call.options.scale), view_of(call.out), view_of(call.dout),
                 view_of(call.dk), view_of(call.dv), view_of(call.dq), none, sums_of(lse, call.q));
  if (as.lazy)
    add_lazy(parameters, as, &rows);
  else
    parameters.add(rows.view);
  add_lengths(parameters, as);
  add_dropout(parameters);
  add_mask(parameters, mask);
  if (as.lazy) add_lazy(parameters, as, sizes.dq_sum_bytes > 0 ? &sums : nullptr);

  // 0.10 has no kernels with atomics. 0.11 has no such option, but lets the kernels be chosen.
  aotriton::Options options;
  if (as.strided)
    options.deterministic = true;
  else
    options.backend = aotriton::kSplitBackend;
  const int status = attend_backward(parameters.get(as.backward_bytes), as.backward_version, stream,
                                     as.lazy && call.deterministic ? &options : nullptr);
  return status != hip::kSuccess ? status : sums.status;
}

// The library does not tell its release, but refuses parameters of another version. So it gets a
// small backward of zeros.
const Release* FusedAttention::State::find_release(Stream stream) {
  constexpr std::int64_t kTokens = 16, kDim = 16;
  constexpr std::size_t kTensorBytes = kTokens * kDim * 2, kTensors = 8, kScratchBytes = 4096;
  const std::size_t bytes = kTensors * kTensorBytes + rounded(kTokens * sizeof(float));
  char* const memory = static_cast<char*>(device_allocate(bytes + kScratchBytes));
  set_bytes(memory, 0, bytes + kScratchBytes, stream);
  const auto tensor = [&](std::size_t i) {
    return Tensor(memory + i * kTensorBytes, DType::BF16, {1, kTokens, 1, kDim});
  };
  const Tensor lse(memory + kTensors * kTensorBytes, DType::F32, {1, 1, kTokens});
  const AttentionCall call{tensor(0), lse,       tensor(1), tensor(2), tensor(3), tensor(4),
                           tensor(5), tensor(6), tensor(7), {},        false};
  const Mask mask{aotriton::kWindow, aotriton::kTopLeft, aotriton::kTopLeft};
  const Release* found = nullptr;
  for (const Release& candidate : aotriton::kReleases)
    if (found == nullptr &&
        backward(candidate, mask, call, memory + bytes, stream) != aotriton::kWrongVersion)
      found = &candidate;
  release(memory);
  hip::api().hipGetLastError();  // clears it: the call may have failed otherwise
  return found;
}

// Empty: it is open.
std::string FusedAttention::State::why_not_open(Stream stream) {
  try {
    library = std::make_unique<SharedLibrary>("/", hip::rocm_library({"libaotriton_v2.so"}));
  } catch (const Failure& error) {
    return error.what();
  }
  // Not being installed is no error, but from here on it is.
  const auto refuse = [&](std::string why) {
    library.reset();
    return refusals.emplace_back(std::move(why));
  };
  attend = library->find<aotriton::Function>(aotriton::kForward);
  attend_backward = library->find<aotriton::Function>(aotriton::kBackward);
  if (attend == nullptr || attend_backward == nullptr)
    return refuse("libaotriton_v2.so is older than 0.10");
  if (!mixed_runtimes().empty())
    return refuse(
        fmt::format("libaotriton_v2.so is for another release of ROCm ({})", mixed_runtimes()));
  present = find_release(stream);
  if (present == nullptr) return refuse("libaotriton_v2.so is none of 0.10 to 0.13");
  return "";
}

bool FusedAttention::State::open(Stream stream) {
  if (!tried) {
    KINTSUGI_CHECK(!is_capturing(stream),
                   "attention is new while a graph is captured: run the step once before");
    tried = true;
    no_library = why_not_open(stream);
  }
  if (present == nullptr) reason = no_library;
  return present != nullptr;
}

// Calls the library once, which loads its kernels before a graph is captured. Empty, or its error.
std::string FusedAttention::State::try_call(const AttentionPlan& plan, const AttentionCall& call,
                                            Stream stream) {
  void* const scratch = device_allocate(plan.bytes);
  const int status = run(plan, call, scratch, stream);
  release(scratch);  // waits for the device
  if (status == hip::kSuccess) return "";
  hip::api().hipGetLastError();  // clears it
  return fmt::format("attention {} of {} heads of {}, length {}: AOTriton {}: {} ({})",
                     call.dq ? "backward" : "forward", call.q.extent(2), call.q.extent(3),
                     call.q.extent(1), present->name, hip::api().hipGetErrorString(status),
                     hip::api().hipGetErrorName(status));
}

const AttentionPlan* FusedAttention::State::find(const AttentionCall& call, Stream stream) {
  if (const char* const why = unsupported_reason(call)) {
    reason = why;
    return nullptr;
  }
  if (!open(stream)) return nullptr;
  const std::optional<Mask> mask = mask_of(call, *present, reason);
  if (!mask) return nullptr;
  std::vector<std::int64_t> key = {type_of(call.q), mask->kind, mask->left, mask->right,
                                   call.deterministic};
  for (const Tensor* x :
       {&call.q, &call.k, &call.v, &call.out, &call.dq, &call.dk, &call.dv, &call.dout})
    for (int i = 0; *x && i < 4; ++i) {
      key.push_back(x->extent(i));
      key.push_back(x->stride(i));
    }
  auto known = entries.find(key);
  if (known == entries.end()) {
    KINTSUGI_CHECK(!is_capturing(stream),
                   "attention has new shapes while a graph is captured: run the step once before");
    AttentionPlan plan{*mask, Scratch(call, *present).bytes(),
                       fmt::format("AOTriton {}", present->name)};
    Entry entry{.plan = {}, .refusal = try_call(plan, call, stream)};
    if (entry.refusal.empty())
      entry.plan = std::move(plan);
    else
      refusals.push_back(entry.refusal);
    known = entries.emplace(std::move(key), std::move(entry)).first;
  }
  reason = known->second.refusal;
  return known->second.plan ? &*known->second.plan : nullptr;
}

FusedAttention::FusedAttention() : state_(std::make_unique<State>()) {}
FusedAttention::~FusedAttention() = default;

const AttentionPlan* FusedAttention::forward_plan(const AttentionCall& call, Stream stream) {
  return state_->find(call, stream);
}
const AttentionPlan* FusedAttention::backward_plan(const AttentionCall& call, Stream stream) {
  return state_->find(call, stream);
}

void FusedAttention::run_forward(const AttentionPlan& plan, const AttentionCall& call,
                                 void* scratch, Stream stream) {
  const int status = state_->run(plan, call, scratch, stream);
  KINTSUGI_CHECK(status == hip::kSuccess, "attention of {} by {}: {}", to_string(call.q.shape()),
                 plan.description, hip::api().hipGetErrorString(status));
}
void FusedAttention::run_backward(const AttentionPlan& plan, const AttentionCall& call,
                                  void* scratch, Stream stream) {
  run_forward(plan, call, scratch, stream);
}

std::size_t FusedAttention::own_bytes() const { return 0; }
const std::string& FusedAttention::last_reason() const { return state_->reason; }
const std::vector<std::string>& FusedAttention::refusals() const { return state_->refusals; }

}  // namespace kintsugi::gpu
