// Routers: the choice of experts, its gradient and statistics. A team has a token, whose scores are
// in shared memory. All sums have a fixed order.
#include <algorithm>
#include <cmath>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

namespace kintsugi::gpu {
namespace {

constexpr double kSmallest = 1e-20;  // added to the sum of sigmoids that weights are divided by

// Blocks have as many teams as the numbers of their tokens leave space for, at most 8.
constexpr int kMaxTeams = 8;
constexpr std::size_t kBlockBytes = std::size_t{48} << 10;  // of shared memory, everywhere

int teams_of_block(std::size_t team_bytes, const char* name, const Tensor& logits) {
  const std::size_t most = kBlockBytes / team_bytes;
  KINTSUGI_CHECK(most > 0, "{}: {} experts need more shared memory than there is", name,
                 logits.extent(1));
  return static_cast<int>(std::min<std::size_t>(most, kMaxTeams));
}

template <class A>
__device__ inline A infinity() {
  return static_cast<A>(INFINITY);
}
template <class A>
__device__ inline A log_of(A x) {
  if constexpr (std::is_same_v<A, double>) {
    return log(x);
  } else {
    return logf(x);
  }
}
// For comparisons: a NaN is below all numbers.
template <class A>
__device__ inline A comparable(A x) {
  return x == x ? x : -infinity<A>();
}

// The thread's lane and its team's token.
struct TeamToken {
  __device__ TeamToken()
      : lane(static_cast<int>(threadIdx.x) % kTeam),
        team(static_cast<int>(threadIdx.x) / kTeam),
        token(static_cast<int>(blockIdx.x * (blockDim.x / kTeam)) + team) {}
  int lane, team, token;
};

// The sum of f(i) over [0, count) in every lane.
template <class A, class F>
__device__ inline A team_total(int count, int lane, F&& f) {
  A sum = 0;
  for (int i = lane; i < count; i += kTeam) sum += f(i);
  return warp_sum(sum);
}

// The scores of a token, of which each lane writes its own; returns log Z.
template <class A>
__device__ A find_scores(A* scores, const A* logits, int experts, bool softmax, int lane) {
  A largest = -infinity<A>();
  for (int e = lane; e < experts; e += kTeam) largest = logits[e] > largest ? logits[e] : largest;
  largest = warp_max(largest);
  const A sum = team_total<A>(experts, lane,
                              [&](int e) { return scores[e] = exp_of<A>(logits[e] - largest); });
  for (int e = lane; e < experts; e += kTeam)
    scores[e] = softmax ? scores[e] / sum : A(1) / (A(1) + exp_of<A>(-logits[e]));
  return largest + log_of(sum);
}

// ---- the choice
// A number and its index. The largest number is first, and of equals the first.
template <class A>
struct Ranked {
  A value;
  int index;
  __device__ bool before(const Ranked& other) const {
    return value > other.value || (value == other.value && index < other.index);
  }
};

// The first after `last`, of `count` numbers without NaN. All lanes receive it.
template <class A>
__device__ Ranked<A> next_ranked(const A* values, int count, const Ranked<A>& last, int lane) {
  Ranked<A> best = {-infinity<A>(), count};
  for (int i = lane; i < count; i += kTeam) {
    const Ranked<A> here = {values[i], i};
    if (last.before(here) && here.before(best)) best = here;
  }
#pragma unroll
  for (int offset = kTeam / 2; offset > 0; offset /= 2) {
    const Ranked<A> other = {shuffle_xor(best.value, offset), shuffle_xor(best.index, offset)};
    if (other.before(best)) best = other;
  }
  return best;
}

struct RouteShape {
  int tokens, experts, k, groups, top_groups;
  bool softmax, normalize, even;
  double scale;
};

// Makes the choice scores of experts outside of the best groups -infinity. A lane has a group.
template <class A>
__device__ void keep_best_groups(A* choice, A* sums, const RouteShape& shape, int lane) {
  const int size = shape.experts / shape.groups;
  sync_team();  // the choice scores are complete
  for (int group = lane; group < shape.groups; group += kTeam) {
    const A* const members = choice + group * size;
    A first = members[0], second = -infinity<A>();
    for (int i = 1; i < size; ++i) {
      const A x = members[i];
      second = x > first ? first : x > second ? x : second;
      first = x > first ? x : first;
    }
    sums[group] = comparable(size > 1 ? first + second : first);
  }
  sync_team();
  Ranked<A> last = {infinity<A>(), -1};
  for (int i = 0; i < shape.top_groups; ++i) last = next_ranked(sums, shape.groups, last, lane);
  for (int e = lane; e < shape.experts; e += kTeam)
    if (last.before({sums[e / size], e / size})) choice[e] = -infinity<A>();
}

// Shared memory of a team: scores, choice scores, sums of groups.
template <class A>
std::size_t route_bytes(const RouteShape& shape) {
  return static_cast<std::size_t>(2 * shape.experts + shape.groups) * sizeof(A);
}

template <class A>
__global__ void __launch_bounds__(kMaxTeams* kTeam)
    route_kernel(std::int32_t* ids, A* weights, const A* logits, const A* bias, RouteShape shape) {
  allow_next();
  wait_for_previous();
  const TeamToken at;
  if (at.token >= shape.tokens) return;
  const int experts = shape.experts, k = shape.k, lane = at.lane;
  A* const scores = reinterpret_cast<A*>(dynamic_shared()) + at.team * (2 * experts + shape.groups);
  A* const choice = scores + experts;
  find_scores(scores, logits + static_cast<std::int64_t>(at.token) * experts, experts,
              shape.softmax, lane);
  for (int e = lane; e < experts; e += kTeam)
    choice[e] = comparable(scores[e] + (bias == nullptr ? A(0) : bias[e]));
  if (shape.top_groups < shape.groups) keep_best_groups(choice, choice + experts, shape, lane);
  sync_team();
  // The lane slot % kTeam writes what belongs to a slot.
  std::int32_t* const id = ids + static_cast<std::int64_t>(at.token) * k;
  A* const weight = weights + static_cast<std::int64_t>(at.token) * k;
  A sum = shape.softmax ? A(0) : static_cast<A>(kSmallest);
  Ranked<A> last = {infinity<A>(), -1};
  for (int slot = 0; slot < k; ++slot) {
    if (shape.even)
      last.index = (at.token % experts * k + slot) % experts;
    else
      last = next_ranked(choice, experts, last, lane);
    const A score = scores[last.index];
    sum += score;
    if (lane != slot % kTeam) continue;
    id[slot] = last.index;
    weight[slot] = score;
  }
  const A factor = static_cast<A>(shape.scale) / (shape.normalize ? sum : A(1));
  for (int slot = lane; slot < k; slot += kTeam) weight[slot] *= factor;
}

// ---- its gradient
struct LossShape {
  int length;  // tokens of a sequence
  double z_loss;
};

template <class T>
__global__ void __launch_bounds__(kMaxTeams* kTeam)
    route_backward_kernel(T* dlogits, const Acc<T>* dweights, const std::int32_t* ids,
                          const Acc<T>* logits, const Acc<T>* balances, RouteShape shape,
                          LossShape losses) {
  using A = Acc<T>;
  const TeamToken at;
  if (at.token >= shape.tokens) return;
  const int experts = shape.experts, k = shape.k, lane = at.lane;
  const bool softmax = shape.softmax;
  A* const scores = reinterpret_cast<A*>(dynamic_shared()) + at.team * 2 * experts;
  A* const dscores = scores + experts;
  const std::int64_t first = static_cast<std::int64_t>(at.token) * experts;
  const A log_z = find_scores(scores, logits + first, experts, softmax, lane);
  for (int e = lane; e < experts; e += kTeam) dscores[e] = A(0);
  sync_team();
  // Of the weights.
  const std::int32_t* const id = ids + static_cast<std::int64_t>(at.token) * k;
  const A* const dweight = dweights + static_cast<std::int64_t>(at.token) * k;
  const A sum = team_total<A>(k, lane, [&](int slot) { return scores[id[slot]]; }) +
                (softmax ? A(0) : static_cast<A>(kSmallest));
  const A weighted =
      team_total<A>(k, lane, [&](int slot) { return dweight[slot] * scores[id[slot]]; });
  for (int slot = lane; slot < k; slot += kTeam)
    dscores[id[slot]] = static_cast<A>(shape.scale) *
                        (shape.normalize ? (dweight[slot] - weighted / sum) / sum : dweight[slot]);
  sync_team();
  // Of the probabilities.
  if (balances != nullptr) {
    const A* const balance =
        balances + static_cast<std::int64_t>(at.token / losses.length) * experts;
    const A total = team_total<A>(experts, lane, [&](int e) { return scores[e]; });
    const A mean =
        team_total<A>(experts, lane, [&](int e) { return balance[e] * scores[e] / total; });
    for (int e = lane; e < experts; e += kTeam)
      dscores[e] += softmax ? balance[e] : (balance[e] - mean) / total;
  }
  // Of the logits.
  const A mean = team_total<A>(experts, lane, [&](int e) { return dscores[e] * scores[e]; });
  const A z = static_cast<A>(2 * losses.z_loss) * log_z;
  for (int e = lane; e < experts; e += kTeam) {
    const A slope =
        softmax ? scores[e] * (dscores[e] - mean) : scores[e] * (A(1) - scores[e]) * dscores[e];
    const A probability = softmax || z == A(0) ? scores[e] : exp_of<A>(logits[first + e] - log_z);
    dlogits[first + e] = down<T>(slope + z * probability);
  }
}

// ---- statistics: blocks (chunk of a sequence, sequence) write sums to the workspace, and a second
// kernel adds them up.
constexpr int kChunkTokens = 64;

template <class A>
struct Partials {
  A *probabilities, *squares;  // (chunks, experts), (chunks); a chunk is one of any sequence
  int* counts;                 // (chunks, experts)
};

// Shared memory: counts of the block; scores and sums of each team.
template <class A>
__global__ void __launch_bounds__(kMaxTeams* kTeam)
    statistics_kernel(Partials<A> partials, const std::int32_t* ids, const A* logits, int length,
                      RouteShape shape) {
  KINTSUGI_SHARED(A[32], squares);
  const TeamToken at;
  const int experts = shape.experts, teams = static_cast<int>(blockDim.x) / kTeam,
            thread = static_cast<int>(threadIdx.x), lane = at.lane;
  A* const sums = reinterpret_cast<A*>(dynamic_shared());  // (teams, experts)
  A* const scores = sums + (teams + at.team) * experts;
  int* const counts = reinterpret_cast<int*>(sums + 2 * teams * experts);
  for (int e = thread; e < experts; e += static_cast<int>(blockDim.x)) counts[e] = 0;
  for (int e = lane; e < experts; e += kTeam) sums[at.team * experts + e] = A(0);
  __syncthreads();
  const int in_sequence = static_cast<int>(blockIdx.x) * kChunkTokens;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * length + in_sequence;
  const int tokens = min(kChunkTokens, length - in_sequence);
  A square = 0;
  for (int i = at.team; i < tokens; i += teams) {
    const A log_z =
        find_scores(scores, logits + (first + i) * experts, experts, shape.softmax, lane);
    square += log_z * log_z;
    const A total = team_total<A>(experts, lane, [&](int e) { return scores[e]; });
    for (int e = lane; e < experts; e += kTeam) sums[at.team * experts + e] += scores[e] / total;
    for (int slot = lane; slot < shape.k; slot += kTeam)
      atomicAdd(&counts[ids[(first + i) * shape.k + slot]], 1);
  }
  if (lane == 0) squares[at.team] = square;
  __syncthreads();
  const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  for (int e = thread; e < experts; e += static_cast<int>(blockDim.x)) {
    A sum = 0;
    for (int team = 0; team < teams; ++team) sum += sums[team * experts + e];
    partials.probabilities[chunk * experts + e] = sum;
    partials.counts[chunk * experts + e] = counts[e];
  }
  if (thread != 0) return;
  A sum = 0;
  for (int team = 0; team < teams; ++team) sum += squares[team];
  partials.squares[chunk] = sum;
}

constexpr int kSumGroups = 8;  // of the chunks of a sequence

// Blocks (32 experts, sequence) of 32 x kSumGroups threads.
template <class A>
__global__ void __launch_bounds__(32 * kSumGroups)
    add_statistics_kernel(A* counts, A* probabilities, Partials<A> partials, int chunks,
                          int experts) {
  KINTSUGI_SHARED(A[kSumGroups][32], sums);
  KINTSUGI_SHARED(int[kSumGroups][32], numbers);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int expert = static_cast<int>(blockIdx.x) * 32 + x;
  A sum = 0;
  int number = 0;
  if (expert < experts) {
#pragma unroll 4
    for (int i = y; i < chunks; i += kSumGroups) {
      const std::int64_t from =
          (static_cast<std::int64_t>(blockIdx.y) * chunks + i) * experts + expert;
      sum += partials.probabilities[from];
      number += partials.counts[from];
    }
  }
  sums[y][x] = sum;
  numbers[y][x] = number;
  __syncthreads();
  if (y != 0 || expert >= experts) return;
  for (int group = 1; group < kSumGroups; ++group) {
    sum += sums[group][x];
    number += numbers[group][x];
  }
  const std::int64_t to = static_cast<std::int64_t>(blockIdx.y) * experts + expert;
  counts[to] = static_cast<A>(number);
  probabilities[to] = sum;
}

template <class A>
__global__ void __launch_bounds__(256) add_squares_kernel(A* to, const A* partials, int count) {
  KINTSUGI_SHARED(double[32], shared);
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += 256)
    sum += static_cast<double>(partials[i]);
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) to[0] += static_cast<A>(sum);
}

// One block: there are as many elements as experts of some sequences.
template <class A>
__global__ void __launch_bounds__(1024)
    balance_kernel(A* loss, A* gradient, const A* counts, const A* probabilities, A scale,
                   A gradient_scale, int n) {
  KINTSUGI_SHARED(A[32], shared);
  A sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    sum += counts[i] * probabilities[i];
    gradient[i] = gradient_scale * counts[i];
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0 && loss != nullptr) loss[0] += scale * sum;
}

// ---- launches
RouteShape route_shape(const Tensor& ids, const Tensor& logits, const RouteOptions& options) {
  const std::int64_t tokens = logits.extent(0), experts = logits.extent(1);
  return {.tokens = static_cast<int>(tokens),
          .experts = static_cast<int>(experts),
          .k = static_cast<int>(ids.extent(1)),
          .groups = static_cast<int>(options.groups),
          .top_groups = static_cast<int>(options.top_groups),
          .softmax = options.scores == RouteScores::Softmax,
          .normalize = options.normalize,
          .even = options.even,
          .scale = options.scale};
}

// Calls f.template operator()<A>() with the type of a tensor in accumulator precision.
template <class F>
void visit_accumulator(const Tensor& x, F&& f) {
  if (x.dtype() == DType::F64)
    f.template operator()<double>();
  else
    f.template operator()<float>();
}

}  // namespace

void route(const Context& context, Tensor ids, Tensor weights, Tensor logits, Tensor bias,
           const RouteOptions& options) {
  const RouteShape shape = route_shape(ids, logits, options);
  if (shape.tokens == 0) return;
  visit_accumulator(logits, [&]<class A>() {
    const std::size_t bytes = route_bytes<A>(shape);
    const int teams = teams_of_block(bytes, "route", logits);
    launch_overlapped(context, route_kernel<A>,
                      static_cast<unsigned>(ceil_div(shape.tokens, teams)),
                      static_cast<unsigned>(teams * kTeam), static_cast<std::size_t>(teams) * bytes,
                      data_of<std::int32_t>(ids), data_of<A>(weights), data_of<A>(logits),
                      data_of<A>(bias), shape);
  });
}

void route_backward(const Context& context, Tensor dlogits, Tensor dweights, Tensor ids,
                    Tensor logits, const RouteOptions& options, const RouteLosses& losses) {
  const RouteShape shape = route_shape(ids, logits, options);
  if (shape.tokens == 0) return;
  const LossShape loss = {.length = losses.balance
                                        ? static_cast<int>(shape.tokens / losses.balance.extent(0))
                                        : shape.tokens,
                          .z_loss = losses.z_loss};
  visit_device_float(dlogits.dtype(), [&]<class T>() {
    using A = Acc<T>;
    const std::size_t bytes = static_cast<std::size_t>(2 * shape.experts) * sizeof(A);
    const int teams = teams_of_block(bytes, "route_backward", logits);
    launch_kernel(context.stream, route_backward_kernel<T>,
                  static_cast<unsigned>(ceil_div(shape.tokens, teams)),
                  static_cast<unsigned>(teams * kTeam), static_cast<std::size_t>(teams) * bytes,
                  data_of<T>(dlogits), data_of<A>(dweights), data_of<std::int32_t>(ids),
                  data_of<A>(logits), data_of<A>(losses.balance), shape, loss);
  });
}

void route_statistics(const Context& context, Tensor counts, Tensor probabilities,
                      Tensor squared_log_z, Tensor ids, Tensor logits,
                      const RouteOptions& options) {
  const std::int64_t sequences = counts.extent(0), experts = logits.extent(1),
                     length = logits.extent(0) / sequences;
  if (counts.elements() == 0) return;
  const RouteShape shape = route_shape(ids, logits, options);
  const auto chunks = static_cast<int>(ceil_div<std::int64_t>(length, kChunkTokens)),
             all = chunks * static_cast<int>(sequences);
  visit_accumulator(logits, [&]<class A>() {
    const std::size_t of_counts = static_cast<std::size_t>(experts) * sizeof(int),
                      of_team = static_cast<std::size_t>(2 * experts) * sizeof(A);
    // Counts take less than another team.
    const int teams = teams_of_block(2 * of_team, "route_statistics", logits);
    const std::size_t elements = static_cast<std::size_t>(all) * static_cast<std::size_t>(experts);
    A* const sums =
        context.workspace.get<A>(2 * elements + static_cast<std::size_t>(all), context.stream);
    const Partials<A> partials = {.probabilities = sums,
                                  .squares = sums + 2 * elements,
                                  .counts = reinterpret_cast<int*>(sums + elements)};
    if (chunks > 0)
      launch_kernel(context.stream, statistics_kernel<A>,
                    dim3(static_cast<unsigned>(chunks), static_cast<unsigned>(sequences)),
                    static_cast<unsigned>(teams * kTeam),
                    static_cast<std::size_t>(teams) * of_team + of_counts, partials,
                    data_of<std::int32_t>(ids), data_of<A>(logits), static_cast<int>(length),
                    shape);
    launch_kernel(context.stream, add_statistics_kernel<A>,
                  dim3(static_cast<unsigned>(ceil_div<std::int64_t>(experts, 32)),
                       static_cast<unsigned>(sequences)),
                  dim3(32, kSumGroups), 0, data_of<A>(counts), data_of<A>(probabilities), partials,
                  chunks, shape.experts);
    if (squared_log_z)
      launch_kernel(context.stream, add_squares_kernel<A>, 1, 256, 0, data_of<A>(squared_log_z),
                    partials.squares, all);
  });
}

void balance_loss(const Context& context, Tensor loss, Tensor gradient, Tensor counts,
                  Tensor probabilities, double scale, double gradient_scale) {
  visit_accumulator(counts, [&]<class A>() {
    launch_kernel(context.stream, balance_kernel<A>, 1, 1024, 0, data_of<A>(loss),
                  data_of<A>(gradient), data_of<A>(counts), data_of<A>(probabilities),
                  static_cast<A>(scale), static_cast<A>(gradient_scale),
                  static_cast<int>(counts.elements()));
  });
}

}  // namespace kintsugi::gpu
