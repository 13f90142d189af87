// Matmuls by hipBLASLt of ROCm 6 and 7, which has the functions of cuBLASLt. It is asked for every
// form; where it has no algorithm (bf16 to fp32 on gfx90a), rocBLAS follows.
#include <fmt/format.h>

#include <array>
#include <cstring>

#include "backend/gpu/hip/api.h"
#include "backend/gpu/hip/libraries.h"
#include "core/error.h"

namespace kintsugi::gpu {
namespace {

// Values of its enumerations, equal from ROCm 6.0 to 7.
constexpr int kFloat = 0, kDouble = 1, kHalf = 2, kBf16 = 14, kNoType = -1;  // hipDataType
constexpr int kNone = 111, kTranspose = 112;                                 // hipblasOperation_t
constexpr int kComputeFloat = 2, kComputeDouble = 7;                         // hipblasComputeType_t
enum Attribute : int {                                                       // of an operation
  kTransposeA = 0,
  kTransposeB = 1,
  kEpilogue = 2,
  kBiasPointer = 3,
  kBiasType = 4,
  kAuxPointer = 10,
  kAuxStride = 11
};
constexpr int kDefault = 1, kBias = 4, kGelu = 160, kGeluBias = 164, kGeluGradient = 192;
constexpr int kBatchCount = 0, kBatchStride = 1;  // attributes of a layout
constexpr int kMaxWorkspace = 1;                  // of a preference
constexpr int kCandidates = 16;

int type_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return kDouble;
    case DType::F32:
      return kFloat;
    case DType::BF16:
      return kBf16;
    case DType::F16:
      return kHalf;
    default:
      return kNoType;
  }
}

struct Algorithm {
  std::uint64_t words[3];
};
struct Proposal {
  Algorithm algorithm;
  std::size_t workspace;
  int status;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Proposal) == 56);

struct Functions {
  explicit Functions(const SharedLibrary& library) {
    const auto find = [&](auto*& function, const char* name) { require(library, function, name); };
    find(create, "hipblasLtCreate");
    find(destroy, "hipblasLtDestroy");
    find(version, "hipblasLtGetVersion");
    find(create_layout, "hipblasLtMatrixLayoutCreate");
    find(destroy_layout, "hipblasLtMatrixLayoutDestroy");
    find(set_layout, "hipblasLtMatrixLayoutSetAttribute");
    find(create_operation, "hipblasLtMatmulDescCreate");
    find(destroy_operation, "hipblasLtMatmulDescDestroy");
    find(set_operation, "hipblasLtMatmulDescSetAttribute");
    find(create_preference, "hipblasLtMatmulPreferenceCreate");
    find(destroy_preference, "hipblasLtMatmulPreferenceDestroy");
    find(set_preference, "hipblasLtMatmulPreferenceSetAttribute");
    find(propose, "hipblasLtMatmulAlgoGetHeuristic");
    find(multiply, "hipblasLtMatmul");
  }
  int (*create)(void**);
  int (*destroy)(void*);
  int (*version)(void*, int*);
  int (*create_layout)(void**, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t);
  int (*destroy_layout)(void*);
  int (*set_layout)(void*, int attribute, const void*, std::size_t);
  int (*create_operation)(void**, int compute_type, int scale_type);
  int (*destroy_operation)(void*);
  int (*set_operation)(void*, int attribute, const void*, std::size_t);
  int (*create_preference)(void**);
  int (*destroy_preference)(void*);
  int (*set_preference)(void*, int attribute, const void*, std::size_t);
  int (*propose)(void* handle, void* operation, void* a, void* b, void* c, void* d,
                 void* preference, int wanted, Proposal*, int* found);
  int (*multiply)(void* handle, void* operation, const void* alpha, const void* a, void* a_layout,
                  const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                  void* d, void* d_layout, const Algorithm*, void* workspace, std::size_t bytes,
                  void* stream);
};

void check(int status, const char* call) {
  if (status != 0) failure("hipBLASLt: status {} in {}", status, call);
}

// An object of the library, destroyed by one of its functions.
class Owned {
 public:
  template <class Create, class... Arguments>
  Owned(int (*destroy)(void*), const char* name, Create create, Arguments... arguments)
      : destroy_(destroy) {
    check(create(&address_, arguments...), name);
  }
  ~Owned() { destroy_(address_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  void* get() const { return address_; }

 private:
  int (*const destroy_)(void*);
  void* address_ = nullptr;
};

struct Handle {
  Handle()
      : library("/",
                hip::rocm_library({"libhipblaslt.so", "libhipblaslt.so.1", "libhipblaslt.so.0"})),
        functions(library),
        handle(functions.destroy, "hipblasLtCreate", functions.create) {}
  SharedLibrary library;
  Functions functions;
  Owned handle;
};

// Our rows are the library's columns.
class Layout : public Owned {
 public:
  Layout(const Functions& f, const Tensor& x)
      : Owned(f.destroy_layout, "hipblasLtMatrixLayoutCreate", f.create_layout, type_of(x.dtype()),
              static_cast<std::uint64_t>(x.extent(rows_of(x) + 1)),
              static_cast<std::uint64_t>(x.extent(rows_of(x))), row_stride(x)) {
    const auto count = static_cast<std::int32_t>(count_of(x));
    const std::int64_t stride = batch_stride(x);
    check(f.set_layout(get(), kBatchCount, &count, sizeof(count)), "a layout");
    check(f.set_layout(get(), kBatchStride, &stride, sizeof(stride)), "a layout");
  }
};

int epilogue_of(const MatmulProblem& p) {
  switch (p.epilogue) {
    case MatmulProblem::Epilogue::Gelu:
      return p.bias ? kGeluBias : kGelu;
    case MatmulProblem::Epilogue::GeluGradient:
      return kGeluGradient;
    case MatmulProblem::Epilogue::None:
      break;
  }
  return p.bias ? kBias : kDefault;
}

class HipblasMatmul final : public LibraryMatmul {
 public:
  HipblasMatmul(const Handle& handle, const MatmulProblem& p)
      : handle_(handle),
        f_(handle.functions),
        operation_(f_.destroy_operation, "hipblasLtMatmulDescCreate", f_.create_operation,
                   p.c.dtype() == DType::F64 ? kComputeDouble : kComputeFloat,
                   p.c.dtype() == DType::F64 ? kDouble : kFloat),
        first_(f_, p.b),
        second_(f_, p.a),
        added_(f_, p.added ? p.added : p.c),
        c_(f_, p.c) {
    set(kTransposeA, p.transpose_b ? kTranspose : kNone);
    set(kTransposeB, p.transpose_a ? kTranspose : kNone);
    set(kEpilogue, epilogue_of(p));
    if (p.bias) set(kBiasType, type_of(p.bias.dtype()));
    if (p.gelu_input) set(kAuxStride, p.gelu_input.stride(0));
    set_pointers(p);
  }

  void set_pointers(const MatmulProblem& p) override {
    if (p.bias) set(kBiasPointer, p.bias.data());
    if (p.gelu_input) set(kAuxPointer, p.gelu_input.data());
  }

  std::vector<MatmulAlgorithm> propose(const MatmulProblem&,
                                       std::size_t scratch_bytes) const override {
    std::vector<MatmulAlgorithm> algorithms;
    for (const Proposal& proposal : proposals(scratch_bytes)) {
      MatmulAlgorithm words = {};
      std::memcpy(words.data(), &proposal.algorithm, sizeof(Algorithm));
      algorithms.push_back(words);
    }
    return algorithms;
  }

  // The library cannot check an algorithm: it must still propose it.
  bool is_usable(const MatmulAlgorithm& algorithm, std::size_t scratch_bytes) const override {
    for (const Proposal& proposal : proposals(scratch_bytes))
      if (std::memcmp(algorithm.data(), &proposal.algorithm, sizeof(Algorithm)) == 0) return true;
    return false;
  }

  std::string launch(const MatmulProblem& p, const MatmulAlgorithm& words, void* c,
                     MatmulScratch scratch, Stream stream) const override {
    const MatmulScales scales(p);
    Algorithm algorithm;
    std::memcpy(&algorithm, words.data(), sizeof(algorithm));
    const int status =
        f_.multiply(handle_.handle.get(), operation_.get(), scales.product(), p.b.data(),
                    first_.get(), p.a.data(), second_.get(), scales.added(), added_or(p, c),
                    added_.get(), c, c_.get(), &algorithm, scratch.address, scratch.bytes, stream);
    return status == 0 ? "" : fmt::format("status {}", status);
  }

 private:
  template <class T>
  void set(Attribute attribute, const T& value) {
    check(f_.set_operation(operation_.get(), attribute, &value, sizeof(value)), "an operation");
  }

  std::vector<Proposal> proposals(std::size_t scratch_bytes) const {
    const Owned preference(f_.destroy_preference, "hipblasLtMatmulPreferenceCreate",
                           f_.create_preference);
    check(f_.set_preference(preference.get(), kMaxWorkspace, &scratch_bytes, sizeof(scratch_bytes)),
          "a preference");
    std::vector<Proposal> found(kCandidates);
    int count = 0;
    // No algorithm is an error of the library.
    if (f_.propose(handle_.handle.get(), operation_.get(), first_.get(), second_.get(),
                   added_.get(), c_.get(), preference.get(), kCandidates, found.data(),
                   &count) != 0)
      count = 0;
    found.resize(static_cast<std::size_t>(count));
    std::erase_if(found, [&](const Proposal& proposal) {
      return proposal.status != 0 || proposal.workspace > scratch_bytes;
    });
    return found;
  }

  const Handle& handle_;
  const Functions& f_;
  const Owned operation_;
  const Layout first_, second_, added_, c_;  // the library's a (our b), b (our a), c and d
};

class HipblasLt final : public MatmulLibrary {
 public:
  std::string name() const override {
    int version = 0;
    handle_.functions.version(handle_.handle.get(), &version);
    return fmt::format("hipBLASLt {}", version);
  }
  std::unique_ptr<LibraryMatmul> describe(const MatmulProblem& p) override {
    if (p.is_fp8()) return nullptr;
    return std::make_unique<HipblasMatmul>(handle_, p);
  }

 private:
  Handle handle_;
};

}  // namespace

std::unique_ptr<MatmulLibrary> open_hipblaslt(std::string& why) {
  if (hip::api().major < 6) {
    why = "hipBLASLt is used from ROCm 6.0 on";
    return nullptr;
  }
  try {
    return std::make_unique<HipblasLt>();
  } catch (const Failure& error) {
    why = error.what();
    return nullptr;
  }
}

}  // namespace kintsugi::gpu
