#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/gpu/runtime.h"
#include "core/error.h"

// The interface of AOTriton's attention. It is C++ whose structures change with the releases, so
// they are written here member by member.
namespace kintsugi::gpu::aotriton {

// attn_fwd and attn_bwd of namespace v3::flash: parameters, their version, stream, options.
using Function = int(const void*, std::int32_t, void*, const void*);
inline constexpr const char* kForward =
    "_ZN8aotriton2v35flash8attn_fwdERKNS1_15attn_fwd_paramsEiNS_14StreamTemplateIP12ihipStream_tEE"
    "PKNS1_12attn_optionsE";
inline constexpr const char* kBackward =
    "_ZN8aotriton2v35flash8attn_bwdERKNS1_15attn_bwd_paramsEiNS_14StreamTemplateIP12ihipStream_tEE"
    "PKNS1_12attn_optionsE";
// hipErrorInvalidSymbol: what both return, before they read anything, for parameters of another
// version.
inline constexpr int kWrongVersion = 13;

struct Release {
  const char* name;
  std::int32_t forward_version;
  std::size_t forward_bytes;
  std::int32_t backward_version;  // tells the releases apart
  std::size_t backward_bytes;
  bool natural;  // the log-sum-exp; otherwise its base is 2
  bool windows;  // in 0.10 the right end of a window is overwritten by the left one
  bool lazy;     // lazy tensors, options
  bool strided;  // strides of sequences, lazy tensors with a view, deterministic option
};
inline constexpr Release kReleases[] = {
    {"0.12 or 0.13", 3, 832, 6, 1232, true, true, true, true},
    {"0.11", 1, 768, 3, 1040, true, true, true, false},
    {"0.10", 1, 768, 1, 1040, false, false, false, false},
};

enum Type : std::int32_t { kFloat = 1, kHalf = 2, kBf16 = 3, kInt32 = 12, kUInt64 = 23 };

template <int kRank>
struct View {
  void* data;
  std::uint64_t sizes[kRank], strides[kRank];
  std::int32_t type;
};
template <>
struct View<0> {
  void* data;
  std::int32_t type;
};
static_assert(sizeof(View<4>) == 80 && sizeof(View<2>) == 48 && sizeof(View<1>) == 32 &&
              sizeof(View<0>) == 16);

template <int kRank>
View<kRank> no_tensor(std::int32_t type) {
  View<kRank> view{};
  view.type = type;
  return view;
}

// Which keys query i sees: all, or those from i - left to i + right.
struct Mask {
  std::int8_t kind = 0;
  std::int32_t left = 0, right = 0;
};
inline constexpr std::int8_t kAllKeys = 0, kWindow = 3;
// In the place of left and right: causal, from the first or from the last query and key on.
inline constexpr std::int32_t kTopLeft = -2147483647, kBottomRight = -2147483646;

struct Options {
  std::int32_t backend = -1;  // -1: the library chooses
  bool deterministic = false;
};
inline constexpr std::int32_t kSplitBackend = 0;  // without atomics

// A structure: its members one after the other, each at its alignment.
class Parameters {
 public:
  template <class... Members>
  Parameters& add(const Members&... members) {
    (append(members), ...);
    return *this;
  }
  // Failure if it has another size than the release's.
  const void* get(std::size_t bytes) {
    align(alignof(void*));
    KINTSUGI_CHECK(bytes_.size() == bytes, "parameters of AOTriton have {} bytes, not {}",
                   bytes_.size(), bytes);
    return bytes_.data();
  }

 private:
  void align(std::size_t to) { bytes_.resize((bytes_.size() + to - 1) / to * to); }
  template <class Member>
  void append(const Member& member) {
    align(alignof(Member));
    bytes_.resize(bytes_.size() + sizeof(Member));
    std::memcpy(bytes_.data() + bytes_.size() - sizeof(Member), &member, sizeof(Member));
  }
  std::vector<std::byte> bytes_;
};

// Memory that the library asks for when the kernels that it chose need it.
template <int kRank>
struct Lent {
  View<kRank> view;
  std::size_t zeroed_bytes;  // set to zero on `stream` then
  Stream stream;
  int status;  // of that
};

}  // namespace kintsugi::gpu::aotriton
