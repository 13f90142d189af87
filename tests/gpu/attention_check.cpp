// Compares cuDNN's attention and our own kernels with a float64 reference, then measures their
// speed. Usage: attention_check [own | blocks]
//   own: only our own kernels in 16 bits, with and without the matrix units, and fewer shapes
//   blocks: only blocks of a ring and windows, on the matrix units
// Exits with 0 if every row is within its tolerance and deterministic kernels repeat bit for bit.
#include <cudnn.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/gpu/attention.h"
#include "backend/gpu/common.h"

namespace kintsugi::gpu {
namespace {

using Values = std::vector<double>;

struct Case {
  DType dtype;
  std::int64_t batch, heads, kv_heads, queries, keys, dim;
  bool alibi = false;
  bool documents = false;
  std::int64_t window = 0;
  // A block of a ring: all keys are before the queries, or the sequence starts at another position.
  bool all_keys = false;
  std::int64_t first_key = 0;

  std::int64_t position(std::int64_t query) const { return keys - queries + query; }
  // The keys [0, end) are before a query or at it.
  std::int64_t end(std::int64_t query) const { return all_keys ? keys : position(query) + 1; }
};

std::string describe(const Case& c) {
  return fmt::format(
      "{} {}x{} heads {}/{} dim {}{}{}{}{}{}", to_string(c.dtype), c.batch,
      c.queries == c.keys ? fmt::format("{}", c.keys) : fmt::format("{} of {}", c.queries, c.keys),
      c.heads, c.kv_heads, c.dim, c.alibi ? " alibi" : "", c.documents ? " documents" : "",
      c.window > 0 ? fmt::format(" window {}", c.window) : "", c.all_keys ? " block" : "",
      c.first_key > 0 ? fmt::format(" at {}", c.first_key) : "");
}

// ---- memory

struct Buffer {
  Buffer(DType dtype, Shape shape) {
    const Tensor sized(nullptr, dtype, shape);
    address = device_allocate(std::max<std::size_t>(sized.bytes(), 1));
    tensor = Tensor(address, dtype, shape);
  }
  ~Buffer() { release(address); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* address = nullptr;
  Tensor tensor;
};

double element(DType dtype, const std::vector<char>& raw, std::int64_t i) {
  return visit_float(dtype, [&]<class T>() {
    T x;
    std::memcpy(&x, raw.data() + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return static_cast<double>(static_cast<Accumulator<T>>(x));
  });
}

std::vector<char> narrowed(DType dtype, const Values& values) {
  return visit_float(dtype, [&]<class T>() {
    std::vector<char> raw(values.size() * sizeof(T));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T x = static_cast<T>(static_cast<Accumulator<T>>(values[i]));
      std::memcpy(raw.data() + i * sizeof(T), &x, sizeof(T));
    }
    return raw;
  });
}

std::vector<char> download(const Buffer& buffer, std::size_t bytes) {
  std::vector<char> raw(std::min(bytes, buffer.tensor.bytes()));
  synchronize_device();
  copy(raw.data(), buffer.address, raw.size(), Copy::ToHost, nullptr);
  synchronize_device();
  return raw;
}
std::vector<char> download(const Buffer& buffer) { return download(buffer, buffer.tensor.bytes()); }

void upload(Buffer& buffer, const void* data) {
  copy(buffer.address, data, buffer.tensor.bytes(), Copy::ToDevice, nullptr);
  synchronize_device();
}

// The operands of a case, laid out as in a model: rows [q | k | v], or separate rows q and [k | v]
// if there are fewer queries than keys.
struct Operands {
  explicit Operands(const Case& c)
      : packed(c.queries == c.keys),
        first(c.dtype, {c.batch, c.queries, packed ? c.heads + 2 * c.kv_heads : c.heads, c.dim}),
        second(c.dtype, {c.batch, packed ? 0 : c.keys, 2 * c.kv_heads, c.dim}) {
    q = first.tensor.part(2, 0, c.heads);
    const Tensor& kv = packed ? first.tensor : second.tensor;
    k = kv.part(2, packed ? c.heads : 0, c.kv_heads);
    v = kv.part(2, (packed ? c.heads : 0) + c.kv_heads, c.kv_heads);
  }
  const Buffer& keys() const { return packed ? first : second; }

  bool packed;
  Buffer first, second;
  Tensor q, k, v;
};

// The elements of an output that are compared: the first sequences, every step-th position.
struct Sample {
  std::int64_t sequences;
  std::int64_t step;
};

// The elements of a (batch, positions, heads, dim) view of a buffer, in order.
Values read(const Buffer& buffer, const Tensor& view, const Sample& sample) {
  const auto size = static_cast<std::int64_t>(size_of(view.dtype()));
  const std::vector<char> raw =
      download(buffer, static_cast<std::size_t>(sample.sequences * buffer.tensor.stride(0) * size));
  const std::int64_t start =
      (static_cast<char*>(view.data()) - static_cast<char*>(buffer.address)) / size;
  Values values;
  for (std::int64_t b = 0; b < std::min(sample.sequences, view.extent(0)); ++b)
    for (std::int64_t p = 0; p < view.extent(1); p += sample.step)
      for (std::int64_t h = 0; h < view.extent(2); ++h)
        for (std::int64_t d = 0; d < view.extent(3); ++d)
          values.push_back(
              element(view.dtype(), raw,
                      start + b * view.stride(0) + p * view.stride(1) + h * view.stride(2) + d));
  return values;
}
Values read_lse(const Buffer& lse, std::int64_t sequences) {
  const std::vector<char> raw = download(lse);
  Values values;
  for (std::int64_t i = 0; i < sequences * lse.tensor.stride(0); ++i)
    values.push_back(element(lse.tensor.dtype(), raw, i));
  return values;
}

// ---- one case on the device

struct Outputs {
  Values out, lse, dq, dk, dv;
};

class Trial {
 public:
  Trial(const Case& c, unsigned seed)
      : c_(c),
        x_(c),
        dx_(c),
        out_(c.dtype, {c.batch, c.queries, c.heads, c.dim}),
        dout_(c.dtype, {c.batch, c.queries, c.heads, c.dim}),
        lse_(accumulator_of(c.dtype), {c.batch, c.heads, c.queries}),
        slopes_(DType::F32, {c.heads}),
        starts_(DType::I32, {c.batch, std::max(c.queries, c.keys)}),
        random_(seed) {
    for (Buffer* buffer : {&x_.first, &x_.second, &dout_}) fill(*buffer);
    options_.scale = 1.0 / std::sqrt(static_cast<double>(c.dim));
    options_.window = c.window;
    options_.key_positions = {.first = c.first_key};
    if (c.all_keys) options_.query_positions = TokenPositions{.first = c.first_key + c.keys};
    std::vector<float> slopes;
    for (std::int64_t h = 0; h < c.heads; ++h)
      slopes.push_back(std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(c.heads)));
    upload(slopes_, slopes.data());
    std::uniform_int_distribution<std::int32_t> length(1,
                                                       static_cast<std::int32_t>(c.keys / 2 + 1));
    for (std::int64_t b = 0; b < c.batch; ++b) {
      std::int32_t start = 0, next = length(random_);
      for (std::int32_t p = 0; p < starts_.tensor.extent(1); ++p) {
        if (p == next) start = p, next = p + length(random_);
        first_key.push_back(start % static_cast<std::int32_t>(c.keys));
      }
    }
    upload(starts_, first_key.data());
    if (c.alibi) options_.alibi_slopes = slopes_.tensor;
    if (c.documents)
      options_.document_start =
          starts_.tensor.part(1, starts_.tensor.extent(1) - c.queries, c.queries);
    slope.assign(slopes.begin(), slopes.end());
  }

  void forward(Attention& attention, Stream stream) {
    attention.forward(out_.tensor, lse_.tensor, x_.q, x_.k, x_.v, options_, stream);
  }
  void backward(Attention& attention, Stream stream) {
    attention.backward(dx_.q, dx_.k, dx_.v, dout_.tensor, out_.tensor, lse_.tensor, x_.q, x_.k,
                       x_.v, options_, stream);
  }
  // Fills the outputs with NaN, so that missing writes are found.
  void poison() {
    for (Buffer* buffer : {&dx_.first, &dx_.second, &out_, &lse_})
      set_bytes(buffer->address, 0xFF, buffer->tensor.bytes(), nullptr);
    synchronize_device();
  }
  std::vector<char> raw_outputs() const {
    std::vector<char> all;
    for (const Buffer* buffer : {&out_, &lse_, &dx_.first, &dx_.second}) {
      const std::vector<char> raw = download(*buffer);
      all.insert(all.end(), raw.begin(), raw.end());
    }
    return all;
  }
  Outputs outputs(const Sample& sample) const {
    return {read(out_, out_.tensor, sample), read_lse(lse_, sample.sequences),
            read(dx_.first, dx_.q, sample), read(dx_.keys(), dx_.k, sample),
            read(dx_.keys(), dx_.v, sample)};
  }
  Outputs reference() const;

 private:
  void fill(Buffer& buffer) {
    // Repeats a million numbers: drawing more would dominate the run time.
    std::normal_distribution<double> normal;
    Values values(
        std::min<std::size_t>(static_cast<std::size_t>(buffer.tensor.elements()), 1000003));
    for (double& value : values) value = normal(random_);
    const std::vector<char> pool = narrowed(c_.dtype, values);
    std::vector<char> raw;
    raw.reserve(buffer.tensor.bytes() + pool.size());
    while (raw.size() < buffer.tensor.bytes()) raw.insert(raw.end(), pool.begin(), pool.end());
    upload(buffer, raw.data());
  }

  Case c_;
  Operands x_, dx_;
  Buffer out_, dout_, lse_, slopes_, starts_;
  AttentionOptions options_;
  std::mt19937 random_;
  Values slope;
  std::vector<std::int32_t> first_key;
};

// Softmax attention row by row from the definition, and its gradient, in float64.
Outputs Trial::reference() const {
  const Sample all{c_.batch, 1};
  const Values q = read(x_.first, x_.q, all), k = read(x_.keys(), x_.k, all);
  const Values v = read(x_.keys(), x_.v, all), dout = read(dout_, dout_.tensor, all);
  const auto at = [&](std::int64_t b, std::int64_t p, std::int64_t h, std::int64_t positions,
                      std::int64_t heads) {
    return static_cast<std::size_t>(((b * positions + p) * heads + h) * c_.dim);
  };
  const auto dot = [&](const double* x, const double* y) {
    double sum = 0;
    for (std::int64_t d = 0; d < c_.dim; ++d) sum += x[d] * y[d];
    return sum;
  };
  const auto add = [&](double* y, double a, const double* x) {
    for (std::int64_t d = 0; d < c_.dim; ++d) y[d] += a * x[d];
  };
  Outputs r{Values(q.size()), {}, Values(q.size()), Values(k.size()), Values(k.size())};
  for (std::int64_t b = 0; b < c_.batch; ++b)
    for (std::int64_t h = 0; h < c_.heads; ++h)
      for (std::int64_t i = 0; i < c_.queries; ++i) {
        const std::int64_t end = c_.end(i), kv = h / (c_.heads / c_.kv_heads),
                           starts = starts_.tensor.extent(1);
        std::int64_t first = 0;
        if (c_.documents)
          first = first_key[static_cast<std::size_t>((b + 1) * starts - c_.queries + i)];
        if (c_.window > 0) first = std::max(first, c_.position(i) - c_.window + 1);
        const std::size_t row = at(b, i, h, c_.queries, c_.heads);
        Values p;
        for (std::int64_t j = first; j < end; ++j)
          p.push_back(
              options_.scale * dot(&q[row], &k[at(b, j, kv, c_.keys, c_.kv_heads)]) +
              (c_.alibi ? slope[static_cast<std::size_t>(h)] * static_cast<double>(c_.first_key + j)
                        : 0));
        const double top = *std::max_element(p.begin(), p.end());
        double total = 0;
        for (double& x : p) total += x = std::exp(x - top);
        r.lse.push_back(top + std::log(total));
        for (std::size_t j = 0; j < p.size(); ++j)
          add(&r.out[row], p[j] /= total,
              &v[at(b, first + static_cast<std::int64_t>(j), kv, c_.keys, c_.kv_heads)]);
        const double delta = dot(&r.out[row], &dout[row]);
        for (std::size_t j = 0; j < p.size(); ++j) {
          const std::size_t key =
              at(b, first + static_cast<std::int64_t>(j), kv, c_.keys, c_.kv_heads);
          const double ds = p[j] * (dot(&dout[row], &v[key]) - delta) * options_.scale;
          add(&r.dv[key], p[j], &dout[row]);
          add(&r.dq[row], ds, &k[key]);
          add(&r.dk[key], ds, &q[row]);
        }
      }
  return r;
}

double relative_error(const Values& found, const Values& expected) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += (found[i] - expected[i]) * (found[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  // The error of gradients that are 0 (a single key) is absolute.
  return std::sqrt(difference / std::max(size, 1e-3 * static_cast<double>(expected.size())));
}

// ---- the checks

struct Kernel {
  const char* name;
  AttentionChoice choice;
  bool deterministic;
};
constexpr Kernel kKernels[] = {{"scalar", AttentionChoice::Scalar, false},
                               {"portable", AttentionChoice::Portable, false},
                               {"cuDNN", AttentionChoice::Fused, false},
                               {"cuDNN determ.", AttentionChoice::Fused, true}};
constexpr std::span<const Kernel> kOwnKernels = std::span(kKernels).first(2),
                                  kMatrixKernels = std::span(kKernels).subspan(1);

class Checks {
 public:
  explicit Checks(std::span<const Kernel> kernels) : kernels_(kernels) {}
  ~Checks() { destroy(stream_); }

  void accuracy(const Case& c);
  void captured(const Case& c);
  void speed(const Case& c);
  int failures() const { return failures_; }

 private:
  Attention& attention(const Kernel& kernel) {
    attention_.set_choice(kernel.choice);
    attention_.set_deterministic(kernel.deterministic);
    return attention_;
  }
  // Runs forward and backward. If cuDNN does not support the case, prints the reason and returns
  // false.
  bool run(Trial& trial, const Case& c, const Kernel& kernel) {
    try {
      trial.poison();
      trial.forward(attention(kernel), stream_);
      trial.backward(attention(kernel), stream_);
      synchronize(stream_);
      return true;
    } catch (const Failure& failure) {
      fmt::print("{:<44} {:<14} {}\n", describe(c), kernel.name, failure.what());
      return false;
    }
  }
  void verdict(bool good) {
    if (!good) ++failures_;
    fmt::print("  {}\n", good ? "ok" : "WRONG");
    std::fflush(stdout);
  }
  double median_ms(const std::function<void()>& work);

  const std::span<const Kernel> kernels_;
  const Stream stream_ = create_stream();
  Attention attention_;
  int failures_ = 0;
  unsigned seed_ = std::random_device{}();
};

void Checks::accuracy(const Case& c) {
  const bool is16 = size_of(c.dtype) == 2;
  const double tolerance = c.dtype == DType::BF16  ? 1e-2
                           : c.dtype == DType::F16 ? 2e-3
                           : c.dtype == DType::F32 ? 1e-5
                                                   : 1e-13;
  const double lse_tolerance = c.dtype == DType::F64 ? 1e-14 : 1e-5;
  Trial trial(c, seed_++);
  const Outputs expected = trial.reference();
  for (const Kernel& kernel : kernels_) {
    if (kernel.choice == AttentionChoice::Fused &&
        (!is16 || (c.queries != c.keys && !c.all_keys) || c.dim % 8 != 0))
      continue;
    if (kernel.choice == AttentionChoice::Scalar && !is16) continue;  // the same as portable
    if (!run(trial, c, kernel)) continue;
    const Outputs found = trial.outputs({c.batch, 1});
    const std::vector<char> bits = trial.raw_outputs();
    bool repeats = run(trial, c, kernel) && bits == trial.raw_outputs();
    const double errors[] = {
        relative_error(found.out, expected.out), relative_error(found.dq, expected.dq),
        relative_error(found.dk, expected.dk), relative_error(found.dv, expected.dv)};
    const double lse_error = relative_error(found.lse, expected.lse);
    fmt::print("{:<44} {:<14} {:8.1e} {:8.1e} {:8.1e} {:8.1e} {:8.1e} {:>4} {:<34}", describe(c),
               kernel.name, errors[0], lse_error, errors[1], errors[2], errors[3],
               repeats ? "yes" : "no", attention_.last_kernel());
    bool good = lse_error <= lse_tolerance;  // false for NaN
    for (const double error : errors) good = good && error <= tolerance;
    const bool must_repeat = kernel.choice != AttentionChoice::Fused || kernel.deterministic;
    verdict(good && (repeats || !must_repeat));
  }
}

// A captured graph must give the same bits as direct calls.
void Checks::captured(const Case& c) {
  for (const Kernel& kernel : kernels_) {
    Trial trial(c, seed_++);
    if (!run(trial, c, {kernel.name, kernel.choice, true})) continue;
    const std::vector<char> bits = trial.raw_outputs();
    trial.poison();
    synchronize_device();
    const std::size_t bytes = attention_.own_bytes();
    begin_capture(stream_);
    trial.forward(attention_, stream_);
    trial.backward(attention_, stream_);
    const Graph graph = end_capture(stream_);
    launch(graph, stream_);
    synchronize(stream_);
    const bool same = bits == trial.raw_outputs();
    fmt::print("{:<44} {:<14} captured graph: {}, {} bytes allocated", describe(c), kernel.name,
               same ? "same bits" : "DIFFERENT RESULTS", attention_.own_bytes() - bytes);
    verdict(same && attention_.own_bytes() == bytes);
    destroy(graph);
  }
}

double Checks::median_ms(const std::function<void()>& work) {
  const Event begin = create_event(), end = create_event();
  const auto once = [&] {
    record(begin, stream_);
    work();
    record(end, stream_);
    synchronize(end);
    return elapsed_ms(begin, end);
  };
  const int repeats = once() > 50 ? 1 : 11;  // one is enough for slow kernels
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(once());
  std::sort(times.begin(), times.end());
  destroy(begin);
  destroy(end);
  return times[times.size() / 2];
}

// Prints times and TFLOP/s (as if there were no window or documents), and the largest
// difference from the results of the first kernel.
void Checks::speed(const Case& c) {
  Trial trial(c, seed_++);
  const double pairs = static_cast<double>(c.queries * c.keys) * (c.all_keys ? 1 : 0.5);
  const double flops = 4.0 * pairs * static_cast<double>(c.batch * c.heads * c.dim);
  std::optional<Outputs> first;
  for (const Kernel& kernel : kernels_) {
    if (!run(trial, c, kernel)) continue;
    const Outputs found = trial.outputs({1, std::max<std::int64_t>(1, c.keys / 500)});
    if (!first) first = found;
    const double forward_ms = median_ms([&] { trial.forward(attention(kernel), stream_); });
    const double backward_ms = median_ms([&] { trial.backward(attention(kernel), stream_); });
    const double error =
        std::max({relative_error(found.out, first->out), relative_error(found.dq, first->dq),
                  relative_error(found.dk, first->dk), relative_error(found.dv, first->dv)});
    fmt::print("{:<44} {:<14} {:8.3f} {:8.3f} {:8.1f} {:8.1f} {:9.1e} {:<34}", describe(c),
               kernel.name, forward_ms, backward_ms, flops / forward_ms * 1e-9,
               2.5 * flops / backward_ms * 1e-9, error, attention_.last_kernel());
    verdict(error <= 1e-2);
  }
  fmt::print("{:<44} memory of attention: {:.1f} MiB\n", "",
             static_cast<double>(attention_.own_bytes()) / (1 << 20));
}

int summary(const Checks& checks) {
  fmt::print("\n{} failures\n", checks.failures());
  return checks.failures() == 0 ? 0 : 1;
}

void print_accuracy_header() {
  fmt::print("{}, cuDNN {}\n\nRelative errors against float64\n", device_at(0).name,
             cudnnGetVersion());
  fmt::print("{:<44} {:<14} {:>8} {:>8} {:>8} {:>8} {:>8} {:>4} kernel of the backward\n", "", "",
             "out", "lse", "dq", "dk", "dv", "rep.");
}

void print_speed_header(const char* first) {
  fmt::print("\nSpeed, and the largest relative difference from our {} kernel\n", first);
  fmt::print("{:<44} {:<14} {:>8} {:>8} {:>8} {:>8} {:>9} kernel of the backward\n", "", "",
             "fwd ms", "bwd ms", "fwd TF/s", "bwd TF/s", "diff.");
}

// What a ring computes: its own keys, those of lower and of higher ranks; and windows.
int check_blocks() {
  constexpr DType kBf16 = DType::BF16, kF16 = DType::F16;
  print_accuracy_header();
  Checks checks(kMatrixKernels);
  for (const Case& c : {
           Case{kBf16, 2, 6, 2, 256, 128, 64, false, false, 0, true},
           Case{kBf16, 2, 4, 4, 128, 256, 128, false, false, 0, true},
           Case{kF16, 1, 4, 2, 384, 384, 128, false, false, 0, true, 640},
           Case{kBf16, 2, 4, 1, 200, 100, 64, false, false, 0, true},
           Case{kBf16, 3, 4, 2, 44, 132, 128, false, false, 0, true},
           Case{kBf16, 2, 4, 2, 100, 50, 80, false, false, 0, true, 50},
           Case{kBf16, 2, 6, 2, 256, 128, 64, false, true, 0, true},
           Case{kBf16, 2, 4, 4, 100, 200, 128, false, true, 0, true},
           Case{kBf16, 2, 4, 4, 256, 128, 64, true, false, 0, true},
           Case{kBf16, 2, 4, 4, 128, 256, 64, true, false, 0, true, 512},
           Case{kBf16, 1, 4, 2, 256, 256, 128, true, false, 0, false, 384},
           Case{kBf16, 2, 4, 4, 512, 512, 128, false, false, 200},
           Case{kBf16, 2, 4, 2, 512, 512, 128, false, false, 128, false, 512},
           Case{kBf16, 1, 4, 2, 1536, 1536, 128, false, false, 300},
       })
    checks.accuracy(c);
  print_speed_header("portable");
  for (const Case& c : {
           Case{kBf16, 1, 32, 8, 16384, 16384, 128},
           Case{kBf16, 1, 32, 8, 16384, 8192, 128, false, false, 0, true},
           Case{kBf16, 1, 32, 8, 8192, 16384, 128, false, false, 0, true},
           Case{kBf16, 1, 32, 32, 16384, 16384, 128},
           Case{kBf16, 1, 32, 32, 16384, 16384, 128, false, false, 4096},
       })
    checks.speed(c);
  return summary(checks);
}

int check_all(bool own) {
  constexpr DType kBf16 = DType::BF16, kF16 = DType::F16, kF32 = DType::F32, kF64 = DType::F64;
  print_accuracy_header();
  Checks checks(own ? kOwnKernels : std::span<const Kernel>(kKernels));
  for (const Case& c : {
           Case{kF64, 2, 4, 2, 70, 70, 20, true, true},
           Case{kF64, 1, 2, 1, 9, 67, 130, true},
           Case{kF64, 1, 2, 2, 40, 40, 256},
           Case{kF32, 2, 6, 2, 130, 130, 64},
           Case{kF32, 1, 3, 3, 131, 131, 100, true, true},
           Case{kF32, 2, 4, 4, 66, 131, 192},
           Case{kF64, 2, 4, 2, 170, 170, 20, true, true, 40},
           Case{kF32, 2, 6, 2, 300, 300, 64, false, false, 65},
           Case{kF32, 2, 4, 4, 66, 231, 192, false, false, 17},
           Case{kF32, 3, 6, 2, 1, 300, 128, true},
           Case{kF16, 2, 4, 2, 256, 256, 64},
           Case{kF16, 1, 4, 4, 200, 200, 128, true},
           Case{kBf16, 2, 5, 5, 65, 65, 20, true},
           Case{kBf16, 2, 6, 2, 5, 200, 64, true, true},
           Case{kBf16, 2, 6, 2, 256, 256, 64},
           Case{kBf16, 2, 4, 4, 256, 256, 128},
           Case{kBf16, 2, 4, 4, 384, 384, 64, true},
           Case{kBf16, 1, 6, 2, 256, 256, 128, true},
           Case{kBf16, 2, 4, 4, 384, 384, 64, false, true},
           Case{kBf16, 2, 6, 2, 256, 256, 128, true, true},
           Case{kBf16, 1, 4, 2, 256, 256, 80},
           Case{kBf16, 1, 4, 4, 256, 256, 96},
           Case{kBf16, 1, 4, 2, 256, 256, 256},
           Case{kBf16, 2, 4, 4, 200, 200, 64},
           Case{kBf16, 2, 6, 2, 130, 130, 64, true},
           Case{kBf16, 2, 4, 2, 333, 333, 128, true, true},
           Case{kBf16, 2, 2, 1, 17, 17, 64},
           Case{kBf16, 3, 2, 2, 2, 2, 64},
           Case{kBf16, 2, 5, 5, 65, 65, 8, true},
           Case{kBf16, 1, 1, 1, 1, 1, 64},
           Case{kBf16, 2, 6, 2, 512, 512, 64, false, false, 100},
           Case{kBf16, 2, 4, 4, 384, 384, 128, false, false, 1},
           Case{kBf16, 2, 4, 4, 333, 333, 128, false, false, 128},
           Case{kBf16, 2, 4, 2, 384, 384, 64, true, false, 129},
           Case{kBf16, 2, 4, 2, 512, 512, 128, false, true, 200},
           Case{kBf16, 2, 6, 2, 333, 333, 128, true, true, 50},
           Case{kBf16, 1, 4, 2, 150, 300, 96, true, false, 100},
           Case{kF16, 1, 4, 2, 333, 333, 256, true, true, 50},
       })
    if (!own || size_of(c.dtype) == 2) checks.accuracy(c);

  fmt::print("\nCUDA graphs (deterministic)\n");
  checks.captured({kBf16, 2, 6, 2, 256, 256, 64});
  checks.captured({kBf16, 2, 4, 4, 200, 200, 128, true, true});

  print_speed_header("scalar");
  for (const Case& c : {
           Case{kBf16, 4, 32, 8, 4096, 4096, 64},
           Case{kBf16, 2, 32, 8, 8192, 8192, 128},
           Case{kBf16, 8, 16, 16, 2048, 2048, 128, true},
           Case{kBf16, 8, 16, 16, 2048, 2048, 128, false, true},
           Case{kBf16, 2, 32, 8, 8192, 8192, 128, false, false, 1024},
       })
    checks.speed(c);
  if (!own)
    for (const Case& c : {
             Case{kBf16, 64, 12, 12, 1024, 1024, 64},
             Case{kBf16, 8, 28, 4, 1024, 1024, 128},
             Case{kBf16, 8, 16, 16, 2048, 2048, 128},
             Case{kBf16, 16, 25, 25, 1000, 1000, 64},
             Case{kBf16, 2, 32, 8, 8192, 8192, 128, false, false, 4096},
         })
      checks.speed(c);
  return summary(checks);
}

}  // namespace
}  // namespace kintsugi::gpu

int main(int count, char** arguments) {
  try {
    const std::string_view which = count > 1 ? arguments[1] : "";
    return which == "blocks" ? kintsugi::gpu::check_blocks()
                             : kintsugi::gpu::check_all(which == "own");
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
