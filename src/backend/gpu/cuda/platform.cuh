#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

// The CUDA side of kernels/platform.cuh.

// A variable in shared memory: KINTSUGI_SHARED(float[32], sums);
#define KINTSUGI_SHARED(type, name) __shared__ std::type_identity_t<type> name
// The most registers that a thread of a kernel may have.
#define KINTSUGI_REGISTERS(count) __maxnreg__(count)

namespace kintsugi::gpu {

// The shared memory that kernels plan with, of a block.
inline constexpr std::size_t kSharedBytes = std::size_t{227} << 10;
inline constexpr MatrixUnit kMatrixUnit = MatrixUnit::Mma;

// ---- types
using Bf16 = __nv_bfloat16;
using Half = __half;
using Fp8 = __nv_fp8_e4m3;

__device__ inline float to_float(Bf16 x) { return __bfloat162float(x); }
__device__ inline float to_float(Half x) { return __half2float(x); }
__device__ inline float to_float(Fp8 x) { return static_cast<float>(x); }
// Rounded to nearest even. On the host, too.
__host__ __device__ inline Bf16 to_bf16(float x) { return __float2bfloat16_rn(x); }
__host__ __device__ inline Half to_half(float x) { return __float2half_rn(x); }
__device__ inline Bf16 bf16_of_bits(std::uint16_t bits) { return __ushort_as_bfloat16(bits); }
// Two numbers in fp8 (E4M3), the first in the low byte; the largest number instead of larger ones.
__device__ inline unsigned fp8_pair(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
}
// Two 16-bit numbers, the lower in the low half.
template <class T>
__device__ inline unsigned pack_pair(float low, float high) {
  if constexpr (std::is_same_v<T, Half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
  }
}
// The larger of each pair of 16-bit integers.
__device__ inline unsigned max_pairs(unsigned a, unsigned b) { return __vmaxu2(a, b); }

// ---- maths with an error of a few units in the last place
__device__ inline float fast_exp(float x) { return __expf(x); }
// 2^x; subnormal results are 0.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float fast_divide(float a, float b) { return __fdividef(a, b); }

// ---- memory
// For data that is not read again soon: does not displace other data from the cache.
__device__ inline void store_streaming(int4* address, int4 word) { __stcs(address, word); }
// Reads what other blocks have written, not an old copy of it.
__device__ inline unsigned load_fresh(const unsigned* address) { return __ldcg(address); }
// Requests 128 bytes from memory into the L2 cache. It is safe before wait_for_previous(): later
// writes by the previous kernel update the cache.
__device__ inline void prefetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}
// The block's dynamic shared memory, at a multiple of 16 bytes.
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}

// ---- teams: all 32 threads call these together
template <class T>
__device__ inline T shuffle(T x, int lane) {
  return __shfl_sync(~0u, x, lane);
}
template <class T>
__device__ inline T shuffle_xor(T x, int mask) {
  return __shfl_xor_sync(~0u, x, mask);
}
// Of the threads of a wave, which is a team here.
template <class T>
__device__ inline T shuffle_wave_xor(T x, int mask) {
  return shuffle_xor(x, mask);
}
template <class T>
__device__ inline T shuffle_up(T x, int by) {
  return __shfl_up_sync(~0u, x, static_cast<unsigned>(by));
}
__device__ inline unsigned ballot(bool x) { return __ballot_sync(~0u, x); }
__device__ inline unsigned match_any(int x) { return __match_any_sync(~0u, x); }
__device__ inline unsigned team_max(unsigned x) { return __reduce_max_sync(~0u, x); }
__device__ inline unsigned team_sum(unsigned x) { return __reduce_add_sync(~0u, x); }
__device__ inline void sync_team() { __syncwarp(); }

// ---- programmatic dependent launch (launch.cuh)
__device__ inline void allow_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- asynchronous copies of 16 bytes from global to shared memory
namespace detail {
__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
}  // namespace detail

// `present` false: writes zeros and reads nothing.
__device__ inline void copy_async(void* to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(detail::shared_address(to)),
               "l"(from), "r"(present ? 16 : 0)
               : "memory");
}
// For data that is read once: it is the first to leave the L2 cache.
__device__ inline std::uint64_t read_once() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline void copy_async(void* to, const void* from, bool present, std::uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(
                   detail::shared_address(to)),
               "l"(from), "r"(present ? 16 : 0), "l"(policy)
               : "memory");
}
// Ends a group of this thread's copies.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kLeft groups of this thread are under way.
template <int kLeft>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// ---- matrices, by a team
// d (16, 8) += a (16, 16) b (16, 8), in the fragments of mma.m16n8k16
template <class T>
__device__ inline void multiply_add(float (&d)[4], unsigned a0, unsigned a1, unsigned a2,
                                    unsigned a3, unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, Half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}
// Four matrices of 8 x 8 from shared memory; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(unsigned (&m)[4], const void* address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(detail::shared_address(address))
               : "memory");
}
__device__ inline void load_transposed(unsigned (&m)[4], const void* address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(detail::shared_address(address))
               : "memory");
}

// ---- matrices in shared memory, by a warpgroup: four consecutive warps, of which the first one's
// number is a multiple of 4. Only GPUs with Traits::warpgroups have them.
#define KINTSUGI_WARPGROUPS 1

// 16-bit or fp8 numbers in rows of 128 bytes, whose 16-byte words are permuted by the row's number
// (SharedTile); eight rows take 1024 bytes, at a multiple of which the first begins. The rows are
// those of the operand with as many terms each or, of 16-bit numbers, the terms, with 64 rows of
// the operand each; then the next 64 rows begin `next` bytes later.
struct SharedMatrix {
  std::uint64_t descriptor;

  __device__ SharedMatrix(const void* address, int next)
      : descriptor((detail::shared_address(address) & 0x3ffff) >> 4 |
                   static_cast<std::uint64_t>(next >> 4) << 16 | std::uint64_t{1024 >> 4} << 32 |
                   std::uint64_t{1} << 62) {}
  __device__ void advance(int bytes) { descriptor += static_cast<unsigned>(bytes) >> 4; }
};

#define KINTSUGI_WGMMA_128(k, type, transposed)                                                  \
  "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"                                               \
  "wgmma.mma_async.sync.aligned.m64n128k" k ".f32." type "." type                                \
  " {"                                                                                           \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"   \
  "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"                              \
  "}, %64, %65, add, 1, 1" transposed ";\n}\n"
#define KINTSUGI_WGMMA_256(k, type, transposed)                                                  \
  "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"                                              \
  "wgmma.mma_async.sync.aligned.m64n256k" k ".f32." type "." type                                \
  " {"                                                                                           \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"   \
  "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70," \
  "%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93," \
  "%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,"    \
  "%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"                   \
  "}, %128, %129, add, 1, 1" transposed ";\n}\n"
#define KINTSUGI_SUMS_64                                                                          \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),    \
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),  \
      "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),  \
      "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),  \
      "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),  \
      "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),  \
      "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define KINTSUGI_SUMS_128                                                                         \
  KINTSUGI_SUMS_64, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), \
      "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]),  \
      "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),  \
      "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]),  \
      "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]),  \
      "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),           \
      "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]),         \
      "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),         \
      "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]),         \
      "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

// Begins d (64, 128 or 256) = [d +] a (64, 16) b (16, …), or of 32 terms in fp8. kTerms…: the rows
// of the operand are terms. d is as in mma: element 4 j of lane l of warp w is at row 16 w + l / 4
// and column 8 j + 2 (l % 4), followed by the next column and both again 8 rows below. Products of
// fp8 numbers are added in about 14 bits.
template <class T, bool kTermsA, bool kTermsB>
__device__ inline void begin_product(float (&d)[64], SharedMatrix a, SharedMatrix b, bool add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (std::is_same_v<T, Fp8>) {
    static_assert(!kTermsA && !kTermsB);
    asm volatile(KINTSUGI_WGMMA_128("32", "e4m3", "")
                 : KINTSUGI_SUMS_64
                 : "l"(a.descriptor), "l"(b.descriptor), "r"(add ? 1 : 0));
  } else if constexpr (std::is_same_v<T, Half>) {
    asm volatile(KINTSUGI_WGMMA_128("16", "f16", ", %67, %68")
                 : KINTSUGI_SUMS_64
                 : "l"(a.descriptor), "l"(b.descriptor), "r"(add ? 1 : 0), "n"(kTermsA),
                   "n"(kTermsB));
  } else {
    asm volatile(KINTSUGI_WGMMA_128("16", "bf16", ", %67, %68")
                 : KINTSUGI_SUMS_64
                 : "l"(a.descriptor), "l"(b.descriptor), "r"(add ? 1 : 0), "n"(kTermsA),
                   "n"(kTermsB));
  }
#endif
}
template <class T, bool kTermsA, bool kTermsB>
__device__ inline void begin_product(float (&d)[128], SharedMatrix a, SharedMatrix b, bool add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (std::is_same_v<T, Fp8>) {
    static_assert(!kTermsA && !kTermsB);
    asm volatile(KINTSUGI_WGMMA_256("32", "e4m3", "")
                 : KINTSUGI_SUMS_128
                 : "l"(a.descriptor), "l"(b.descriptor), "r"(add ? 1 : 0));
  } else if constexpr (std::is_same_v<T, Half>) {
    asm volatile(KINTSUGI_WGMMA_256("16", "f16", ", %131, %132")
                 : KINTSUGI_SUMS_128
                 : "l"(a.descriptor), "l"(b.descriptor), "r"(add ? 1 : 0), "n"(kTermsA),
                   "n"(kTermsB));
  } else {
    asm volatile(KINTSUGI_WGMMA_256("16", "bf16", ", %131, %132")
                 : KINTSUGI_SUMS_128
                 : "l"(a.descriptor), "l"(b.descriptor), "r"(add ? 1 : 0), "n"(kTermsA),
                   "n"(kTermsB));
  }
#endif
}
#undef KINTSUGI_WGMMA_128
#undef KINTSUGI_WGMMA_256
#undef KINTSUGI_SUMS_64
#undef KINTSUGI_SUMS_128

// Before the first product, and before each whose d other instructions have changed.
__device__ inline void order_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
// Ends a group of products.
__device__ inline void commit_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Waits until at most kLeft groups are under way.
template <int kLeft>
__device__ inline void wait_for_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
#endif
}
// Waits for all of them. The compiler does not know that d was incomplete: it must not read d
// before.
template <int kSums>
__device__ inline void wait_for_sums(float (&d)[kSums]) {
  wait_for_products<0>();
#pragma unroll
  for (float& sum : d) asm volatile("" : "+f"(sum)::"memory");
}
// Adds numbers to memory at a multiple of 16 bytes, without waiting for it.
__device__ inline void add_to_memory(float* address, const float (&x)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address),
               "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
#endif
}
// What this thread has written to shared memory can be read by products after a barrier.
__device__ inline void publish_to_products() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace kintsugi::gpu
