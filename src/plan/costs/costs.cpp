#include "plan/costs/costs.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace kintsugi {
namespace {

using Kind = TracedOperation::Kind;

// Both limits at once; a little more than the larger where they meet.
double roofline(double compute_s, double memory_s) {
  return std::pow(std::pow(compute_s, 4) + std::pow(memory_s, 4), 0.25);
}

double launched(const GpuSpec& gpu, double kernel_s) { return kernel_s + gpu.launch_us * 1e-6; }

// Extents that are no multiples of 64 leave parts of tiles and of memory lines unused. Only
// vocabularies are odd and that large, and rows of logits are padded in memory.
double alignment(double extent) {
  if (extent > 32768) return 1;
  const auto whole = static_cast<std::int64_t>(extent);
  if (whole % 64 == 0) return 1;
  if (whole % 32 == 0) return 0.97;
  if (whole % 16 == 0) return 0.93;
  if (whole % 8 == 0) return 0.85;
  return whole % 2 == 0 ? 0.55 : 0.4;
}

constexpr double kTile = 128;
constexpr double kFillWaves = 0.3;  // of tiles, lost at the start and the end of a product
constexpr double kDepth = 200;      // multiply-adds a tile could do while it starts and ends
constexpr double kHeadRamp = 32;    // attention's loss with short heads

// Batched products with one short side, as attention without fusion has them.
double scores_s(const GpuSpec& gpu, const TracedOperation& o, double products) {
  const double pairs =
      static_cast<double>(o.m) * static_cast<double>(o.n) * static_cast<double>(o.k);
  const double dim = static_cast<double>(o.head_dim);
  // Heads that are no multiples of 8 keep tensor cores from it.
  const double aligned = o.head_dim % 8 == 0 ? alignment(dim) : 0.12;
  const double rate =
      gpu.tflops(o.dtype) * 1e12 * gpu.gemm_efficiency * dim / (dim + kDepth) * aligned;
  const double bytes = static_cast<double>(size_of(o.dtype)) * pairs / 2;
  return products *
         roofline(2 * pairs * dim / rate, bytes / (gpu.memory_gb_s * 1e9 * gpu.memory_efficiency));
}

}  // namespace

double matmul_efficiency(const GpuSpec& gpu, double m, double n, double k) {
  const double tiles = std::ceil(m / kTile) * std::ceil(n / kTile);
  const double waves = tiles / static_cast<double>(gpu.multiprocessors);
  const double cut = m * n / (tiles * kTile * kTile);
  return gpu.gemm_efficiency * cut * waves / (waves + kFillWaves) * k / (k + kDepth) *
         std::min({alignment(m), alignment(n), alignment(k)});
}

double matmul_s(const GpuSpec& gpu, const Software& software, const TracedOperation& o) {
  const double m = static_cast<double>(o.m), n = static_cast<double>(o.n),
               k = static_cast<double>(o.k);
  const bool fp8 = software.fp8 && gpu.fp8_tflops > 0;
  const double peak = (fp8 ? gpu.fp8_tflops : gpu.tflops(o.dtype)) * 1e12;
  // Twice as fast tiles lose twice as much where they start and end.
  const double efficiency = software.products * matmul_efficiency(gpu, m, n, fp8 ? k / 2 : k);
  const double compute = o.flops / (peak * efficiency);
  const double moved = o.bytes / (gpu.memory_gb_s * 1e9 * gpu.memory_efficiency);
  double time = launched(gpu, roofline(compute, moved));
  // The left operand is read, written in fp8 and once more turned over; weights keep theirs through
  // a step.
  if (fp8)
    time += launched(
        gpu, software.elementwise * 4 * m * k / (gpu.memory_gb_s * 1e9 * gpu.memory_efficiency));
  return time;
}

double attention_s(const GpuSpec& gpu, const Software& software, const TracedOperation& o) {
  const bool forward = o.kind == Kind::AttentionForward;
  if (!software.fused_attention) {
    const double scores = static_cast<double>(size_of(o.dtype)) * static_cast<double>(o.m) *
                          static_cast<double>(o.n) * static_cast<double>(o.k);
    // Masked softmax and dropout, each read and written, going back with what they kept.
    const double passes = forward ? 3.5 : 4.5;
    return scores_s(gpu, o, forward ? 2 : 4) + memory_s(gpu, software, passes * scores);
  }
  const double dim = static_cast<double>(o.head_dim);
  const double efficiency = software.attention * gpu.attention_efficiency * dim /
                            (dim + kHeadRamp) * (128 + kHeadRamp) / 128 * (forward ? 1 : 0.8) *
                            alignment(dim);
  // A block of queries per multiprocessor.
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

namespace {

// Time of products for each exchange over tensor ranks.
double products_beside_s(const Machine& machine, const Software& software,
                         const OperationTrace& trace) {
  double products = 0, exchanges = 0;
  for (const TracedOperation& o : trace.operations) {
    if (o.kind == Kind::Matmul) products += matmul_s(machine.gpu, software, o);
    exchanges += o.kind == Kind::Collective && o.group == "tp" ? 1 : 0;
  }
  return exchanges > 0 ? products / exchanges : 0;
}

}  // namespace

TraceCost cost_of(const Machine& machine, const Software& software, const OperationTrace& trace,
                  const LinksOf& links) {
  TraceCost cost;
  const double beside = software.hides_tensor > 0 ? products_beside_s(machine, software, trace) : 0;
  double now = 0, wire = 0;  // when each stream is free
  double host = 0;           // when the host has issued what comes next
  std::map<std::int64_t, double> done;
  for (const TracedOperation& o : trace.operations) {
    double time = 0;
    if (o.kind != Kind::Wait)
      host += 1e-6 * (o.kind == Kind::Collective ? software.collective_host_us : software.host_us);
    now = std::max(now, host);
    switch (o.kind) {
      case Kind::Matmul:
        cost.matmul_s += time = matmul_s(machine.gpu, software, o);
        break;
      case Kind::AttentionForward:
      case Kind::AttentionBackward:
        cost.attention_s += time = attention_s(machine.gpu, software, o);
        break;
      case Kind::Memory:
        cost.memory_s += time = memory_s(machine.gpu, software, o.bytes);
        break;
      case Kind::Collective: {
        // A rank sends while it receives: one of the two counts.
        const bool counts = o.transfer != TracedOperation::Transfer::Send;
        double busy =
            counts ? software.communication * collective_s(links(o.group), o.transfer, o.bytes) : 0;
        cost.communication_s += busy;
        const bool whole = o.transfer == TracedOperation::Transfer::AllReduce;
        if (o.group == "tp" && !whole && links(o.group).nodes == 1)
          busy -= std::min(software.hides_tensor * busy, beside);
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
  }
  cost.total_s = now;
  return cost;
}

}  // namespace kintsugi
