// A library with the interface of RCCL for the ranks of one host, whose GPU memory is host memory.
// Calls run in the order of their stream, on the thread of an emulated HIP runtime. Sums are those
// of comm/reduce.h. WITHOUT_NEW_FUNCTIONS: like RCCL before ROCm 6.0.
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include "comm/reduce.h"
#include "emulator/rocm/rccl_comm.h"
#include "tensor/dtype.h"

#define KINTSUGI_EXPORT extern "C" __attribute__((visibility("default")))

using kintsugi::rccl::Comm;
using kintsugi::rccl::Result;
using Handle = Comm*;
using HostFunction = void(void*);

struct UniqueId {
  char name[128];
};

extern "C" __attribute__((weak)) int hipLaunchHostFunc(void* stream, HostFunction* function,
                                                       void* data);

namespace {

using namespace kintsugi;

// The runtime may have been loaded with its names hidden from other libraries.
decltype(hipLaunchHostFunc)* find_launch() {
  if (hipLaunchHostFunc != nullptr) return hipLaunchHostFunc;
  std::string path;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        const std::string_view name = info->dlpi_name;
        if (name.find("/libamdhip64.so") == std::string_view::npos) return 0;
        *static_cast<std::string*>(found) = name;
        return 1;
      },
      &path);
  void* const library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<decltype(hipLaunchHostFunc)*>(dlsym(library, "hipLaunchHostFunc"));
}

Result refuse(Result result, const std::string& why) {
  rccl::set_last_error(why);
  return result;
}

// ---- communicators by their handles

struct Communicators {
  std::mutex mutex;
  std::map<Handle, std::shared_ptr<Comm>> by_handle;
};

Communicators& communicators() {
  static Communicators* const all = new Communicators;  // outlives every stream
  return *all;
}

std::shared_ptr<Comm> find(Handle handle) {
  const std::lock_guard lock(communicators().mutex);
  const auto found = communicators().by_handle.find(handle);
  return found == communicators().by_handle.end() ? nullptr : found->second;
}

Result forget(Handle handle, bool abort) {
  const std::shared_ptr<Comm> comm = find(handle);
  if (!comm) return refuse(Result::InvalidArgument, "no such communicator");
  if (abort) comm->abort();
  const std::lock_guard lock(communicators().mutex);
  communicators().by_handle.erase(handle);
  return Result::Success;
}

// ---- calls

enum class Kind : std::uint8_t { AllReduce, ReduceScatter, AllGather, Broadcast, Send, Receive };

struct Operation {
  Kind kind;
  const void* from;
  void* to;
  std::size_t count;
  int type, op, peer;  // peer: the root of a broadcast
  std::shared_ptr<Comm> comm;
  void* stream;
};

bool is_message(const Operation& x) { return x.kind == Kind::Send || x.kind == Kind::Receive; }

std::optional<DType> dtype_of(int type) {
  switch (type) {
    case 1:
      return DType::U8;
    case 2:
      return DType::I32;
    case 4:
      return DType::I64;
    case 6:
      return DType::F16;
    case 7:
      return DType::F32;
    case 8:
      return DType::F64;
    case 9:
      return DType::BF16;
    default:
      return std::nullopt;
  }
}

const std::byte* source(const Operation& x) { return static_cast<const std::byte*>(x.from); }
std::byte* destination(const Operation& x) { return static_cast<std::byte*>(x.to); }

// Calls step(first, count) for ranges of elements; each ends with two meetings of the ranks, after
// the slots were written and after they were read.
template <class Write, class Read>
void in_steps(const Operation& x, std::size_t step, Write&& write, Read&& read) {
  for (std::size_t first = 0; first < x.count; first += step) {
    const std::size_t count = std::min(step, x.count - first);
    write(first, count);
    if (!x.comm->meet()) return;
    read(first, count);
    if (!x.comm->meet()) return;
  }
}

void reduce(const Operation& x, std::byte* to, std::size_t offset, std::size_t count, DType dtype) {
  std::vector<const void*> parts;
  for (int rank = 0; rank < x.comm->size(); ++rank) parts.push_back(x.comm->slot(rank) + offset);
  reduce_parts(to, parts, static_cast<std::int64_t>(count), dtype,
               x.op == 2 ? ReduceOp::Max : ReduceOp::Sum);
}

void run_collective(const Operation& x) {
  Comm& comm = *x.comm;
  const DType dtype = *dtype_of(x.type);
  const std::size_t width = size_of(dtype), per_slot = rccl::kSlotBytes / width;
  const auto n = static_cast<std::size_t>(comm.size());
  std::byte *const mine = comm.slot(comm.rank()), *const to = destination(x);
  const std::byte* const from = source(x);
  if (!comm.agree({static_cast<std::uint64_t>(x.kind), x.count, static_cast<std::uint64_t>(x.type),
                   static_cast<std::uint64_t>(x.op), static_cast<std::uint64_t>(x.peer)}))
    return;
  const auto write_own = [&](std::size_t first, std::size_t count) {
    std::memcpy(mine, from + first * width, count * width);
  };
  switch (x.kind) {
    case Kind::AllReduce:
      return in_steps(x, per_slot, write_own, [&](std::size_t first, std::size_t count) {
        reduce(x, to + first * width, 0, count, dtype);
      });
    case Kind::ReduceScatter: {  // a slot has the elements for each rank
      const std::size_t step = per_slot / n;
      return in_steps(
          x, step,
          [&](std::size_t first, std::size_t count) {
            for (std::size_t rank = 0; rank < n; ++rank)
              std::memcpy(mine + rank * step * width, from + (rank * x.count + first) * width,
                          count * width);
          },
          [&](std::size_t first, std::size_t count) {
            reduce(x, to + first * width, static_cast<std::size_t>(comm.rank()) * step * width,
                   count, dtype);
          });
    }
    case Kind::AllGather:
      return in_steps(x, per_slot, write_own, [&](std::size_t first, std::size_t count) {
        for (std::size_t rank = 0; rank < n; ++rank)
          std::memcpy(to + (rank * x.count + first) * width, comm.slot(static_cast<int>(rank)),
                      count * width);
      });
    case Kind::Broadcast:
      return in_steps(
          x, per_slot,
          [&](std::size_t first, std::size_t count) {
            if (comm.rank() == x.peer) write_own(first, count);
          },
          [&](std::size_t first, std::size_t count) {
            std::memcpy(to + first * width, comm.slot(x.peer), count * width);
          });
    case Kind::Send:
    case Kind::Receive:
      return;
  }
}

struct Message {
  const Operation* operation;
  std::size_t bytes, moved = 0;
  bool done() const { return moved == bytes || operation->comm->stopped(); }
  bool same_way(const Message& other) const {
    const Operation &x = *operation, &y = *other.operation;
    return x.comm == y.comm && x.peer == y.peer && x.kind == y.kind;
  }
  bool move() {
    const Operation& x = *operation;
    const std::size_t count = x.kind == Kind::Send
                                  ? x.comm->push(x.peer, {source(x) + moved, bytes - moved})
                                  : x.comm->pull(x.peer, {destination(x) + moved, bytes - moved});
    moved += count;
    return count > 0;
  }
};

// Moves all messages at the same time, those of one direction between two ranks in order.
void run_messages(std::vector<Message> left) {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  auto last_moved = now();
  while (!left.empty()) {
    const Comm& first = *left.front().operation->comm;
    const std::uint32_t seen = first.bell();
    bool moved = false;
    for (std::size_t i = 0; i < left.size(); ++i) {
      const bool blocked = std::any_of(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(i),
                                       [&](const Message& x) { return x.same_way(left[i]); });
      if (!blocked && left[i].move()) moved = true;
    }
    if (moved) {
      last_moved = now();
    } else {
      if (std::chrono::duration<double>(now() - last_moved).count() > rccl::timeout_s())
        for (const Message& x : left)
          x.operation->comm->fail(Result::SystemError, "a message did not come in time");
      first.wait_for_bell(seen);
    }
    std::erase_if(left, [](const Message& x) { return x.done(); });
  }
}

// What a stream runs: the calls of one group, or a single one.
using Batch = std::vector<Operation>;

void run_batch(void* data) {
  const std::unique_ptr<const Batch> batch(static_cast<const Batch*>(data));
  std::vector<Message> messages;
  for (const Operation& x : *batch)
    if (is_message(x)) messages.push_back({&x, x.count * size_of(*dtype_of(x.type))});
  run_messages(std::move(messages));
  for (const Operation& x : *batch)
    if (!is_message(x) && !x.comm->stopped()) run_collective(x);
}

Result launch(std::vector<Operation> operations) {
  static auto* const hip_launch = find_launch();
  if (hip_launch == nullptr)
    return refuse(Result::UnhandledDeviceError, "no HIP runtime is loaded");
  std::map<void*, Batch> by_stream;
  for (Operation& x : operations) by_stream[x.stream].push_back(std::move(x));
  for (auto& [stream, batch] : by_stream) {
    auto queued = std::make_unique<Batch>(std::move(batch));
    if (hip_launch(stream, &run_batch, queued.get()) != 0)
      return refuse(Result::UnhandledDeviceError, "hipLaunchHostFunc failed");
    queued.release();
  }
  return Result::Success;
}

// ---- groups

struct Group {
  int depth = 0;
  std::vector<Operation> operations;
  std::vector<std::shared_ptr<Comm>> joined;
  Result error = Result::Success;
};
thread_local Group t_group;

Result end_group() {
  Group group = std::move(t_group);
  t_group = {};
  // All were announced, so that no order of the calls can make two ranks wait for each other.
  for (const auto& comm : group.joined)
    if (!comm->wait_for_all()) return comm->error();
  if (group.error != Result::Success) return group.error;
  return group.operations.empty() ? Result::Success : launch(std::move(group.operations));
}

Result join(Handle* handle, const std::string& name, int ranks, int rank) {
  try {
    const auto comm = std::make_shared<Comm>(name, ranks, rank);
    {
      const std::lock_guard lock(communicators().mutex);
      communicators().by_handle.emplace(comm.get(), comm);
    }
    *handle = comm.get();
    t_group.joined.push_back(comm);
    return t_group.depth > 0 ? Result::Success : end_group();
  } catch (const Result result) {
    return refuse(result, "a communicator of " + std::to_string(ranks) + " ranks cannot be made");
  }
}

Result call(Kind kind, const void* from, void* to, std::size_t count, int type, int op, int peer,
            Handle handle, void* stream) {
  const auto comm = find(handle);
  Result result = Result::Success;
  if (!comm || !dtype_of(type) || (op != 0 && op != 2) || peer < 0 || peer >= comm->size() ||
      (count > 0 &&
       ((kind != Kind::Receive && from == nullptr) || (kind != Kind::Send && to == nullptr))))
    result = refuse(Result::InvalidArgument, "a call with a wrong argument");
  else if (comm->stopped())
    result = refuse(comm->error(), "a call on a communicator that has failed");
  if (result == Result::Success && count > 0)
    t_group.operations.push_back({kind, from, to, count, type, op, peer, comm, stream});
  if (t_group.depth > 0) {
    if (result != Result::Success) t_group.error = result;
    return result;
  }
  return result == Result::Success ? end_group() : result;
}

}  // namespace

KINTSUGI_EXPORT Result ncclGetVersion(int* version) {
#ifdef WITHOUT_NEW_FUNCTIONS
  *version = 21701;
#else
  *version = 22005;
#endif
  return Result::Success;
}

KINTSUGI_EXPORT const char* ncclGetErrorString(Result result) {
  constexpr const char* kTexts[] = {"no error",
                                    "unhandled cuda error",
                                    "unhandled system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "remote process exited or there was a network error"};
  const auto i = static_cast<std::size_t>(result);
  return i < std::size(kTexts) ? kTexts[i] : "unknown result code";
}

KINTSUGI_EXPORT const char* ncclGetLastError(Handle) { return rccl::last_error(); }

KINTSUGI_EXPORT Result ncclGetUniqueId(UniqueId* id) {
  std::random_device random;
  const std::string name = "/kintsugi-rccl-" + std::to_string(getpid()) + "-" +
                           std::to_string(random()) + "-" + std::to_string(random());
  *id = {};
  std::memcpy(id->name, name.data(), name.size());
  return Result::Success;
}

KINTSUGI_EXPORT Result ncclCommInitRank(Handle* handle, int ranks, UniqueId id, int rank) {
  return join(handle, id.name, ranks, rank);
}

KINTSUGI_EXPORT Result ncclCommDestroy(Handle handle) { return forget(handle, false); }
KINTSUGI_EXPORT Result ncclCommAbort(Handle handle) { return forget(handle, true); }

KINTSUGI_EXPORT Result ncclCommGetAsyncError(Handle handle, Result* error) {
  const auto comm = find(handle);
  if (!comm) return refuse(Result::InvalidArgument, "no such communicator");
  *error = comm->error();
  return Result::Success;
}

KINTSUGI_EXPORT Result ncclCommCount(Handle handle, int* count) {
  const auto comm = find(handle);
  if (!comm) return refuse(Result::InvalidArgument, "no such communicator");
  *count = comm->size();
  return Result::Success;
}

KINTSUGI_EXPORT Result ncclCommUserRank(Handle handle, int* rank) {
  const auto comm = find(handle);
  if (!comm) return refuse(Result::InvalidArgument, "no such communicator");
  *rank = comm->rank();
  return Result::Success;
}

KINTSUGI_EXPORT Result ncclGroupStart() {
  ++t_group.depth;
  return Result::Success;
}

KINTSUGI_EXPORT Result ncclGroupEnd() {
  if (t_group.depth == 0) return refuse(Result::InvalidUsage, "ncclGroupEnd without a start");
  return --t_group.depth > 0 ? Result::Success : end_group();
}

KINTSUGI_EXPORT Result ncclAllReduce(const void* from, void* to, std::size_t count, int type,
                                     int op, Handle comm, void* stream) {
  return call(Kind::AllReduce, from, to, count, type, op, 0, comm, stream);
}

KINTSUGI_EXPORT Result ncclReduceScatter(const void* from, void* to, std::size_t count, int type,
                                         int op, Handle comm, void* stream) {
  return call(Kind::ReduceScatter, from, to, count, type, op, 0, comm, stream);
}

KINTSUGI_EXPORT Result ncclAllGather(const void* from, void* to, std::size_t count, int type,
                                     Handle comm, void* stream) {
  return call(Kind::AllGather, from, to, count, type, 0, 0, comm, stream);
}

KINTSUGI_EXPORT Result ncclBroadcast(const void* from, void* to, std::size_t count, int type,
                                     int root, Handle comm, void* stream) {
  return call(Kind::Broadcast, from, to, count, type, 0, root, comm, stream);
}

KINTSUGI_EXPORT Result ncclSend(const void* from, std::size_t count, int type, int peer,
                                Handle comm, void* stream) {
  return call(Kind::Send, from, nullptr, count, type, 0, peer, comm, stream);
}

KINTSUGI_EXPORT Result ncclRecv(void* to, std::size_t count, int type, int peer, Handle comm,
                                void* stream) {
  return call(Kind::Receive, nullptr, to, count, type, 0, peer, comm, stream);
}

#ifndef WITHOUT_NEW_FUNCTIONS

// `config` is not read.
KINTSUGI_EXPORT Result ncclCommSplit(Handle handle, int color, int key, Handle* split, void*) {
  constexpr int kNoColor = -1;
  *split = nullptr;
  const auto comm = find(handle);
  if (!comm || color < kNoColor) return refuse(Result::InvalidArgument, "a wrong split");
  Comm::Group group;
  if (!comm->split(color, key, group)) return comm->error();
  return color == kNoColor ? Result::Success : join(split, group.name, group.ranks, group.rank);
}

KINTSUGI_EXPORT Result ncclCommRegister(Handle handle, void* address, std::size_t bytes,
                                        void** registered) {
  const auto comm = find(handle);
  if (!comm || address == nullptr || bytes == 0)
    return refuse(Result::InvalidArgument, "wrong memory to register");
  *registered = comm->add_memory();
  return Result::Success;
}

KINTSUGI_EXPORT Result ncclCommDeregister(Handle handle, void* registered) {
  const auto comm = find(handle);
  if (!comm || !comm->remove_memory(registered))
    return refuse(Result::InvalidArgument, "memory that is not registered");
  return Result::Success;
}

#endif
