// Run under mpirun by ctest (cmake/nccl_tests.cmake): nccl_check <what>. By hand, also: bench.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "backend/gpu/gpu_backend.h"
#include "comm/checked_communicator.h"
#include "comm/grid.h"
#include "comm/lifeline.h"
#include "comm/mpi/mpi_world.h"
#include "comm/nccl/nccl_world.h"
#include "support/collective_cases.h"

namespace kintsugi {
namespace {

// Ranks that share a GPU run in turns, so everything is slow.
double timeout_for(const std::string& what) { return what == "hang" ? 8 : 60; }

struct Gpu {
  Backend& backend;
  NcclWorld& world;
  World& hosts;
};

// GPU memory, allocated once: an allocation may wait for kernels that wait for other ranks.
class Pool {
 public:
  Pool(Backend& backend, std::size_t bytes)
      : backend_(backend), bytes_(bytes), memory_(static_cast<char*>(backend.allocate(bytes))) {}
  ~Pool() {
    backend_.synchronize();
    backend_.release(memory_, bytes_);
  }
  Tensor take(DType dtype, std::int64_t n) {
    const Tensor x(memory_ + used_, dtype, {n});
    used_ += (x.bytes() + 255) / 256 * 256 + 256;
    KINTSUGI_CHECK(used_ <= bytes_, "the pool of {} bytes is exhausted", bytes_);
    return x;
  }
  void empty() { used_ = 0; }

 private:
  Backend& backend_;
  std::size_t bytes_;
  char* memory_;
  std::size_t used_ = 0;
};

// Runs the collective test cases, which use host memory, on the GPU: every call works on copies in
// GPU memory, and wait() copies the results back.
class Staged : public ForwardingCommunicator {
 public:
  Staged(std::unique_ptr<Communicator> inner, Backend& backend)
      : ForwardingCommunicator(std::move(inner)),
        backend_(backend),
        pool_(backend, std::size_t{64} << 20) {}
  Work start(const Call& call) override {
    Call staged = call;
    if (call.kind == Collective::ReduceScatter) {
      staged.source = put(call.source);
      staged.destination = inside(staged.source, call.source, call.destination);
    } else {
      staged.destination = put(call.destination);
      staged.source = inside(staged.destination, call.destination, call.source);
    }
    const Work work = inner_->start(staged);
    pending_.emplace(++tickets_, Pending{work, call.destination, staged.destination});
    return {tickets_};
  }
  void wait(Work work) override {
    const Pending pending = pending_.at(work.ticket);
    pending_.erase(work.ticket);
    inner_->wait(pending.work);
    if (pending.host && pending.host.elements() > 0)
      backend_.download(pending.host.data(), pending.device);
    if (pending_.empty()) pool_.empty();
  }

 private:
  struct Pending {
    Work work;
    Tensor host, device;
  };
  Tensor put(Tensor x) {
    if (x.rank() == 0) return x;  // a message has one tensor
    const Tensor device = pool_.take(x.dtype(), x.elements());
    if (x.elements() > 0) backend_.upload(device, x.data());
    return device;
  }
  // If `part` is inside `whole`, the same range of the copy of `whole`; otherwise a separate copy.
  Tensor inside(Tensor device, Tensor whole, Tensor part) {
    const auto* begin = static_cast<const char*>(whole.data());
    const auto* at = static_cast<const char*>(part.data());
    if (at < begin || at >= begin + whole.bytes()) return put(part);
    return {static_cast<char*>(device.data()) + (at - begin), part.dtype(), part.shape()};
  }

  Backend& backend_;
  Pool pool_;
  std::int64_t tickets_ = 0;
  std::map<std::int64_t, Pending> pending_;
};

void collectives(Gpu& gpu) {
  const int rank = gpu.world.rank();
  Staged ring(gpu.world.split("ring", 0, rank), gpu.backend);
  check_collectives(ring);
  Staged pairs(gpu.world.split("pairs", rank / 2, -rank), gpu.backend);
  check_collectives(pairs);
}

void expect(Backend& backend, Tensor x, float value, const std::string& what) {
  std::vector<float> host(static_cast<std::size_t>(x.elements()));
  backend.download(host.data(), x);
  for (std::size_t i = 0; i < host.size(); ++i)
    if (host[i] != value) failure("{}: element {} is {}, expected {}", what, i, host[i], value);
}

// All groups of a grid reduce at the same time; each element of a sum is the group's size.
void grid(Gpu& gpu) {
  const Grid grid{.tp = 2, .cp = 1, .dp = 2, .pp = gpu.world.size() / 4, .shard_group = 1};
  const Groups groups = make_groups(gpu.world, grid);
  std::vector<Communicator*> all;
  for (const GroupSpec& spec : group_specs()) all.push_back(&groups[spec.kind]);
  Pool pool(gpu.backend, std::size_t{16} << 20);
  constexpr std::int64_t n = 30000;
  const Tensor memory = pool.take(DType::F32, n * std::ssize(all));
  const auto part = [&](std::size_t i) { return memory.rows(static_cast<std::int64_t>(i) * n, n); };
  std::vector<std::shared_ptr<void>> registered;
  for (Communicator* const group : all)
    if (group->size() > 1) registered.push_back(group->register_memory(memory));
  gpu.backend.fill(memory, 1.0);
  std::vector<Communicator::Work> works;
  for (std::size_t i = 0; i < all.size(); ++i) works.push_back(all[i]->all_reduce(part(i)));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i]->wait(works[i]);
    expect(gpu.backend, part(i), static_cast<float>(all[i]->size()),
           "the sum of ones in group " + all[i]->name());
  }
}

// Calls complete in the background, before the caller waits. Hangs if they do not.
void behind(Gpu& gpu) {
  const auto group = gpu.world.split("dp", 0, gpu.world.rank());
  const std::int64_t size = group->size(), n = 10000 * size;
  Pool pool(gpu.backend, std::size_t{16} << 20);
  const Tensor a = pool.take(DType::F32, n), b = pool.take(DType::F32, n * size),
               c = pool.take(DType::F32, n);
  gpu.backend.fill(a, 1.0);
  gpu.backend.fill(b, 1.0);
  const auto first = group->all_reduce(a), second = group->reduce_scatter(c, b);
  while (group->times().finished < 2) std::this_thread::yield();
  group->wait(first);
  group->wait(second);
  expect(gpu.backend, a, static_cast<float>(size), "all_reduce");
  expect(gpu.backend, c, static_cast<float>(size), "reduce_scatter");
  const CommunicationTimes times = group->times();
  const std::int64_t bytes = 2 * 4 * n * (size - 1) / size + 4 * n * (size - 1);
  if (times.bytes != bytes || times.started != 2)
    failure("{} calls with {} bytes, expected 2 with {}", times.started, times.bytes, bytes);
  if (times.waited_s > 0 || times.busy_s <= 0)
    failure("waited {} s of {} s for calls that were complete", times.waited_s, times.busy_s);
}

// Two micro-batches forward and backward. Every receive is posted long before its send: no message
// may wait for another one only because of the order of the calls.
void pipeline(Gpu& gpu) {
  const auto group = gpu.world.split("pp", 0, gpu.world.rank());
  const int rank = group->rank(), last = group->size() - 1;
  constexpr std::int64_t n = 100000;
  Pool pool(gpu.backend, std::size_t{16} << 20);
  struct Messages {
    Tensor forward, back;
    Communicator::Work forward_in, back_in;
  };
  std::vector<Messages> batches(2);
  for (Messages& batch : batches) {
    batch.forward = pool.take(DType::F32, n);
    batch.back = pool.take(DType::F32, n);
    gpu.backend.fill(batch.forward, 1.0);
    gpu.backend.fill(batch.back, 0.0);
    if (rank > 0) batch.forward_in = group->receive(batch.forward, rank - 1);
    if (rank < last) batch.back_in = group->receive(batch.back, rank + 1);
  }
  for (Messages& batch : batches) {
    group->wait(batch.forward_in);
    gpu.backend.add(batch.forward, batch.forward);
    if (rank < last) {
      group->wait(group->send(batch.forward, rank + 1));
      group->wait(batch.back_in);
    } else {
      gpu.backend.copy(batch.back, batch.forward);
    }
    gpu.backend.add(batch.back, batch.back);
    if (rank > 0) group->wait(group->send(batch.back, rank - 1));
  }
  for (const Messages& batch : batches)
    expect(gpu.backend, batch.back, std::ldexp(1.0f, 2 * group->size() - rank), "back");
  // Messages between ranks that were not connected before.
  const auto plain = gpu.world.split("plain", 0, gpu.world.rank());
  if (rank == 0) plain->wait(plain->send(batches[0].back, last));
  if (rank == last) {
    plain->wait(plain->receive(batches[1].forward, 0));
    expect(gpu.backend, batches[1].forward, std::ldexp(1.0f, 2 * group->size()), "plain");
  }
}

// The culprit exits or hangs, while the others wait in a collective that it never calls.
void die(Gpu& gpu, const std::string& how, int culprit) {
  const auto group = gpu.world.split("dp", 0, gpu.world.rank());
  Pool pool(gpu.backend, std::size_t{1} << 20);
  const Tensor x = pool.take(DType::F32, 1000);
  gpu.backend.fill(x, 1.0);
  group->wait(group->all_reduce(x));
  group->barrier();
  if (gpu.world.rank() == culprit) {
    if (how == "throw") failure("the disk is full");
    if (how == "kill") kill(getpid(), SIGKILL);
    if (how == "hang") std::this_thread::sleep_for(std::chrono::seconds(120));
  }
  group->wait(group->all_reduce(x));
  group->barrier();
  std::printf("rank %d got through a barrier that rank %d never reached\n", gpu.world.rank(),
              culprit);
}

// The culprit reduces fewer elements than the others, which NCCL itself may not notice; comm.check
// must report it.
void mismatch(Gpu& gpu, int culprit) {
  CheckedWorld checked(gpu.world, &gpu.hosts);
  const auto group = checked.split("dp", 0, gpu.world.rank());
  Pool pool(gpu.backend, std::size_t{1} << 20);
  const Tensor x = pool.take(DType::F32, 1000);
  gpu.backend.fill(x, 1.0);
  group->wait(group->all_reduce(x));
  group->wait(group->all_reduce(x.rows(0, gpu.world.rank() == culprit ? 999 : 1000)));
  group->barrier();
  std::printf("rank %d got through a barrier in spite of rank %d\n", gpu.world.rank(), culprit);
}

// Not a test: prints the cost of each call on this machine.
void bench(Gpu& gpu) {
  using Clock = std::chrono::steady_clock;
  const auto group = gpu.world.split("world", 0, gpu.world.rank());
  Pool pool(gpu.backend, std::size_t{2} << 30);
  for (const std::int64_t n : {1, 1000, 100000, 4000000, 64000000}) {
    const Tensor full = pool.take(DType::F32, n * group->size()), shard = pool.take(DType::F32, n);
    pool.empty();
    gpu.backend.fill(full, 1.0);
    gpu.backend.fill(shard, 1.0);
    const int repeats = n > 1000000 ? 3 : 30;
    const auto time = [&](const char* what, const auto& call) {
      call();
      group->barrier();
      const auto begin = Clock::now();
      for (int i = 0; i < repeats; ++i) call();
      const double host_s = std::chrono::duration<double>(Clock::now() - begin).count();
      gpu.backend.synchronize();
      const double all_s = std::chrono::duration<double>(Clock::now() - begin).count();
      if (gpu.world.rank() == 0)
        std::printf("%-14s %9ld x %d fp32: %.1f us, of which host %.1f us\n", what,
                    static_cast<long>(n), group->size(), all_s / repeats * 1e6,
                    host_s / repeats * 1e6);
      group->barrier();
    };
    time("all_reduce", [&] { group->wait(group->all_reduce(shard)); });
    time("reduce_scatter", [&] { group->wait(group->reduce_scatter(shard, full)); });
    time("all_gather", [&] { group->wait(group->all_gather(full, shard)); });
  }
}

void run(Gpu& gpu, const std::string& what) {
  if (what == "collectives") return collectives(gpu);
  if (what == "grid") return grid(gpu);
  if (what == "behind") return behind(gpu);
  if (what == "pipeline") return pipeline(gpu);
  if (what == "mismatch") return mismatch(gpu, gpu.world.size() - 1);
  if (what == "bench") return bench(gpu);
  if (what != "throw" && what != "kill" && what != "hang")
    user_error("there is no check '{}'", what);
  die(gpu, what, gpu.world.size() - 1);
}

Lifeline::Callbacks callbacks() {
  return {.on_message =
              [](int rank, const std::string& text) {
                std::printf("rank %d says: %s\n", rank, text.c_str());
              },
          .on_failure =
              [](const RankFailure& failure, const auto&) {
                std::printf("REPORT: %s\n", failure.text.c_str());
                std::fflush(stdout);
              },
          .end = [](const RankFailure& failure) { _exit(failure.exit_code()); }};
}

void run_on_gpu(World& hosts, Lifeline& lifeline, const std::string& what) {
  const auto devices = gpu_devices();
  if (devices.empty()) user_error("this machine has no GPU");
  const Device& device = devices[static_cast<std::size_t>(hosts.local_rank()) % devices.size()];
  const auto backend = make_gpu_backend({.device = device.index});
  NcclWorld world(hosts, *backend,
                  {.timeout_s = timeout_for(what),
                   .share_gpu = true,
                   .register_buffers = true,
                   .message_groups = {"pp", "ring", "pairs"},
                   .on_failure = [&](const RankFailure& failure) {
                     lifeline.fail(failure);
                     _exit(1);
                   }});
  if (world.rank() == 0) std::printf("%s\n", world.description().c_str());
  Gpu gpu{*backend, world, hosts};
  run(gpu, what);
  lifeline.goodbye();
}

// Like the command line: rank 0 reports the failure, and every rank exits.
int check(const std::string& what) {
  try {
    const auto hosts = make_mpi_world();
    Lifeline lifeline(*hosts, callbacks());
    try {
      run_on_gpu(*hosts, lifeline, what);
    } catch (const std::exception& error) {
      const RankFailure failure = failure_of(error, {hosts->rank()});
      lifeline.fail(failure);
      _exit(failure.exit_code());
    }
    if (hosts->rank() == 0) std::printf("%s: passed on %d ranks\n", what.c_str(), hosts->size());
    return 0;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace kintsugi

int main(int argc, char** argv) {
  // mpirun sends SIGTERM when a rank dies, and SIGKILL a second later. Ignoring SIGTERM leaves that
  // second to report the failure; a training run handles SIGTERM.
  signal(SIGTERM, SIG_IGN);
  // There is a stream per group and direction; streams that share a queue would wait for each
  // other.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  // With lazy loading, loading a kernel may wait for a message that itself waits for the kernel.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  return kintsugi::check(argc > 1 ? argv[1] : "");
}
