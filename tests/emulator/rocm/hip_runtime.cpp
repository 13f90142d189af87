// A stand-in for libamdhip64: devices whose memory is the host's, streams that are threads, and
// kernels that the emulator executes. Calls return before their work is done, as HIP's do.
//
// Environment:
//   KINTSUGI_STAND_IN_GPUS    how many devices there are; 8 by default
//   KINTSUGI_STAND_IN_ROCM    the release, "7.0" by default
//   KINTSUGI_STAND_IN_GRAPHS  none: graphs cannot be launched
//   KINTSUGI_STAND_IN_TARGET  what the devices are, "gfx90a:sramecc+:xnack-" by default
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "emulator/device_memory.h"
#include "emulator/executor.h"
#include "emulator/kernels.h"
#include "emulator/rocm/profiled_work.h"

namespace {

namespace emulator = kintsugi::emulator;
using Clock = std::chrono::steady_clock;
using Task = std::function<void()>;

constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100,
              kInvalidDevice = 101, kNotReady = 600, kLaunchFailure = 719, kIllegalState = 401,
              kNotSupported = 801;

std::string setting(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}
int rocm_major() { return std::atoi(setting("KINTSUGI_STAND_IN_ROCM", "7.0").c_str()); }
int device_count() { return std::atoi(setting("KINTSUGI_STAND_IN_GPUS", "8").c_str()); }

// ---- errors: the first of a process stays, as a GPU's context is lost
class Errors {
 public:
  void set(std::string text) {
    const std::lock_guard lock(mutex_);
    if (text_.empty()) text_ = std::move(text);
    failed_ = true;
  }
  int status() const { return failed_ ? kLaunchFailure : kSuccess; }
  const char* text() const { return text_.c_str(); }

 private:
  std::mutex mutex_;
  std::string text_;
  std::atomic<bool> failed_ = false;
};
Errors& errors() {
  static auto* const all = new Errors;
  return *all;
}

// Kernels run one after the other, whatever their streams.
std::mutex& processor() {
  static auto* const one = new std::mutex;
  return *one;
}

// ---- streams
class Stream {
 public:
  Stream() : thread_([this] { work(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void queue(Task task) {
    const std::lock_guard lock(mutex_);
    if (capturing_) {
      recorded_.push_back(std::move(task));
      return;
    }
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.empty() && !busy_; });
  }

  bool capturing() {
    const std::lock_guard lock(mutex_);
    return capturing_;
  }
  bool begin_capture() {
    const std::lock_guard lock(mutex_);
    return !std::exchange(capturing_, true);
  }
  bool end_capture(std::vector<Task>& recorded) {
    const std::lock_guard lock(mutex_);
    recorded = std::exchange(recorded_, {});
    return std::exchange(capturing_, false);
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ended_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      busy_ = true;
      lock.unlock();
      try {
        if (errors().status() == kSuccess) task();
      } catch (const std::exception& error) {
        errors().set(error.what());
      }
      task = nullptr;
      lock.lock();
      busy_ = false;
      if (tasks_.empty()) changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::vector<Task> recorded_;
  bool capturing_ = false, busy_ = false, ended_ = false;
  std::thread thread_;
};

class Streams {
 public:
  Stream* create() {
    const std::lock_guard lock(mutex_);
    return streams_.emplace(new Stream).first->get();
  }
  void destroy(Stream* stream) {
    std::unique_ptr<Stream> last;
    const std::lock_guard lock(mutex_);
    for (auto i = streams_.begin(); i != streams_.end(); ++i)
      if (i->get() == stream) {
        last = std::move(streams_.extract(i).value());
        return;
      }
  }
  void synchronize() {
    const std::lock_guard lock(mutex_);
    for (const auto& stream : streams_) stream->synchronize();
  }

 private:
  std::mutex mutex_;
  std::set<std::unique_ptr<Stream>> streams_;
};
Streams& streams() {
  static auto* const all = new Streams;
  return *all;
}

Stream& stream_of(void* handle) {
  static auto* const standard = streams().create();
  return handle == nullptr ? *standard : *static_cast<Stream*>(handle);
}

int queue(void* stream, Task task) {
  if (errors().status() != kSuccess) return errors().status();
  stream_of(stream).queue(std::move(task));
  return kSuccess;
}

// ---- a profiler that was started before the first call of this library
using kintsugi::stand_in::ProfiledWork;

kintsugi::stand_in::ProfilerTable& profiler() {
  static auto* const table = new kintsugi::stand_in::ProfilerTable;
  return *table;
}
void start_with_profiler() {
  static const bool once = [] {
    if (std::getenv("ROCPROFILER_REGISTER_FORCE_LOAD") == nullptr) return false;
    void* const library = dlopen("librocprofiler-sdk.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return false;
    using Register = int(const char*, std::uint64_t, std::uint64_t, void**, std::uint64_t);
    auto* const give = reinterpret_cast<Register*>(dlsym(library, "rocprofiler_set_api_table"));
    void* table = &profiler();
    return give != nullptr && give("hip", 70'000, 0, &table, 1) == 0;
  }();
  static_cast<void>(once);
}
std::uint64_t steady_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
          .count());
}
int queue(void* stream, ProfiledWork work, Task task) {
  work.queue = &stream_of(stream);
  void* const record = profiler().queued == nullptr || stream_of(stream).capturing()
                           ? nullptr
                           : profiler().queued(work);
  if (record == nullptr) return queue(stream, std::move(task));
  return queue(stream, [record, task = std::move(task)] {
    const std::uint64_t begin_ns = steady_ns();
    task();
    profiler().done(record, begin_ns, steady_ns());
  });
}
// Copies on the device are kernels.
ProfiledWork copy_of(std::size_t bytes, int kind) {
  if (kind == 3) return {.name = "__amd_rocclr_copyBuffer"};
  return {.is_copy = true, .direction = kind + 1, .bytes = bytes};
}

// ---- events
struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t asked = 0, reached = 0;  // records
  Clock::time_point time = {};
  bool timed = true;

  void wait(std::uint64_t record) {
    std::unique_lock lock(mutex);
    const auto over = [&] { return reached >= record || errors().status() != kSuccess; };
    while (
        !changed.wait_for(lock, std::chrono::milliseconds(50), over)) {  // nobody tells of errors
    }
  }
};
// Tasks keep an event that the program has destroyed.
using EventHandle = std::shared_ptr<Event>;
EventHandle& event_of(void* handle) { return *static_cast<EventHandle*>(handle); }

// ---- memory
using emulator::memory;
using Memory = emulator::DeviceMemory;

using Graph = std::vector<Task>;

struct Dim3 {
  unsigned x, y, z;
};

int fill_properties(void* properties, int device, std::size_t bytes, std::size_t architecture) {
  if (device < 0 || device >= device_count()) return kInvalidDevice;
  std::memset(properties, 0, bytes);
  const std::string target = setting("KINTSUGI_STAND_IN_TARGET", "gfx90a:sramecc+:xnack-");
  std::strncpy(static_cast<char*>(properties) + architecture, target.c_str(), 255);
  return kSuccess;
}

}  // namespace

extern "C" {

// ---- errors
const char* hipGetErrorString(int status) {
  switch (status) {
    case kSuccess:
      return "no error";
    case kOutOfMemory:
      return "out of memory";
    case kNoDevice:
      return "no ROCm-capable device is detected";
    case kLaunchFailure:
      return errors().text();
    default:
      return "an error of the stand-in";
  }
}
const char* hipGetErrorName(int status) {
  return status == kSuccess ? "hipSuccess" : "hipErrorOfTheStandIn";
}
int hipGetLastError() { return kSuccess; }

// ---- devices
int hipRuntimeGetVersion(int* version) {
  start_with_profiler();
  int major = 0, minor = 0;
  std::sscanf(setting("KINTSUGI_STAND_IN_ROCM", "7.0").c_str(), "%d.%d", &major, &minor);
  *version = major * 10'000'000 + minor * 100'000;
  return kSuccess;
}
int hipGetDeviceCount(int* count) {
  *count = device_count();
  return *count > 0 ? kSuccess : kNoDevice;
}
int hipDeviceGetName(char* name, int bytes, int) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "emulated AMD Instinct MI250X");
  return kSuccess;
}
int hipDeviceGetUuid(void* uuid, int device) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016x", 0xabc0 + device);
  std::memcpy(uuid, text, 16);
  return kSuccess;
}
int hipDeviceGetPCIBusId(char* text, int bytes, int device) {
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0", 0xc1 + device);
  return kSuccess;
}
int hipDeviceTotalMem(std::size_t* bytes, int) {
  *bytes = Memory::kBytes;
  return kSuccess;
}
int hipDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 59:  // bits of the memory's bus
      *value = 4096;
      return kSuccess;
    case 60:  // its clock, in kHz
      *value = 1'600'000;
      return kSuccess;
    case 63:  // multiprocessors
      *value = 4;
      return kSuccess;
    case 87:  // lanes of a wave
      *value = emulator::kWave;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}
#if defined(KINTSUGI_STAND_IN_ROCM_5)
int hipGetDeviceProperties(void* properties, int device) {
  return fill_properties(properties, device, 792, 396);
}
#else
int hipGetDevicePropertiesR0600(void* properties, int device) {
  return fill_properties(properties, device, 1472, 1160);
}
#endif
int hipSetDevice(int device) {
  return device >= 0 && device < device_count() ? kSuccess : kInvalidDevice;
}
int hipDeviceSynchronize() {
  streams().synchronize();
  return errors().status();
}

// ---- memory
int hipMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = memory().free();
  *total = Memory::kBytes;
  return kSuccess;
}
int hipMalloc(void** address, std::size_t bytes) {
  *address = memory().allocate(bytes);
  return *address != nullptr ? kSuccess : kOutOfMemory;
}
int hipFree(void* address) {
  streams().synchronize();
  memory().release(address);
  return kSuccess;
}
int hipHostMalloc(void** address, std::size_t bytes, unsigned) {
  *address = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *address != nullptr ? kSuccess : kOutOfMemory;
}
int hipHostFree(void* address) {
  std::free(address);
  return kSuccess;
}
int hipHostRegister(void*, std::size_t, unsigned) { return kSuccess; }
int hipHostUnregister(void*) { return kSuccess; }
int hipPointerGetAttributes(void* attributes, const void* address) {
  const bool device = memory().contains(address);
  const bool old = rocm_major() < 6;
  if (old && !device) return kInvalidValue;
  const int kind = device ? (old ? 1 : 2) : 0;
  std::memcpy(attributes, &kind, sizeof(kind));
  return kSuccess;
}
int hipMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind, void* stream) {
  return queue(stream, copy_of(bytes, kind), [=] { std::memmove(to, from, bytes); });
}
int hipMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                     std::size_t row_bytes, std::size_t rows, int kind, void* stream) {
  return queue(stream, copy_of(row_bytes * rows, kind), [=] {
    for (std::size_t row = 0; row < rows; ++row)
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                  static_cast<const std::byte*>(from) + row * from_pitch, row_bytes);
  });
}
int hipMemsetAsync(void* address, int value, std::size_t bytes, void* stream) {
  return queue(stream, {.name = "__amd_rocclr_fillBufferAligned"},
               [=] { std::memset(address, value, bytes); });
}

// ---- streams
int hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 1;
  *greatest = -1;
  return kSuccess;
}
int hipStreamCreateWithPriority(void** stream, unsigned, int) {
  *stream = streams().create();
  return kSuccess;
}
int hipStreamDestroy(void* stream) {
  streams().destroy(static_cast<Stream*>(stream));
  return kSuccess;
}
int hipStreamSynchronize(void* stream) {
  if (stream_of(stream).capturing()) return kIllegalState;
  stream_of(stream).synchronize();
  return errors().status();
}
int hipStreamWaitEvent(void* stream, void* handle, unsigned) {
  const EventHandle event = event_of(handle);
  std::uint64_t record = 0;
  {
    const std::lock_guard lock(event->mutex);
    record = event->asked;
  }
  return queue(stream, [event, record] { event->wait(record); });
}
int hipLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  return queue(stream, [=] { function(data); });
}
// Not HIP's: a kernel of a library, which the processor computes in one piece.
int kintsugi_launch_library_kernel(void* stream, const char* name, void (*function)(void*),
                                   void* data) {
  return queue(stream, {.name = name}, [=] { function(data); });
}

// ---- events
int hipEventCreateWithFlags(void** handle, unsigned flags) {
  auto event = std::make_unique<EventHandle>(std::make_shared<Event>());
  (*event)->timed = (flags & 2u) == 0;
  *handle = event.release();
  return kSuccess;
}
int hipEventDestroy(void* handle) {
  delete static_cast<EventHandle*>(handle);
  return kSuccess;
}
int hipEventRecord(void* handle, void* stream) {
  const EventHandle event = event_of(handle);
  std::uint64_t record = 0;
  {
    const std::lock_guard lock(event->mutex);
    record = ++event->asked;
  }
  return queue(stream, [event, record] {
    const std::lock_guard lock(event->mutex);
    event->reached = std::max(event->reached, record);
    event->time = Clock::now();
    event->changed.notify_all();
  });
}
int hipEventQuery(void* handle) {
  const EventHandle event = event_of(handle);
  const std::lock_guard lock(event->mutex);
  if (errors().status() != kSuccess) return errors().status();
  return event->reached >= event->asked ? kSuccess : kNotReady;
}
int hipEventSynchronize(void* handle) {
  const EventHandle event = event_of(handle);
  event->wait(event->asked);
  return errors().status();
}
int hipEventElapsedTime(float* ms, void* begin, void* end) {
  const EventHandle first = event_of(begin), last = event_of(end);
  if (!first->timed || !last->timed) return kInvalidValue;
  *ms = std::chrono::duration<float, std::milli>(last->time - first->time).count();
  return kSuccess;
}

// ---- graphs
int hipStreamIsCapturing(void* stream, int* status) {
  *status = stream_of(stream).capturing() ? 1 : 0;
  return kSuccess;
}
int hipStreamBeginCapture(void* stream, int) {
  return stream_of(stream).begin_capture() ? kSuccess : kIllegalState;
}
int hipStreamEndCapture(void* stream, void** graph) {
  auto recorded = std::make_unique<Graph>();
  if (!stream_of(stream).end_capture(*recorded)) return kIllegalState;
  *graph = recorded.release();
  return kSuccess;
}
int hipGraphInstantiate(void** executable, void* graph, void**, char*, std::size_t) {
  *executable = new Graph(*static_cast<Graph*>(graph));
  return kSuccess;
}
int hipGraphDestroy(void* graph) {
  delete static_cast<Graph*>(graph);
  return kSuccess;
}
int hipGraphLaunch(void* graph, void* stream) {
  if (setting("KINTSUGI_STAND_IN_GRAPHS", "") == "none") return kNotSupported;
  for (const Task& task : *static_cast<Graph*>(graph))
    if (const int status = queue(stream, task); status != kSuccess) return status;
  return kSuccess;
}
int hipGraphExecDestroy(void* graph) { return hipGraphDestroy(graph); }

// ---- kernels
int hipLaunchKernel(const void* kernel, Dim3 blocks, Dim3 threads, void** arguments,
                    std::size_t shared_bytes, void* stream) {
  if (shared_bytes > 65'536) return kInvalidValue;
  const ProfiledWork work{.function = kernel,
                          .blocks = {blocks.x, blocks.y, blocks.z},
                          .threads = {threads.x, threads.y, threads.z}};
  return queue(stream, work, [=, launch = emulator::announced_launch(kernel, arguments)] {
    const std::lock_guard lock(processor());
    emulator::run({{blocks.x, blocks.y, blocks.z}, {threads.x, threads.y, threads.z}, shared_bytes},
                  launch.body, launch.where);
  });
}
int hipOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, std::size_t) {
  *blocks = 2;
  return kSuccess;
}
void** __hipRegisterFatBinary(const void*) { return nullptr; }
void __hipRegisterFunction(void**, const void*, char*, const char*, unsigned, void*, void*, void*,
                           void*, int*) {}

}  // extern "C"
