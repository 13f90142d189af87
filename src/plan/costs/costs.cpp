#include "plan/costs/costs.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "comm/grid.h"

namespace kintsugi {
namespace {

using Kind = TracedOperation::Kind;

// A smooth maximum of compute and memory time.
double roofline(double compute_s, double memory_s) {
  return std::pow(std::pow(compute_s, 4) + std::pow(memory_s, 4), 0.25);
}

double launched(const GpuSpec& gpu, double kernel_s) { return kernel_s + gpu.launch_us * 1e-6; }

// Efficiency of extents that are not multiples of 64: they leave parts of tiles and cache lines
// unused. Above 32768 only vocabularies are unaligned, and logits are padded in memory.
double alignment(double extent) {
  if (extent > 32768) return 1;
  const auto n = static_cast<std::int64_t>(extent);
  if (n % 64 == 0) return 1;
  if (n % 32 == 0) return 0.97;
  if (n % 16 == 0) return 0.93;
  if (n % 8 == 0) return 0.85;
  return n % 2 == 0 ? 0.55 : 0.4;
}

constexpr double kTile = 128;
constexpr double kFillWaves = 0.3;  // waves of blocks lost at the start and the end of attention
constexpr double kHeadRamp = 32;    // loss of attention with small head dimensions
// This engine's fp8 matmuls relative to gemm_efficiency. On an H200 those of llama-8b and
// qwen2.5-7b with scales per row reach 1,350 to 1,500 TFLOP/s in the forward and 1,180 to 1,240 in
// the backward, which accumulates in full precision: 7 % less, by their time, than predicted
// without this factor.
constexpr double kFp8Speed = 0.93;
// The batched matmuls of unfused attention, whose one dimension is the small head dimension.
double scores_s(const GpuSpec& gpu, const TracedOperation& o, double matmuls) {
  const double pairs =
      static_cast<double>(o.m) * static_cast<double>(o.n) * static_cast<double>(o.k);
  const double dim = static_cast<double>(o.head_dim);
  // Head dimensions that are not multiples of 8 cannot use tensor cores.
  const double aligned = o.head_dim % 8 == 0 ? alignment(dim) : 0.12;
  const double rate =
      gpu.tflops(o.dtype) * 1e12 * gpu.gemm_efficiency * dim / (dim + gpu.gemm_depth) * aligned;
  const double bytes = static_cast<double>(size_of(o.dtype)) * pairs / 2;
  return matmuls *
         roofline(2 * pairs * dim / rate, bytes / (gpu.memory_gb_s * 1e9 * gpu.memory_efficiency));
}

}  // namespace

double matmul_efficiency(const GpuSpec& gpu, double m, double n, double k) {
  const double tiles = std::ceil(m / kTile) * std::ceil(n / kTile);
  const double waves = tiles / static_cast<double>(gpu.multiprocessors);
  const double used = m * n / (tiles * kTile * kTile);  // fraction of the tiles
  return gpu.gemm_efficiency * used * waves / (waves + gpu.gemm_fill) * k / (k + gpu.gemm_depth) *
         std::min({alignment(m), alignment(n), alignment(k)});
}

double matmul_s(const GpuSpec& gpu, const Software& software, const TracedOperation& o) {
  const double m = static_cast<double>(o.m), n = static_cast<double>(o.n),
               k = static_cast<double>(o.k);
  const bool traced_fp8 = o.dtype == DType::F8;  // the conversions are operations of the trace
  const bool converts = !traced_fp8 && software.fp8 && gpu.fp8_tflops > 0;
  const bool fp8 = traced_fp8 || converts;
  const double peak = (fp8 ? gpu.fp8_tflops : gpu.tflops(o.dtype)) * 1e12;
  // Tiles in fp8 are twice as fast and lose twice as much in prologue and epilogue.
  const double depth = fp8 ? k / 2 : k;
  // Grouped matmuls fill the GPU together, each with whole tiles: of an unknown number of rows, the
  // last one is half full.
  const double whole = o.uneven ? std::max(kTile, m + kTile / 2) : std::ceil(m / kTile) * kTile;
  const double of_shape =
      o.groups == 1 ? matmul_efficiency(gpu, m, n, depth)
                    : software.grouped_speed * m / whole *
                          matmul_efficiency(gpu, whole * static_cast<double>(o.groups), n, depth);
  const double efficiency = software.matmul_speed * (traced_fp8 ? kFp8Speed : 1) * of_shape;
  const double compute = o.flops / (peak * efficiency);
  const double moved = o.bytes / (gpu.memory_gb_s * 1e9 * gpu.memory_efficiency);
  double time = launched(gpu, roofline(compute, moved));
  // The left operand is converted to fp8 and also transposed. Weights are converted once per step.
  if (converts)
    time += launched(
        gpu, software.elementwise * 4 * m * k / (gpu.memory_gb_s * 1e9 * gpu.memory_efficiency));
  return time;
}

double attention_s(const GpuSpec& gpu, const Software& software, const TracedOperation& o) {
  const bool forward = o.kind == Kind::AttentionForward;
  if (!software.fused_attention) {
    const double scores = static_cast<double>(size_of(o.dtype)) * static_cast<double>(o.m) *
                          static_cast<double>(o.n) * static_cast<double>(o.k);
    // How often the scores are read or written by masked softmax and dropout.
    const double accesses = forward ? 3.5 : 4.5;
    return scores_s(gpu, o, forward ? 2 : 4) + memory_s(gpu, software, accesses * scores);
  }
  const double dim = static_cast<double>(o.head_dim), keys = static_cast<double>(o.k);
  const double efficiency = software.attention_speed * gpu.attention_efficiency * dim /
                            (dim + kHeadRamp) * (128 + kHeadRamp) / 128 * (forward ? 1 : 0.8) *
                            alignment(dim) * keys / (keys + gpu.attention_depth);
  // One block of 128 queries per multiprocessor.
  const double waves = std::ceil(static_cast<double>(o.n) / 128) * static_cast<double>(o.m) /
                       static_cast<double>(gpu.multiprocessors);
  const double rate = gpu.tflops(o.dtype) * 1e12 * efficiency * waves / (waves + kFillWaves);
  const double moved = o.bytes / (gpu.memory_gb_s * 1e9 * gpu.memory_efficiency);
  return launched(gpu, roofline(o.flops / rate, moved));
}

double memory_s(const GpuSpec& gpu, const Software& software, double bytes) {
  return launched(gpu,
                  software.elementwise * bytes / (gpu.memory_gb_s * 1e9 * gpu.memory_efficiency));
}

std::string_view speed_name(const TracedOperation& o) {
  const auto unaligned = [](std::int64_t extent) { return extent > 32768 && extent % 8 != 0; };
  return o.kind == Kind::Matmul && (unaligned(o.m) || unaligned(o.n) || unaligned(o.k))
             ? "matmul_unaligned"
             : o.name;
}

double operation_s(const GpuSpec& gpu, const Software& software, const TracedOperation& o) {
  const double seconds = o.kind == Kind::Matmul   ? matmul_s(gpu, software, o)
                         : o.kind == Kind::Memory ? memory_s(gpu, software, o.bytes)
                                                  : attention_s(gpu, software, o);
  const double speed = gpu.speed(speed_name(o));
  return speed == 1 ? seconds : launched(gpu, (seconds - gpu.launch_us * 1e-6) / speed);
}

TraceCost& TraceCost::operator+=(const TraceCost& o) {
  total_s += o.total_s;
  matmul_s += o.matmul_s;
  attention_s += o.attention_s;
  memory_s += o.memory_s;
  communication_s += o.communication_s;
  exposed_s += o.exposed_s;
  return *this;
}
TraceCost operator*(double times, const TraceCost& c) {
  return {times * c.total_s,  times * c.matmul_s,        times * c.attention_s,
          times * c.memory_s, times * c.communication_s, times * c.exposed_s};
}

void add_heat(const GpuSpec& gpu, TraceCost& forward, TraceCost& backward) {
  constexpr double kUsualFraction = 0.7;
  const double all_s = forward.total_s + backward.total_s;
  if (gpu.gemm_heat == 0 || all_s <= 0) return;
  const double fraction = (forward.matmul_s + backward.matmul_s) / all_s;
  for (TraceCost* cost : {&forward, &backward}) {
    const double more = gpu.gemm_heat * (fraction - kUsualFraction) * cost->matmul_s;
    cost->matmul_s += more;
    cost->total_s += more;
  }
}

namespace {

// Mean matmul time per tp collective.
double matmul_s_per_collective(const Machine& machine, const Software& software,
                               const OperationTrace& trace) {
  double matmuls = 0, collectives = 0;
  for (const TracedOperation& o : trace.operations) {
    if (o.kind == Kind::Matmul) matmuls += operation_s(machine.gpu, software, o);
    collectives += o.kind == Kind::Collective && o.group == "tp" ? 1 : 0;
  }
  return collectives > 0 ? matmuls / collectives : 0;
}

}  // namespace

TraceCost cost_of(const Machine& machine, const Software& software, const OperationTrace& trace,
                  const LinksOf& links, const OnOperation& on_operation) {
  TraceCost cost;
  const double matmul_time =
      software.hides_tensor > 0 ? matmul_s_per_collective(machine, software, trace) : 0;
  double now = 0, wire = 0;  // when the compute and the communication stream are free
  double host = 0;           // when the host has launched the next operation
  std::map<std::int64_t, double> done;
  for (const TracedOperation& o : trace.operations) {
    double time = 0;
    const double before = now, exposed_before = cost.exposed_s;
    if (o.kind != Kind::Wait)
      host += 1e-6 * (o.kind == Kind::Collective ? software.collective_host_us : software.host_us);
    now = std::max(now, host);
    switch (o.kind) {
      case Kind::Matmul:
        cost.matmul_s += time = operation_s(machine.gpu, software, o);
        break;
      case Kind::AttentionForward:
      case Kind::AttentionBackward:
        cost.attention_s += time = operation_s(machine.gpu, software, o);
        break;
      case Kind::Memory:
        cost.memory_s += time = operation_s(machine.gpu, software, o);
        if (o.host_waits) host = std::max(host, now + time + 1e-6 * software.host_wait_us);
        break;
      case Kind::Collective: {
        // A rank sends while it receives: only the receive counts.
        const bool counts = o.collective != Collective::Send;
        const bool of_experts = o.group == to_string(GroupKind::Experts);
        const bool dispatches = o.collective == Collective::AllToAll && of_experts;
        const double bytes = (dispatches ? software.all_to_all : 1) * o.bytes;
        double busy =
            counts ? software.communication * collective_s(links(o.group), o.collective, bytes) : 0;
        cost.communication_s += busy;
        const bool all_reduce = o.collective == Collective::AllReduce;
        if (o.group == "tp" && !all_reduce && links(o.group).nodes == 1)
          busy -= std::min(software.hides_tensor * busy, matmul_time);
        if (of_experts) busy *= 1 - software.hides_experts;
        wire = std::max(wire, now) + busy;
        done[o.ticket] = wire;
        if (!software.overlaps_tensor && o.group == "tp") {
          cost.exposed_s += wire - now;
          now = wire;
        }
        break;
      }
      case Kind::Wait:
        if (const double end = done[o.ticket]; end > now) {
          cost.exposed_s += end - now;
          now = end;
        }
        break;
    }
    now += time;
    if (on_operation) on_operation(o, now - before - (cost.exposed_s - exposed_before));
  }
  cost.total_s = now;
  return cost;
}

}  // namespace kintsugi
