// A stand-in for librocprofiler-sdk: it records the kernels and copies that the stand-in for HIP's
// runtime executes, if it was started before that. Records arrive later than the work ends, and
// their times are of a clock that is ahead of the steady one, as on a machine that has slept.
//
// Environment: KINTSUGI_STAND_IN_PROFILER, one of
//   6.2       the version and the structures of ROCm 6.2; those of 7.0 by default
//   short     records of kernels have another size
//   clock     records have times of another clock than the library's
//   nameless  no kernel has a name
//   late      HIP was started before the library
//   forbidden the process ends if it loads the library
#include <elf.h>
#include <link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "emulator/rocm/profiled_work.h"

namespace {

using kintsugi::stand_in::ProfiledWork;
using Clock = std::chrono::steady_clock;

constexpr int kSuccess = 0, kLocked = 15, kInvalidArgument = 18, kNotFound = 2;
constexpr std::uint64_t kAhead_ns = 1'000'000'000'000, kWrong_ns = 50'000'000'000;
constexpr auto kDelay = std::chrono::milliseconds(5);

bool mode_is(const char* mode) {
  const char* const value = std::getenv("KINTSUGI_STAND_IN_PROFILER");
  return value != nullptr && std::strcmp(value, mode) == 0;
}
__attribute__((constructor)) void refuse_to_load() {
  if (!mode_is("forbidden")) return;
  std::fprintf(stderr, "librocprofiler-sdk was loaded\n");
  std::_Exit(99);
}

// ---- structures, with their real layouts
struct Id {
  std::uint64_t handle;
};
union UserData {
  std::uint64_t value;
  void* pointer;
};
struct Dim3 {
  std::uint32_t x, y, z;
};
struct AsyncCorrelation {
  std::uint64_t internal;
  UserData external;
};
struct Correlation {
  std::uint64_t internal;
  UserData external;
  std::uint64_t ancestor;
};
struct DispatchInfo {
  std::uint64_t size;
  Id agent, queue;
  std::uint64_t kernel, dispatch;
  std::uint32_t private_segment, group_segment;
  Dim3 workgroup, grid;
  std::uint8_t padding[56];
};
struct Dispatch {
  std::uint64_t size;
  int kind, operation;
  AsyncCorrelation correlation;
  std::uint64_t thread, start, end;
  DispatchInfo info;
};
struct MemoryCopy {
  std::uint64_t size;
  int kind, operation;
  AsyncCorrelation correlation;
  std::uint64_t thread, start, end;
  Id to, from;
  std::uint64_t bytes;
  std::uint64_t to_address, from_address;  // since 7.0
};
static_assert(sizeof(DispatchInfo) == 128 && sizeof(Dispatch) == 184 && sizeof(MemoryCopy) == 96);
struct Header {
  std::uint32_t category, kind;
  void* payload;
};
template <class C>
struct CallbackRecord {
  Id context;
  std::uint64_t thread;
  C correlation;
  int kind, operation, phase;
  void* payload;
};
static_assert(sizeof(CallbackRecord<Correlation>) == 64);
static_assert(sizeof(CallbackRecord<AsyncCorrelation>) == 56);
struct SymbolData {
  std::uint64_t size, kernel, code_object;
  const char* name;
  std::uint64_t object;
  std::uint32_t sizes[7];
};
struct Client {
  const char* name;
  std::uint32_t handle;
};
struct Configuration {
  std::size_t size;
  int (*initialize)(void (*)(Client), void*);
  void (*finalize)(void*);
  void* data;
};
using Configure = Configuration*(std::uint32_t, const char*, std::uint32_t, Client*);
using BufferCallback = void(Id, Id, Header**, std::size_t, void*, std::uint64_t);
template <class C>
using CodeCallback = void(CallbackRecord<C>, UserData*, void*);

// ---- names of the program's kernels: from its table of symbols, as they are not exported
std::map<std::uint64_t, std::string> symbols_of_program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const auto at = [&](std::uint64_t offset) { return bytes.data() + offset; };
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(at(0));
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(at(header.e_shoff));
  std::map<std::uint64_t, std::string> names;
  for (int i = 0; i < header.e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(at(sections[i].sh_offset));
    const char* const text = at(sections[sections[i].sh_link].sh_offset);
    for (std::size_t k = 0; k < sections[i].sh_size / sizeof(Elf64_Sym); ++k)
      if (ELF64_ST_TYPE(symbols[k].st_info) == STT_FUNC)
        names.emplace(symbols[k].st_value, text + symbols[k].st_name);
  }
  return names;
}
std::string name_of(const void* function) {
  static const auto* const names = new auto(symbols_of_program());
  std::uint64_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* result) {
        *static_cast<std::uint64_t*>(result) = info->dlpi_addr;
        return 1;  // the first one is the program
      },
      &base);
  const auto found = names->find(reinterpret_cast<std::uint64_t>(function) - base);
  return found == names->end() ? "" : found->second;
}

// ---- state
struct Record {
  bool is_copy = false;
  Dispatch dispatch = {};
  MemoryCopy copy = {};
  Clock::time_point arrives = {};
  bool done = false;
};
struct State {
  std::mutex mutex;
  int initialized = 0;  // -1: now
  bool sees_runtime = false;
  std::uint64_t contexts = 0;
  std::map<std::uint64_t, bool> active;
  void* code_callback = nullptr;
  void* code_data = nullptr;
  std::uint64_t code_context = 0, buffer_context = 0;
  BufferCallback* buffer_callback = nullptr;
  void* buffer_data = nullptr;
  std::map<int, bool> kinds;                                // that are written to the buffer
  std::map<std::uint64_t, std::vector<UserData>> external;  // by thread
  UserData external_of_main = {};
  std::map<std::string, std::uint64_t> kernels;
  std::uint64_t dispatches = 0;
  std::vector<Record*> records;
};
State& state() {
  static auto* const one = new State;
  return *one;
}
std::uint64_t own_thread() { return static_cast<std::uint64_t>(syscall(SYS_gettid)); }
std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
          .count());
}

template <class C>
void tell_name(std::uint64_t kernel, const std::string& name) {
  SymbolData symbol{.size = sizeof(SymbolData),
                    .kernel = kernel,
                    .code_object = 1,
                    .name = name.c_str(),
                    .object = 0,
                    .sizes = {}};
  const CallbackRecord<C> record{.context = {state().code_context},
                                 .thread = own_thread(),
                                 .correlation = {},
                                 .kind = 10,
                                 .operation = 2,
                                 .phase = 1,
                                 .payload = &symbol};
  UserData data{};
  reinterpret_cast<CodeCallback<C>*>(state().code_callback)(record, &data, state().code_data);
}

// A code object with one kernel is loaded when that is first launched.
std::uint64_t load_kernel(const std::string& name) {
  const auto [known, is_new] = state().kernels.emplace(name, state().kernels.size() + 100);
  if (is_new && state().code_callback != nullptr && state().active[state().code_context] &&
      !mode_is("nameless"))
    mode_is("6.2") ? tell_name<AsyncCorrelation>(known->second, name + ".kd")
                   : tell_name<Correlation>(known->second, name + ".kd");
  return known->second;
}

UserData external_of(std::uint64_t thread) {
  const auto& stack = state().external[thread];
  return stack.empty() ? state().external_of_main : stack.back();
}

void* queued(const ProfiledWork& work) {
  const std::lock_guard lock(state().mutex);
  std::uint64_t kernel = 0;
  if (!work.is_copy)
    kernel = load_kernel(work.name != nullptr ? work.name : name_of(work.function));
  if (!state().active[state().buffer_context] || !state().kinds[work.is_copy ? 10 : 11])
    return nullptr;
  auto* const record = new Record{.is_copy = work.is_copy};
  const std::uint64_t thread = own_thread();
  const AsyncCorrelation correlation{++state().dispatches, external_of(thread)};
  const auto grid = [&](int i) { return work.blocks[i] * work.threads[i]; };
  if (work.is_copy)
    record->copy = {.size = mode_is("6.2") ? offsetof(MemoryCopy, to_address) : sizeof(MemoryCopy),
                    .kind = 10,
                    .operation = work.direction,
                    .correlation = correlation,
                    .thread = thread,
                    .start = 0,
                    .end = 0,
                    .to = {1},
                    .from = {2},
                    .bytes = work.bytes,
                    .to_address = 0,
                    .from_address = 0};
  else
    record->dispatch = {.size = sizeof(Dispatch) - (mode_is("short") ? 8 : 0),
                        .kind = 11,
                        .operation = 2,
                        .correlation = correlation,
                        .thread = thread,
                        .start = 0,
                        .end = 0,
                        .info = {.size = offsetof(DispatchInfo, padding),
                                 .agent = {1},
                                 .queue = {reinterpret_cast<std::uint64_t>(work.queue)},
                                 .kernel = kernel,
                                 .dispatch = state().dispatches,
                                 .private_segment = 0,
                                 .group_segment = 0,
                                 .workgroup = {work.threads[0], work.threads[1], work.threads[2]},
                                 .grid = {grid(0), grid(1), grid(2)},
                                 .padding = {}}};
  state().records.push_back(record);
  return record;
}

void done(void* handle, std::uint64_t begin_ns, std::uint64_t end_ns) {
  const std::lock_guard lock(state().mutex);
  auto& record = *static_cast<Record*>(handle);
  const std::uint64_t ahead = kAhead_ns + (mode_is("clock") ? kWrong_ns : 0);
  record.copy.start = record.dispatch.start = begin_ns + ahead;
  record.copy.end = record.dispatch.end = end_ns + ahead;
  record.arrives = Clock::now() + kDelay;
  record.done = true;
}

std::vector<Record*> take_arrived() {
  const std::lock_guard lock(state().mutex);
  std::vector<Record*> arrived, later;
  for (Record* record : state().records)
    (record->done && record->arrives <= Clock::now() ? arrived : later).push_back(record);
  state().records = later;
  return arrived;
}

bool is_initializing() { return state().initialized < 0; }

}  // namespace

extern "C" {

const char* rocprofiler_get_status_string(int status) {
  return status == kLocked ? "configuration locked" : "an error of the stand-in";
}
int rocprofiler_get_timestamp(std::uint64_t* time) {
  *time = now_ns() + kAhead_ns;
  return kSuccess;
}
int rocprofiler_get_thread_id(std::uint64_t* thread) {
  *thread = own_thread();
  return kSuccess;
}

int rocprofiler_force_configure(Configure* configure) {
  if (state().initialized != 0) return kLocked;
  setenv("ROCPROFILER_REGISTER_FORCE_LOAD", "1", 1);
  state().initialized = -1;
  Client client{"", 1};
  const Configuration* const result =
      configure(mode_is("6.2") ? 400 : 10'000, "stand-in", 0, &client);
  if (result != nullptr && result->initialize != nullptr)
    result->initialize([](Client) {}, result->data);
  state().initialized = 1;
  return kSuccess;
}
int rocprofiler_set_api_table(const char* name, std::uint64_t, std::uint64_t, void** tables,
                              std::uint64_t count) {
  if (std::strcmp(name, "hip") != 0 || count != 1) return kInvalidArgument;
  if (state().initialized == 0) state().initialized = 1;  // nobody can configure it any more
  if (mode_is("late")) return kSuccess;
  *static_cast<kintsugi::stand_in::ProfilerTable*>(*tables) = {&queued, &done};
  return kSuccess;
}

int rocprofiler_create_context(Id* context) {
  if (!is_initializing()) return kLocked;
  context->handle = ++state().contexts;
  return kSuccess;
}
int rocprofiler_start_context(Id context) {
  const std::lock_guard lock(state().mutex);
  if (context.handle == 0 || context.handle > state().contexts) return kNotFound;
  state().active[context.handle] = true;
  return kSuccess;
}
int rocprofiler_stop_context(Id context) {
  const std::lock_guard lock(state().mutex);
  state().active[context.handle] = false;
  return kSuccess;
}
int rocprofiler_configure_callback_tracing_service(Id context, int kind, const std::int32_t*,
                                                   std::size_t, void* callback, void* data) {
  if (!is_initializing()) return kLocked;
  if (kind != 10) return kInvalidArgument;
  state().code_context = context.handle;
  state().code_callback = callback;
  state().code_data = data;
  return kSuccess;
}
int rocprofiler_create_buffer(Id context, std::size_t bytes, std::size_t watermark, int policy,
                              BufferCallback* callback, void* data, Id* buffer) {
  if (!is_initializing()) return kLocked;
  if (watermark > bytes || policy != 2 || context.handle == 0) return kInvalidArgument;
  state().buffer_context = context.handle;
  state().buffer_callback = callback;
  state().buffer_data = data;
  buffer->handle = 300;
  return kSuccess;
}
int rocprofiler_configure_buffer_tracing_service(Id context, int kind, const std::int32_t*,
                                                 std::size_t, Id buffer) {
  if (!is_initializing()) return kLocked;
  if (context.handle != state().buffer_context || buffer.handle != 300) return kInvalidArgument;
  state().kinds[kind] = true;
  return kSuccess;
}
int rocprofiler_flush_buffer(Id buffer) {
  if (buffer.handle != 300) return kNotFound;
  std::vector<Record*> records = take_arrived();
  std::vector<Header> headers;
  for (Record* record : records)
    record->is_copy ? headers.push_back({1, 10, &record->copy})
                    : headers.push_back({1, 11, &record->dispatch});
  std::vector<Header*> pointers;
  for (Header& header : headers) pointers.push_back(&header);
  if (!pointers.empty())
    state().buffer_callback({state().buffer_context}, buffer, pointers.data(), pointers.size(),
                            state().buffer_data, 0);
  for (Record* record : records) delete record;
  return kSuccess;
}

int rocprofiler_push_external_correlation_id(Id context, std::uint64_t thread, UserData id) {
  const std::lock_guard lock(state().mutex);
  if (context.handle != state().buffer_context) return kNotFound;
  state().external[thread].push_back(id);
  if (thread == static_cast<std::uint64_t>(getpid())) state().external_of_main = id;
  return kSuccess;
}
int rocprofiler_pop_external_correlation_id(Id, std::uint64_t thread, UserData* id) {
  const std::lock_guard lock(state().mutex);
  auto& stack = state().external[thread];
  if (stack.empty()) return kSuccess;
  *id = stack.back();
  stack.pop_back();
  if (thread == static_cast<std::uint64_t>(getpid()))
    state().external_of_main = stack.empty() ? UserData{} : stack.back();
  return kSuccess;
}

}  // extern "C"
